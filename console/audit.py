"""`tidegate audit`: who asked for what, when, and what came of it; and proof of that."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from bus.signing import Verifier
from console.columns import LEFT, REST, Columns, fitted
from console.forms import Found, looks
from console.kafka import cells_read, opened_log, resolved
from console.output import JsonPath, emit_json, fail, out, say, tell
from console.source import Source
from explain.moments import day_clock
from explain.shares import counted
from scheduler.audit import Audit
from schemas.topics import JOURNAL

_COLUMNS: Columns = {
    "entry": LEFT,
    "when": LEFT,
    "who": LEFT,
    "role": LEFT,
    "asked for": LEFT,
    "of": {"overflow": "fold"},
    "result": LEFT,
    "why": REST,
}
_DROP = ("entry", "role", "why")


app = typer.Typer(invoke_without_command=True)


@app.callback()
@looks
def acts(at: Source) -> Found:
    """List what people asked for: who, when, what, and what came of it.

    What was refused before it reached the engine is a dead letter: tidegate journal stats counts
    those.

    Example: tidegate audit --log run.db
    """
    seen, cell = at.acts(), at.overview().it
    document = {
        "cell": cell.cell,
        "log_now_s": cell.now_s,
        "acts": [asdict(act) for act in seen.it],
    }
    if not seen.it:
        return Found(document, [Text(f"Nobody has asked for anything in {at.name}.")])
    rows: list[list[Text | str]] = [
        [
            str(act.entry),
            day_clock(act.at_s, cell.origin_s),
            Text(act.subject, "bold"),
            act.role,
            act.verb,
            act.about,
            Text(act.result, "green" if act.result == "done" else "red"),
            Text(act.refused_because or act.reason),
        ]
        for act in seen.it
    ]
    title = Text(f"What people asked for, {seen.as_of}")
    return Found(document, [fitted(title, _COLUMNS, rows, _DROP, out())])


@app.command()
def verify(
    source: Annotated[str, typer.Argument(metavar="EXPORT", help="SQLite, .jsonl.zst or kafka:.")],
    keys: Annotated[
        Path, typer.Option("--keys", metavar="DIR", help="Gateways' public keys: KEY_ID.pem each.")
    ],
    json_path: JsonPath = None,
) -> None:
    """Prove who asked for what by public keys alone: each request is signed, and done as asked.

    Jobs that were submitted or cancelled by events, which nobody signs, are counted: who asked for
    those cannot be proved.

    That the scheduler decided as its rules say is for tidegate replay to show.

    Example: tidegate audit verify run.jsonl.zst --keys gateways/
    """
    paths = sorted(keys.glob("*.pem"))
    if not paths:
        fail(f"--keys: {keys} has no file KEY_ID.pem; put each gateway's public key there.")
    done = Audit(Verifier.of({path.stem: str(path) for path in paths}))
    log = resolved(source)
    for cell in cells_read(log):
        with opened_log(log, cell) as opened:
            if cell is not None and JOURNAL.name not in opened.head.topics:
                say(f"Cell {cell} has no journal: nothing of it is proved.")
            done.read(opened.records(JOURNAL.name))
    if not done.entries and not done.findings:
        fail(f"{source} has no journal; name a log, or a copy by `tidegate journal export`.")
    findings = [asdict(finding) for finding in done.findings]
    counts = {"entries": done.entries, "requests": done.requests, "unsigned": done.unsigned}
    emit_json({**counts, "findings": findings}, json_path)
    if json_path != "-":
        for one in done.findings:
            where = f"cell {one.cell}, entry {one.entry}"
            tell(f"{where}: {one.field}: {one.reason}.")
        if not done.findings:
            requests = counted(done.requests, "request")
            asked = f"{requests}, each signed by a key of {keys}, and done as asked"
            entries = "1 entry" if done.entries == 1 else f"{done.entries:,} entries"
            tell(f"{entries}, {asked}.")
        by_events = "Submissions and cancellations by events, which nobody signed"
        tell(f"{by_events}: {done.unsigned:,}.")
    if done.findings:
        raise typer.Exit(1)
