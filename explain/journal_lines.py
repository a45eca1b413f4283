"""Journal lines in words: what happened, to whom, when after the beginning of the log."""

from collections.abc import Mapping
from typing import Any

from explain.wording import Wording, reason_from
from scheduler.story import Line, subject_of
from schemas.journal import MISSHAPEN

#: The most characters of one field.
_FIELD_MAX = 70
_MARKS = {"event": "heard", "fact": "fact", "command": "command", "reason": "because"}


def after(at_s: float, begin_s: float) -> str:
    """Write a moment as time since the beginning: `+6:30:12.5`."""
    tenths = round((at_s - begin_s) * 10)
    sign, tenths = ("-", -tenths) if tenths < 0 else ("+", tenths)
    minutes, rest = divmod(tenths, 600)
    second = f"{rest // 10:02d}" + (f".{rest % 10}" if rest % 10 else "")
    return f"{sign}{minutes // 60}:{minutes % 60:02d}:{second}"


def told(line: Line, begin_s: float, subject: str | None = None) -> str:
    """Write a line of a story; what it says of `subject` itself is left out."""
    mark = _MARKS[line.kind]
    try:
        words = _words(line, begin_s, subject)
    except MISSHAPEN:
        words = _short(line.fields)
    return f"{after(line.at_s, begin_s):>11}  {mark:<8} {words}"


def _words(line: Line, begin_s: float, subject: str | None) -> str:
    if line.kind == "reason":
        about = str(line.fields["subject"])
        who = "" if about == subject else f"{about} "
        return f"{who}{line.fields['verb']}: {sentence(line.fields, begin_s)} ({line.name})"
    if line.kind == "command":
        said = fields(line.fields["data"], begin_s, subject)
        return f"{line.name} to {line.fields['agent']} as {line.fields['command']} {said}".rstrip()
    return f"{line.name} {fields(line.fields, begin_s, subject)}".rstrip()


def sentence(reason: Mapping[str, Any], begin_s: float) -> str:
    """Say a reason in words; one that is not as expected, as it stands."""
    try:
        return Wording(begin_s).sentence(reason_from(reason))
    except MISSHAPEN:
        return _short(reason)


def fields(values: Mapping[str, Any], begin_s: float, subject: str | None = None) -> str:
    """Write fields as `name=value`; moments as time since the beginning."""
    parts = []
    for name, value in values.items():
        if value in (None, "", [], {}) or value == subject:
            continue
        if name in ("spec", "rates"):
            continue  # long, and the same in every line that has them
        if name in ("allocation", "placement"):
            parts.append(_allocation(value))
        elif name.endswith("_s") and isinstance(value, float) and value > begin_s > 1e6:
            parts.append(f"{name}={after(value, begin_s)}")
        elif isinstance(value, float):
            parts.append(f"{name}={value:.6g}")
        else:
            parts.append(f"{name}={_short(value)}")
    return " ".join(parts)


def _allocation(value: Any) -> str:
    """Write placements, a mapping in facts and a list in commands, as `on node[0,1]`."""
    if isinstance(value, list):
        value = {part["node"]: part["gpus"] for part in value}
    allocation = (f"{node}[{','.join(map(str, gpus))}]" for node, gpus in value.items())
    return _short("on " + " ".join(allocation))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _FIELD_MAX else text[: _FIELD_MAX - 1] + "…"


def decision_lines(
    number: int,
    at_s: float,
    stimulus: Mapping[str, Any],
    decision: Mapping[str, Any],
    begin_s: float,
) -> list[str]:
    """Write one entry of the journal: the stimulus, and what was decided on it.

    A decision that is not as schedulers write them is written as it stands.
    """
    if "error" in decision:
        return [f"{number}: {decision['error']}"]
    try:
        return _decision_lines(number, at_s, stimulus, decision, begin_s)
    except MISSHAPEN:
        return [f"{number}  {after(at_s, begin_s)}", f"    {_short(decision)}"]


def _decision_lines(
    number: int,
    at_s: float,
    stimulus: Mapping[str, Any],
    decision: Mapping[str, Any],
    begin_s: float,
) -> list[str]:
    said = fields(stimulus["data"], begin_s)
    lines = [f"{number}  {after(at_s, begin_s)}  {stimulus['kind']} {said}".rstrip()]
    for reason in decision["reasons"]:
        line = Line(number, at_s, "reason", reason["rule"], reason)
        lines.append("    " + _words(line, begin_s, None))
    for name, values in decision["facts"]:
        if name == "JobExplained":
            continue
        line = Line(number, at_s, "fact", name, values)
        if name == "CommandIssued":
            line = Line(number, at_s, "command", values["kind"], values)
        about = subject_of(values)
        who = f"{about} " if about else ""
        lines.append(f"    {who}{_words(line, begin_s, about)}")
    return lines


def line_document(line: Line, begin_s: float) -> dict[str, Any]:
    """Give a line with JSON types only."""
    return {
        "number": line.number,
        "at_s": line.at_s,
        "after_s": line.at_s - begin_s,
        "kind": line.kind,
        "name": line.name,
        "fields": line.fields,
    }
