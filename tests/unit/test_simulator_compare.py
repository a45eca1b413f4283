"""Cases side by side: their order, where they run, and what is told of them."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from simulator.compare import Case, Done, Numbered, check, compare
from simulator.csv_rows import WorkloadError
from simulator.generated import Mix
from simulator.physics.base import Room

MIX = Mix(days=0.05, jobs=6)


def cases(*policies: str, **more: object) -> list[Case]:
    return [
        Case(policy, "generated", "simple", room=Room(2, 4), mix=MIX, **more)  # type: ignore[arg-type]
        for policy in policies
    ]


def test_answers_come_in_the_order_of_the_cases() -> None:
    asked: list[int] = []

    def backwards(work: Callable[[Numbered], Done], todo: Sequence[Numbered]) -> Iterator[Done]:
        for numbered in reversed(todo):
            asked.append(numbered[0])
            yield work(numbered)

    told: list[tuple[int, str]] = []
    runs = compare(
        cases("fifo", "sjf"),
        tell=lambda done, run: told.append((done, run.case.policy)),
        submit=backwards,
    )
    assert asked == [1, 0]
    assert told == [(1, "sjf"), (2, "fifo")]
    assert [run.row()["policy"] for run in runs] == ["fifo", "sjf"]


def test_a_run_in_this_process_is_watched() -> None:
    seen: list[tuple[str, float, int]] = []
    (run,) = compare(
        cases("fifo"), 1, watch=lambda case, now_s, jobs: seen.append((case.policy, now_s, jobs))
    )
    assert len(seen) == run.figures["decisions"]
    assert [now_s for _, now_s, _ in seen] == sorted(now_s for _, now_s, _ in seen)
    assert {policy for policy, _, _ in seen} == {"fifo"}
    assert max(jobs for _, _, jobs in seen) <= 6


def test_other_pools_are_part_of_a_case() -> None:
    (run,) = compare(cases("aryl", inference_nodes=3, edge_nodes=2), 1)
    assert run.figures["inference_gpu_h"]
    assert run.loans
    assert run.row()["inference_nodes"] == 3
    (plain,) = compare(cases("aryl"), 1)
    assert plain.loans == ()
    assert "inference_gpu_h" not in plain.figures or plain.figures["inference_gpu_h"] is None


def test_what_cannot_be_run_is_found_before() -> None:
    with pytest.raises(ValueError, match="policy 'none' is not known"):
        check(cases("none")[0])
    with pytest.raises(WorkloadError, match="no such file"):
        check(cases("fifo", inference_nodes=1, requests="nowhere.csv")[0])
