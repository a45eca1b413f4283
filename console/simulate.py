"""`tidegate simulate`: policies side by side on the same jobs, in virtual time."""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, get_args

import typer

from console.comparison import print_runs, write_csv
from console.output import JsonPath, emit_json, fail, say
from scheduler.policies.registry import name_of
from scheduler.policies.spec import split
from schemas.values import MAX_GPUS_PER_NODE
from simulator.at_once import Submit
from simulator.compare import (
    PHYSICS,
    Case,
    Finished,
    Grid,
    Knowledge,
    RunError,
    check,
    compare,
)
from simulator.generated import Mix
from simulator.options import Agents
from simulator.physics.base import Cluster
from simulator.physics.simple import GENERATED
from simulator.remote import ClusterError, DaskCluster

#: Decisions between two words on how far a run is.
_WATCH_EVERY = 100
#: Where nodes fail, and nothing else is said: how long one is gone, how often jobs save.
_REPAIR_S, _CHECKPOINT_S = 1800.0, 750.0


def simulate(
    workload: Annotated[
        list[str],
        typer.Option(help="A trace (CSV), or `generated`; several: repeat it, or use commas."),
    ],
    policy: Annotated[str, typer.Option(help="Policies, with commas between.")] = "tide,fifo",
    physics: Annotated[str, typer.Option(help=f"{', '.join(PHYSICS)}.")] = "simple",
    profiles: Annotated[
        str | None,
        typer.Option(
            "--profiles",
            "--throughputs",  # as `tidegate demo` has it
            help="Folder of measured profiles or throughput tables.",
        ),
    ] = None,
    nodes: Annotated[
        int, typer.Option(min=1, max=100_000, help="Nodes of the training pool.")
    ] = 16,
    gpus_per_node: Annotated[
        int, typer.Option(min=1, max=MAX_GPUS_PER_NODE, help="Of every node but edge servers.")
    ] = 4,
    training_agents: Annotated[
        int,
        typer.Option(min=1, max=1000, help="So many agents share them; no gang spans two."),
    ] = 1,
    inference_nodes: Annotated[
        int, typer.Option(min=0, max=100_000, help="Servers that may be lent, with as many GPUs.")
    ] = 0,
    edge_nodes: Annotated[
        int, typer.Option(min=0, max=10_000, help="Edge servers, of one slower GPU each.")
    ] = 0,
    requests: Annotated[
        str | None, typer.Option(help="Requests to the inference servers (Azure's LLM trace).")
    ] = None,
    seed: Annotated[
        str, typer.Option(help="Seeds of generated jobs and demand, with commas between.")
    ] = "1",
    days: Annotated[float, typer.Option(help="Days over which generated jobs arrive.")] = 1.0,
    jobs: Annotated[
        int | None, typer.Option(help="How many to generate; if not given, as many as is usual.")
    ] = None,
    load: Annotated[
        float, typer.Option(help="GPU time that generated jobs ask for, over what there is.")
    ] = 0.9,
    priority_share: Annotated[
        float, typer.Option(help="Share of the generated jobs that have priority 1.")
    ] = 0.0,
    round_s: Annotated[
        float, typer.Option(min=1.0, help="Seconds between rounds of decisions.")
    ] = 60.0,
    merge_s: Annotated[float, typer.Option(min=0.0, help="Least seconds between decisions.")] = 0.0,
    when: Annotated[
        str, typer.Option(help="Decide at events too, or in rounds only: paper, events, rounds.")
    ] = "paper",
    batch: Annotated[
        str, typer.Option(help="Whether jobs tune their batch: paper, tuned, fixed.")
    ] = "paper",
    knowledge: Annotated[
        str,
        typer.Option(help="What is known of tuning jobs: learned, unknown (lengths too), or true."),
    ] = "learned",
    agents: Annotated[
        str, typer.Option(help="Ideal agents, or real agent cores on simulated GPUs: ideal, core.")
    ] = "ideal",
    mtbf_h: Annotated[
        float | None, typer.Option(help="Let nodes fail: hours up between failures, on average.")
    ] = None,
    repair_s: Annotated[
        float, typer.Option(help="Seconds that a node which failed is gone.")
    ] = _REPAIR_S,
    checkpoint_s: Annotated[
        float,
        typer.Option(help="Seconds between a job's checkpoints, where nodes fail; as agents do."),
    ] = _CHECKPOINT_S,
    sizes: Annotated[str, typer.Option(help="Sizes offered: ladder, all, powers.")] = "ladder",
    hours: Annotated[float | None, typer.Option(help="Stop after so many hours.")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at once; one per core if not given.")
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Run on this Dask cluster instead: tcp://HOST:PORT.")
    ] = None,
    log_path: Annotated[
        str | None, typer.Option("--log", help="Write every decision here; `replay` reads it.")
    ] = None,
    json_path: JsonPath = None,
    csv_path: Annotated[
        str | None, typer.Option("--csv", help="Write all figures here, a row for each run.")
    ] = None,
    plot_path: Annotated[
        str | None, typer.Option("--plot", help="Draw completion times, use and deadlines here.")
    ] = None,
) -> None:
    """Compare policies on the same jobs, in virtual time.

    Each policy decides when its paper says, and its jobs tune their batch if
    its paper's do: `--when` and `--batch` set these two for all, nothing else.
    `fifo` is tried as `fifo:sizes=requested`: each job has the size that it asks
    for; `fifo:sizes=smallest` is what it is elsewhere. Equal seeds and files give
    equal figures, but for the time that decisions take. What decides is the
    engine that a deployment runs, so `tidegate replay` takes a run's --log.
    With --mtbf-h each node fails at moments drawn from the seed, the same for
    every policy; its gangs go back to their last checkpoint, which costs nothing.
    Exit code 0: all jobs ended. 1: some never did, or were rejected. 2: bad input.

    Example: tidegate simulate --workload generated --policy tide,fifo --seed 1
    """
    for name, path in (
        ("--json", json_path),
        ("--csv", csv_path),
        ("--plot", plot_path),
        ("--log", log_path),
    ):
        _check_path(name, path)
    _check_log(log_path, dask)
    if training_agents > nodes:
        fail(f"--training-agents: {training_agents} agents cannot share {nodes} nodes.")
    _check_seconds(round_s, merge_s, hours)
    _check_failures(mtbf_h, repair_s, checkpoint_s)
    files, mix = _listed("--workload", ",".join(workload)), _mix(days, jobs, load, priority_share)
    for file in files:
        if file != GENERATED and not Path(file).exists():
            fail(f"--workload: {file}: there is no such file. Name a trace, or `{GENERATED}`.")
    if mix != Mix() and GENERATED not in files:
        fail("--days, --jobs, --load, --priority-share: are of made-up jobs; a trace has its own.")
    rules = {
        "on_events": _choice("--when", when, {"paper": None, "events": True, "rounds": False}),
        "tuning": _choice("--batch", batch, {"paper": None, "tuned": True, "fixed": False}),
        "knowledge": _choice("--knowledge", knowledge, {one: one for one in get_args(Knowledge)}),
        "agents": _choice("--agents", agents, {one: one for one in get_args(Agents)}),
        "grid": _choice("--sizes", sizes, {one: one for one in get_args(Grid)}),
    }
    cases = [
        Case(
            policy=one,
            workload=file,
            physics=physics,
            profiles=profiles,
            cluster=Cluster(nodes, gpus_per_node, agents=training_agents),
            inference_nodes=inference_nodes,
            edge_nodes=edge_nodes,
            requests=requests,
            seed=number,
            mix=mix,
            round_s=round_s,
            merge_s=merge_s,
            horizon_s=float("inf") if hours is None else hours * 3600.0,
            mtbf_h=float("inf") if mtbf_h is None else mtbf_h,
            repair_s=repair_s,
            checkpoint_s=checkpoint_s,
            **rules,
        )
        for file in files
        for number in _seeds(seed)
        for one in _listed("--policy", policy)
    ]
    notes = _check(cases)
    draw = _drawing(plot_path) if plot_path is not None else None
    if log_path is None:
        runs = _compare(cases, processes, None if dask is None else dask_cluster(dask))
    else:
        runs = _recorded(cases, processes, Path(log_path))
    # The table first: whatever becomes of the files, what was computed is not lost.
    if json_path != "-":
        print_runs(runs, notes)
    emit_json({"runs": [run.row() for run in runs]}, json_path)
    if csv_path is not None:
        write_csv(runs, Path(csv_path))
    if draw is not None and plot_path is not None:
        draw(runs, Path(plot_path))
    if any(run.figures["completed"] != run.figures["jobs"] for run in runs):
        raise typer.Exit(1)


