"""How many nodes a lender lends or takes back, which, and by when.

A loan is of whole nodes. A lender keeps what its forecast peak needs plus headroom, and may lend
the rest (policies.md 9.1). It takes nodes back before the forecast says that they are needed, so
that jobs have time to checkpoint.

What keeps loans from flapping: lending looks further ahead than reclaiming, a node just returned
rests, and a young loan is ended only for demand, not for headroom. What keeps them honest: on a
report older than `stale_s` nothing is lent and nothing new is reclaimed, because both would be a
guess; the owner reports again, or its agent takes the node back by itself. A loan that nobody
uses is kept: its owner does not need the node, and giving it back would only cost another drain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from scheduler.policies.forecast import Forecast, ForecastOptions, forecast
from scheduler.policies.interface import Figure, Kind, Lender, LoanPhase, Need, Reason, Snapshot


@dataclass(frozen=True, slots=True)
class LoanOptions:
    """When to lend and when to reclaim."""

    lend_horizon_s: float = 1800.0  #: a loan must look idle at least this long.
    drain_s: float = 120.0  #: that the owner needs to bring a returned node into service.
    lead_s: float = 600.0  #: least time before need that a reclaim begins.
    loan_min_s: float = 600.0  #: a younger loan is not ended for headroom alone.
    cool_down_s: float = 900.0  #: rest of a node between return and the next loan.
    stale_s: float = 900.0  #: a load report older than this says nothing.
    idle_gpus: float = 0.1  #: an edge node that is forecast to need no more counts as idle.
    forecast: ForecastOptions = field(default_factory=ForecastOptions)


@dataclass(frozen=True, slots=True)
class Decision:
    """What one lender does. Nodes are indices into `Nodes`."""

    lender: int
    lend: tuple[int, ...] = ()
    reclaim_from: tuple[int, ...] = ()  #: lent nodes that may be taken; the caller picks victims.
    dues_s: tuple[float, ...] = ()  #: when each reclaimed node is needed, earliest first.
    figures: tuple[Figure, ...] = ()

    @property
    def reclaim(self) -> int:
        """Nodes to take back."""
        return len(self.dues_s)


def decide(
    snapshot: Snapshot, notice_s: Callable[[Lender], float], options: LoanOptions
) -> list[Decision]:
    """Decide for every lender, in the snapshot's order.

    Args:
        snapshot: What is known.
        notice_s: The longest checkpoint among the jobs on a lender's nodes, in seconds.
        options: When to lend and when to reclaim.
    """
    forecasts = _forecasts(snapshot.lenders, options)
    loan: list[int] = snapshot.nodes.loan.tolist()
    return [
        _decide(snapshot, index, loan, *forecasts[index], notice_s, options)
        for index in range(len(snapshot.lenders))
    ]


def _forecasts(lenders: Sequence[Lender], options: LoanOptions) -> list[tuple[Forecast, int]]:
    """Forecast each lender (and its row), all those with like histories at once."""
    groups: dict[tuple[int, float], list[int]] = {}
    for index, lender in enumerate(lenders):
        groups.setdefault((len(lender.history), lender.slot_s), []).append(index)
    found: dict[int, tuple[Forecast, int]] = {}
    for (_, slot_s), members in groups.items():
        history = np.stack([lenders[index].history for index in members])
        needed = np.array([lenders[index].gpus_needed for index in members])
        horizon_s = max(options.lend_horizon_s, options.lead_s) + 2 * slot_s
        seen = forecast(history, needed, slot_s, horizon_s, options.forecast)
        found.update((index, (seen, row)) for row, index in enumerate(members))
    return [found[index] for index in range(len(lenders))]


def _decide(
    snapshot: Snapshot,
    index: int,
    loan: Sequence[int],
    seen: Forecast,
    row: int,
    notice_s: Callable[[Lender], float],
    options: LoanOptions,
) -> Decision:
    lender, nodes, now = snapshot.lenders[index], snapshot.nodes, snapshot.now_s
    mine: list[int] = lender.nodes.tolist()
    if not mine or lender.load_age_s > options.stale_s:
        return Decision(index)
    gpus = int(nodes.gpus[lender.nodes].min())  # if they differ: lend too little, not too much
    is_edge = snapshot.pools.kind[nodes.pool[mine[0]]] == Kind.EDGE
    headroom = max(
        1.0, options.forecast.headroom_fraction * gpus * len(mine), float(seen.burst_gpus[row])
    )
    if is_edge:  # all or nothing: any demand keeps it, and none needs no headroom
        headroom = -options.idle_gpus

    owned = [node for node in mine if loan[node] == LoanPhase.OWNED]
    asked = [node for node in mine if loan[node] == LoanPhase.LENDING]
    lent = [node for node in mine if loan[node] == LoanPhase.LENT]
    back = len(mine) - len(owned) - len(asked) - len(lent)

    lead_s = max(options.lead_s, notice_s(lender) + options.drain_s) if lent else options.lead_s
    far = seen.peak(row, options.lend_horizon_s)
    near = seen.peak(row, min(lead_s, options.lend_horizon_s))
    figures = (
        Figure("needed_gpus", lender.gpus_needed, lender.load_age_s),
        Figure("forecast_gpus", near, lender.load_age_s),
        Figure("peak_gpus", far, lender.load_age_s),
        Figure("headroom_gpus", headroom, lender.load_age_s),
        Figure("lead_s", lead_s),
    )
    have = len(owned) + back  # the owner's, now or as soon as the returning ones are there
    short = min(ceil((near + headroom) / gpus - 1e-9), len(mine)) - have
    if short > 0 and lent:
        old = [n for n in lent if now - nodes.lent_since_s[n] >= options.loan_min_s]
        urgent = min(ceil(near / gpus - 1e-9), len(mine)) - have
        count = min(short, len(lent), max(len(old), urgent))
        from_s = [seen.needs_from_s(row, (have + done) * gpus) for done in range(count)]
        # Headroom alone is not needed at a known moment: it is due at the end of the lead.
        dues = tuple(now + min(max(at, options.drain_s), lead_s) for at in from_s)
        return Decision(index, (), tuple(lent), dues, figures)
    spare = len(mine) - ceil((max(far, near) + headroom) / gpus - 1e-9) - len(asked) - len(lent)
    rested = [n for n in owned if now - nodes.returned_s[n] >= options.cool_down_s]
    if spare > 0 and rested:
        return Decision(index, tuple(rested[:spare]), (), (), figures)
    return Decision(index, figures=figures)


def lends(node: str, decision: Decision) -> Reason:
    """Say why a node is lent."""
    return Reason(node, "lends", "loans.idle", decision.figures, (), ())


def reclaims(
    lender: Lender, node: str, decision: Decision, due_s: float, rule: str, losers: Sequence[str]
) -> Reason:
    """Say why a node is taken back, by which rule it was chosen, and which jobs lose by it."""
    needed = next(f.value for f in decision.figures if f.name == "forecast_gpus")
    figures = (*decision.figures, Figure("due_s", due_s), Figure("losing_jobs", len(losers)))
    needs = (Need("forecast_gpus", needed, 0.0),) if lender.id == node else ()
    return Reason(node, "reclaims", f"victims.{rule}", figures, (lender.id,), needs)
