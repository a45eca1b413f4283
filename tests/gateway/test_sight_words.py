"""What stands beside names where only one's own are seen: words of people, programs and ours."""

import difflib
from collections.abc import Collection
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from gateway import sight
from gateway.sight import View
from gateway.subjects import Role, Sight, Subject
from scheduler.core.state import ClusterState
from scheduler.core.stimuli import LeaderStarted
from schemas.events import CommandAcknowledged, WorkerFailed
from schemas.requests import HoldJob
from tests.builders import Cell, request_of, submitted
from tests.gateway.conftest import Served, Serving
from tests.gateway.test_sight import PATHS, START_S, As, job, told, write_told

ACME = As(Role.TENANT, Sight.OWN_NAMES, "acme")
#: What somebody of one tenant writes down to learn which of it there is.
GUESSES = "zeta-corp zeta-secret-run acme-waits nobody-has-this"


async def write_failed(path: Path, error: str) -> None:
    """Write a log in which the program of another tenant's job says something as it fails."""
    said = told()[:6]
    state = await write_told(path.with_suffix(".before"), said)
    failing = state.jobs["zeta-secret-run"]
    for command in state.commands:
        done = {"command": command, "outcome": "done", "reason": ""}
        said.append(("/agents/a", CommandAcknowledged.model_validate(done)))
    said += [
        ("/agents/a", WorkerFailed(job=failing.id, epoch=failing.epoch, node=node, gpus=gpus,
                                   error=error, retriable=False, step=0))
        for node, gpus in failing.allocation.items()
    ]  # fmt: skip
    assert (await write_told(path, said)).jobs[failing.id].state == "failed"


async def test_what_anothers_program_said_as_it_failed_is_its_tenants(
    tmp_path: Path, serving: Serving
) -> None:
    log, error = tmp_path / "failed.db", "the password hunter2 is wrong"
    await write_failed(log, error)
    words = "jobs?fields=job,why_in_words", "jobs?fields=job,why_in_short"
    async with serving(log, authority=ACME) as served:
        rows = (await served.get("jobs", state="failed"))["jobs"]
        (name,) = [row["job"] for row in rows]
        assert (rows[0]["why_in_words"], rows[0]["why_in_short"]) == (None, "")
        for path in ("jobs", f"jobs/{name}", *words):
            assert "hunter2" not in (await served.raw(path)).text, path
    owner = As(Role.TENANT, Sight.OWN_NAMES, "zeta-corp")
    async with serving(log, authority=owner) as served:
        for path in ("jobs", "jobs/zeta-secret-run", *words, "jobs/zeta-secret-run/why"):
            assert error in (await served.raw(path)).text, path
        words_of = (await served.get("jobs/zeta-secret-run/why", text=400))["text"]
        first, *others = words_of.splitlines()
        assert first.startswith("zeta-secret-run: Failed at ")
        assert "  tidegate logs zeta-secret-run prints it" in others
        assert "expected to end" not in words_of


async def test_no_guess_that_is_written_down_is_answered(tmp_path: Path, serving: Serving) -> None:
    """Else whoever holds a job of its own for a reason full of names reads which there are."""
    log = tmp_path / "guessed.db"
    hold = request_of(START_S + 95, HoldJob(job="acme-waits"), "guess", role="tenant",
                      tenant="acme", subject="somebody", reason=GUESSES)  # fmt: skip
    second = job("acme-second", "acme", 4, "acme").model_copy(update={"model": "zeta-secret-run"})
    await write_told(log, [*told(), ("/gateways/g", hold), ("/tenants/acme", second)])
    async with serving(log, authority=ACME) as served:
        assert await _row(served, "acme-second", "model") == "zeta-secret-run"
        kept = await _row(served, "acme-waits", "hold")
        assert (kept["by"], kept["reason"]) == ("somebody", GUESSES)
        (act,) = (await served.get("requests"))["acts"]
        assert (act["subject"], act["about"], act["reason"]) == ("somebody", "acme-waits", GUESSES)
        events = (await served.get("jobs/acme-waits/story"))["events"]
        assert GUESSES in [event["fields"].get("reason") for event in events]
        told_of = await served.get("jobs/acme-waits/why", text=400)
        assert [one for one in told_of["asked"] if GUESSES in one]
        assert [one for one in told_of["history"] if GUESSES in one["detail"]]
        assert told_of["text"].count(GUESSES) == 2
        spec = (await served.get("jobs/acme-second/why"))["spec"]
        assert spec["model"] == "zeta-secret-run"


async def _row(served: Served, name: str, field: str) -> Any:
    return (await served.get(f"jobs/{name}"))["job"][field]


