"""What a lender will need soon, from what it needed before.

With more than a day and a half of history, a season does it: see `seasons`. With less, and for
edge nodes, whose demand is all or nothing, the forecast is the largest of four views: the present,
the same time yesterday scaled to today's level, a moving average, and a rising line. Each alone is
blind to something. A forecast that is too high costs some lending, one that is too low costs the
owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.policies.interface import Floats
from scheduler.policies.parts.portable import power, weighed
from scheduler.policies.parts.seasons import SeasonOptions, seasonal
from scheduler.policies.ranges import Amount, Count, Positive, Share

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """How far back to look, and how careful to be."""

    half_life_slots: Positive = 3.0  #: of the moving average.
    trend_slots: Count = 6  #: that the line is fitted to.
    level_slots: Count = 12  #: compared with yesterday's, to scale it.
    level_range: tuple[Amount, Amount] = (0.5, 2.0)
    burst_slots: Count = 36  #: whose rises the headroom is taken from.
    burst_quantile: Share = 0.9
    headroom_fraction: Share = 0.02  #: least headroom, of the lender's GPUs; from memory of Aryl.
    season: SeasonOptions | None = field(default_factory=SeasonOptions)  #: None: views alone.


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Demand of l lenders in the coming slots. Slot j begins j `slot_s` from now."""

    slot_s: Floats  #: (l,)
    demand_gpus: Floats  #: (l, t) without headroom; the first is the present.
    #: (l,) what demand rose by, at a quantile, within the horizon; 0 where there is a margin.
    burst_gpus: Floats
    #: (l,) what to keep beside the forecast; NaN where no errors of it are known yet.
    margin_gpus: Floats

    def starts_s(self) -> Floats:
        """(l, t) how long from now each slot begins."""
        found: Floats = np.arange(self.demand_gpus.shape[1]) * self.slot_s[:, None]
        return found

    def soon(self, horizon_s: Floats | float) -> Floats:
        """(l,) most GPUs needed in the slots after the present that begin within a horizon.

        -inf where none does. The horizon is in seconds from now, of each lender or of all.
        """
        begun = self.starts_s()[:, 1:] <= np.reshape(horizon_s, (-1, 1))
        found: Floats = np.where(begun, self.demand_gpus[:, 1:], -np.inf).max(axis=1)
        return found

    def peak(self, soon: Floats, headroom_gpus: Floats | float = 0.0) -> Floats:
        """(..., l) most GPUs needed from now on, with what is needed `soon`; shaped as that.

        Headroom is for what is not known yet: it comes on top of all slots but the present. One
        that is negative, load that does not count, comes off all.
        """
        now = self.demand_gpus[:, 0] + np.minimum(headroom_gpus, 0.0)
        return np.maximum(now, soon + headroom_gpus)

    def needs_from_s(self, lender: int, have_gpus: float) -> float:
        """Return how long from now demand first exceeds `have_gpus`; inf if it does not."""
        over = np.flatnonzero(self.demand_gpus[lender] > have_gpus)
        return float(over[0] * self.slot_s[lender]) if len(over) else float("inf")


def joined(parts: Sequence[tuple[Sequence[int], Forecast]], lenders: int) -> Forecast:
    """Return one forecast of all lenders from those of groups, each with its members."""
    slots = max(part.demand_gpus.shape[1] for _, part in parts)
    demand = np.full((lenders, slots), -np.inf)  # beyond a forecast's end nothing is needed
    slot_s, burst, margin = np.empty((3, lenders))
    for members, part in parts:
        demand[members, : part.demand_gpus.shape[1]] = part.demand_gpus
        slot_s[members], burst[members], margin[members] = (
            part.slot_s,
            part.burst_gpus,
            part.margin_gpus,
        )
    return Forecast(slot_s, demand, burst, margin)


