"""How many nodes a lender lends or takes back, which, and by when.

A loan is of whole nodes. A lender keeps what it needs now, and what its forecast peak needs plus
headroom, and may lend the rest. Headroom is what the forecast's past errors ask
for; before there are any, what demand rose by lately. The lender takes nodes back before the
forecast says that they are needed, so that jobs have time to checkpoint.

What keeps loans from flapping: lending looks further ahead than reclaiming, a node just returned
rests, and a young loan is ended only for demand, not for headroom. What keeps them honest: on a
report older than `stale_s` nothing is lent and nothing new is reclaimed, because both would be a
guess; the owner reports again, or the core calls all that it lent back (`core/recalls.py`).
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AliasChoices, Field

from scheduler.policies.interface import (
    Bools,
    Figure,
    Floats,
    Ints,
    Kind,
    Lender,
    LoanPhase,
    Need,
    Reason,
    Snapshot,
)
from scheduler.policies.parts.forecast import Forecast, ForecastOptions, forecast, joined
from scheduler.policies.ranges import Amount

# Plain numbers: a look at an enum costs as much as a small array's arithmetic.
_OWNED, _LENDING, _LENT = map(int, (LoanPhase.OWNED, LoanPhase.LENDING, LoanPhase.LENT))
_PHASES = len(LoanPhase)
_EDGE = int(Kind.EDGE)
_MOST = np.iinfo(np.int64).max

#: How far ahead demand is forecast: with the two slots more that are looked at, less than a day.
Ahead = Annotated[float, Field(ge=0.0, le=72_000.0)]


@dataclass(frozen=True, slots=True)
class LoanOptions:
    """When to lend and when to reclaim."""

    lend_horizon_s: Ahead = 1800.0  #: a loan must look idle at least this long.
    #: That the owner needs to bring a returned node into service; in older logs it is `drain_s`.
    warm_up_s: Annotated[Amount, Field(validation_alias=AliasChoices("warm_up_s", "drain_s"))] = (
        120.0
    )
    lead_s: Ahead = 300.0  #: least time before need that a reclaim begins.
    loan_min_s: Amount = 600.0  #: a younger loan is not ended for headroom alone.
    cool_down_s: Amount = 900.0  #: rest of a node between return and the next loan.
    stale_s: Amount = 900.0  #: a load report older than this says nothing.
    idle_gpus: Amount = 0.1  #: an edge node that is forecast to need no more counts as idle.
    forecast: ForecastOptions = field(default_factory=ForecastOptions)


@dataclass(frozen=True, slots=True)
class Decision:
    """What one lender does. Nodes are indices into `Nodes`."""

    #: Nodes lent, or asked for, that may be taken; the caller picks victims.
    reclaim_from: tuple[int, ...] = ()
    dues_s: tuple[float, ...] = ()  #: when each reclaimed node is needed, earliest first.
    figures: tuple[Figure, ...] = ()  #: of one that does anything.

    @property
    def reclaim(self) -> int:
        """Nodes to take back."""
        return len(self.dues_s)


class Offer(NamedTuple):
    """Nodes that one lender can spare."""

    nodes: list[int]
    why: Callable[[], Decision]
    after: int  #: How many reasons of the plan come before its own.


@dataclass(slots=True)
class Loans:
    """Nodes that change hands in a plan."""

    lend: list[int] = field(default_factory=list)
    reclaim: dict[int, float] = field(default_factory=dict)  #: node -> due moment.
    reasons: list[Reason] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)  #: Of which `lend_only` chooses.

    def lend_only(self, names: Sequence[str], wanted: Container[int]) -> None:
        """Have only some of the offered nodes lent, and say why; all others stay with their owners.

        Args:
            names: Of all nodes.
            wanted: Indices of those that are lent.
        """
        self.lend = [node for node in self.lend if node in wanted]
        for offer in reversed(self.offers):
            nodes = [node for node in offer.nodes if node in wanted]
            if nodes:
                decision = offer.why()
                told = [lends(names[node], decision) for node in nodes]
                self.reasons[offer.after : offer.after] = told


class Outlook:
    """What all lenders have, will need, and shall do. l lenders in the snapshot's order.

    One without nodes, or whose report is too old, does nothing.
    """

    def __init__(self, seen: Snapshot, options: LoanOptions, notice_s: Floats) -> None:
        """Look ahead.

        Args:
            seen: What is known; some lender.
            options: When to lend and when to reclaim.
            notice_s: (l,) the longest checkpoint among the jobs on a lender's nodes, in seconds.
        """
        lenders, nodes, count = seen.lenders, seen.nodes, len(seen.lenders)
        self._seen, self._options = seen, options
        theirs = [lender.nodes for lender in lenders]
        fleet = _Arrays([seen.pools.kind, nodes.pool, nodes.gpus, *theirs])
        #: (q,) nodes of all lenders, by lender; whose each is; its phase.
        #: (l,) nodes in all; whether it is an edge server; GPUs of a node.
        self.node, self.of, self.many, self.edge, self.gpus = _owned(fleet)
        self.phase: Ints = nodes.loan[self.node]
        phases = np.bincount(self.of * _PHASES + self.phase, minlength=_PHASES * count)
        owned, asked, lent, back = phases.reshape(count, _PHASES).T
        #: (l,) the owner's nodes, now or as soon as the returning ones are there.
        self.have: Ints = owned + back
        early_s = np.maximum(notice_s + options.warm_up_s, options.lead_s)
        #: (l,) how long before its need a lender's node must be asked back.
        self.lead_s: Floats = np.where(lent > 0, early_s, options.lead_s)
        #: (2, l) most GPUs needed from now on, within the lead and within the horizon; (l,) what is
        #: kept on top. Any demand keeps an edge node, and none needs no headroom.
        self.forecast, self.peaks, self.headroom, (near, far) = _ahead(
            np.array([lender.gpus_needed for lender in lenders]).tobytes(),
            self.lead_s.tobytes(),
            _Arrays([self.many, self.edge, self.gpus]),
            tuple([lender.slot_s for lender in lenders]),
            options,
            _Arrays([lender.history for lender in lenders]),
        )
        age_s = np.array([lender.load_age_s for lender in lenders])
        #: (l,) says anything.
        self.fresh: Bools = (age_s <= options.stale_s) & (self.many > 0)
        #: (l,) nodes that it is short of soon; and whether it takes some back.
        self.short: Floats = np.minimum(near, self.many) - self.have
        self.takes: Bools = (self.short > 0) & (asked + lent > 0) & self.fresh
        #: (l,) nodes that it does not need for long, of those that it has.
        self.spare: Floats = np.where(self.fresh & ~self.takes, self.have - far, 0.0)

    def offers(self) -> dict[int, list[int]]:
        """Return the nodes that each lender offers, of those that do; by lender."""
        may = (self.phase == _OWNED) & (self.spare > 0)[self.of]
        if not np.count_nonzero(may):
            return {}
        may &= (
            self._seen.now_s - self._seen.nodes.returned_s[self.node] >= self._options.cool_down_s
        )
        count = np.bincount(self.of[may], minlength=len(self.spare))
        begin = (count.cumsum() - count).tolist()
        some = np.minimum(count, self.spare).astype(np.int64)
        nodes, many = self.node[may].tolist(), some.tolist()
        offering: list[int] = (some > 0).nonzero()[0].tolist()
        return {at: nodes[begin[at] : begin[at] + many[at]] for at in offering}

    def lends(self, lender: int, _nodes: Sequence[int]) -> Decision:
        """Say with which figures a lender lends some of the nodes it offers."""
        return Decision(figures=self._figures(lender))

    def reclaims(self, lender: int) -> Decision:
        """Decide what a lender that takes nodes back is given, and when."""
        seen, options = self._seen, self._options
        now_s, lead_s = seen.now_s, float(self.lead_s[lender])
        # A node that the owner is only asked for costs nobody anything: it comes first.
        mine = np.concatenate(
            [self.node[(self.of == lender) & (self.phase == of)] for of in (_LENDING, _LENT)]
        )
        old = int((now_s - seen.nodes.lent_since_s[mine] >= options.loan_min_s).sum())
        have, gpus = int(self.have[lender]), int(self.gpus[lender])
        needs = ceil(self._figures(lender)[1].value / gpus - 1e-9)
        urgent = min(needs, int(self.many[lender])) - have
        count = min(int(self.short[lender]), len(mine), max(old, urgent))
        from_s = [self.forecast.needs_from_s(lender, (have + done) * gpus) for done in range(count)]
        # Headroom alone is not needed at a known moment: it is due at the end of the lead.
        dues = tuple(now_s + min(max(at, options.warm_up_s), lead_s) for at in from_s)
        return Decision(tuple(mine.tolist()), dues, self._figures(lender))

    def _figures(self, index: int) -> tuple[Figure, ...]:
        lender = self._seen.lenders[index]
        near, far = self.peaks[:, index].tolist()
        return (
            Figure("needed_gpus", lender.gpus_needed, lender.load_age_s),
            Figure("forecast_gpus", near, lender.load_age_s),
            Figure("peak_gpus", far, lender.load_age_s),
            Figure("headroom_gpus", float(self.headroom[index]), lender.load_age_s),
            Figure("lead_s", float(self.lead_s[index])),
        )


class _Arrays(tuple[Any, ...]):
    """Arrays as a key. A snapshot's cannot be written: the same one need not be read."""

    __slots__ = ()

    def __hash__(self) -> int:
        return len(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Arrays) and all(map(_alike, self, other))


