"""Curves of what jobs report of themselves: those of the log at any moment, for who may see it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from explain.metrics import Sample
from explain.reading import entries
from gateway import sidecar
from gateway.index import Index
from gateway.subjects import Role, Sight
from scheduler.core.engine import Engine
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import Cause, Stimulus
from scheduler.journal import write_entry
from scheduler.policies.registry import make_policy
from schemas.events import WorkerStarted
from schemas.journal import NO_DIGEST
from schemas.topics import JOURNAL
from tests.builders import progressed
from tests.console.conftest import Run
from tests.gateway.conftest import Serving
from tests.gateway.test_sight import START_S, As, told

SECRET = "zeta-loss"


async def reported(log: Path) -> dict[str, list[list[float]]]:
    """Read from the journal, job by job, what its entries tell."""
    bus, found = SqliteBus.open_readonly(log, SystemClock()), dict[str, list[list[float]]]()
    async for entry in entries(bus, "default", (b"JobMeasured",), 2**62):
        for kind, fields in entry.decision["facts"]:
            if kind == "JobMeasured":
                (value,) = fields["metrics"].values()
                row = [entry.number, entry.at_s, fields["step"], value]
                found.setdefault(fields["job"], []).append(row)
    await bus.close()
    return found


async def test_curves_are_those_of_the_log_at_any_moment(
    log: Path, tidegate: Run, serving: Serving
) -> None:
    truth = await reported(log)
    assert truth, "the demo's jobs report a simulated loss"
    job = max(truth, key=lambda name: len(truth[name]))
    points = [row[1:] for row in truth[job]]
    async with serving(log) as served:
        found = await served.get(f"jobs/{job}/curves")
        assert (found["job"], found["complete"]) == (job, True)
        assert found["curves"] == {"simulated loss": points}
        assert (await served.get(f"jobs/{job}"))["job"]["metrics"] == {
            "simulated loss": points[-1][2]
        }
        middle = truth[job][len(points) // 2][0]
        past = await served.get(f"jobs/{job}/curves", entry=middle)
        known = [row[1:] for row in truth[job] if row[0] <= middle]
        assert (past["entry"], past["curves"]) == (middle, {"simulated loss": known})
        row = (await served.get(f"jobs/{job}", entry=middle))["job"]
        assert row["metrics"] == {"simulated loss": known[-1][2]}
        before = await served.get(f"jobs/{job}/curves", entry=truth[job][0][0] - 1)
        assert before["curves"] == {}
        few = (await served.get(f"jobs/{job}/curves", points=2))["curves"]["simulated loss"]
        assert len(few) <= 2
        assert few[-1] == points[-1]
        await served.get(f"jobs/{job}/curves", status=400, points=1001)
        assert "nearest are" in (await served.get(f"jobs/{job}x/curves", status=404))["detail"]
    said = await asyncio.to_thread(tidegate.tells, "timeline", job, "--log", log)
    assert said["curves"] == {"simulated loss": points}
    said = await asyncio.to_thread(tidegate.tells, "why", job, "--log", log)
    assert said["metrics"] == {"simulated loss": points[-1][2]}
    shown = (await asyncio.to_thread(tidegate.does, "why", job, "--log", log)).out
    assert f"Reports simulated loss {points[-1][2]:.4g}." in shown


def test_of_many_samples_so_many_are_given_and_the_newest_stays() -> None:
    index = Index(sidecar.in_memory())
    for number in range(2345):
        index._db.execute(
            "INSERT INTO samples VALUES ('j', ?, ?, ?, ?)", (number, number, number, '{"loss":1.0}')
        )
    for before, most in ((2345, 1000), (2000, 1000), (1000, 1000), (999, 1000), (7, 2), (1, 2)):
        found = index.samples("j", before, most)
        assert most / 2 < len(found) <= most or len(found) == before
        assert found[-1] == Sample(before - 1.0, before - 1, {"loss": 1.0})
        assert [one.step for one in found] == sorted(one.step for one in found)
    assert index.samples("j", 0, 10) == index.samples("k", 9, 10) == []


async def write_reports(path: Path) -> None:
    """Write a log in which another tenant's job reports a figure under a name of its own."""
    bus = SqliteBus.open(path, SystemClock())
    engine, digest = Engine(ClusterState(cell="default"), make_policy), NO_DIGEST

    async def feed(source: str, data: Any) -> None:
        nonlocal digest
        number = engine.state.number
        stimulus = Stimulus(START_S + 10 * number, data, Cause(source, 0, number))
        decision = engine.handle(stimulus)
        value, digest = write_entry(engine.state, stimulus, decision, digest)
        await bus.publish(Message(JOURNAL.name, "default", value))

    for source, data in told():
        await feed(source, data)
    name, job = "zeta-secret-run", engine.state.jobs["zeta-secret-run"]
    await feed("/agents/a", WorkerStarted(job=name, epoch=job.epoch, node="n0", gpus=[0, 1, 2, 3],
                                          step=0))  # fmt: skip
    word = progressed(5, name, job.epoch).model_copy(update={"metrics": {SECRET: 0.25}})
    await feed("/agents/a", word)
    assert job.metrics == {SECRET: 0.25}
    await bus.close()


@pytest.mark.parametrize(
    ("sight", "tenant", "sees"),
    [
        (Sight.EVERYTHING, None, True),
        (Sight.ALL_NAMES, "acme", True),
        (Sight.OWN_NAMES, "zeta-corp", True),
        (Sight.OWN_NAMES, "acme", False),
        (Sight.OWN_NAMES, None, False),
    ],
)
async def test_who_may_see_a_job_sees_its_curves(
    sight: Sight, tenant: str | None, sees: bool, tmp_path: Path, serving: Serving
) -> None:
    path = tmp_path / "run.db"
    await write_reports(path)
    role = Role.TENANT if tenant else Role.VIEWER
    async with serving(path, authority=As(role, sight, tenant)) as served:
        named = [row["job"] for row in (await served.get("jobs"))["jobs"]]
        paths = ["jobs", "decisions", "nodes", "overview", "jobs?fields=job,tenant,metrics"]
        for job in ("zeta-secret-run", *named):
            paths += [f"jobs/{job}{of}" for of in ("", "/why", "/curves", "/stays")]
        texts = [(await served.raw(path)).text for path in paths]
        assert any(SECRET in text for text in texts) == sees
        if sees:
            assert SECRET in (await served.get("jobs/zeta-secret-run/curves"))["curves"]
        else:
            await served.get("jobs/zeta-secret-run/curves", status=404)


async def test_the_picture_of_a_job_has_what_the_log_recorded(
    log: Path, tidegate: Run, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    truth = await reported(log)
    job, drawn, bare = next(iter(truth)), tmp_path / "moves.svg", tmp_path / "bare.svg"
    none = next(
        row["job"]
        for row in (await asyncio.to_thread(tidegate.tells, "jobs", "--all", "--log", log))["jobs"]
        if row["metrics"] is None and row["first_start_s"] is not None
    )

    async def draws(name: str, path: Path) -> str:
        await asyncio.to_thread(tidegate.does, "timeline", name, "--log", log, "--plot", path)
        return path.read_text()

    assert (await draws(job, drawn)).count("axes_") > (await draws(none, bare)).count("axes_")
    for more, complaint in (
        (("--metric", "accuracy"), f"{job} has no figure 'accuracy'; it reports simulated loss."),
        (("--metric", "loss", "--loss", "FILE"), "leave one of the two out"),
    ):
        said = await asyncio.to_thread(tidegate.refuses, "timeline", job, "--log", log, *more)
        assert complaint in said
