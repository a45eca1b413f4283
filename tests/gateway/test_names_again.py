"""A name that another tenant's job had before: what is told of the first is told of no other."""

import asyncio
from pathlib import Path

import pytest

from explain.answer import Answer
from explain.documents import why_document
from explain.ends import Ends
from explain.reading import read_curves
from gateway.subjects import Role, Sight
from scheduler.policies.interface import Target
from schemas.events import OutputsKept
from schemas.programs import Program
from tests.builders import progressed
from tests.console.stories import Teller, job, node, sized
from tests.gateway.conftest import Serving
from tests.gateway.test_sight import As
from tests.unit.test_explain import on_a_bus, reading_of, recorded, story_of

NAME = "weekly"
PROGRAM = Program(argv=["train"], outputs=["report.html"])


def ran(told: Teller, tenant: str, metric: str, deadline_s: float | None = None) -> None:
    """Let a job of a tenant run, report and be done."""
    asked = job(NAME, deadline_s=deadline_s)
    told.feed(asked.model_copy(update={"tenant": tenant, "program": PROGRAM}))
    told.wait(3600.0, 600.0)
    starts = Target("training", (("n0", 1),))
    told.decides(sized(NAME, "starts", "market.price", 0, 1), targets={NAME: starts})
    told.up(NAME)
    word = progressed(5, NAME, told.state.jobs[NAME].epoch)
    told.feed(word.model_copy(update={"metrics": {metric: 0.25}}))


def twice() -> Teller:
    """Tell of a job that was done days ago, and of another tenant's of the same name."""
    told = Teller()
    told.feed(node("n0", "training", "training"))
    ran(told, "acme", "acme-loss")
    fields = {"uri": "file:///acme-secret", "files": 2, "size_mib": 3, "left_out": "acme-plans"}
    at = told.state.jobs[NAME].epoch
    told.feed(OutputsKept.model_validate({"job": NAME, "epoch": at, **fields}))
    told.off(NAME, "completed", 1000)
    told.wait(3 * 86_400.0, 3600.0)
    assert NAME not in told.state.jobs
    return told


async def test_a_story_is_of_the_newest_job_of_its_name() -> None:
    told = twice()
    first = story_of(told, NAME)
    assert first.last("OutputsKept") is not None, "it is told of until another has its name"
    ran(told, "zeta", "zeta-loss", told.now_s + 600.0)
    told.off(NAME, "completed", 1000)
    answer = Answer.of(reading_of(told), story_of(told, NAME))
    assert answer is not None
    why = why_document(answer)
    assert (why.spec["tenant"], why.outputs) == ("zeta", None)
    assert [line.what for line in why.history] == ["submitted", "started", "completed"]
    assert why.ended is not None
    assert ": 1 h without GPUs" in why.ended[1]
    curves = await read_curves(await on_a_bus(told), "default", NAME, told.state.number)
    assert list(curves) == ["zeta-loss"]
    ends = Ends([NAME])
    for _, entry in recorded(told):
        ends.take(entry)
    assert ends.found == {}


@pytest.mark.parametrize("sight", [Sight.OWN_NAMES, Sight.ALL_NAMES])
async def test_a_tenant_reads_of_its_own_job_alone(
    sight: Sight, tmp_path: Path, serving: Serving
) -> None:
    told = twice()
    ran(told, "zeta", "zeta-loss")
    told.off(NAME, "completed", 1000)
    await asyncio.to_thread(told.write, tmp_path / "run.db")
    async with serving(tmp_path / "run.db", authority=As(Role.TENANT, sight, "zeta")) as served:
        await served.until(served.level)
        curves = await served.get(f"jobs/{NAME}/curves")
        assert list(curves["curves"]) == ["zeta-loss"]
        story = (await served.get(f"jobs/{NAME}/story"))["events"]
        assert story[0]["kind"] == "JobAccepted"
        assert [one["entry"] for one in story] == sorted(one["entry"] for one in story)
        paths = ("", "/why", "/story", "/stays", "/curves")
        texts = [(await served.raw(f"jobs/{NAME}{path}")).text for path in paths]
        texts.append((await served.raw("jobs")).text)
        assert not [text for text in texts if "acme" in text]


async def test_once_forgotten_it_is_whose_it_was(tmp_path: Path, serving: Serving) -> None:
    told = twice()
    ran(told, "zeta", "zeta-loss")
    told.off(NAME, "completed", 1000)
    told.wait(3 * 86_400.0, 3600.0)
    await asyncio.to_thread(told.write, tmp_path / "run.db")
    authority = As(Role.TENANT, Sight.OWN_NAMES, "zeta")
    async with serving(tmp_path / "run.db", authority=authority) as served:
        await served.until(served.level)
        assert list((await served.get(f"jobs/{NAME}/curves"))["curves"]) == ["zeta-loss"]
        authority.who = As(Role.TENANT, Sight.OWN_NAMES, "acme").who
        await served.get(f"jobs/{NAME}/why", status=404)