# --- options -----------------------------------------------------------------------------------


def _listed(option: str, text: str) -> list[str]:
    found = list(dict.fromkeys(part for part in split(text, ",") if part))
    return found or fail(f"{option}: names nothing; give at least one.")


def _choice(option: str, text: str, choices: dict[str, Any]) -> Any:
    if text not in choices:
        fail(f"{option}: {text!r} is not known; choose one of: {', '.join(choices)}.")
    return choices[text]


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in _listed("--seed", text)]
    except ValueError:
        fail(f"--seed: {text!r} is no list of whole numbers; write 1 or 1,2,3.")
    if min(seeds) < 0:
        fail(f"--seed: {min(seeds)} is below 0; write 1 or 1,2,3.")
    return seeds


def _mix(days: float, jobs: int | None, load: float, priority_share: float) -> Mix:
    try:
        return Mix(days=days, jobs=jobs, load=load, priority_share=priority_share)
    except ValueError as error:
        fail(f"--{error}.")


def _check_path(option: str, path: str | None) -> None:
    """Refuse before the work what could not be written after it."""
    if path is None or (path == "-" and option == "--json"):
        return
    if path == "-":
        fail(f"{option}: - is not taken here; name a file. Only --json writes to standard output.")
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        fail(f"{option}: {path} cannot be written; name a file in a folder that you may write to.")


