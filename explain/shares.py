"""Shares of one, and counts: as people write them, in every place that shows any."""


def percent(share: float) -> str:
    """Write a share of one: `42%`; rounded down, so that nothing is done before it is."""
    if 0.0 < share < 0.01:
        return "<1%"
    # What is a hundredth but for the last bits of a float is that hundredth.
    return f"{int(share * 100 + 1e-9)}%"


def few(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that count; one that is larger, in full: `1,023`."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text


def counted(count: int, noun: str) -> str:
    """Write how many there are of something: `1 GPU`, `2 GPUs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
