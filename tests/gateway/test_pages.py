"""Pages that never tear, and answers that are known again."""

import base64
from pathlib import Path
from typing import Any

import pytest

from gateway import cursors, views
from gateway.about import ACTS, Kind, mentions
from gateway.limits import Limits
from gateway.orders import Orders
from gateway.problems import Problem
from scheduler.core.state import Job
from tests.gateway.conftest import Serving
from tests.gateway.growing import grow


async def test_all_pages_are_of_one_state_while_the_log_grows(
    log: Path, tmp_path: Path, serving: Serving
) -> None:
    growing = grow(log, tmp_path / "growing.db", 800)
    async with serving(growing.path) as served:
        first = await served.get("jobs", limit=5, sort="-gpus")
        whole = await served.get("jobs", limit=1000, sort="-gpus", entry=first["entry"])
        growing.to(1000)
        await served.until(lambda: served.level(1000))
        rows, page = first["jobs"], first
        while page["next"] is not None:
            page = await served.get("jobs", limit=5, sort="-gpus", cursor=page["next"])
            assert page["entry"] == 799
            rows += page["jobs"]
        assert rows == whole["jobs"]
        assert (await served.get("jobs", limit=5))["entry"] == 999


async def test_a_cursor_that_does_not_fit_is_refused(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        cursor = (await served.get("jobs", limit=5))["next"]
        changed = base64.urlsafe_b64encode(base64.urlsafe_b64decode(cursor + "==")[:-2] + b"9]")
        for text in ("", "x", "é", cursor[:-3], cursor[3:], changed.decode()):
            problem = await served.get("jobs", 400, cursor=text)
            assert problem["parameter"] == "cursor"
            assert "leave cursor out" in problem["detail"]
        for path, asked in (("jobs", {"sort": "-gpus"}), ("nodes", {}), ("decisions", {})):
            problem = await served.get(path, 400, cursor=cursor, **asked)
            assert "another question" in problem["detail"]
        problem = await served.get("jobs", 400, cursor=cursor, entry=3)
        assert "another entry" in problem["detail"]
        question = cursors.question("jobs", None, (), None, None, None, "submitted")
        for entries in (served.feed.entries, served.feed.entries + 10):
            foreign = cursors.Cursor(question, entries, "0" * 16, 5).text()
            problem = await served.get("jobs", 400, cursor=foreign)
            assert "another log" in problem["detail"]


async def test_a_cursor_that_points_beyond_its_moment_is_refused(
    log: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        entries = served.feed.entries
        digest = (await served.get(f"entries/{entries - 1}"))["digest"][:16]
        for path in ("decisions", "requests"):
            asked = (None, None, None) if path == "requests" else (None, None, False)
            question = cursors.question(path, None, *asked)
            for position in (entries + 1, 2**53):
                forged = cursors.Cursor(question, entries, digest, position).text()
                problem = await served.get(path, 400, cursor=forged)
                assert (problem["parameter"], "torn" in problem["detail"]) == ("cursor", True)
            good = cursors.Cursor(question, entries, digest, entries).text()
            await served.get(path, cursor=good)
        question = cursors.question("jobs", None, (), None, None, None, "submitted")
        forged = cursors.Cursor(question, entries, digest, 2**53).text()
        assert (await served.get("jobs", cursor=forged))["jobs"] == []


async def test_an_answer_of_a_named_entry_is_kept_and_known_again(
    log: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        for path in ("overview", "jobs", "nodes", "loans", "tide", "decisions"):
            past = await served.raw(path, entry=500)
            assert past.headers["cache-control"] == "private, max-age=31536000, immutable"
            assert past.headers["tidegate-entry"] == "500"
            tag = past.headers["etag"]
            assert tag.startswith('"default.500.operator:.')
            for given in (tag, f'"x", {tag}', f"W/{tag}", "*"):
                again = await served.raw(path, entry=500, headers={"If-None-Match": given})
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == tag
            other = await served.raw(path, entry=500, headers={"If-None-Match": '"x"'})
            assert (other.status_code, other.content) == (200, past.content)
            live = await served.raw(path)
            assert live.headers["cache-control"] == "no-store"
            assert live.headers["etag"] != tag


async def test_jobs_are_filtered_sorted_and_shortened(log: Path, serving: Serving) -> None:
    async with serving(log) as served:
        whole = (await served.get("jobs", limit=1000))["jobs"]
        assert len(whole) > 20

        async def found(**parameters: Any) -> list[Any]:
            page = await served.get("jobs", limit=1000, **parameters)
            assert page["total"] == len(page["jobs"])
            return list(page["jobs"])

        states = ["queued", "running"]
        assert await found(state=",".join(states)) == [r for r in whole if r["state"] in states]
        tenant = whole[0]["tenant"]
        assert await found(tenant=tenant) == [r for r in whole if r["tenant"] == tenant]
        pool = next(row["pool"] for row in whole if row["pool"])
        assert await found(pool=pool) == [r for r in whole if r["pool"] == pool]
        text = whole[0]["model"].upper()[:4]
        assert whole[0] in await found(text=text)
        assert await found(text="no such name") == []
        for sort, field in (("gpus", "gpus"), ("progress", "progress"), ("slack", "slack_s")):
            up = [row[field] for row in await found(sort=sort)]
            have = [value for value in up if value is not None]
            assert up == sorted(have) + [None] * (len(up) - len(have))
            down = [row[field] for row in await found(sort=f"-{sort}")]
            assert down == sorted(have, reverse=True) + [None] * (len(up) - len(have))
        few = await found(fields="job,why_in_words")
        assert few == [{"job": r["job"], "why_in_words": r["why_in_words"]} for r in whole]


def test_a_cursor_is_read_as_it_was_written() -> None:
    cursor = cursors.Cursor("q", 5, "d", 3)
    assert cursors.read(cursor.text(), "q") == cursor


@pytest.mark.parametrize(
    "place",
    [("x", "d", 3), (1.5, "d", 3), (-1, "d", 3), (True, "d", 3), (5, 7, 3), (5, "d", []),
     (5, "d", -3), (5, "d", 2**63)],
)  # fmt: skip
def test_a_cursor_that_somebody_wrote_is_refused(place: tuple[Any, ...]) -> None:
    with pytest.raises(Problem) as found:
        cursors.read(cursors.Cursor("q", *place).text(), "q")
    assert (found.value.status, found.value.parameter) == (400, "cursor")


def test_what_an_entry_is_about() -> None:
    data = {"job": "a", "reason": ""}
    stimulus = {"kind": "JobCancelled", "data": data, "cause": ["/tenants/t", 0, 0, 0.0]}
    decision = {
        "facts": [
            ["JobAdvanced", {"job": "b"}],
            ["GangStarting", {"job": "a", "allocation": {"n1": [0]}}],
            ["ReclaimStarted", {"node": "n0", "due_s": 5.0}],
            ["LoadObserved", {"lender": "serving"}],
        ],
        "reasons": [
            {"subject": "a", "rule": "market.price"},
            {"subject": "c", "rule": "market.price"},
            {"subject": "n0", "verb": "reclaims", "rule": "victims.x", "lost_to": ["shared@b"]},
        ],
    }
    assert mentions(stimulus, decision) == [
        (Kind.JOB, "a"),
        (Kind.STEP, "b"),
        (Kind.NODE, "n0"),
        (Kind.LOAN, "n0"),
        (Kind.MOMENT, "reclaim"),
        (Kind.LENDER, "serving"),
        (Kind.RULE, "market.price"),
        (Kind.REASON, "c"),
        (Kind.RULE, "victims.x"),
        (Kind.LENDER, "shared@b"),
        (Kind.LENDER, "shared"),
        (Kind.ACT, ACTS),
        (Kind.ASKER, "/tenants/t"),
        (Kind.VERB, "job.cancel"),
        (Kind.ASKED_OF, "a"),
    ]
    assert mentions({"kind": "TimePassed", "data": {}}, {"error": "x"}) == []


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_subject_has_an_allowance_of_its_own(name: str) -> None:
    class Still:
        def now_s(self) -> float:
            return 0.0

    limits = Limits(Still())  # type: ignore[arg-type]
    for _ in range(60):
        limits.read("somebody else")
    limits.read(name)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs were chosen, each time."""
    choose, chosen = views.chosen_jobs, list[int]()

    def counted(*args: Any, **asked: Any) -> list[Job]:
        found = choose(*args, **asked)
        chosen.append(len(found))
        return found

    monkeypatch.setattr(views, "chosen_jobs", counted)
    return chosen


async def test_jobs_are_chosen_once_for_an_answer(
    log: Path, serving: Serving, chosen: list[int]
) -> None:
    async with serving(log) as served:
        page = await served.get("jobs", sort="-tenant", limit=3)
        assert chosen == [page["total"]]
        assert len(page["jobs"]) == 3


async def test_rows_are_passed_over_and_a_named_list_is_put_in_order_once(
    log: Path, serving: Serving, chosen: list[int]
) -> None:
    async with serving(log) as served:
        at: dict[str, Any] = {"entry": 900, "sort": "-gpus"}
        whole = (await served.get("jobs", limit=1000, **at))["jobs"]
        for skip in (0, 7, len(whole) - 2, len(whole), 10**6):
            page = await served.get("jobs", limit=5, skip=skip, **at)
            assert page["jobs"] == whole[skip : skip + 5]
            assert page["total"] == len(whole)
        assert chosen == [len(whole)]
        # Others, and another moment, are another list; so is the live one each time.
        await served.get("jobs", limit=5, entry=900, sort="gpus")
        await served.get("jobs", limit=5, entry=901, sort="-gpus")
        assert len(chosen) == 3
        first = await served.get("jobs", limit=5, skip=5)
        assert len(chosen) == 4
        problem = await served.get("jobs", 400, limit=5, skip=5, cursor=first["next"])
        assert problem["parameter"] == "skip"


def test_few_lists_are_kept_in_order() -> None:
    orders, made = Orders(), list[int]()

    def asked(number: int) -> tuple[str, ...]:
        def make() -> tuple[str, ...]:
            made.append(number)
            return (str(number),)

        return orders.names(("cell", 0, number, "jobs", "me"), make)

    assert [asked(number) for number in (1, 1, 2, 1)] == [("1",), ("1",), ("2",), ("1",)]
    assert made == [1, 2]
    for number in range(3, 10):  # 1 was used last, 2 is the one to go
        asked(number)
    asked(1)
    assert made == [1, 2, *range(3, 10)]
    asked(2)
    assert made[-1] == 2
