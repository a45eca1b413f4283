"""How many nodes a lender lends or takes back, which, and by when.

A loan is of whole nodes. A lender keeps what it needs now, and what its forecast peak needs plus
headroom, and may lend the rest (policies.md 9.1). Headroom is what the forecast's past errors ask
for; before there are any, what demand rose by lately. The lender takes nodes back before the
forecast says that they are needed, so that jobs have time to checkpoint.

What keeps loans from flapping: lending looks further ahead than reclaiming, a node just returned
rests, and a young loan is ended only for demand, not for headroom. What keeps them honest: on a
report older than `stale_s` nothing is lent and nothing new is reclaimed, because both would be a
guess; the owner reports again, or its agent takes the node back by itself. A loan that nobody
uses is kept: its owner does not need the node, and giving it back would only cost another drain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import Annotated

import numpy as np
from pydantic import Field

from scheduler.policies.interface import Figure, Kind, Lender, LoanPhase, Need, Reason, Snapshot
from scheduler.policies.parts.forecast import Forecast, ForecastOptions, forecast

_OWNED, _LENDING, _LENT = map(int, (LoanPhase.OWNED, LoanPhase.LENDING, LoanPhase.LENT))


#: How far ahead demand is forecast: with the two slots more that are looked at, less than a day.
Ahead = Annotated[float, Field(ge=0.0, le=72_000.0)]


@dataclass(frozen=True, slots=True)
class LoanOptions:
    """When to lend and when to reclaim."""

    lend_horizon_s: Ahead = 1800.0  #: a loan must look idle at least this long.
    drain_s: float = 120.0  #: that the owner needs to bring a returned node into service.
    lead_s: Ahead = 300.0  #: least time before need that a reclaim begins.
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
    figures: tuple[Figure, ...] = ()  #: of one that does anything.

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
    loan: list[int] = snapshot.nodes.loan.tolist()
    kinds = snapshot.pools.kind[snapshot.nodes.pool]
    edge = [bool((kinds[lender.nodes[:1]] == Kind.EDGE).any()) for lender in snapshot.lenders]
    lead_s = [_lead_s(lender, loan, notice_s, options) for lender in snapshot.lenders]
    forecasts = _forecasts(snapshot.lenders, edge, lead_s, options)
    return [
        _decide(snapshot, index, edge[index], loan, *forecasts[index], lead_s[index], options)
        for index in range(len(snapshot.lenders))
    ]


def _lead_s(
    lender: Lender, loan: Sequence[int], notice_s: Callable[[Lender], float], options: LoanOptions
) -> float:
    """Return how long before its need a lender's node must be asked back."""
    if not any(loan[node] == _LENT for node in lender.nodes.tolist()):
        return options.lead_s
    return max(options.lead_s, notice_s(lender) + options.drain_s)


def _forecasts(
    lenders: Sequence[Lender], edge: Sequence[bool], lead_s: Sequence[float], options: LoanOptions
) -> list[tuple[Forecast, int]]:
    """Forecast each lender (and its row), all those with like histories at once."""
    groups: dict[tuple[int, float, bool, int], list[int]] = {}
    for index, lender in enumerate(lenders):
        lead = ceil(min(lead_s[index], options.lend_horizon_s) / lender.slot_s)
        key = (len(lender.history), lender.slot_s, edge[index], lead)
        groups.setdefault(key, []).append(index)
    found: dict[int, tuple[Forecast, int]] = {}
    for (_, slot_s, is_edge, lead), members in groups.items():
        history = np.stack([lenders[index].history for index in members])
        needed = np.array([lenders[index].gpus_needed for index in members])
        horizon_s = max(options.lend_horizon_s, options.lead_s) + 2 * slot_s
        # Demand of an edge node is all or nothing; a season would average that away.
        how = replace(options.forecast, season=None) if is_edge else options.forecast
        told = history.tobytes(), needed.tobytes(), len(members)
        seen = _forecast(*told, slot_s, horizon_s, how, lead * slot_s)
        found.update((index, (seen, row)) for row, index in enumerate(members))
    return [found[index] for index in range(len(lenders))]


@lru_cache(maxsize=16)
def _forecast(
    history: bytes,
    needed: bytes,
    lenders: int,
    slot_s: float,
    horizon_s: float,
    options: ForecastOptions,
    lead_s: float,
) -> Forecast:
    """Forecast from what is known; four times of five it is the same as in the cycle before."""
    past = np.frombuffer(history).reshape(lenders, -1)
    return forecast(past, np.frombuffer(needed), slot_s, horizon_s, options, lead_s)


def _decide(
    snapshot: Snapshot,
    index: int,
    edge: bool,
    loan: Sequence[int],
    seen: Forecast,
    row: int,
    lead_s: float,
    options: LoanOptions,
) -> Decision:
    lender, nodes, now = snapshot.lenders[index], snapshot.nodes, snapshot.now_s
    mine: list[int] = lender.nodes.tolist()
    if not mine or lender.load_age_s > options.stale_s:
        return Decision(index)
    gpus = int(nodes.gpus[lender.nodes].min())  # if they differ: lend too little, not too much
    headroom = max(1.0, float(seen.margin_gpus[row]))
    if np.isnan(seen.margin_gpus[row]):
        least = options.forecast.headroom_fraction * gpus * len(mine)
        headroom = max(1.0, least, float(seen.burst_gpus[row]))
    if edge:  # any demand keeps it, and none needs no headroom
        headroom = -options.idle_gpus

    owned = [node for node in mine if loan[node] == _OWNED]
    asked = [node for node in mine if loan[node] == _LENDING]
    lent = [node for node in mine if loan[node] == _LENT]
    back = len(mine) - len(owned) - len(asked) - len(lent)

    far_s, near_s = options.lend_horizon_s, min(lead_s, options.lend_horizon_s)
    near = seen.peak(row, near_s)

    def figures() -> tuple[Figure, ...]:
        return (
            Figure("needed_gpus", lender.gpus_needed, lender.load_age_s),
            Figure("forecast_gpus", near, lender.load_age_s),
            Figure("peak_gpus", seen.peak(row, far_s), lender.load_age_s),
            Figure("headroom_gpus", headroom, lender.load_age_s),
            Figure("lead_s", lead_s),
        )

    have = len(owned) + back  # the owner's, now or as soon as the returning ones are there
    keep = ceil(seen.peak(row, near_s, headroom) / gpus - 1e-9)
    short = min(keep, len(mine)) - have
    if short > 0 and lent:
        old = [n for n in lent if now - nodes.lent_since_s[n] >= options.loan_min_s]
        urgent = min(ceil(near / gpus - 1e-9), len(mine)) - have
        count = min(short, len(lent), max(len(old), urgent))
        from_s = [seen.needs_from_s(row, (have + done) * gpus) for done in range(count)]
        # Headroom alone is not needed at a known moment: it is due at the end of the lead.
        dues = tuple(now + min(max(at, options.drain_s), lead_s) for at in from_s)
        return Decision(index, (), tuple(lent), dues, figures())
    keep = ceil(seen.peak(row, far_s, headroom) / gpus - 1e-9)
    spare = len(mine) - keep - len(asked) - len(lent)
    if spare > 0:
        rested = [n for n in owned if now - nodes.returned_s[n] >= options.cool_down_s]
        if rested:
            return Decision(index, tuple(rested[:spare]), (), (), figures())
    return Decision(index)


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
