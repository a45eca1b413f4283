"""`tidegate jobs`, `nodes`, `loans`: what the state of a log says, as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from console.bars import bar, legend, progress
from console.columns import LEFT, REST, RIGHT, WORDS, Columns, fitted
from console.forms import Found, looks
from console.output import fail, out
from console.source import Seen, Source
from explain.cell import CellRules
from explain.moments import day_clock, duration
from explain.refusals import in_words
from explain.rows import JobRow, LoanRow, LoanTotals, NodeRow, tenants
from explain.shares import percent
from explain.standing import accepted_of, pauses_of
from explain.turns import keeps_order
from explain.uses import NODE_USES, uses_of_node
from scheduler.core.transitions import TERMINAL, JobState

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
_WHY_WHOLE = "There is no room here for all of why; `tidegate why JOB` says it."
_JOBS_DROP = ("tenant", "model", "waited", "why", "pool", "GPUs")
_NODES: Columns = {
    "node": LEFT,
    "pool": LEFT,
    "agent": LEFT,
    "state": WORDS,
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


@looks
def jobs(
    at: Source,
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state, such as queued or running.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Finished jobs too.")] = False,
    position: Annotated[
        bool, typer.Option("--position", help="When the turn of each that waits comes; by that.")
    ] = False,
) -> Found:
    """List jobs: state, pool, size, progress, deadline, and in short why.

    GPUs: how many it has, and from how few to how many it may have. waited: for its first start,
    or, if it waits now, since it does. slack: how much earlier than its deadline it will end as it
    runs; below 0 it will be late. ~: its length is guessed. --position adds the turn of those that
    wait, by the policy's own order if it keeps one.

    Example: tidegate jobs --state queued --log run.db
    """
    known = sorted(one.value for one in JobState)
    if state is not None and state not in known:
        fail(f"--state: {state!r} is no state of a job; choose one of: {', '.join(known)}.")
    seen, rules = at.jobs(state, every=every, turns=position), at.rules().it
    listed = sorted(seen.it.jobs, key=by_turn) if position else seen.it.jobs
    table = jobs_listed(_title("Jobs", seen), listed, turns=position, whole=_WHY_WHOLE)
    none = "There is no job" if every else "No job waits or runs"
    none = f"No job is {state}." if state else f"{none}; `tidegate submit` adds one."
    shown: list[RenderableType] = [
        table if listed else Text(none),
        *pauses(rules),
        *([Text(_order(rules.policy.policy), "dim")] if position else []),
    ]
    counts = at.overview().it.jobs
    finished = sum(counts.get(one.value, 0) for one in TERMINAL)
    if state is None and not every and finished:
        which = "1 finished job is" if finished == 1 else f"{finished} finished jobs are"
        shown.append(Text(f"{which} not shown; --all shows them.", "dim"))
    return Found(replace(seen.it, jobs=listed), shown, seen.age)


def jobs_listed(title: Text, jobs: Sequence[JobRow], *, turns: bool, whole: str = "") -> Table:
    """List jobs as a table; with `turns` the first column says when their turn comes.

    `whole` is said below where there is no room for all of why.
    """
    rows = [[_place(job), *_job_row(job)] if turns else _job_row(job) for job in jobs]
    columns = {"turn": LEFT, **_JOBS} if turns else _JOBS
    return fitted(title, columns, rows, _JOBS_DROP, out(), whole)


def by_turn(job: JobRow) -> tuple[bool, int]:
    """Give what sorts jobs by their turns; those that have none come last."""
    return job.position is None, job.position or 0


def _order(policy: str) -> str:
    name = policy.partition(":")[0]
    if keeps_order(policy):
        return f"turn: when {name} would try to start it, as all is now; who fits may start before."
    return (
        f"{name or 'The policy'} keeps no order of those that wait: turn says who has what a job "
        "wants, where its newest reason does."
    )


def _place(job: JobRow) -> str:
    """Say when its turn comes; where the policy keeps no order, who is before it."""
    if job.position is not None:
        return str(job.position)
    if job.state != JobState.QUEUED or job.why is None or job.why["verb"] != "waits":
        return "–"
    before = [str(name) for name in job.why["lost_to"]]
    more = f" +{len(before) - 1}" if len(before) > 1 else ""
    return f"after {before[0]}{more}" if before else "–"


def _job_row(job: JobRow) -> list[Text | str]:
    low, high = job.gpus_min, job.gpus_max
    guess = job.total_steps is None and job.state != JobState.COMPLETED
    return [
        Text(job.job, "bold"),
        Text(job.tenant),
        Text(job.model),
        _job_state(job),
        Text(job.pool or "–"),
        f"{job.gpus}/{low}" if low == high else f"{job.gpus}/{low}–{high}",
        f"{'~' if guess else ''}{percent(job.progress)}",
        duration(job.waited_s),
        _slack(job.slack_s),
        _short(job),
    ]


def _short(job: JobRow) -> Text:
    """Say in short why it is as it is; of one that is over also what was kept of it."""
    said = Text(job.why_in_short, "red" if job.state == JobState.FAILED else "dim")
    if job.outputs is not None and job.outputs.files:
        said.append(f"{'; ' if said else ''}outputs: {job.outputs}", "default")
    return said


def _job_state(job: JobRow) -> Text:
    """Say what it is doing, and what people asked of it."""
    text = Text(job.state, JOB_STYLES.get(JobState(job.state), "cyan"))
    if job.hold is not None:
        text.append(f", held by {job.hold.by}", "yellow")
    if job.set_size is not None:
        text.append(f", set to {job.set_size.gpus} by {job.set_size.by}", "yellow")
    return text


def pauses(rules: CellRules) -> Iterator[Text]:
    """Say what is paused."""
    for said in pauses_of(rules.pauses, rules.origin_s):
        yield Text(f"{said[0].upper()}{said[1:]}.", "yellow")


def _slack(slack_s: float | None) -> Text:
    if slack_s is None:
        return Text("–", "dim")
    return Text(duration(slack_s), "green" if slack_s >= 0 else "red")


@looks
def nodes(at: Source) -> Found:
    """List nodes: pool, contact, loan, and who is on each GPU.

    Below are the commands that agents refused, or have not answered, in the last hour.

    Example: tidegate nodes --log run.db
    """
    seen = at.nodes()
    drains, refused = _why_drained(at, seen.it.nodes), at.refusals()
    rows: list[list[Text | str]] = [
        [
            Text(node.node, "bold"),
            Text(node.pool),
            Text(node.agent),
            _node_state(node, seen.it.origin_s, drains.get(node.node, "")),
            Text(node.loan_state or "–", "yellow"),
            bar(uses_of_node(node), 16),
            "–" if node.gpu_utilisation is None else percent(node.gpu_utilisation),
            _tenants(node),
        ]
        for node in seen.it.nodes
    ]
    table = fitted(_title("Nodes", seen), _NODES, rows, _NODES_DROP, out())
    led = seen.it.now_s > 0.0
    lacking = "no agent has reported" if led else "no scheduler has led"
    none = Text(f"No nodes in {at.name} yet: {lacking}.")
    accepted = at.rules().it.accepted
    shown: list[RenderableType] = [table, legend(NODE_USES)] if rows else [none]
    shown += [Text(said, "yellow") for said in accepted_of(accepted, seen.it.origin_s)]
    shown += [Text(in_words(one, seen.it.origin_s), "red") for one in refused]
    more = {"accepted": accepted, "drained_because": drains, "refusals": refused}
    return Found({**asdict(seen.it), **more}, shown, seen.age)


def _why_drained(at: Source, rows: Sequence[NodeRow]) -> dict[str, str]:
    """Say by node why a drain was asked for; the state has only why its node was cordoned."""
    known = {row.node: row.cordon.reason for row in rows if row.cordon and _is_one_request(row)}
    asked = {row.node: row.drain.request for row in rows if row.drain and row.node not in known}
    acts = at.acts().it if asked else ()
    reasons = {act.request: act.reason for act in acts if act.result == "done"}
    known |= {node: reasons.get(request, "") for node, request in asked.items()}
    return {node: reason for node, reason in known.items() if reason}


def _is_one_request(node: NodeRow) -> bool:
    """Whether what drains a node also cordoned it."""
    asked = None if node.drain is None else node.drain.request
    return node.cordon is not None and node.cordon.request == asked


def _tenants(node: NodeRow) -> Text:
    on_it, held_for = tenants(node)
    text = Text(on_it)
    if held_for:
        text.append(f"{'; ' if on_it else ''}{held_for}", "dim")
    return text


def _node_state(node: NodeRow, origin_s: float, drained: str) -> Text:
    """Say whether it is in contact, and what operators asked of it; `drained`: why a drain was."""
    text = Text(node.state, "green" if node.state == "alive" else "red")
    drain, cordon = node.drain, node.cordon
    if drain is not None:
        until, why = day_clock(drain.by_s, origin_s), f": {drained}" if drained else ""
        text.append(f", draining by {drain.by}, to be empty by {until}{why}", "yellow")
    # A cordon that was there before has a reason of its own, which is not the drain's.
    if cordon is not None and not _is_one_request(node):
        empty = ", empty" if drain is None and not any(node.holders) else ""
        because = f": {cordon.reason}" if cordon.reason else ""
        text.append(f", cordoned by {cordon.by}{empty}{because}", "yellow")
    if node.freeze is not None:
        text.append(f", frozen by {node.freeze.by}", "yellow")
    return text


def _loan_state(row: LoanRow) -> Text:
    """Say where a loan is, and who called the node back, if not its owner."""
    text = Text(str(row.state), "yellow" if row.due_s is None else "magenta")
    if row.recall is not None:
        recall = row.recall
        unheard = bool(recall.by) and not recall.request
        why = "its owner is not heard" if unheard else f"recalled by {recall.by or 'the policy'}"
        text.append(f", {why}", "yellow")
    return text


@looks
def loans(at: Source) -> Found:
    """List nodes on loan: since when, when they are due back, and how lending went so far.

    Operators also freeze lending and call nodes back, by verbs of its own.

    Example: tidegate loans --log run.db
    """
    seen, rules = at.loans(), at.rules().it
    found, origin_s = seen.it, seen.it.origin_s
    on = {node.node: node for node in at.nodes().it.nodes} if found.loans else {}
    rows: list[list[Text | str]] = [
        [
            Text(row.node, "bold"),
            Text(row.pool),
            _loan_state(row),
            f"{day_clock(row.since_s, origin_s)} ({duration(found.now_s - row.since_s)})",
            "when needed" if row.due_s is None else day_clock(row.due_s, origin_s),
            progress(row.gpus_used / row.gpus, 8).append(f" {row.gpus_used}/{row.gpus}"),
            _tenants(on[row.node]) if row.node in on else Text(),
        ]
        for row in found.loans
    ]
    table = fitted(_title("Loans", seen), _LOANS, rows, _LOANS_DROP, out())
    shown: list[RenderableType] = [table if rows else Text("No node is on loan now.")]
    shown += [_so_far(found.totals), *pauses(rules)]
    for name, freeze in sorted(found.freezes.items()):
        end = "" if freeze.until_s is None else f" until {day_clock(freeze.until_s, origin_s)}"
        where = f"from {name}" if name else "from any lender"
        told = f"Nothing is newly borrowed {where}{end}: frozen by {freeze.by}"
        why = f", {freeze.reason}" if freeze.reason else ""
        shown.append(Text(f"{told}{why}.", "yellow"))
    return Found(found, shown, seen.age)


def _so_far(totals: LoanTotals) -> Text:
    late = f"{totals.reclaims_late} late" if totals.reclaims_late else "none late"
    return Text.assemble(
        (f"{totals.loans_granted}", "bold"),
        f" {'loan' if totals.loans_granted == 1 else 'loans'} so far, ",
        (f"{totals.loans_reclaimed}", "bold"),
        f" given back ({late}); ",
        (f"{totals.loaned_gpu_s / 3600:,.0f} GPU h", "bold"),
        " lent; owners were short of ",
        (f"{totals.inference_shortfall_gpu_s / 3600:.2f} GPU h", "bold"),
        ".",
    )


def _title(title: str, seen: Seen[Any]) -> Text:
    return Text.assemble((title, "bold"), (f"  {seen.as_of}", "dim"))
