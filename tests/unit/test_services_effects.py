"""The agent's own record: every effect once, with GPUs whose intervals never overlap."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.core import (
    CheckpointWorkers,
    NodeSpec,
    ScaleWorkers,
    StartWorkers,
    StopWorkers,
)
from runtime.effects import EffectsFile, recorded
from runtime.executor import Machine
from runtime.simulated import Physics
from runtime.simulated_owner import simulated_machine
from schemas.commands import GangSpec
from schemas.events import RatePoint

EXACT = Physics(rate_noise=0.0, failures_per_gpu_hour=0.0)
SPEC = GangSpec(
    model="m",
    total_steps=1000,
    samples_per_step=10.0,
    rates=[RatePoint(gpus=1, samples_per_s=10.0)],
    checkpoint_mib=1,
    checkpoint_cost_s=1.0,
    start_cost_s=1.0,
)
SPECS = (NodeSpec("n0", "edge", "edge", 4, "L4", 1000),)


def make(path: Path) -> Machine:
    def simulated(specs: Sequence[NodeSpec], now_s: float) -> Machine:
        return simulated_machine(specs, now_s, demand=lambda _: 0.0, physics=EXACT)

    return recorded(simulated, EffectsFile(path, "e"))(SPECS, 0.0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(path: Path) -> list[tuple[Any, ...]]:
    return [
        (line["effect"], line.get("job"), line.get("epoch"), line.get("gpus"))
        for line in lines(path)
    ]


def test_each_effect_is_a_line_and_a_repeated_wish_is_none(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    executor = make(path).executor
    executor.start(StartWorkers("j", 1, {"n0": (0, 1)}, SPEC, 0, 0.0), 0.0)
    executor.start(StartWorkers("j", 1, {"n0": (0, 1)}, SPEC, 0, 0.0), 0.5)
    executor.advance(1.0)
    for now_s in (2.0, 3.0):
        executor.scale(ScaleWorkers("j", 2, {"n0": (1, 2)}), now_s)
    executor.advance(5.0)
    executor.checkpoint(CheckpointWorkers("j", 2), 6.0)
    for now_s in (8.0, 8.5):
        executor.stop(StopWorkers("j", 2, checkpoint=True, grace_s=9.0), now_s)
    executor.advance(20.0)
    assert told(path) == [
        ("began", None, None, None),
        ("start", "j", 1, [0, 1]),
        ("scale", "j", 2, [1, 2]),
        ("left", "j", 1, [0]),
        ("checkpoint", "j", 2, [1, 2]),
        ("stop", "j", 2, [1, 2]),
        ("ended", "j", 2, [1, 2]),
    ]
    (end,) = [line for line in lines(path) if line["effect"] == "ended"]
    assert (end["how"], end["node"], end["at_s"], end["agent"]) == ("stopped", "n0", 20.0, "e")


def test_a_stop_is_an_effect_again_only_if_it_is_sooner_or_saves_nothing(tmp_path: Path) -> None:
    """An agent that restarts repeats a stop that it has stored, with what is left of the time."""
    path = tmp_path / "effects.jsonl"
    executor = make(path).executor
    executor.start(StartWorkers("j", 1, {"n0": (0,)}, SPEC, 0, 0.0), 0.0)
    stops = [(10.0, 9.0, True), (13.1, 5.9, True), (14.0, 4.0, True), (14.5, 3.5, False)]
    for now_s, grace_s, saves in stops:
        executor.stop(StopWorkers("j", 1, checkpoint=saves, grace_s=grace_s), now_s)
    at_s = [line["at_s"] for line in lines(path) if line["effect"] == "stop"]
    assert at_s == [10.0, 14.0, 14.5]


def test_what_a_gang_was_leaving_is_free_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    executor = make(path).executor
    executor.start(StartWorkers("j", 1, {"n0": (0, 1)}, SPEC, 0, 0.0), 0.0)
    executor.advance(1.0)
    executor.scale(ScaleWorkers("j", 2, {"n0": (1,)}), 2.0)
    executor.stop(StopWorkers("j", 2, checkpoint=False, grace_s=9.0), 2.0)
    executor.advance(2.0)
    assert told(path)[-2:] == [("ended", "j", 1, [0]), ("ended", "j", 2, [1])]


def test_the_owner_leaves_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    owner = make(path).owner
    assert owner is not None
    for now_s in (0.0, 1.0):
        owner.drain("n0", now_s)
    owner.advance(30.0)
    for now_s in (40.0, 41.0):
        owner.hand_back("n0", now_s)
        owner.advance(now_s)
    owner.advance(100.0)
    effects = [line["effect"] for line in lines(path)]
    assert effects == ["began", "drain", "lent", "hand_back", "owned"]


def test_numbers_go_on_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "effects.jsonl"
    make(path).executor.start(StartWorkers("j", 1, {"n0": (0,)}, SPEC, 0, 0.0), 0.0)
    with path.open("ab") as torn:
        torn.write(b'{"n":2,"at_')
    make(path)
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["n"] for line in whole] == [0, 1, 2]
    assert json.loads(whole[-1])["effect"] == "began"
