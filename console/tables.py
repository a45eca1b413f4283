"""`tidegate jobs`, `nodes`, `loans`: what the state of a log says, as tables."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from bus.clock import SystemClock
from bus.contract import Bus
from console.bars import (
    IDLE,
    LEAVING,
    LENT,
    OWNED,
    SILENT,
    TRAINING,
    Use,
    bar,
    legend,
    progress,
    uses_of_node,
)
from console.columns import LEFT, REST, RIGHT, Columns, fitted
from console.failures import read_failures
from console.length import length_document, percent, share_done
from console.outlook import outlook
from console.output import JsonPath, day_clock, duration, emit_json, fail, out
from console.phrases import SHORT, Voice, reason_from
from console.reading import DEFAULT_LOG, CellName, LogAddress, Reading, read_bus, read_log, with_log
from scheduler.core.state import Job, Node
from scheduler.core.transitions import TERMINAL, JobState, NodeState
from schemas.codec import Rejected, decode_event
from schemas.events import NodeMeasured
from schemas.topics import TELEMETRY

_NODE_USES = (TRAINING, OWNED, LENT, LEAVING, IDLE, SILENT)
JOB_STYLES = {
    JobState.QUEUED: "yellow",
    JobState.RUNNING: "green",
    JobState.COMPLETED: "dim green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
}
#: What each table shows, and what goes first where the terminal is narrow.
_JOBS: Columns = {
    "job": LEFT,
    "tenant": LEFT,
    "model": LEFT,
    "state": LEFT,
    "pool": LEFT,
    "GPUs": RIGHT,
    "done": RIGHT,
    "waited": RIGHT,
    "slack": RIGHT,
    "why": REST,
}
_JOBS_DROP = ("tenant", "model", "waited", "why", "pool", "GPUs")
_NODES: Columns = {
    "node": LEFT,
    "pool": LEFT,
    "agent": LEFT,
    "state": LEFT,
    "loan": LEFT,
    "GPUs": LEFT,
    "used": RIGHT,
    "who is on it": REST,
}
_NODES_DROP = ("agent", "used", "pool", "state", "who is on it")
_LOANS: Columns = {
    "node": LEFT,
    "pool": LEFT,
    "state": LEFT,
    "since": LEFT,
    "due back": LEFT,
    "in use": LEFT,
    "who is on it": REST,
}
_LOANS_DROP = ("pool", "since", "state", "who is on it")


def jobs(
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state, such as queued or running.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Finished jobs too.")] = False,
    log: LogAddress = DEFAULT_LOG,
    cell: CellName = None,
    json_path: JsonPath = None,
) -> None:
    """List jobs: state, pool, size, progress, deadline, and in short why.

    GPUs: how many it has, and from how few to how many it may have. waited: for its first start,
    or, if it waits now, since it does. slack: how much earlier than its deadline it will end as it
    runs; below 0 it will be late. ~: its length is guessed.

    Example: tidegate jobs --state queued --log run.db
    """
    known = sorted(one.value for one in JobState)
    if state is not None and state not in known:
        fail(f"--state: {state!r} is no state of a job; choose one of: {', '.join(known)}.")

    async def ask(bus: Bus) -> tuple[Reading, list[Job], dict[str, str]]:
        reading = await read_bus(bus, cell)
        found = [
            job
            for job in reading.state.jobs.values()
            if (state is None and (every or job.state not in TERMINAL)) or job.state == state
        ]
        failed = {job.id for job in found if job.state is JobState.FAILED}
        # It is a pass over the journal, which most questions do without.
        end = reading.state.number
        failures = await read_failures(bus, reading.cell, failed, end) if failed else {}
        return reading, found, failures

    reading, found, failures = with_log(log, ask)
    if json_path is not None:
        emit_json(
            _framed(reading, "jobs", [_job_document(job, reading, failures) for job in found]),
            json_path,
        )
    if json_path == "-":
        return
    rows: list[list[Text | str]] = []
    for job in found:
        low, high = job.gpus_min, job.gpus_max
        rows.append(
            [
                Text(job.id, "bold"),
                Text(job.tenant),
                Text(job.model),
                Text(job.state.value, JOB_STYLES.get(job.state, "cyan")),
                Text(job.pool or "–"),
                f"{job.size}/{low}" if low == high else f"{job.size}/{low}–{high}",
                percent(job, reading.state.now_s),
                _waited(job, reading),
                _slack(job, reading),
                _why_cell(job, failures),
            ]
        )
    table = fitted(_title("Jobs", reading), _JOBS, rows, _JOBS_DROP, out())
    out().print(table if found else Text("No such jobs. See --all, or `tidegate submit`."))
    finished = sum(job.state in TERMINAL for job in reading.state.jobs.values())
    if state is None and not every and finished:
        out().print(Text(f"{finished} finished jobs are not shown; --all shows them.", "dim"))
    reading.say_age(SystemClock().now_s())


def _waited(job: Job, reading: Reading) -> str:
    if job.state is JobState.QUEUED:
        return duration(reading.state.now_s - job.waiting_since_s)
    if job.first_start_s is None:
        return "–"
    return duration(job.first_start_s - job.submit_s)


def _slack_s(job: Job, reading: Reading) -> float | None:
    return outlook(job, reading.state.now_s).slack_s


def _slack(job: Job, reading: Reading) -> Text:
    slack_s = _slack_s(job, reading)
    if slack_s is None:
        return Text("–", "dim")
    return Text(duration(slack_s), "green" if slack_s >= 0 else "red")


def _short_why(job: Job, voice: Voice, failures: Mapping[str, str]) -> str:
    if job.id in failures:
        return failures[job.id]
    if job.why is None or job.state in TERMINAL:
        return ""
    return voice.sentence(reason_from(job.why))


def _why_cell(job: Job, failures: Mapping[str, str]) -> Text:
    if job.id in failures:
        return Text(failures[job.id], "red")
    if job.why is None or job.state in TERMINAL:
        return Text()
    rule, needs = str(job.why["rule"]), job.why["needs"]
    text = Text(SHORT.get(rule, rule), "dim")
    # A need named `gpus` is of a whole site: "7 of 22" would read as the job's own.
    if job.state is JobState.QUEUED and needs and "gpus" in needs[0][0] and needs[0][0] != "gpus":
        text.append(f", {needs[0][1]:.3g} of {needs[0][2]:.3g}", "dim")
    return text


def _job_document(job: Job, reading: Reading, failures: Mapping[str, str]) -> dict[str, Any]:
    ahead = outlook(job, reading.state.now_s)
    return {
        "job": job.id,
        "tenant": job.tenant,
        "model": job.model,
        "state": job.state.value,
        "pool": job.pool,
        "gpus": job.size,
        "gpus_min": job.gpus_min,
        "gpus_max": job.gpus_max,
        "allocation": job.allocation,
        "step": job.step,
        "total_steps": job.total_steps,
        "progress": share_done(job, reading.state.now_s),
        "length": length_document(job),
        "samples_per_s": job.samples_per_s,
        "left_s": ahead.left_s,
        "needs_s": ahead.needs_s,
        "ends_s": ahead.ends_s,
        "submit_s": job.submit_s,
        "first_start_s": job.first_start_s,
        "end_s": job.end_s,
        "deadline_s": job.deadline_s,
        "slack_s": ahead.slack_s,
        "priority": job.priority,
        "preemptions": job.preemptions,
        "migrations": job.migrations,
        "failures": job.failures,
        "why": job.why,
        "why_in_words": _short_why(job, Voice(reading.origin_s), failures) or None,
    }


def nodes(log: LogAddress = DEFAULT_LOG, cell: CellName = None, json_path: JsonPath = None) -> None:
    """List nodes: pool, contact, loan, and who is on each GPU.

    Example: tidegate nodes --log run.db
    """
    reading, used = with_log(log, lambda bus: _with_telemetry(bus, cell))
    found = sorted(reading.state.nodes.values(), key=lambda node: (node.pool, node.id))
    if json_path is not None:
        documents = [_node_document(node, used.get(node.id)) for node in found]
        emit_json(_framed(reading, "nodes", documents), json_path)
    if json_path == "-":
        return
    rows: list[list[Text | str]] = []
    for node in found:
        use = used.get(node.id)
        rows.append(
            [
                Text(node.id, "bold"),
                Text(node.pool),
                Text(node.agent),
                Text(node.state.value, "green" if node.state == "alive" else "red"),
                Text(node.loan_state.value if node.loan_state else "–", "yellow"),
                bar(_uses(node, reading), 16),
                "–" if use is None else f"{use:.0%}",
                _tenants(node),
            ]
        )
    table = fitted(_title("Nodes", reading), _NODES, rows, _NODES_DROP, out())
    if found:
        out().print(table, legend(_NODE_USES), sep="\n")
    else:
        out().print("No nodes yet: no agent has reported to this log.")
    reading.say_age(SystemClock().now_s())


def _uses(node: Node, reading: Reading) -> dict[Use, int]:
    lends = reading.state.pools[node.pool].kind != "training"
    if lends and node.loan_state is None and node.state is NodeState.ALIVE:
        return {OWNED: node.gpu_count}
    return uses_of_node(node)


async def _with_telemetry(bus: Bus, cell: str | None) -> tuple[Reading, dict[str, float]]:
    """Read the state, and by node the mean utilisation of its last measurement."""
    reading = await read_bus(bus, cell)
    end = await bus.end(TELEMETRY.name)
    used: dict[str, float] = {}
    # Nodes measure once a minute and owners report in between: this holds several of each.
    async for record in bus.read(TELEMETRY.name, max(0, end - 5 * len(reading.state.nodes) - 50)):
        envelope = None if record.value is None else decode_event(record.value)
        if envelope is None or isinstance(envelope, Rejected):
            continue
        if isinstance(envelope.data, NodeMeasured):
            known = [ratio for ratio in envelope.data.gpu_utilisation if ratio is not None]
            if known:
                used[envelope.data.node] = sum(known) / len(known)
    return reading, used


def _tenants(node: Node) -> Text:
    held: dict[str, int] = {}
    for holder in node.holder:
        if holder is not None:
            held[holder] = held.get(holder, 0) + 1
    claims = sorted({claim for claim in node.claim if claim is not None and claim not in held})
    text = Text(", ".join(f"{job} ×{count}" for job, count in held.items()))
    if claims:
        text.append(f"{'; ' if held else ''}held for {', '.join(claims)}", "dim")
    return text


def _node_document(node: Node, used: float | None) -> dict[str, Any]:
    return {
        "node": node.id,
        "pool": node.pool,
        "agent": node.agent,
        "state": node.state.value,
        "gpu_type": node.gpu_type,
        "gpu_count": node.gpu_count,
        "holders": node.holder,
        "claims": node.claim,
        "gpu_utilisation": used,
        "loan": node.loan,
        "loan_state": None if node.loan_state is None else node.loan_state.value,
        "due_s": node.due_s,
        "lease_end_s": node.lease_end_s,
    }


def loans(log: LogAddress = DEFAULT_LOG, cell: CellName = None, json_path: JsonPath = None) -> None:
    """List nodes on loan: since when, when they are due back, and how lending went so far.

    Example: tidegate loans --log run.db
    """
    reading = read_log(log, cell)
    state, totals = reading.state, reading.state.totals
    found = [state.nodes[name] for name in state.on_loan]
    summary = {
        "loans_granted": totals.loans_granted,
        "loans_reclaimed": totals.loans_reclaimed,
        "reclaims_late": totals.reclaims_late,
        "loaned_gpu_s": totals.loaned_gpu_s,
        "inference_shortfall_gpu_s": totals.inference_shortfall_gpu_s,
    }
    if json_path is not None:
        documents = [
            {
                "node": node.id,
                "pool": node.pool,
                "loan": node.loan,
                "state": node.loan_state,
                "since_s": node.loan_since_s,
                "due_s": node.due_s,
                "gpus": node.gpu_count,
                "gpus_used": sum(holder is not None for holder in node.holder),
            }
            for node in found
        ]
        emit_json({**_framed(reading, "loans", documents), "totals": summary}, json_path)
    if json_path == "-":
        return
    rows: list[list[Text | str]] = []
    for node in found:
        used = sum(holder is not None for holder in node.holder)
        since_s = state.now_s - node.loan_since_s
        due = "when needed" if node.due_s is None else day_clock(node.due_s, reading.origin_s)
        rows.append(
            [
                Text(node.id, "bold"),
                Text(node.pool),
                Text(str(node.loan_state), "yellow" if node.due_s is None else "magenta"),
                f"{day_clock(node.loan_since_s, reading.origin_s)} ({duration(since_s)})",
                due,
                progress(used / node.gpu_count, 8).append(f" {used}/{node.gpu_count}"),
                _tenants(node),
            ]
        )
    table = fitted(_title("Loans", reading), _LOANS, rows, _LOANS_DROP, out())
    out().print(table if found else Text("No node is on loan now."))
    late = f"{totals.reclaims_late} late" if totals.reclaims_late else "none late"
    text = Text.assemble(
        (f"{totals.loans_granted}", "bold"),
        " loans so far, ",
        (f"{totals.loans_reclaimed}", "bold"),
        f" given back ({late}); ",
        (f"{totals.loaned_gpu_s / 3600:,.0f} GPU h", "bold"),
        " lent; owners were short of ",
        (f"{totals.inference_shortfall_gpu_s / 3600:.2f} GPU h", "bold"),
        ".",
    )
    out().print(text)
    reading.say_age(SystemClock().now_s())


def _framed(reading: Reading, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"now_s": reading.state.now_s, "origin_s": reading.origin_s, name: rows}


def _title(title: str, reading: Reading) -> Text:
    return Text.assemble((title, "bold"), (f"  {reading.as_of()}", "dim"))
