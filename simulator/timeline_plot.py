"""A picture of one job: its GPUs by pool over time, and its loss above them."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from simulator.plot import FORMATS

__all__ = ["FORMATS", "draw"]

#: From, until (s), GPUs, pool, what happened.
Block = tuple[float, float, int, str, str]


def draw(
    job: str,
    blocks: Sequence[Block],
    samples: Sequence[tuple[float, float]],
    path: Path,
    name: str = "loss",
) -> None:
    """Draw where a job ran, and values that it wrote over the same time.

    Args:
        job: Its name.
        blocks: Stretches on the same GPUs.
        samples: Moment and value, both finite; none: no such panel.
        path: A file that ends in one of `FORMATS`.
        name: Of these values.

    Raises:
        OSError: The file cannot be written.
    """
    origin_s = min([block[0] for block in blocks] + [at_s for at_s, _ in samples], default=0.0)
    figure = Figure(figsize=(10.0, 6.0 if samples else 3.0), layout="constrained")
    panels = figure.subplots(
        2 if samples else 1,
        1,
        sharex=True,
        squeeze=False,
        height_ratios=(2, 1)[: 2 - (not samples)],
    )[:, 0]
    pools = list(dict.fromkeys(block[3] for block in blocks))
    used = panels[-1]
    for since_s, until_s, gpus, pool, _ in blocks:
        start = since_s - origin_s
        color = f"C{pools.index(pool)}"
        used.bar(start, gpus, until_s - since_s, align="edge", color=color, alpha=0.7)
    for pool in pools:
        used.bar(0, 0, color=f"C{pools.index(pool)}", alpha=0.7, label=pool)
    used.set(xlabel="s", ylabel="GPUs")
    used.legend(title="pool", loc="upper right")
    for axes in panels:
        for block in blocks:
            axes.axvline(block[0] - origin_s, color="0.5", linewidth=0.8, linestyle="--")
    if samples:
        curve = panels[0]
        curve.plot(
            [at_s - origin_s for at_s, _ in samples], [value for _, value in samples], linewidth=0.8
        )
        for block in blocks:
            curve.annotate(
                block[4],
                (block[0] - origin_s, 1.0),
                xycoords=("data", "axes fraction"),
                rotation=90,
                fontsize="small",
                va="top",
                ha="right",
            )
        curve.set(ylabel=name, title=job)
        # A log scale would leave out what is not above 0, without a word.
        curve.set_yscale("log" if min(value for _, value in samples) > 0.0 else "linear")
    else:
        used.set(title=job)
    figure.savefig(path, dpi=120)
