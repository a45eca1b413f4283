"""The document of `why` as text, laid out from it alone, for people who may see it in part.

Whoever looked through the document, and put other names into it, has them in the text too.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from explain.moments import day_clock, duration
from explain.wording import WORTH, Wording, lost_title, tells_worth
from explain.work import work_of

#: Lines of the history that are shown, the newest.
_LINES_MOST = 16


def plain_why(document: Mapping[str, Any], width: int) -> str:
    """Lay out a document of `why`, so many columns wide.

    Args:
        document: As `explain.documents.WhyDocument` has it, of plain values.
        width: Columns.
    """
    lines: list[str] = []
    for line in _lines(document):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(line, width, subsequent_indent=indent) or [""]
    return "\n".join(lines) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    now_s, origin_s = document["now_s"], document["origin_s"]
    wording = Wording(origin_s)

    def at(moment_s: float) -> str:
        return day_clock(moment_s, origin_s)

    since_s, ended = document["since_s"], document["ended"]
    state = str(document["state"]).upper()
    how = f"{state} for {duration(now_s - since_s)}, since {at(since_s)}"
    yield f"{document['job']}: {' '.join(ended) if ended else how}"
    spec = document["spec"]
    known = [str(spec[name]) for name in ("tenant", "model") if spec.get(name)]
    if known:
        yield "  " + " · ".join(known)
    if document["gpus"]:
        nodes = ", ".join(sorted(document["allocation"]))
        unit = "GPU" if document["gpus"] == 1 else "GPUs"
        yield f"  {document['gpus']} {unit} of {document['pool']}: {nodes}"
    if document["step"] is not None:
        yield f"  at {work_of(spec).place(document['step'])}"
    if document["ends_s"] is not None and not ended:
        yield f"  expected to end at {at(document['ends_s'])}"
    if document["failure"]:
        yield from ("", "Why", f"  Failed for good: {document['failure']}")
    elif document["because"] is not None and not ended:
        because = document["because"]
        told = f"{because['sentence'].rstrip('.')}.  {because['rule']}, {at(because['at_s'])}"
        yield from ("", "Why", f"  {told}")
        if because["lost_to"]:
            title = lost_title(because["verb"], because["rule"])
            yield f"  {title}: {', '.join(because['lost_to'])}"
        if tells_worth(figure["name"] for figure in because["figures"]):
            yield f"  {WORTH}"
        if document["wait_end"] is not None:
            yield f"  {document['wait_end']['text']}"
    if document["asked"]:
        yield from ("", "What people asked for", *(f"  {one}" for one in document["asked"]))
    if document["output"] is not None:
        yield from ("", "Where its output is", f"  tidegate logs {document['job']} prints it")
    if (stored := document.get("checkpoint")) is not None:
        said = f"step {stored['step']:,}, {stored['size_mib']} MiB, in {stored['uri']}"
        yield from ("", "Its newest checkpoint", f"  {said}; tidegate fetch {document['job']}")
    yield from ("", "History")
    for line in document["history"][-_LINES_MOST:]:
        yield f"  {wording.second(line['at_s'])}  {line['what']}  {line['detail']}".rstrip()
