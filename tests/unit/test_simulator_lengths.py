"""Simulated jobs that declare no total: what policies are told of them, and fresh workloads."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.resampled import resampled, seeds_of
from scheduler.policies.interface import Plan, Snapshot
from scheduler.policies.registry import make_policy
from simulator.physics.base import Cluster, Entry
from simulator.physics.simple import Pauses, SimpleJob
from simulator.run import Options, simulate
from tests.scripted import entry, replayed


class Watched:
    """A policy, and what it was told that jobs have left."""

    def __init__(self, line: str) -> None:
        self.name, self._inner = line, make_policy(line)
        self.left: dict[str, list[float]] = {}

    def plan(self, snapshot: Snapshot) -> Plan:
        jobs = snapshot.jobs
        for name, left in zip(jobs.ids, jobs.remaining_steps.tolist(), strict=True):
            self.left.setdefault(name, []).append(left)
        return self._inner.plan(snapshot)


def test_lengths_are_learned_as_in_a_deployment_and_replay(tmp_path: Path) -> None:
    jobs = [
        replace(entry(f"j{number}", 900.0 * number, work=4000.0), kin="k") for number in range(4)
    ]
    policy, journal = Watched("srtf"), tmp_path / "journal"
    options = Options(cluster=Cluster(1, 1), instant=True, on_events=True)
    run = simulate(jobs, policy, options, line="srtf", journal=journal)
    assert sorted(run.end_s.tolist()) == pytest.approx(
        [4000.0 * n for n in (1, 2, 3, 4)], abs=600.0
    )
    first = policy.left["j0"][0]
    assert first == pytest.approx(600.0, rel=0.01), "nobody knows; the truth is 4,000"
    assert policy.left["j3"][-1] < 600.0
    assert max(policy.left["j1"]) > 4000.0, "a level above, before anybody ended"
    told = [left for left in policy.left["j3"] if abs(left - 4000.0) < 1.0]
    assert told, "as j0 took, once it ended"
    assert replayed(journal).first_difference is None


def test_a_job_of_unknown_length_may_be_too_large_for_the_smallest_size_that_is_offered() -> None:
    """What it takes at least is by the smallest size of its own; by another's it would be 0."""
    gang = SimpleJob({2: 2.0}, 4000.0, Pauses())
    jobs = [Entry("a", 0.0, gang, 2, kin="k"), entry("b", 0.0, work=600.0)]
    policy = Watched("srtf")
    run = simulate(jobs, policy, Options(cluster=Cluster(1, 4), on_events=True))
    assert run.end_s[0] == pytest.approx(30.0 + 2000.0, abs=60.0)
    assert policy.left["a"][0] == pytest.approx(2.0 * 600.0, rel=0.01)


def test_a_fresh_workload_depends_on_its_seed_alone(tmp_path: Path) -> None:
    head = "name,time,application,num_replicas,batch_size\n"
    sources = [tmp_path / f"{letter}.csv" for letter in "ab"]
    for number, source in enumerate(sources):
        lines = [
            f"x-{at},{at * (number + 1)},app{number},{at % 4},{at}\n" for at in range(5 + number)
        ]
        source.write_text(head + "".join(lines))
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    for seed in range(6):
        made = resampled(sources, seed, tmp_path / "one")
        assert made.read_text() == resampled(sources, seed, tmp_path / "two").read_text()
        rows = list(csv.DictReader(made.read_text().splitlines()))
        assert len({row["name"] for row in rows}) == len(rows)
        times = [row["time"] for row in rows]
        assert times in ([str(n) for n in range(5)], [str(2 * n) for n in range(6)])
        assert all(int(row["num_replicas"]) == int(row["batch_size"]) % 4 for row in rows)
    texts = {(tmp_path / "one" / f"resampled-{seed}.csv").read_text() for seed in range(6)}
    assert len(texts) == 6


def test_seeds_are_written_as_ranges() -> None:
    assert seeds_of("1-3,7,101-102") == [1, 2, 3, 7, 101, 102]
    with pytest.raises(ValueError, match="x"):
        seeds_of("x")
