"""Hypothesis strategies of every payload, drawn from the models' own JSON Schema.

A new type is covered at once; only rules across fields are said again here, in `_agree`.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from schemas.values import Strict


def payloads(payload: type[Strict]) -> SearchStrategy[Any]:
    """Valid instances of one payload class."""
    schema = payload.model_json_schema()
    raw = _drawn(schema, schema.get("$defs", {}))
    return raw.map(lambda data: payload.model_validate(_agree(data)))


def json_values() -> SearchStrategy[Any]:
    """Any JSON value that survives a round trip."""
    plain = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8)
    )
    return st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
        max_leaves=6,
    )


def _drawn(schema: dict[str, Any], defs: dict[str, Any]) -> SearchStrategy[Any]:
    if "$ref" in schema:
        return _drawn(defs[schema["$ref"].rsplit("/", 1)[-1]], defs)
    if "anyOf" in schema:
        return st.one_of([_drawn(part, defs) for part in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            high = schema["maximum"] if "maximum" in schema else schema["exclusiveMaximum"] - 1
            return st.integers(schema["minimum"], high)
        case "number":
            return st.floats(
                schema.get("minimum", schema.get("exclusiveMinimum")),
                schema["maximum"],
                exclude_min="exclusiveMinimum" in schema,
            )
        case "string" if schema.get("pattern", "").startswith(r"^[^\x00]"):
            characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
            most = min(20, schema["maxLength"])
            return st.text(characters, min_size=schema.get("minLength", 0), max_size=most)
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"].removesuffix("$"), fullmatch=True)
        case "string":
            # Text over the wire has no lone surrogates.
            characters = st.characters(exclude_categories=["Cs"])
            return st.text(characters, max_size=min(20, schema["maxLength"]))
        case "array":
            return st.lists(
                _drawn(schema["items"], defs),
                min_size=schema.get("minItems", 0),
                max_size=min(4, schema["maxItems"]),
                unique=schema.get("uniqueItems", False),
            )
        case "object" if "properties" in schema:
            fields = {name: _drawn(part, defs) for name, part in schema["properties"].items()}
            required = set(schema.get("required", ()))
            return st.fixed_dictionaries(
                {name: fields[name] for name in fields if name in required},
                optional={name: fields[name] for name in fields if name not in required},
            )
        case "object" if "patternProperties" in schema:
            ((pattern, values),) = schema["patternProperties"].items()
            names = _drawn({"type": "string", "pattern": pattern}, defs)
            least = schema.get("minProperties", 0)
            return st.dictionaries(names, _drawn(values, defs), min_size=least, max_size=3)
        case "object":
            known = schema.get("additionalProperties")
            values = _drawn(known, defs) if isinstance(known, dict) else json_values()
            return st.dictionaries(st.text(max_size=8), values, max_size=3)
        case other:
            raise AssertionError(f"no strategy for {other}")


def _agree(data: dict[str, Any]) -> dict[str, Any]:
    """Make the fields agree with each other, where the models ask for it."""
    if "rates" in data:
        _ascend(data["rates"])
    if "spec" in data:
        _ascend(data["spec"]["rates"])
    for holder in (data, data.get("spec", {})):
        if holder.get("program"):
            _can_be_run(holder["program"])
    if "gpus_min" in data:
        data["gpus_min"] = min(data["gpus_min"], data["rates"][0]["gpus"])
        if data.get("gpus") is not None:
            data["gpus"] = data["gpus_min"]
        data["gpus_max"] = max(data["gpus_max"], data["rates"][0]["gpus"])
    if "placement" in data:
        data["placement"] = list({part["node"]: part for part in data["placement"]}.values())
    if "checkpoint_step" in data:
        data["checkpoint_step"] = min(data["checkpoint_step"], data["step"])
    if "gpu_utilisation" in data:
        lists = [name for name in data if name.startswith("gpu_")]
        shortest = min(len(data[name]) for name in lists)
        data |= {name: data[name][:shortest] for name in lists}
    if "held" in data:
        data["held"] = data["held"][: data["gpu_count"]]
        for index, gang in enumerate(data["held"]):
            gang["gpus"] = [index]
    return data


def _can_be_run(program: dict[str, Any]) -> None:
    program["argv"][0] = program["argv"][0] or "command"
    if program.get("code"):
        program |= {"code": "s3://code/a.zip", "workdir": None}
    else:
        program["code_sha256"] = None
    program["outputs"] = [
        f"plots/{number}-*.png" for number, _ in enumerate(program.get("outputs", ()))
    ]


def _ascend(rates: list[dict[str, Any]]) -> None:
    by_size = {point["gpus"]: point for point in rates}
    rates[:] = [by_size[size] for size in sorted(by_size)]