def _check_log(path: str | None, dask: str | None) -> None:
    if path is None:
        return
    if dask is not None:
        fail("--log: is written where the runs are made; leave out --dask.")
    if Path(path).exists():
        fail(f"--log: {path} is there already; name a new file, or remove it.")


def _check_seconds(round_s: float, merge_s: float, hours: float | None) -> None:
    for option, given in (("--round-s", round_s), ("--merge-s", merge_s)):
        if not math.isfinite(given):
            fail(f"{option}: {given} is no length of time; give seconds.")
    if merge_s > 1e9:
        fail(f"--merge-s: {merge_s:g} must be at most 1e9.")
    if hours is not None and not hours > 0.0:
        fail(f"--hours: {hours:g} must be above 0.")


def _check_failures(mtbf_h: float | None, repair_s: float, checkpoint_s: float) -> None:
    given = {"--mtbf-h": mtbf_h, "--repair-s": repair_s, "--checkpoint-s": checkpoint_s}
    for option, value in given.items():
        if value is not None and not 0.01 <= value < 1e9:
            fail(f"{option}: {value:g} must be 0.01 to 1e9.")
    if mtbf_h is None and (repair_s, checkpoint_s) != (_REPAIR_S, _CHECKPOINT_S):
        fail("--repair-s, --checkpoint-s: no node fails; say how often it does by --mtbf-h.")


def _check(cases: Sequence[Case]) -> list[str]:
    """Try every policy and every workload once; say what is otherwise than files have it."""
    made_up = all(case.workload == GENERATED for case in cases)
    if made_up and any(case.profiles and case.physics == "simple" for case in cases):
        fail("--profiles: made-up jobs use none; leave it out, or give a trace with --workload.")
    seen: list[tuple[str, str]] = []
    found: list[str] = []
    for case in cases:
        is_new = case.workload not in [file for file, _ in seen]
        if not is_new and case.policy in [one for _, one in seen]:
            continue
        seen.append((case.workload, case.policy))
        try:
            notes = check(case)
        except ModuleNotFoundError as error:
            fail(f"--physics: {case.physics} needs {error.name}; install `tidegate[sim]`.")
        found += [f"{case.workload}: {note}" for note in notes if is_new]
    return found


def _drawing(path: str) -> Any:
    try:
        from simulator.plot import FORMATS, draw
    except ModuleNotFoundError as error:
        fail(f"--plot: needs {error.name}; install `tidegate[sim]`.")
    if Path(path).suffix.lower() not in FORMATS:
        fail(f"--plot: {path} is no kind of picture known here; end it in {', '.join(FORMATS)}.")
    return draw


def dask_cluster(address: str) -> DaskCluster:
    """Reach a Dask cluster, or say what is wrong and end."""
    try:
        return DaskCluster(address)
    except ModuleNotFoundError as error:
        fail(f"--dask: needs {error.name}; install `tidegate[dask]` here and on its workers.")
    except ClusterError as error:
        fail(f"--dask: {error}.")


def _compare(cases: Sequence[Case], processes: int | None, submit: Submit | None) -> list[Finished]:
    try:
        progress = _Progress(len(cases))
        return compare(cases, processes, progress, submit, progress.watch)
    except ClusterError as error:
        fail(f"--dask: {error}.")
    except RunError as error:
        fail(str(error))


def _recorded(cases: Sequence[Case], processes: int | None, log: Path) -> list[Finished]:
    """Run cases, and put their journals into one log, each as a cell named after its policy."""
    from simulator.log import join

    with TemporaryDirectory(prefix=f".{log.name}.", dir=log.parent) as folder:
        written = []
        for number, case in enumerate(cases):
            name = name_of(case.policy)
            alike = sum(name_of(before.policy) == name for before in cases[:number])
            cell = f"{name}-{alike + 1}" if alike else name
            written.append(replace(case, cell=cell, journal=str(Path(folder) / cell)))
        runs = _compare(written, processes, None)
        join(log, [(case.cell, Path(case.journal or "")) for case in written])
    return runs


class _Progress:
    """Says on standard error what has finished: one line that changes, or a line each.

    On a terminal it also says how far a run is, where runs follow each other in this process.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._asked = 0
        self._changes = sys.stderr.isatty()

    def __call__(self, done: int, run: Finished) -> None:
        self._done, case = done, run.case
        text = f"{done} of {self._total} runs: {case.policy} on {case.workload}"
        if self._changes:
            self._rewrite("" if done == self._total else text)
        else:
            say(text)

    def watch(self, case: Case, now_s: float, jobs: int) -> None:
        self._asked += 1
        if self._changes and self._asked % _WATCH_EVERY == 0:
            self._rewrite(
                f"{self._done} of {self._total} runs; {case.policy} on {case.workload}: "
                f"hour {now_s / 3600.0:,.1f}, {jobs} jobs"
            )

    def _rewrite(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()
