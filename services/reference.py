"""Writes docs/configuration.md, from the comments at the sections' keys, and docs/metrics.md.

python -m services.reference            write them
python -m services.reference --check    exit 1 if one is not what the code says
"""

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from schemas.pages import DOCS, keep
from services.config import Config, keys_of, section_of
from services.metrics import ALL, METRICS

PAGE = DOCS / "configuration.md"
METRICS_PAGE = DOCS / "metrics.md"
_HEAD = """\
# Configuration

Made by `python -m services.reference` from the sections in `services`; change it there. Every role
reads the same file, `tidegate scheduler --config tidegate.toml`, and takes of it what is its own:

```toml
cell = "default"

[kafka]
bootstrap = "broker-1:9092,broker-2:9092"

[agent.schedule]
telemetry_every_s = 30
```

The environment goes before the file, and flags before both: `kafka.namespace` is also
`TIDEGATE_KAFKA__NAMESPACE=plant` and `--set kafka.namespace=plant`. `tidegate config` takes the
same file and flags and prints what is in force, secrets hidden. A key that is not here is an error.
A name that ends in `_s` holds seconds.
"""
_METRICS_HEAD = """\
# Metrics

Made by `python -m services.reference` from the table in `services/metrics.py`; change it there.
Each role answers Prometheus at `/metrics` ([ports](deploy.md#deploying-tidegate)), with those of
its process besides. A histogram has `_bucket`, `_sum` and `_count`. The alerts on these
figures, and what to do about each, are in [deploy.md](deploy.md#what-to-watch).

| metric | kind | labels | of | meaning |
|---|---|---|---|---|
"""
_NUMBERS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
#: Where sections are written.
_OURS = ("bus", "cloud_agent", "runtime", "scheduler", "services")
_NO_BOUND = 1e9  #: Only keeps out what is no number of seconds.


def page() -> str:
    """Give the text of the page."""
    schema = Config.model_json_schema()
    return _HEAD + "".join(_section("", Config, schema, schema))


def _section(name: str, kind: type, schema: Any, whole: Any) -> Iterator[str]:
    """Give the table of a section, then those of the sections within."""
    about = (inspect.getdoc(kind) or "").partition("\n")[0].partition("`: ")
    heading = f"`[{name}]`" if name else "Top level"
    yield f"\n## {heading}\n\n"
    yield f"{about[2][:1].upper()}{about[2][1:]}\n\n" if about[2] else ""
    head = "| key | type | default | meaning |\n|---|---|---|---|\n"
    said = meanings(kind)
    within = []
    own_first = sorted(keys_of(kind).items(), key=lambda item: item[0] not in kind.__annotations__)
    for key, inner in own_first:
        at = schema["properties"][key]
        nested = section_of(inner)
        if nested is not None:
            full = f"{name}.{key}".removeprefix(".")
            full = f"[{full}]" if "items" in at else full  # one of many: [[agent.load.server]]
            by_name = at.get("patternProperties", {}).values()
            full = f"{full}.NAME" if by_name else full  # one of many: [trusted_gateways.NAME]
            places = (at, at.get("items", {}), *by_name, *at.get("anyOf", ()))
            (ref,) = [one["$ref"] for one in places if "$ref" in one]
            within.append((full, nested, whole["$defs"][ref.rsplit("/", 1)[-1]]))
            continue
        cells = (f"`{key}`", _type(at), _default(kind, key, at), said.get(key, ""))
        yield head
        head = ""
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
    for part in within:
        yield from _section(*part, whole)


def meanings(kind: type) -> dict[str, str]:
    """Give by key the `#:` comment before it, or behind it; of parents too."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.partition(".")[0] not in _OURS:
            continue
        source = textwrap.dedent(inspect.getsource(one))
        lines = source.splitlines()
        for item in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                first = item.lineno - 1
                while lines[first - 1].strip().startswith("#:"):
                    first -= 1
                behind = lines[item.lineno - 1].partition("  #:")[2]
                words = [line.strip()[2:].strip() for line in lines[first : item.lineno - 1]]
                words += [behind.strip()] if behind else []
                found[item.target.id] = " ".join(words)
    return found


def _type(at: Any) -> str:
    """Say in words what a value must be."""
    if "anyOf" in at:
        return " or ".join(_type(one) for one in at["anyOf"] if one.get("type") != "null")
    if "enum" in at or "const" in at:
        return ", ".join(f"`{json.dumps(one)}`" for one in at.get("enum", [at.get("const")]))
    kind: str = at["type"]
    if kind in ("integer", "number"):
        bounds = [
            f"{word} {at[key]:g}"
            for key, word in _NUMBERS.items()
            if at.get(key, _NO_BOUND) < _NO_BOUND
        ]
        return ", ".join([kind, *bounds])
    if kind == "array":
        if at["items"].get("type") != "string":
            return "list of [second, GPUs]"
        return "list of names" if "pattern" in at["items"] else "list of strings"
    if kind == "string":
        words = {"password": "secret string", "path": "path", "date-time": "date and time"}
        return words.get(at.get("format"), "string")
    if kind == "object" and at.get("additionalProperties") is True:
        return "table"
    return {"object": "table of strings", "boolean": "true or false"}[kind]


def _default(kind: type, key: str, at: Any) -> str:
    default = at.get("default")
    if at.get("writeOnly") and issubclass(kind, BaseModel):  # the schema would hide it
        default = kind.model_fields[key].default.get_secret_value()
    if default is None or default in ("", [], {}):
        return "none"
    return f"`{json.dumps(default)}`"


def metrics() -> str:
    """Give the text of the page of metrics."""
    rows = [_METRICS_HEAD]
    for name, what in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in what.labels)
        roles = "all" if what.roles == ALL else ", ".join(what.roles)
        rows.append(f"| `{name}` | {what.kind} | {labels} | {roles} | {what.help} |\n")
    return "".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say whether they are as they should be."""
    return keep("services.reference", {PAGE: page(), METRICS_PAGE: metrics()}, arguments)


if __name__ == "__main__":
    sys.exit(main())