def forecast(
    history: Floats,
    needed: Floats,
    slot_s: float,
    horizon_s: float,
    options: ForecastOptions | None = None,
    lead_s: float = 0.0,
) -> Forecast:
    """Forecast the demand of lenders whose histories have the same slots.

    Args:
        history: (l, t) most GPUs needed in each past slot, oldest first, the last the present
            one; NaN where nothing was reported. Less than a day is enough; none at all too.
        needed: (l,) GPUs needed now.
        slot_s: Length of a slot in seconds.
        horizon_s: How far to look ahead, in seconds.
        options: How far back to look.
        lead_s: From a decision to the need it is for, in seconds; what the margin is measured at.
    """
    if slot_s <= 0:
        raise ValueError(f"slot_s is {slot_s}; give the length of a history slot in seconds")
    options = options or ForecastOptions()
    lenders, past = history.shape
    ahead = max(1, int(np.ceil(horizon_s / slot_s)))
    length_s = np.full(lenders, slot_s)
    demand: Floats = np.repeat(needed[:, None], ahead + 1, axis=1)
    if not past:
        return Forecast(length_s, demand, np.zeros(lenders), np.full(lenders, np.nan))
    day = round(DAY_S / slot_s)
    keep = np.full(lenders, np.nan)
    if options.season is not None and ahead < day and past > day + 3:
        lead = max(1, int(np.ceil(lead_s / slot_s)))
        season, keep = seasonal(history, ahead, lead, day, options.season)
        sure = np.isfinite(keep) & np.isfinite(season).all(axis=1)
        keep = np.where(sure, keep, np.nan)
        np.copyto(demand[:, 1:], season, where=sure[:, None])
        if sure.all():
            return Forecast(length_s, demand, np.zeros(lenders), keep)
    if np.isnan(keep).all() and not history.any() and not needed.any():
        return Forecast(length_s, demand, np.zeros(lenders), keep)  # who is idle stays so
    views = [_average(history, options)[:, None], _line(history, ahead, options)]
    if past > day:
        views.append(_yesterday(history, ahead, day, options))
    unsure = np.isnan(keep)
    for view in views:
        np.fmax(demand, view, out=demand, where=unsure[:, None])
    bursts = np.where(unsure, _bursts(history, ahead, options), 0.0)
    return Forecast(length_s, demand, bursts, keep)


def _average(history: Floats, options: ForecastOptions) -> Floats:
    """(l,) moving average; NaN where all is NaN."""
    recent = history[:, -int(8 * options.half_life_slots) :]
    weight = power(0.5, np.arange(recent.shape[1])[::-1] / options.half_life_slots)
    seen = ~np.isnan(recent)
    total = weighed(seen, weight)
    sums = weighed(np.where(seen, recent, 0.0), weight)
    average: Floats = sums / np.where(total > 0, total, np.nan)
    return average


def _line(history: Floats, ahead: int, options: ForecastOptions) -> Floats:
    """(l, ahead+1) least-squares line, where it rises; NaN where it falls or is not known."""
    recent = history[:, -options.trend_slots :]
    at = np.arange(recent.shape[1]) - (recent.shape[1] - 1.0)  # the present slot is 0
    seen = ~np.isnan(recent)
    count = seen.sum(axis=1)
    many = np.maximum(count, 1)
    value = np.where(seen, recent, 0.0)
    at_mean = weighed(seen, at) / many
    mean = value.sum(axis=1) / many
    offset = np.where(seen, at - at_mean[:, None], 0.0)
    spread = (offset * offset).sum(axis=1)
    slope = (offset * value).sum(axis=1) / np.maximum(spread, 1e-9)
    line = mean[:, None] + slope[:, None] * (np.arange(ahead + 1) - at_mean[:, None])
    return np.where(((count >= 3) & (slope > 0))[:, None], line, np.nan)


def _yesterday(history: Floats, ahead: int, day: int, options: ForecastOptions) -> Floats:
    """(l, ahead+1) the same slots a day ago and their neighbours, scaled to today's level."""
    past = history.shape[1]
    then = past - 1 - day + np.arange(ahead + 1)  # index of the same slot yesterday
    around = np.minimum(then[:, None] + np.array([-1, 0, 1]), past - 1)
    same = np.where(around >= 0, history[:, np.maximum(around, 0)], np.nan)
    peak = np.fmax.reduce(same, axis=2)
    window = min(options.level_slots, past - day)
    now, before = history[:, past - window :], history[:, past - window - day : past - day]
    both = ~(np.isnan(now) | np.isnan(before))
    today = np.where(both, now, 0.0).sum(axis=1)
    that_day = np.where(both, before, 0.0).sum(axis=1)
    low, high = options.level_range
    # One GPU more on each side keeps a level of nearly nothing from scaling anything.
    level = np.clip((today + 1.0) / (that_day + 1.0), low, high)
    scaled: Floats = peak * level[:, None]
    return scaled


def _bursts(history: Floats, ahead: int, options: ForecastOptions) -> Floats:
    """(l,) quantile of how far demand rose, within a horizon, above what it was."""
    past = history.shape[1]
    recent = history[:, -min(past, options.burst_slots + ahead) :]
    slots = recent.shape[1] - 1
    if slots < 1:
        return np.zeros(len(history))
    highest = recent[:, 1:].copy()
    for step in range(1, min(ahead, slots)):
        np.fmax(highest[:, :-step], recent[:, 1 + step :], out=highest[:, :-step])
    rise = highest - recent[:, :-1]
    rise = np.sort(np.where(np.isnan(rise), -np.inf, rise), axis=1)
    index = int(np.ceil(options.burst_quantile * slots)) - 1
    return np.maximum(rise[:, index], 0.0)