def _alike(one: Floats, other: Floats) -> bool:
    return one is other or one.tobytes() == other.tobytes()


@lru_cache(maxsize=4)
def _owned(fleet: _Arrays) -> tuple[Ints, Ints, Ints, Bools, Ints]:
    """Return what lenders have, whatever its phase: it changes only with the fleet.

    Args:
        fleet: Kinds of pools; pools and GPUs of nodes; and the nodes of each lender.
    """
    kind, pool, gpus, *theirs = fleet
    node: Ints = np.concatenate(theirs)
    many: Ints = np.array(list(map(len, theirs)))
    of: Ints = np.arange(len(theirs)).repeat(many)
    edge: Bools = np.zeros(len(theirs), dtype=np.bool_)
    edge[of] = kind[pool[node]] == _EDGE
    least: Ints = np.full(len(theirs), _MOST)  # if they differ: lend too little, not too much
    np.minimum.at(least, of, gpus[node])
    for part in (node, of, many, edge, least):
        part.flags.writeable = False
    return node, of, many, edge, least


@lru_cache(maxsize=8)
def _ahead(
    needed: bytes,
    lead_s: bytes,
    owned: _Arrays,
    slots_s: tuple[float, ...],
    options: LoanOptions,
    histories: _Arrays,
) -> tuple[Forecast, Floats, Floats, Floats]:
    """Forecast all lenders; (2, l) most GPUs needed from now on, within the lead and the horizon.

    With that comes (l,) the headroom on top, and (2, l) the nodes that both take. Those with like
    histories are forecast at once. Four times of five nobody reported anything new.
    """
    many, edge, gpus = owned
    near_s = np.minimum(np.frombuffer(lead_s), options.lend_horizon_s)
    groups: dict[tuple[int, float, bool, int], list[int]] = {}
    told = zip(histories, slots_s, edge.tolist(), near_s.tolist(), strict=True)
    for index, (past, slot_s, is_edge, near) in enumerate(told):
        key = (len(past), slot_s, is_edge, ceil(near / slot_s))
        groups.setdefault(key, []).append(index)
    parts, now = [], np.frombuffer(needed)
    for (_, slot_s, is_edge, lead), members in groups.items():
        history = b"".join([histories[index].tobytes() for index in members])
        horizon_s = max(options.lend_horizon_s, options.lead_s) + 2 * slot_s
        # Demand of an edge node is all or nothing; a season would average that away.
        how = replace(options.forecast, season=None) if is_edge else options.forecast
        known = history, now[members].tobytes(), len(members)
        parts.append((members, _forecast(*known, slot_s, horizon_s, how, lead * slot_s)))
    found = joined(parts, len(now))
    soon = np.array((found.soon(near_s), found.soon(options.lend_horizon_s)))
    margin = found.margin_gpus
    least = np.maximum(options.forecast.headroom_fraction * gpus * many, found.burst_gpus)
    headroom = np.maximum(np.where(np.isnan(margin), least, margin), 1.0)
    headroom = np.where(edge, -options.idle_gpus, headroom)
    nodes = np.ceil(found.peak(soon, headroom) / gpus - 1e-9)
    return found, found.peak(soon), headroom, nodes


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
    """Forecast lenders of a kind from what is known of them."""
    past = np.frombuffer(history).reshape(lenders, -1)
    return forecast(past, np.frombuffer(needed), slot_s, horizon_s, options, lead_s)


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