async def test_figures_and_needs_have_their_names(log: Path, serving: Serving) -> None:
    """They were taken for jobs', and so had pseudonyms."""
    paths = "decisions?telling=true", "reclaims", "diff?entry=100&vs=400"
    named: list[list[str]] = []
    for who in (As(Role.OPERATOR, Sight.EVERYTHING, None), ACME):
        async with serving(log, authority=who) as served:
            named.append([*_figures([(await served.raw(path)).json() for path in paths])])
            changed = (await served.raw(paths[-1])).json()["jobs"][0]["name"]
            assert changed.startswith("job-x") is (who is ACME)
    assert named[0]
    assert named[0] == named[1]


def _figures(value: Any) -> Any:
    if isinstance(value, list):
        for one in value:
            yield from _figures(one)
    elif isinstance(value, dict):
        yield from (one["name"] for one in [*value.get("figures", ()), *value.get("needs", ())])
        for one in value.values():
            yield from _figures(one)


def crowd(cell: Cell, most: int) -> ClusterState:
    """Give a state of many jobs, of many tenants."""
    cell.feed(submitted("j0"))
    (first,) = cell.state.jobs.values()
    for number in range(most):
        one = copy(first)
        one.id, one.tenant, one.number = f"other-{number:05}", f"tenant-{number % 9}", number
        cell.state.jobs[one.id] = one
    return cell.state


def test_an_answer_costs_what_it_holds_and_not_what_the_cell_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pseudonym for each of 50,000 jobs took half a second, in which nobody was answered."""
    made: list[str] = []

    def counting(_: bytes, kind: str, name: str) -> str:
        made.append(name)
        return f"{kind}-x{len(made):012x}"

    monkeypatch.setattr(sight, "_pseudonym", counting)
    view = View(Subject("who", Role.TENANT, "acme", sight=Sight.OWN_NAMES), (crowd(Cell(), 500),))
    row = {"job": "other-00001", "tenant": "tenant-1", "sentence": "it waits for other-00002"}
    view.of({"jobs": [row]})
    assert sorted(made) == ["other-00001", "other-00002", "tenant-1"]
    made.clear()
    assert view.named("job-whatever") is None
    assert made == []


async def test_a_name_that_is_wrong_is_compared_with_some_alone(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Collection[str]] = []
    plain = difflib.get_close_matches

    def counting(word: str, names: list[str], **how: Any) -> list[str]:
        compared.append(names)
        return plain(word, names, **how)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    async with serving(log) as served:
        live = served.feed.live
        assert live is not None
        first = next(iter(live.state.jobs.values()))
        for number in range(5000):
            one = copy(first)
            one.id = f"other-{number:05}"
            live.state.jobs[one.id] = one
        said = (await served.get("jobs/other-0250x", 404))["detail"]
        assert "nearest are other-02" in said
        assert len(compared[-1]) <= 500
        # A tenant's own, of few letters, so that each is compared whole: two seconds for 500.
        for number in range(500):
            one = copy(first)
            one.id = f"j{number:0127b}"
            live.state.jobs[one.id] = one
        await served.get(f"jobs/j{500:0127b}", 404)
        assert sum(map(len, compared[-1])) * 128 <= 250_000


@pytest.mark.parametrize("name", ["zeta-run", "zeta-run.", "zeta-run:", "zeta..run.:"])
def test_a_name_that_ends_as_a_sentence_does_is_hidden(name: str) -> None:
    view = View(ACME.who, (ClusterState(),))
    sentence = f"most are held by {name} and {name}, says {name}: they stay with {name}."
    seen = view.of({"sentence": sentence, "lost_to": [name]})
    (known,) = seen["lost_to"]
    assert known.startswith("job-x")
    assert seen["sentence"] == sentence.replace(name, known)


async def test_the_options_of_a_policy_tell_of_no_other_tenant(
    tmp_path: Path, serving: Serving
) -> None:
    line = "tide:quotas.zeta-corp=..8:quotas.acme=..4"
    path = tmp_path / "run.db"
    await write_told(path, [("/schedulers/a", LeaderStarted("test", 1, line, {})), *told()[1:]])
    asked = [one for paths in PATHS.values() for one in paths]
    async with serving(path, authority=ACME, at_once=0) as served:
        texts = [(one, (await served.raw(one)).text) for one in asked if "zeta" not in one]
        assert [(one, text) for one, text in texts if "zeta" in text] == []
        assert (await served.get("overview"))["policy"] == "tide"
        assert (await served.get("cells"))["cells"][0]["policy"] == "tide"
    operator = As(Role.OPERATOR, Sight.EVERYTHING, None)
    async with serving(path, authority=operator) as served:
        assert (await served.get("overview"))["policy"] == line
        assert (await served.get("cells"))["cells"][0]["policy"] == line
