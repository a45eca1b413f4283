"""The live view: it fits its terminal and says what there is."""

import asyncio
import importlib
import io
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from bus.clock import PacedClock
from demo.live import LiveView
from demo.result import summary
from scheduler.core.state import ClusterState
from tests.console.stories import START_S, Teller
from tests.patience import until

play = importlib.import_module("demo.play")


def drawn(what: RenderableType, width: int, height: int, *, colour: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=colour, highlight=False)
    console.print(what)
    return file.getvalue()


def view_of(told: Teller) -> LiveView:
    clock = PacedClock(0.0, None)
    moments = itertools.count()
    clock.now_s = lambda: next(moments) * 0.25  # type: ignore[method-assign]
    view = LiveView("Tidegate · test", START_S, START_S + 3600.0, clock)
    for stimulus, decision in told.decided:
        view.note(stimulus, decision)
    return view


@pytest.mark.parametrize(("width", "height"), [(100, 30), (140, 45), (80, 24), (60, 20), (200, 60)])
def test_it_fills_its_terminal_and_no_more(told: Teller, width: int, height: int) -> None:
    view = view_of(told)
    lines = drawn(view.render(told.state), width, height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_it_shows_pools_loans_jobs_queue_tide_and_decisions(told: Teller) -> None:
    view = view_of(told)
    view.render(told.state)
    text = drawn(view.render(told.state), 140, 45)
    for part in (
        "Tidegate · test",
        "d0 06:34",
        "training ████",
        "4/4",
        "serving  ▓▓▓░",
        "owners need 3, 0 on loan",
        "0 lent · 0 going back · 1/1 returned",
        "jobs  2 on GPUs · 2 queued · 1 done",
        "grown",
        "queue  2 waiting",
        "too few GPUs free; grown, mover",
        "3 of 4",
        "scaled out",
        "reclaimed",
        "serving is forecast to need 4 GPUs",
        "1→2 GPUs: the next GPUs gain more here",
    ):
        assert part in text, f"{part!r} is not in\n{text}"


def test_a_small_terminal_gives_up_the_legend_then_the_tide(told: Teller) -> None:
    def shown(height: int, width: int = 100) -> str:
        return drawn(view_of(told).render(told.state), width, height)

    small = shown(20, 60)
    assert "grown" in small.partition("tide")[0]
    assert "serving is forecast" in small or "the next GPUs" in small, small
    assert "Tidegate · test" in small.splitlines()[0]
    assert "…" not in small.splitlines()[0]
    # The legend is the first to go, the tide the second.
    parts = [
        ("lent, free" in text, "owners need, and" in text) for text in map(shown, range(17, 40))
    ]
    assert parts == sorted(parts, key=lambda part: sum(part))
    assert {sum(part) for part in parts} >= {1, 2}
    assert (True, False) not in parts


async def test_a_resize_clears_what_the_old_size_left(
    told: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, height=30, force_terminal=True)
    monkeypatch.setattr(play, "out", lambda: console)
    fleet: Any = SimpleNamespace(scheduler=SimpleNamespace(engine=told.engine))
    painter = asyncio.create_task(play.paint(view_of(told), fleet))
    await until(file.getvalue)
    assert "\x1b[2J" not in file.getvalue()
    console.size = (60, 20)
    await until(lambda: "last decisions" in file.getvalue().partition("\x1b[2J")[2])
    painter.cancel()
    await asyncio.gather(painter, return_exceptions=True)


def test_it_is_drawn_before_anything_has_happened() -> None:
    view = LiveView("Tidegate", START_S, START_S + 3600.0)
    text = drawn(view.render(ClusterState(now_s=START_S)), 100, 30)
    assert "jobs  0 on GPUs · 0 queued · 0 done" in text
    assert "d0 06:00" in text


def test_progress_is_one_line(told: Teller) -> None:
    text = drawn(view_of(told).progress(told.state), 120, 30)
    assert text.count("\n") == 1
    assert "jobs 1 of 6 done, 2 queued" in text


RESULT: dict[str, Any] = {
    "jobs_submitted": 240,
    "jobs_completed": 199,
    "mean_jct_s": 6360.0,
    "mean_queueing_s": 3040.0,
    "deadlines_total": 104,
    "deadlines_met": 66,
    "deadlines_open": 23,
    "jobs_running": 30,
    "jobs_queued": 11,
    "loans_granted": 21,
    "loans_reclaimed": 14,
    "reclaims_late": 0,
    "inference_shortfall_gpu_s": 576.0,
    "loaned_gpu_s": 360_000.0,
    "migrations": 11,
    "preemptions": 41,
    "scale_outs": 306,
    "scale_ins": 299,
    "gpu_utilisation": 0.723,
    "events": 62_644,
    "commands": 970,
    "decisions": 13_687,
    "invariant_violations": 0,
    "state_hash": "ab" * 32,
}


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_says_every_figure(width: int) -> None:
    text = drawn(summary(RESULT), width, 40)
    for part in (
        "240",
        "199",
        "1 h 46 min",
        "66 met, 15 missed, 23 not due yet",
        "mean time of completed jobs",
        "0.16 GPU h",
        "100.00 GPU h",
        "306",
        "72.3%",
        "62,644 events",
        "0 invariant violations",
        "ab" * 32,
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= width


def test_the_summary_bears_a_run_without_jobs() -> None:
    text = drawn(summary(dict.fromkeys(RESULT)), 120, 40)
    assert "None" not in text
    assert "nan" not in text
