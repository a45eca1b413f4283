"""The file of a job, JSON or YAML: fields as `JobSubmitted` has them, and short ways to say some.

`sizes` is gpus_min and gpus_max, and `rates` may be `1=120,2=220`; `command`, `environment`,
`workdir`, `code`, `code_sha256` and `outputs` are parts of the program; `deadline` counts from now.
"""

import contextlib
import difflib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from explain.job_yaml import load
from explain.moments import seconds_of
from schemas.events import JobSubmitted
from schemas.parse import Rejected, parse_object, repeated_key, said_of, shown
from schemas.programs import Program, wrong_workdir
from schemas.values import MAX_MESSAGE_BYTES

#: Fields of the program that may be said outside it.
_AS_THEY_ARE = ("workdir", "code", "code_sha256", "outputs")
#: Short ways to say what `JobSubmitted` and `Program` have under other names.
_SHORT = ("sizes", "deadline", "command", "environment", *_AS_THEY_ARE)
#: Fields whose numbers are texts.
_TEXTS = {
    *("job", "tenant", "model", "command", "argv", "environment", "env", "secrets", "image"),
    *_AS_THEY_ARE,
}
#: Of fields that no job has, so many are named: to find what was meant takes a while for each.
_UNKNOWN_MOST = 20
#: The most that a field of sizes takes.
GPUS_MAX = 65_536
#: The model of a job that was given none: it has no kin to learn its length from.
NO_MODEL = "unnamed"


class WrongFile(ValueError):
    """What is wrong with a job's file: sentences, each of which may follow its name."""

    def __init__(self, *lines: str, fields: Mapping[str, Any] | None = None) -> None:
        """Take what is wrong, and the fields of which nothing wrong is known so far."""
        super().__init__(" ".join(lines))
        self.lines, self.fields = lines, dict(fields or {})


def read(value: bytes, *, is_yaml: bool) -> dict[str, Any]:
    """Give a file's fields under their full names; `deadline` stays as it is written.

    Raises:
        WrongFile: It cannot be read, or says what no job has: all of that at once. What it leaves
            out, and whether its values are good, is not looked at.
    """
    return fields_of(_yaml(value) if is_yaml else _json(value))


def fields_of(raw: dict[str, Any]) -> dict[str, Any]:
    """Give fields under their full names, as `read` does.

    Raises:
        WrongFile: They say what no job has.
    """
    ours, theirs = JobSubmitted.model_fields.keys(), Program.model_fields.keys()
    program = raw.get("program")
    inner = {str(key) for key in program} if isinstance(program, dict) else set()
    unknown = [
        *sorted(raw.keys() - ours - set(_SHORT)),
        *(f"program.{key}" for key in sorted(inner - theirs)),
    ]
    known = [*ours, *_SHORT, *(f"program.{key}" for key in theirs)]
    wrong = [_unknown(field, known) for field in unknown[:_UNKNOWN_MOST]]
    if more := len(unknown) - len(wrong):
        wrong.append(f"{more} more are no fields of a job.")
    good = {key: said for key, said in raw.items() if key in ours or key in _SHORT}
    if program is None:
        good.pop("program", None)  # null is none, as if it were left out
    if isinstance(program, dict):
        good["program"] = {key: said for key, said in program.items() if key in theirs}
    fields = _spelled_out(good, wrong)
    if wrong:
        raise WrongFile(*wrong, fields=fields)
    return fields


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Give the fields of both; where both say something, the one above counts.

    Raises:
        WrongFile: Something is said of a program, and not what it runs.
    """
    fields = below | above
    if "program" in fields:
        fields["program"] = below.get("program", {}) | above.get("program", {})
        if "argv" not in fields["program"]:
            raise WrongFile("command: is missing; it is what the workers run.")
    return fields


def complete(fields: dict[str, Any]) -> None:
    """Add what need not be said: a command is taken to be as fast as it has GPUs."""
    fields.setdefault("job", f"job-{secrets.token_hex(4)}")
    fields.setdefault("model", NO_MODEL)
    fields.setdefault("samples_per_step", 1.0)
    most = fields.get("gpus_max", fields.get("gpus_min", 1))
    guessed = "program" in fields and "rates" not in fields
    if guessed and isinstance(most, int) and 0 < most <= GPUS_MAX:
        sizes = [2**power for power in range(most.bit_length()) if 2**power < most]
        fields["rates"] = [{"gpus": n, "samples_per_s": float(n)} for n in (*sizes, most)]
    rates = fields.get("rates")
    if isinstance(rates, list) and rates and all(isinstance(point, dict) for point in rates):
        fields.setdefault("gpus_min", rates[0].get("gpus"))
        fields.setdefault("gpus_max", rates[-1].get("gpus"))


def wrong_values(fields: dict[str, Any]) -> list[str]:
    """Say which values are none that their fields can have, each in a sentence."""
    try:
        JobSubmitted.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False)
        wrong = [said_of(one) for one in found if one["loc"] and one["type"] != "missing"]
        return [f"{one.field}: {one.reason}." for one in wrong]
    return []


def all_wrong(error: WrongFile) -> list[str]:
    """Say what is wrong with a file, and with the values of the fields that could be read."""
    late = no_time(error.fields.get("deadline"))
    return [*error.lines, *wrong_values(error.fields), *no_workdir(error.fields), *late]


def no_time(text: str | None, where: str = "deadline") -> list[str]:
    """Say what is wrong with a length of time, as `where` says it, if there is one and it is."""
    try:
        if text is not None:
            after_s(text, where)
    except ValueError as error:
        return [f"{error}"]
    return []


def no_workdir(fields: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with where a program begins."""
    program = fields.get("program")
    said = program.get("workdir") if isinstance(program, dict) else None
    wrong = wrong_workdir(said) if isinstance(said, str) else ""
    return [f"program.workdir: {wrong}."] if wrong else []


