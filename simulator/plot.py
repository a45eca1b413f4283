"""Pictures of a comparison. The only module that knows matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.compare import Finished

#: Endings of the files that are drawn.
FORMATS = (".pdf", ".png", ".svg")
_HOUR_S = 3600.0
#: Points of a utilisation curve.
_POINTS = 200


def draw(runs: Sequence[Finished], path: Path) -> None:
    """Draw completion times, utilisation and loans over time, and deadlines met, by policy.

    Completion times are over all workloads; utilisation and loans are those of the first workload,
    averaged over windows. Without loans there is no panel for them; without deadlines, the last
    panel shows mean completion times.

    Raises:
        OSError: The file cannot be written.
        ValueError: The file's ending is none that can be drawn; each of `FORMATS` can.
    """
    by_policy: dict[str, list[Finished]] = {}
    for run in runs:
        by_policy.setdefault(run.case.policy, []).append(run)
    lent = any(run.loans for run in runs)
    panels = 4 if lent else 3
    figure = Figure(figsize=(5.0 * panels, 4.5), layout="constrained")
    completions, used, *loans, deadlines = figure.subplots(1, panels)
    _completions(completions, by_policy)
    _over_time(used, {name: runs[0].line for name, runs in by_policy.items()})
    used.set(ylabel="share of all GPUs allocated", ylim=(0.0, 1.02))
    for axes in loans:
        _over_time(axes, {name: runs[0].loans for name, runs in by_policy.items()})
        axes.set(ylabel="GPUs on loan from inference servers")
        axes.set_ylim(bottom=0.0)
    _deadlines(deadlines, by_policy)
    figure.savefig(path, dpi=120)


def _completions(axes: Axes, by_policy: Mapping[str, Sequence[Finished]]) -> None:
    for policy, runs in by_policy.items():
        jct_s = np.sort(np.concatenate([np.array(run.jct_s) for run in runs]))
        # Over all jobs, so that a curve that stays below 1 shows what never finished.
        jobs = sum(int(run.figures["jobs"] or 0) for run in runs)
        axes.plot(jct_s / _HOUR_S, np.arange(1, len(jct_s) + 1) / max(jobs, 1), label=policy)
    axes.set(
        xscale="log", xlabel="job completion time, h", ylabel="share of all jobs", ylim=(0.0, 1.02)
    )
    axes.legend()
    axes.grid(alpha=0.3)


def _over_time(axes: Axes, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for policy, line in lines.items():
        if not line:
            continue
        moments = np.array([moment for moment, _ in line])
        values = np.array([value for _, value in line])
        # Exact means of a step function: differences of its integral.
        integral = np.concatenate(([0.0], np.cumsum(values[:-1] * np.diff(moments))))
        edges = np.linspace(moments[0], max(moments[-1], moments[0] + 1.0), _POINTS + 1)
        means = np.diff(np.interp(edges, moments, integral)) / np.diff(edges)
        axes.plot((edges[1:] + edges[:-1]) / 2 / _HOUR_S, means, label=policy, linewidth=1.0)
    axes.set(xlabel="time, h")
    axes.grid(alpha=0.3)


def _deadlines(axes: Axes, by_policy: Mapping[str, Sequence[Finished]]) -> None:
    name, label = "deadline_ratio", "share of deadlines met"
    if all(run.figures[name] is None for runs in by_policy.values() for run in runs):
        name, label = "mean_jct_s", "mean job completion time, s"
    heights = []
    for runs in by_policy.values():
        values = [float(run.figures[name] or 0.0) for run in runs]
        heights.append(sum(values) / len(values))
    axes.bar(list(by_policy), heights)
    axes.set(ylabel=label)
    axes.tick_params(axis="x", rotation=45)
