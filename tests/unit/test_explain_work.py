"""A job's work in what people count."""

import pytest

from explain.work import STEPS, Work


@pytest.mark.parametrize("samples", [1e9, 256.0, 1.0, 0.5])
def test_steps_of_a_program_are_told_as_it_counts_them(samples: float) -> None:
    work = Work(samples)
    assert work.place(1_234_567) == STEPS.place(1_234_567) == "step 1,234,567"
    assert work.amount(2_000.4) == "2,000 steps"
    assert work.speed(0.66612) == "0.666 steps/s"


@pytest.mark.parametrize("cut", [65_536, 4_096])
def test_steps_of_a_simulation_are_told_in_units_of_its_work(cut: int) -> None:
    work = Work(1.0 / cut)
    assert work.place(240.17 * cut) == "unit 240 of its work"
    assert work.amount(43_200 * cut) == "43,200 units of work"
    assert work.speed(11.19 * cut) == "11.2 units/s"
