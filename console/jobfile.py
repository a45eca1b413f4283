"""The file of a job, JSON or YAML: fields as `JobSubmitted` has them, and short ways to say some.

`sizes` is gpus_min and gpus_max; `command`, `environment`, `workdir`, `code`, `code_sha256` and
`outputs` are parts of the program; `deadline` counts from now.
"""

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from console.output import fail
from schemas.parse import Rejected, parse_object, repeated_key
from schemas.values import MAX_MESSAGE_BYTES

#: What the name of a job's file ends in.
ENDINGS = (".json", ".yaml", ".yml")
#: Fields of the program that may be said outside it.
_AS_THEY_ARE = ("workdir", "code", "code_sha256", "outputs")
#: Short ways to say what `JobSubmitted` and `Program` have under other names.
SHORT = ("sizes", "deadline", "command", "environment", *_AS_THEY_ARE)


def read_fields(name: str) -> dict[str, Any]:
    """Read what a file, or standard input (`-`), says, as it says it."""
    try:
        value = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        fail(f"{name}: {error.strerror or error}; name a JSON or YAML file, or - for JSON.")
    if name.endswith(ENDINGS[1:]):
        return _yaml(name, value)
    raw = parse_object(value, MAX_MESSAGE_BYTES)
    if not isinstance(raw, Rejected):
        raw = repeated_key(value, raw) or raw
    if isinstance(raw, Rejected):
        where = f"{name}: {raw.field}" if raw.field else name
        fail(f"{where}: {raw.reason}.")
    return raw


class _OnceEach(yaml.SafeLoader):
    """Refuses what says a key twice: YAML itself would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) != len(node.value):
            seen: set[object] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value!r} is said twice", key.start_mark
                    )
                seen.add(key.value)
        return found


def _yaml(name: str, value: bytes) -> dict[str, Any]:
    if len(value) > MAX_MESSAGE_BYTES:
        fail(f"{name}: is {len(value)} bytes long, the limit is {MAX_MESSAGE_BYTES}.")
    try:
        raw = yaml.load(value, _OnceEach)  # noqa: S506 - a SafeLoader that refuses more
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" line {mark.line + 1}, column {mark.column + 1}:"
        why = getattr(error, "problem", None) or str(error)
        fail(f"{name}:{where} {' '.join(why.split())}.")
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        fail(f"{name}: holds no fields of a job, such as `command: [python3, train.py]`.")
    return raw


def spelled_out(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Give the fields with all that was said in short under its full name, but for `deadline`."""
    fields = {key: said for key, said in raw.items() if key not in SHORT or key == "deadline"}
    if "sizes" in raw:
        _once(name, raw, "sizes", "gpus_min", "gpus_max")
        fields["gpus_min"], fields["gpus_max"] = _sizes(name, raw["sizes"])
    if "deadline" in raw:
        _once(name, raw, "deadline", "deadline_s")
        fields["deadline"] = str(raw["deadline"])
    program = _program(name, raw)
    if program:
        said = raw.get("program", {})
        if not isinstance(said, dict):
            fail(f"{name}: program: must have fields, such as argv.")
        if twice := sorted(program.keys() & said.keys()):
            fail(f"{name}: program.{twice[0]}: is said twice; leave out one of the two.")
        if "argv" not in program and "argv" not in said:
            fail(f"{name}: command: is missing; it is what the workers run.")
        fields["program"] = {**said, **program}
    return fields


def _once(name: str, raw: dict[str, Any], short: str, *full: str) -> None:
    for other in full:
        if other in raw:
            fail(f"{name}: {other}: is said by {short}, too; leave out one of the two.")


def _program(name: str, raw: dict[str, Any]) -> dict[str, Any]:
    program: dict[str, Any] = {}
    if "command" in raw:
        command = raw["command"]
        if isinstance(command, str):
            command = ["sh", "-c", command]
        if not isinstance(command, list) or not command:
            fail(f"{name}: command: must be a list of words, or one line for the shell.")
        program["argv"] = [_text(name, f"command[{n}]", word) for n, word in enumerate(command)]
    program |= {field: raw[field] for field in _AS_THEY_ARE if field in raw}
    if "environment" in raw:
        said = raw["environment"]
        if not isinstance(said, dict):
            fail(f"{name}: environment: must have variables, such as `LEVEL: debug`.")
        env, secrets = {}, {}
        for variable, value in said.items():
            where = f"environment.{variable}"
            if isinstance(value, dict):
                if list(value) != ["secret"] or not isinstance(value["secret"], str):
                    fail(f"{name}: {where}: must be a text, or {{secret: NAME}}.")
                secrets[str(variable)] = value["secret"]
            else:
                env[str(variable)] = _text(name, where, value)
        program |= {"env": env} if env else {}
        program |= {"secrets": secrets} if secrets else {}
    return program


def _text(name: str, where: str, value: object) -> str:
    """Take a number as it is written; what YAML reads as something else must be quoted."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        fail(f"{name}: {where}: is read as {value!r}, and must be a text; put quotes around it.")
    return str(value)


def _sizes(name: str, said: object) -> tuple[Any, Any]:
    if isinstance(said, int) and not isinstance(said, bool):
        return said, said
    low, dots, high = str(said).partition("..")
    if not (low.isdecimal() and (not dots or high.isdecimal())):
        fail(f"{name}: sizes: {said!r} is no size; write 4, or 1..8 for any size from 1 to 8.")
    return int(low), int(high if dots else low)