def after_s(text: str, where: str) -> float:
    """Read in how many seconds from now it must be done, as `where` says it.

    Raises:
        ValueError: That is no length of time, or a number without a unit.
    """
    bare = text.strip()
    if bare.replace(".", "", 1).isdecimal():
        raise ValueError(f"{where}: {bare} has no unit; say {bare}s, {bare}m or {bare}h.")
    try:
        return seconds_of(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}; write 90m, 2h or 1h30m, counted from now.") from None


def sizes_of(text: str) -> tuple[int, int]:
    """Read a size, or the smallest and the largest: `4`, `1..8`.

    Raises:
        ValueError: It is none.
    """
    low, dots, high = text.partition("..")
    try:
        return count_of(low), count_of(high if dots else low)
    except ValueError:
        raise ValueError(
            f"{shown(text)} is no size; write 4, or 1..8 for any size from 1 to 8."
        ) from None


def rates_of(text: str) -> list[dict[str, float]]:
    """Read how fast it is at some sizes: `1=120,2=220`.

    Raises:
        ValueError: That says it of none.
    """
    points = []
    for part in text.split(","):
        size, _, rate = part.partition("=")
        try:
            points.append({"gpus": count_of(size.strip()), "samples_per_s": float(rate)})
        except ValueError:
            raise ValueError(
                f"{shown(part)} is no rate; write GPUs=samples per second, as in 1=120,2=220."
            ) from None
    return sorted(points, key=lambda point: point["gpus"])


