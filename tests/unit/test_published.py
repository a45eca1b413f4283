"""What the peers were seen to reach of their published figures stays reached."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("scipy")

from benchmarks import published
from benchmarks.public_data import DATA
from benchmarks.published import Compared, deadline_ratio, judge, mean_jct

pytestmark = pytest.mark.slow

needs_data = pytest.mark.skipif(
    not (DATA / "pollux").is_dir(),
    reason="no public data: set TIDEGATE_DATA to a folder with pollux/ and elasticflow/",
)


@needs_data
@pytest.mark.data
@pytest.mark.parametrize(("load", "number"), [("0.5", 1), ("1.0", 1)])
def test_tiresias_meets_its_published_mean(load: str, number: int) -> None:
    one = mean_jct(DATA, "tiresias", load, number)
    assert abs(one.off) < 1e-5


@needs_data
@pytest.mark.data
def test_optimus_is_near_its_published_mean() -> None:
    assert abs(mean_jct(DATA, "optimus", "0.5", 1).off) < 0.01


@needs_data
@pytest.mark.data
def test_edf_meets_as_many_deadlines_as_in_the_published_simulator() -> None:
    one = deadline_ratio(DATA, "edf")
    assert one.measured == pytest.approx(one.published, abs=0.03)


def test_near_enough_is_judged_run_by_run_for_tiresias_and_on_average_for_others() -> None:
    def runs(name: str, *measured: float) -> list[Compared]:
        return [Compared(name, "w", figure, 100.0, 0, 0.0) for figure in measured]

    def reached(found: list[Compared]) -> bool:
        (verdict,) = judge(found, ratio=False)
        return verdict.reached

    assert reached(runs("tiresias", 100.1, 99.9))
    assert not reached(runs("tiresias", 100.2, 99.8))
    assert reached(runs("optimus", 110.0, 95.0))
    assert not reached(runs("optimus", 90.0, 94.0))
    assert reached(runs("pollux", 80.0, 90.0))
    assert not reached(runs("pollux", 104.0, 107.0))
    (late,) = judge([Compared("edf", "w", 0.40, 0.436, 0, 0.0)], ratio=True)
    assert not late.reached


@pytest.mark.parametrize(("measured", "code"), [(0.43, 0), (0.40, 1)])
def test_a_missed_verdict_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: float, code: int
) -> None:
    def runs(works: Sequence[object], processes: int) -> list[Compared]:
        return [Compared("edf", "w", measured, 0.436, 0, 0.0) for _ in works]

    (tmp_path / "pollux").mkdir()
    monkeypatch.setattr(published, "_run", runs)
    options = ["--data", str(tmp_path), "--policy", "", "--deadline", "edf"]
    monkeypatch.setattr(sys, "argv", ["published", *options])
    assert published.main() == code
