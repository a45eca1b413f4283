"""When a gang that takes no steps counts as stuck."""

#: A gang is stuck only after this many of its usual step intervals.
_INTERVALS = 20


def stalled_since_s(
    moved_s: float | None, interval_s: float | None, stuck_after_s: float, now_s: float
) -> float | None:
    """Give since when workers are stuck; None: they are not.

    Args:
        moved_s: When they took their last step, or should have; None: they never report steps.
        interval_s: What a step usually takes; None: not known.
        stuck_after_s: The least time without a step that counts.
        now_s: The present moment.
    """
    if moved_s is None or now_s - moved_s < max(stuck_after_s, _INTERVALS * (interval_s or 0.0)):
        return None
    return moved_s