def count_of(text: str) -> int:
    """Read a count; `int` would take more forms, of any length.

    Raises:
        ValueError: It is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise ValueError(text)
    return int(text)


def _json(value: bytes) -> dict[str, Any]:
    raw = parse_object(value, MAX_MESSAGE_BYTES)
    if not isinstance(raw, Rejected):
        raw = repeated_key(value, raw) or raw
    if isinstance(raw, Rejected):
        raise WrongFile(f"{raw.field}: {raw.reason}." if raw.field else f"{raw.reason}.")
    return raw


def _yaml(value: bytes) -> dict[str, Any]:
    if len(value) > MAX_MESSAGE_BYTES:
        raise WrongFile(f"is {len(value)} bytes long, the limit is {MAX_MESSAGE_BYTES}.")
    try:
        raw = load(value, _TEXTS)
    except ValueError as error:
        raise WrongFile(f"{error}.") from None
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise WrongFile("holds no fields of a job, such as `command: [python3, train.py]`.")
    return raw


def _unknown(field: str, known: list[str]) -> str:
    # What is said on the wrong level is near, too.
    last = {one.rpartition(".")[2]: one for one in reversed(known)}
    near = difflib.get_close_matches(field.rpartition(".")[2], last, n=1)
    meant = f"did you mean {last[near[0]]}? " if near else ""
    return f"{field[:64]!r} is no field of a job; {meant}docs/jobs.md has a whole file."


@contextlib.contextmanager
def _noted(wrong: list[str], field: str = "") -> Iterator[None]:
    """Note what is wrong, of a field that the error does not name, and go on after it."""
    try:
        yield
    except WrongFile as error:
        wrong += error.lines
    except ValueError as error:
        wrong.append(f"{field}: {error}")


def _spelled_out(raw: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
    fields = {key: said for key, said in raw.items() if key not in _SHORT}
    if "sizes" in raw:
        with _noted(wrong, "sizes"):
            _once(raw, "sizes", "gpus_min", "gpus_max")
            said = raw["sizes"]
            sizes = sizes_of(said if isinstance(said, str) else shown(said))
            fields["gpus_min"], fields["gpus_max"] = sizes
    if isinstance(raw.get("rates"), str):
        text = fields.pop("rates")
        with _noted(wrong, "rates"):
            fields["rates"] = rates_of(text)
    if "deadline" in raw:
        with _noted(wrong):
            _once(raw, "deadline", "deadline_s")
            fields["deadline"] = _text("deadline", raw["deadline"])
    program = _program(raw, wrong)
    if program:
        said = fields.pop("program", {})
        with _noted(wrong):
            if not isinstance(said, dict):
                raise WrongFile("program: must have fields, such as argv.")
            if twice := sorted(program.keys() & said.keys()):
                raise WrongFile(f"program.{twice[0]}: is said twice; leave out one of the two.")
            fields["program"] = {**said, **program}
    return fields


def _once(raw: dict[str, Any], short: str, *full: str) -> None:
    for other in full:
        if other in raw:
            raise WrongFile(f"{other}: is said by {short}, too; leave out one of the two.")


def _program(raw: dict[str, Any], wrong: list[str]) -> dict[str, Any]:
    program: dict[str, Any] = {}
    if "command" in raw:
        command = raw["command"]
        if isinstance(command, str):
            command = ["sh", "-c", command]
        with _noted(wrong):
            if not isinstance(command, list) or not command:
                raise WrongFile("command: must be a list of words, or one line for the shell.")
            program["argv"] = []
            for n, word in enumerate(command):
                program["argv"].append("?")  # what is wrong is said once
                with _noted(wrong):
                    program["argv"][n] = _text(f"command[{n}]", word)
    program |= {field: raw[field] for field in _AS_THEY_ARE if field in raw}
    if "environment" in raw:
        with _noted(wrong):
            program |= _environment(raw["environment"], wrong)
    return program


def _environment(said: object, wrong: list[str]) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise WrongFile("environment: must have variables, such as `LEVEL: debug`.")
    env, secrets = {}, {}
    for variable, value in said.items():
        where = f"environment.{variable}"
        with _noted(wrong):
            if not isinstance(variable, str):  # to YAML, NO is false
                read_as = f"the name is read as {shown(variable)}, and must be a text"
                raise WrongFile(f"{where}: {read_as}; put quotes around it.")
            if isinstance(value, dict):
                if list(value) != ["secret"] or not isinstance(value["secret"], str):
                    raise WrongFile(f"{where}: must be a text, or {{secret: NAME}}.")
                secrets[variable] = value["secret"]
            else:
                env[variable] = _text(where, value)
    return {**({"env": env} if env else {}), **({"secrets": secrets} if secrets else {})}


def _text(where: str, value: object) -> str:
    """Take a number as it is written; what YAML reads as something else must be quoted."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongFile(
            f"{where}: is read as {shown(value)}, and must be a text; put quotes around it."
        )
    return str(value)
