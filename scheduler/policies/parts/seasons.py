"""Demand that comes again every day and every week, and how wrong that has been.

The forecast is the present level times how demand grew, over the same minutes, on days before. The
margin on top is the least with which the owner would have been short of no more than a given part
of its GPU-time, had it acted on each past forecast. It is a quantile of past errors, but one
that is chosen by what errors cost: a burst of some minutes that hurts next to nobody keeps no GPUs
idle all day. `benchmarks/forecast.py` measures both against a lender that knows the future.
"""

from dataclasses import InitVar, dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from scheduler.policies.interface import Floats
from scheduler.policies.ranges import Amount, PositiveShare, Share

#: Days ago on which a step is believed: yesterday, and the same day last week.
_STEP_DAYS = (1, 7)
#: Days whose growth is averaged, and days of errors that the margin is learned from, at most: a
#: cell remembers two days, or more where `load_slot_s` is longer.
_DAYS, _ERROR_DAYS = 7, 14


@dataclass(frozen=True, slots=True)
class SeasonOptions:
    """How far back to look, and how careful to be."""

    growth_range: tuple[Amount, Amount] = (0.25, 4.0)
    #: On either side: one day's growth over a few slots is mostly noise.
    smooth_slots: Annotated[int, Field(ge=0, le=1000)] = 3
    #: Growth that is not smoothed, of yesterday or a week ago, counts alone where it was steeper by
    #: this part: work that begins on the hour, or a working day that follows a weekend.
    step: Amount = 0.08
    short_fraction: Share = 0.0008  #: of the GPU-time needed; that the owner may be short of.
    #: Part of a slot in which demand is near the slot's peak. Errors are known by peaks only.
    peak_share: PositiveShare = 0.42
    doubt: Amount = 0.6  #: half-days of errors that count for nothing.
    #: Options of older logs, which are read and ignored: two days of history are all there is.
    days: InitVar[object] = None
    error_days: InitVar[object] = None

    def __post_init__(self, days: object, error_days: object) -> None:
        pass


def seasonal(
    history: Floats, ahead: int, lead: int, day: int, options: SeasonOptions
) -> tuple[Floats, Floats]:
    """Forecast the coming slots from the days before, and say what to keep beside the forecast.

    Args:
        history: (l, t) peaks of past slots, the last the present one; NaN where unknown. More
            than a day and three slots.
        ahead: Slots to forecast; less than a day.
        lead: Slots from a decision to the need it is for; the margin is measured at it.
        day: Slots of a day.
        options: How far back to look, and how careful to be.

    Returns:
        (l, ahead) GPUs in the slots after the present one; NaN where no day before is known. And
        (l,) GPUs of margin; NaN where the errors of less than half a day are known.
    """
    calm = _calm(history)
    smooth = _smooth(calm, options.smooth_slots)
    return (
        _forecast(calm, smooth, ahead, day, options),
        _margin(history, calm, smooth, lead, day, options),
    )


def _forecast(calm: Floats, smooth: Floats, ahead: int, day: int, options: SeasonOptions) -> Floats:
    """(l, ahead) the present level times the growth of days before."""
    lenders, past = calm.shape
    grown, base, pairs, step = np.zeros((4, lenders, ahead))
    for days in range(1, _DAYS + 1):
        at = past - 2 - days * day
        if at < 0:
            break
        before, after = smooth[:, at, None], smooth[:, at + 2 : at + 2 + ahead]
        known = np.isfinite(before) & np.isfinite(after)
        grown += np.where(known, after, 0.0)
        base += np.where(known, before, 0.0)
        pairs += known
        if days in _STEP_DAYS:
            np.fmax(step, _ratio(calm[:, at + 2 : at + 2 + ahead], calm[:, at, None]), out=step)
    return _levelled(calm[:, past - 2, None], grown, base, pairs, step, options)


