"""`tidegate why JOB`: what a job waits for or why it was moved, in words, with the figures used."""

import difflib
from typing import Annotated, Any

import typer

from bus.clock import SystemClock
from bus.contract import Bus
from console.answer import Answer
from console.curve import curve_document
from console.length import length_document
from console.outlook import outlook
from console.output import JsonPath, emit_json, fail, out
from console.panel import panel
from console.phrases import Voice, label
from console.reading import DEFAULT_LOG, CellName, LogAddress, Reading, read_bus, with_log
from console.story import Given, Story, history, read_story
from console.waits import wait_document, waits


def why(
    job: Annotated[str, typer.Argument(help="The job's id, as `tidegate jobs` shows it.")],
    log: LogAddress = DEFAULT_LOG,
    cell: CellName = None,
    json_path: JsonPath = None,
) -> None:
    """Explain a job: what it waits for, or why it was started, moved, resized or preempted.

    Every figure is the one that the decision used, with its age. Nothing is recomputed.

    Example: tidegate why job-0042 --log run.db
    """

    async def ask(bus: Bus) -> tuple[Reading, Story]:
        reading = await read_bus(bus, cell)
        return reading, await read_story(bus, reading.cell, job, reading.state.number)

    reading, story = with_log(log, ask)
    known = reading.state.jobs.get(job)
    if known is None and not story.events:
        fail(_unknown(job, list(reading.state.jobs)))
    answer = Answer(reading, story, known, tuple(history(story)))
    if json_path is not None:
        emit_json(document(answer), json_path)
    if json_path != "-":
        out().print(panel(answer))
        reading.say_age(SystemClock().now_s())


def _unknown(job: str, known: list[str]) -> str:
    if not known:
        return f"{job}: the log holds no job yet; `tidegate submit` adds one."
    near = difflib.get_close_matches(job, known, n=3, cutoff=0.5)
    if near:
        return f"{job}: no such job in this log. Nearest: {', '.join(near)}."
    return (
        f"{job}: no such job in this log. `tidegate jobs --all` lists all {len(known)}; one that "
        "was just submitted is among them once a scheduler has taken it up."
    )


def document(answer: Answer) -> dict[str, Any]:
    """Give the answer as JSON types. Moments in seconds since the Unix epoch."""
    voice = Voice(answer.reading.origin_s)
    job = answer.job
    given, loss = answer.given, answer.loss
    behind = None if given is None else given.reason
    if loss is not None:
        behind = loss.reason
    ahead = None if job is None else outlook(job, answer.now_s)
    return {
        "job": answer.story.job,
        "state": answer.state,
        "since_s": answer.since_s,
        "now_s": answer.now_s,
        "origin_s": answer.reading.origin_s,
        "pool": None if job is None else job.pool,
        "gpus": 0 if job is None else job.size,
        "allocation": {} if job is None else job.allocation,
        "claims": None if job is None else job.target,
        "step": None if job is None else job.step,
        "length": None if job is None else length_document(job),
        "left_s": None if ahead is None else ahead.left_s,
        "needs_s": None if ahead is None else ahead.needs_s,
        "ends_s": None if ahead is None else ahead.ends_s,
        "slack_s": None if ahead is None else ahead.slack_s,
        "curve": None if job is None else curve_document(job, answer.now_s),
        "spec": answer.spec,
        "failure": answer.failure or None,
        "output": None
        if answer.output is None
        else {"agents": list(answer.output[0]), "folder": answer.output[1]},
        "because": None if given is None else given_document(given, voice),
        "reclaims": [
            {
                "node": reclaim.node,
                "at_s": reclaim.at_s,
                "due_s": reclaim.due_s,
                "because": None
                if reclaim.reason is None
                else given_document(Given(reclaim.at_s, reclaim.reason), voice),
            }
            for reclaim in ([] if behind is None else answer.reclaims(behind))
        ],
        "waits": [wait_document(wait, voice) for wait in waits(answer.story)],
        "reasons": [given_document(one, voice) for one in answer.story.reasons[-10:]],
        "history": [
            {
                "at_s": line.at_s,
                "what": line.what,
                "detail": line.detail,
                "rule": None if line.event.reason is None else line.event.reason.rule,
                "because": None if line.event.reason is None else voice.sentence(line.event.reason),
            }
            for line in answer.lines
        ],
    }


def given_document(given: Given, voice: Voice) -> dict[str, Any]:
    """Give a reason as JSON types, with its sentence."""
    reason = given.reason
    return {
        "at_s": given.at_s,
        "subject": reason.subject,
        "verb": reason.verb,
        "rule": reason.rule,
        "sentence": voice.sentence(reason),
        "lost_to": list(reason.lost_to),
        "figures": [
            {"name": f.name, "label": label(f.name), "value": f.value, "age_s": f.age_s}
            for f in reason.figures
        ],
        "needs": [{"name": n.name, "have": n.have, "want": n.want} for n in reason.needs],
    }
