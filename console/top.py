"""`tidegate top`: a cell as it is, looked at again and again: GPUs, who runs, who waits and why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from console.bars import bar, legend
from console.columns import LEFT, RIGHT, Columns, fitted
from console.forms import Found, watches
from console.output import out
from console.source import Source
from console.tables import by_turn, jobs_listed, pauses
from explain.overview import Glance
from explain.rows import JobRow, NodeRow
from explain.shares import counted, percent
from explain.turns import keeps_order
from explain.uses import NODE_USES, Use, uses_of_node
from scheduler.core.transitions import JobState

_BAR = 24
_POOLS: Columns = {
    "pool": LEFT,
    "kind": LEFT,
    "nodes": RIGHT,
    "GPUs": RIGHT,
    "jobs have": RIGHT,
    "idle": RIGHT,
    "lent": RIGHT,
    "busy": RIGHT,
    "": LEFT,
}
_POOLS_DROP = ("kind", "nodes", "", "busy", "lent")
#: Lines of the screen that jobs do not have: titles, pools' heading and legend, and one to spare.
_OTHER_LINES = 9
_ROWS_LEAST = 3
#: Of what goes to a file or a pipe.
_PIPED_LINES = 60


@dataclass(frozen=True, slots=True)
class PoolUse:
    """GPUs of a pool, by what they are used for."""

    pool: str
    kind: str
    nodes: int
    gpus: int
    uses: dict[Use, int]
    lent: int  #: On loan, used or not.
    gpu_utilisation: float | None  #: Mean of what was measured last, 0 to 1.


@dataclass(frozen=True, slots=True)
class Top:
    """A cell as it is now."""

    overview: Glance
    pools: Sequence[PoolUse]
    running: Sequence[JobRow]  #: Whoever holds GPUs, most GPUs first.
    queue: Sequence[JobRow]  #: By their turns, where the policy keeps an order; else the longest.


@watches
def top(
    at: Source,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Of jobs, at most. If not given: as many as there is room for."),
    ] = None,
) -> Found:
    """Watch a cell: GPUs by pool, who has them, who waits and in short why. Ctrl-C ends it.

    GPUs that jobs have, idle: of those that training may use. busy: as measured last. Those that
    wait are in the policy's order if it keeps one, else the longest wait comes first.

    Example: tidegate top --log run.db
    """
    glance, nodes, rules = at.overview(), at.nodes().it.nodes, at.rules().it
    ordered = keeps_order(glance.it.policy)
    jobs = at.jobs(None, every=False, turns=ordered).it.jobs
    running = [job for job in jobs if job.gpus]
    waiting = [job for job in jobs if job.state == JobState.QUEUED]
    running.sort(key=lambda job: (-job.gpus, job.job))
    waiting.sort(key=lambda job: (by_turn(job), -(job.waited_s or 0.0), job.job))
    found = Top(glance.it, _pools(nodes), running, waiting)
    run_rows, wait_rows = (rows, rows) if rows else _room(found)
    shown: list[RenderableType] = [_head(found, glance.as_of), _pool_table(found.pools)]
    shown += [legend(NODE_USES)] if found.pools else [Text("No nodes yet.", "dim")]
    shown += pauses(rules)
    shown += _listed("Running", running, run_rows, turns=False)
    shown += _listed("Waiting", waiting, wait_rows, turns=ordered)
    return Found(found, shown, glance.age)


def _room(found: Top) -> tuple[int, int]:
    """Share the lines that there are out to those that run and those that wait."""
    console = out()
    lines = console.size.height if console.is_terminal else _PIPED_LINES
    room = max(lines - _OTHER_LINES - len(found.pools), 2 * _ROWS_LEAST)
    run_rows = min(len(found.running), max(room - len(found.queue), room // 2))
    return max(run_rows, 1), max(room - run_rows, 1)


def _head(found: Top, as_of: str) -> Text:
    glance = found.overview
    gpus = glance.gpus
    states = {job.state for job in found.running}
    counts = ", ".join(
        f"{sum(job.state == one for job in found.running)} {one}" for one in sorted(states)
    )
    return Text.assemble(
        (glance.cell, "bold"),
        (f"  {as_of}  ", "dim"),
        (glance.policy.partition(":")[0] or "no policy yet", "cyan"),
        f"; jobs have {gpus.held} of {counted(gpus.alive, 'GPU')}, {gpus.loaned} on loan; ",
        f"{counts or 'nothing runs'}, {len(found.queue)} queued",
    )


def _pools(nodes: Sequence[NodeRow]) -> list[PoolUse]:
    found = []
    for pool in sorted({(node.kind, node.pool) for node in nodes}):
        mine = [node for node in nodes if (node.kind, node.pool) == pool]
        uses: Counter[Use] = Counter()
        for node in mine:
            uses.update(uses_of_node(node))
        busy = [one.gpu_utilisation for one in mine if one.gpu_utilisation is not None]
        found.append(
            PoolUse(
                pool=pool[1],
                kind=pool[0],
                nodes=len(mine),
                gpus=sum(node.gpu_count for node in mine),
                uses={use: uses[use] for use in NODE_USES if uses[use]},
                lent=sum(node.gpu_count for node in mine if node.loan_state is not None),
                gpu_utilisation=fmean(busy) if busy else None,
            )
        )
    return found


def _pool_table(pools: Sequence[PoolUse]) -> RenderableType:
    rows: list[list[Text | str]] = [
        [
            Text(one.pool, "bold"),
            Text(one.kind),
            str(one.nodes),
            str(one.gpus),
            str(one.uses.get(Use.TRAINING, 0)),
            str(one.uses.get(Use.IDLE, 0) + one.uses.get(Use.LENT, 0)),
            str(one.lent or "–"),
            "–" if one.gpu_utilisation is None else percent(one.gpu_utilisation),
            bar(one.uses, _BAR),
        ]
        for one in pools
    ]
    return fitted(Text(), _POOLS, rows, _POOLS_DROP, out())


def _listed(title: str, jobs: Sequence[JobRow], most: int, *, turns: bool) -> list[RenderableType]:
    """List the first of some jobs, and say how many more there are."""
    if not jobs:
        return [Text(f"{title}: none.", "dim")]
    more = f"  {len(jobs) - most} more" if len(jobs) > most else ""
    head = Text.assemble((title, "bold"), (more, "dim"))
    return [jobs_listed(head, jobs[:most], turns=turns)]
