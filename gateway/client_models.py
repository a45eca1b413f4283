"""Writes tidegate_client/models.py and parts.py from the API's document: no field is written twice.

python -m gateway.client_models            write them
python -m gateway.client_models --check    exit 1 if they are not what the document says

A client meets gateways of other releases: what it does not know it ignores, words of a closed set
are plain strings to it, and what may be null may be missing.
"""

import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway import openapi
from schemas.pages import keep

_FOLDER = Path(__file__).resolve().parents[1] / "tidegate_client"
_HEAD = '''"""{what} Written by `python -m gateway.client_models`; do not edit.

Moments are in seconds since the Unix epoch, in the log's own time.
"""

from __future__ import annotations

'''
_ANSWERED = '''from typing import Any

from pydantic import BaseModel, ConfigDict


class Answered(BaseModel):
    """Of gateways of later releases, what is not known here is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)
'''
#: What the client reads; what these are made of comes with them.
_READ = (
    "Overview", "RulesAnswer", "JobAnswer", "WhyInWords", "StaysAnswer", "PiecesAnswer", "NodeRow",
    "LoansAnswer", "LoanHistoryAnswer", "CurvesAnswer", "Decided", "Act", "AgentRow",
)  # fmt: skip
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def texts() -> dict[Path, str]:
    """Give the modules: what is answered, and what answers are made of."""
    schemas: dict[str, Any] = json.loads(openapi.text())["components"]["schemas"]
    known: set[str] = set()
    _reach(schemas, list(_READ), known)
    classes = {name: _class(name, schemas[name], known) for name in sorted(known)}
    parts = [text for name, text in classes.items() if name not in _READ]
    answers = [classes[name] for name in classes if name in _READ]
    used = [name for name in classes if name not in _READ
            and re.search(rf"\b{name}\b", "\n".join(answers))]  # fmt: skip
    names = "".join(f"    {name},\n" for name in sorted([*used, "Answered"]))
    imports = f"from typing import Any\n\nfrom tidegate_client.parts import (\n{names})\n"
    head = _HEAD.format(what="What the API answers.") + imports
    begin = _HEAD.format(what="What the API's answers are made of.") + _ANSWERED
    return {
        _FOLDER / "models.py": "\n\n".join((head, *answers)),
        _FOLDER / "parts.py": "\n\n".join((begin, *parts)),
    }


def _reach(schemas: Mapping[str, Any], names: list[str], known: set[str]) -> None:
    """Add models, and those that they are made of."""
    for name in names:
        if name not in known and "properties" in schemas[name]:
            known.add(name)
            within = re.findall(r'schemas/(\w+)"', json.dumps(schemas[name]))
            _reach(schemas, within, known)


def _class(name: str, schema: Mapping[str, Any], known: set[str]) -> str:
    said = " ".join(schema.get("description", name).split("\n\n")[0].split())
    lines = textwrap.wrap(f'"""{said}"""', 95)
    fields = schema["properties"]
    needed = set(schema.get("required", ()))
    body = [_field(one, fields[one], known, needed=one in needed) for one in fields]
    return "\n".join(
        [f"class {name}(Answered):", *(f"    {line}" for line in lines), "", *body, ""]
    )


def _field(name: str, schema: Mapping[str, Any], known: set[str], *, needed: bool) -> str:
    kind = _type(schema, known)
    if kind.endswith("| None") or kind == "Any":
        return f"    {name}: {kind} = None"
    if needed:
        return f"    {name}: {kind}"
    if "default" in schema:
        return f"    {name}: {kind} = {schema['default']!r}".replace("'", '"')
    return f"    {name}: {kind} | None = None"


def _type(schema: Mapping[str, Any], known: set[str]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name if name in known else "str"
    if "anyOf" in schema:
        kinds = dict.fromkeys(_type(one, known) for one in schema["anyOf"])
        if "Any" in kinds:
            return "Any"
        return " | ".join(
            [*(one for one in kinds if one != "None"), *(["None"] * ("None" in kinds))]
        )
    if "prefixItems" in schema:
        return f"tuple[{', '.join(_type(one, known) for one in schema['prefixItems'])}]"
    kind = schema.get("type")
    if kind == "null":
        return "None"
    if kind == "array":
        return f"list[{_type(schema.get('items', {}), known)}]"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"dict[str, {_type(inner, known) if isinstance(inner, dict) else 'Any'}]"
    return _PLAIN.get(str(kind), "Any")


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say whether they are as they should be."""
    return keep("gateway.client_models", texts(), arguments)


if __name__ == "__main__":
    sys.exit(main())