def _margin(
    history: Floats, calm: Floats, smooth: Floats, lead: int, day: int, options: SeasonOptions
) -> Floats:
    """(l,) margin, from the errors that forecasts made `lead` slots before would have had."""
    lenders, past = history.shape
    from_slot = max(day + 1, past - lead - _ERROR_DAYS * day)
    count = past - lead - from_slot
    if count <= 0:
        return np.full(lenders, np.nan)
    grown, base, pairs, step = np.zeros((4, lenders, count))
    whole = not np.isnan(smooth).any()
    for days in range(1, _DAYS + 1):
        first = max(from_slot, days * day + 1)  # the first slot with a source so long ago
        skip = first - from_slot
        if skip >= count:
            break
        at = first - 1 - days * day
        early, late = (
            slice(at, at + count - skip),
            slice(at + 1 + lead, at + 1 + lead + count - skip),
        )
        if days in _STEP_DAYS:
            np.fmax(step[:, skip:], _ratio(calm[:, late], calm[:, early]), out=step[:, skip:])
        before, after = smooth[:, early], smooth[:, late]
        known = None if whole else np.isfinite(before) & np.isfinite(after)
        grown[:, skip:] += after if known is None else np.where(known, after, 0.0)
        base[:, skip:] += before if known is None else np.where(known, before, 0.0)
        pairs[:, skip:] += 1.0 if known is None else known
    level = calm[:, from_slot - 1 : from_slot - 1 + count]
    thought = np.fmax(level, _levelled(level, grown, base, pairs, step, options))
    needed = history[:, from_slot + lead :]
    return _least(needed - thought, needed, day // 2, options)


def _least(error: Floats, needed: Floats, least_known: int, options: SeasonOptions) -> Floats:
    """(l,) least margin that leaves no more than the allowed part of the need short.

    With the k largest errors above a margin m, the owner was short by their sum less k m.
    """
    known = np.isfinite(error)
    count_known = known.sum(axis=1)
    # Few errors say little of the worst to come: they are taken more seriously.
    trust = count_known / (count_known + options.doubt * least_known)
    allowed = options.short_fraction / options.peak_share * trust[:, None]
    allowed_gpus = allowed * np.where(known, needed, 0.0).sum(axis=1, keepdims=True)
    error = np.where(known, error, -np.inf)
    # An error below the present margin costs nothing; a tenth of them is more than ever count.
    most = max(1, error.shape[1] // 10)
    worst = np.partition(error, error.shape[1] - most, axis=1)[:, -most:]
    worst = np.sort(worst, axis=1)[:, ::-1]
    count = np.arange(1, most + 1)
    found = ((np.cumsum(worst, axis=1) - allowed_gpus) / count).max(axis=1)
    return np.where(count_known >= least_known, np.maximum(found, 0.0), np.nan)


def _calm(history: Floats) -> Floats:
    """(l, t) without peaks of a single slot: of each slot and its neighbours the middle one."""
    before, here, after = history[:, :-2], history[:, 1:-1], history[:, 2:]
    calm = history.copy()
    middle = np.fmin(np.fmax(before, here), after)
    calm[:, 1:-1] = np.fmax(np.fmin(before, here), middle)
    return calm


def _smooth(calm: Floats, reach: int) -> Floats:
    """(l, t) the mean of each slot and `reach` slots on either side; NaN where none is known."""
    known = np.isfinite(calm)
    sums = np.zeros((2, len(calm), calm.shape[1] + 2 * reach + 1))
    inside = slice(reach + 1, reach + 1 + calm.shape[1])
    sums[0, :, inside] = np.where(known, calm, 0.0)
    sums[1, :, inside] = known
    np.cumsum(sums, axis=2, out=sums)
    total, count = sums[:, :, 2 * reach + 1 :] - sums[:, :, : calm.shape[1]]
    found: Floats = total / np.where(count > 0, count, np.nan)
    return found


def _ratio(after: Floats, before: Floats, pairs: Floats | float = 1.0) -> Floats:
    # A GPU more on each side keeps a level of nearly nothing from scaling anything.
    found: Floats = (after + pairs) / (before + pairs)
    return found


def _levelled(
    level: Floats,
    grown: Floats,
    base: Floats,
    pairs: Floats,
    step: Floats,
    options: SeasonOptions,
) -> Floats:
    """Apply growth to the level before; NaN where no growth or no level is known."""
    growth = _ratio(grown, base, np.where(pairs > 0, pairs, np.nan))
    growth = np.where(step > growth * (1.0 + options.step), step, growth)
    low, high = options.growth_range
    return (level + 1.0) * np.clip(growth, low, high) - 1.0
