"""Every view, live and at a past entry, shows what the API answers for that moment."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from explain.moments import day_clock, duration
from explain.shares import percent
from tests.browser.conftest import KINDS, served_night
from tests.browser.window import Window
from tests.process.gateway_process import Process

#: Two nodes are on loan and five jobs run; and the newest, when all is over.
PAST = 1600
MOMENTS = [pytest.param(None, id="live"), pytest.param(PAST, id="past")]


@pytest.fixture(scope="module", params=KINDS)
def gateway(request: pytest.FixtureRequest) -> Iterator[Process]:
    """The night in a file, and over real Kafka."""
    with served_night(request, request.param) as found:
        yield found


@pytest.fixture(scope="module")
def _page_of_all(browser: Browser, gateway: Process) -> Iterator[Window]:
    found = Window(browser, gateway)
    yield found
    found.close()


@pytest.fixture
def shared(_page_of_all: Window) -> Iterator[Window]:
    """One page for all views, each opened by its address: a page of its own costs three times that.

    Fails if the browser complained.
    """
    yield _page_of_all
    wrong, _page_of_all.wrong = _page_of_all.wrong, []
    assert not wrong, "\n".join(wrong)


def count(value: float) -> str:
    return f"{value:,.0f}"


def figure(value: float) -> str:
    """As the page writes a figure: two decimals, and none that is not needed."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def moment(at_s: float) -> str:
    """As the terminal writes a moment of this log, which began in simulated time."""
    return day_clock(at_s, 0.0)


def plain(text: str) -> str:
    """Text without the marks that keep names apart, and with plain spaces."""
    return re.sub(r"\s+", " ", re.sub("[\u2066-\u2069]", "", text)).strip()


def of(at: int | None) -> dict[str, int]:
    return {} if at is None else {"entry": at}


def tide(window: Window, at: int | None) -> None:
    said = window.api("/overview", **of(at))
    loans = said["loans"]
    assert window.figures() == {
        "running": count(said["jobs"].get("running", 0)),
        "queued": count(said["jobs"].get("queued", 0)),
        "GPUs in use": count(said["gpus"]["held"]),
        "GPUs on loan": count(said["gpus"]["loaned"]),
        "loans · back again": f"{loans['loans_granted']} · {loans['loans_reclaimed']}",
        "back late": count(loans["reclaims_late"]),
        "owners short of": figure(loans["inference_shortfall_gpu_s"] / 3600),
        "deadlines kept": count(said["deadlines"]["met"]),
    }
    rows = window.api("/tide", points=700)["rows"]
    window.page.get_by_text("The same as a table").click()
    window.table("The tide as a table").wait_for()
    names = ("need", "owned", "lent", "unused", "used", "queue")
    assert window.rows("The tide as a table") == [
        [moment(row["at_s"]), *(figure(row[name]) for name in names)] for row in reversed(rows)
    ]
    last = rows[-1] if at is None else window.api("/tide", points=2, entry=at)["rows"][-1]
    # The figures are read apart from the picture, and may come after it.
    keys = window.page.locator(".legend")
    expect(keys.nth(0)).to_contain_text(_said("theirs now", last["owned"]))
    expect(keys.nth(1)).to_contain_text(_said("training uses", last["used"]))


def _said(label: str, value: float) -> re.Pattern[str]:
    return re.compile(rf"{label}\s*{re.escape(count(value))}(?![0-9])")


def fleet(window: Window, at: int | None) -> None:
    said = window.api("/fleet", **of(at))
    nodes = said["nodes"]
    held = sum(one >= 0 for one in said["gpus"])
    assert window.figures() == {
        "nodes": count(len(nodes["name"])),
        "GPUs": count(sum(nodes["gpus"])),
        "held by jobs": count(held),
        "nodes lent": count(sum(one is not None for one in nodes["loan"])),
        "draining": "0",
        "cordoned": "0",
        "silent": "0",
    }
    picture = window.page.locator("canvas.fleet-canvas[data-took]")
    picture.wait_for()
    drawn = "node.getContext('2d').getImageData(0, 0, node.width, node.height).data"
    assert picture.evaluate(f"node => new Set({drawn}).size") > 8, "the picture is empty"
    assert f"{len(nodes['name'])} nodes in {len(said['pools'])} pools" in str(
        picture.get_attribute("aria-label")
    )
    window.page.get_by_role("button", name="As a table").click()
    window.table("Nodes").locator("tbody tr").first.wait_for()
    first, expected = 0, []
    for place, name in enumerate(nodes["name"]):
        gpus = said["gpus"][first : first + nodes["gpus"][place]]
        first += nodes["gpus"][place]
        on = {said["jobs"][one]["job"] for one in gpus if one >= 0}
        expected.append([name, said["pools"][nodes["pool"][place]]["pool"], on])
    shown = window.rows("Nodes")
    assert [[row[0], row[1], set(re.findall(r"job-\d+", row[-1]))] for row in shown] == expected


def jobs(window: Window, at: int | None) -> None:
    said = window.api("/jobs", sort="-submitted", limit=200, **of(at))
    table = window.table("Jobs")
    table.locator("tbody tr").first.wait_for()
    assert table.get_attribute("aria-rowcount") == str(said["total"] + 1)
    shown = window.rows("Jobs")  # those that are in sight, and some below them
    assert len(shown) >= min(10, said["total"])
    for cells, told in zip(shown, said["jobs"], strict=False):
        row = cells if at is None else ["", *cells]  # in the past none can be chosen
        assert row[1:4] == [told["job"], told["state"], told["tenant"]]
        assert plain(row[4]).startswith(count(told["gpus"]) if told["gpus"] else "–")
        done = percent(told["progress"])
        assert plain(row[5]) == done
        assert told["why_in_short"] in plain(row[8])


def job(window: Window, at: int | None) -> None:
    said = window.api("/jobs/job-0009/why", **of(at))
    row = window.api("/jobs/job-0009", **of(at))["job"]
    page = window.page
    assert page.locator(".job-state .state").inner_text() == said["state"]
    shown = window.figures()
    assert shown["moved · made way"] == f"{row['migrations']} · {row['preemptions']}"
    assert plain(shown["done"]) == percent(row["progress"])
    if said["ended"]:
        why = page.get_by_role("region", name="How it ended")
        assert said["ended"][0] in plain(why.inner_text())
        expect(page.locator(".sentence")).to_have_count(0)
    else:
        sentence = plain(page.locator(".sentence").inner_text())
        assert sentence.lower().rstrip(".") == said["because"]["sentence"].lower()
    if at is None:  # in the past nothing can be asked for, so no output is offered
        expect(page.locator("main")).to_contain_text("Its workers are simulated")
    story = page.locator(".story li")
    told = [plain(one) for one in story.all_inner_texts()]
    assert len(told) == len(said["history"])
    for line, event in zip(told, reversed(said["history"]), strict=True):
        assert event["what"] in line
        assert event["detail"] in line


def loans(window: Window, at: int | None) -> None:
    said = window.api("/loans", **of(at))
    totals = said["totals"]
    shown = window.figures()
    assert shown["GPUs lent"] == count(sum(one["gpus"] for one in said["loans"]))
    granted = f"{totals['loans_granted']} / {totals['loans_reclaimed']}"
    assert shown["lent / given back so far"] == granted
    assert shown["of them late"] == count(totals["reclaims_late"])
    assert shown["GPU hours lent"] == figure(totals["loaned_gpu_s"] / 3600)
    on_loan = window.rows("Nodes on loan")
    assert sorted(row[0] for row in on_loan) == sorted(one["node"] for one in said["loans"])
    reclaims = window.api("/reclaims", **of(at))["reclaims"]
    bars = window.page.locator(".reclaims > li")
    told = [plain(one) for one in bars.all_inner_texts()]
    assert len(told) == len(reclaims)
    for text, one in zip(told, reclaims, strict=True):
        assert f"{one['node']} {moment(one['called_s'])} →{one['called_entry']}" in text
        assert one["because"]["sentence"] in text
        assert (f"late by {duration(one['late_s'])}" in text) == (one["late_s"] > 0)
        if one["empty_s"] is not None:
            assert f"mpty after {duration(one['empty_s'] - one['called_s'])}" in text


def decisions(window: Window, at: int | None) -> None:
    said = window.api("/decisions", limit=200, telling="true", **of(at))["decisions"]
    assert all(one["commands"] or one["reasons"] for one in said)
    _same_decisions(window, said)
    with window.page.expect_response(lambda one: "/decisions" in one.url):
        window.page.get_by_label("also those without command or reason").check()
    window.settled()
    everything = window.api("/decisions", limit=200, **of(at))["decisions"]
    expect(window.table("Decisions").locator("tbody tr td").first).to_have_text(
        str(everything[0]["entry"])
    )
    assert everything != said
    _same_decisions(window, everything)


def _same_decisions(window: Window, said: list[dict[str, Any]]) -> None:
    shown = window.rows("Decisions")
    assert len(shown) > 10
    for row, told in zip(shown, said, strict=False):
        assert row[:2] == [str(told["entry"]), moment(told["at_s"])]
        assert plain(row[3]) == (told["subject"] or "–")
        if told["reasons"]:
            assert told["reasons"][0]["sentence"] in plain(row[5])


def entry(window: Window, at: int | None) -> None:
    said = window.api("/entries/1672")
    row = window.api("/decisions", entry=1672, limit=1)["decisions"][0]
    text = plain(window.page.locator("main").inner_text())
    assert "Entry 1672" in text
    for reason in row["reasons"][:8]:
        assert reason["sentence"] in text
    for kind, fields in said["decision"]["facts"]:
        if kind == "CommandIssued":
            assert f"{fields['agent']}" in text
    labels = window.page.locator("main dt, main th[scope=col]").all_inner_texts()
    assert "due back" in labels
    assert not [one for one in labels if "_" in one], "fields have words"
    raw = window.page.locator(".raw pre").text_content()
    assert f'"digest": "{said["digest"]}"' in str(raw)


def tenants(window: Window, at: int | None) -> None:
    said = window.api("/rules", **of(at))
    going = window.api("/jobs", limit=200, **of(at))["jobs"]
    assert said["policy"]["policy"] in plain(window.page.locator("main").inner_text())
    held: dict[str, int] = {}
    for row in going:
        if row["end_s"] is None:
            held[row["tenant"]] = held.get(row["tenant"], 0) + row["gpus"]
    shown = window.rows("Table of tenants")
    assert {row[0]: row[1] for row in shown} == {name: count(n) for name, n in held.items()}


def health(window: Window, at: int | None) -> None:
    said = window.api("/health")["cells"]
    cells = window.rows("Cells")
    assert [[row[0], row[3]] for row in cells] == [[one["cell"], str(one["entry"])] for one in said]
    leaders = window.api("/leaders", **of(at))["leaders"]
    told = [plain(one) for one in window.page.locator(".leaders > li").all_inner_texts()]
    assert len(told) == len(leaders)
    assert all(one["leader"] in text for one, text in zip(leaders, told, strict=True))
    agents = window.api("/agents", **of(at))["agents"]
    assert [row[:2] for row in window.rows("Agents")] == [
        [one["agent"], one["state"]] for one in agents
    ]
    # It is decided again meanwhile; the night is older than today's `tide`.
    window.page.get_by_text("It differs: the log was changed, or this release decides").wait_for()
    window.page.locator(".scrubber-said").get_by_text("differs on replay").wait_for()


def audit(window: Window, at: int | None) -> None:
    said = window.api("/requests", limit=200, **of(at))["acts"]
    shown = window.rows("What was asked for")
    assert len(shown) >= min(10, len(said))
    for row, told in zip(shown, said, strict=False):
        assert [row[0], row[3], row[4], row[5]] == [
            str(told["entry"]), told["verb"], told["about"], told["result"],
        ]  # fmt: skip
        assert plain(row[2]).startswith(told["subject"])


def dead_letters(window: Window, at: int | None) -> None:
    assert window.api("/dead-letters")["letters"] == []
    assert "No dead letters" in window.page.locator("main").inner_text()


def what_if(window: Window, at: int | None) -> None:
    assert window.page.get_by_label("after entry").input_value() == ("" if at is None else str(at))
    pools = [one["pool"] for one in window.api("/overview", **of(at))["pools"]]
    for pool in pools:
        window.page.get_by_label(f"more in {pool}").wait_for()


Check = Callable[[Window, int | None], None]
VIEWS: dict[str, Check] = {
    "/": tide,
    "/fleet": fleet,
    "/jobs?state=all": jobs,
    "/jobs/job-0009": job,
    "/loans": loans,
    "/decisions": decisions,
    "/decisions/1672": entry,
    "/what-if": what_if,
    "/tenants": tenants,
    "/health": health,
    "/dead-letters": dead_letters,
    "/audit": audit,
}


@pytest.mark.parametrize("at", MOMENTS)
@pytest.mark.parametrize("path", VIEWS)
def test_a_view_shows_what_the_gateway_answers(shared: Window, path: str, at: int | None) -> None:
    if at is not None:
        path += f"{'&' if '?' in path else '?'}entry={at}"
    shared.open(path)
    assert shared.page.locator(".banner").is_visible() == (at is not None)
    VIEWS[path.partition("&")[0] if path.startswith("/jobs?s") else path.partition("?")[0]](
        shared, at
    )


def test_two_moments_are_compared(window: Window) -> None:
    said: dict[str, Any] = window.api("/diff", entry=PAST, vs=1672)
    window.open(f"/compare?entry={PAST}&vs=1672")
    for title, kind in (("Jobs", "jobs"), ("Nodes", "nodes")):
        shown = window.rows(f"{title}, field by field")
        assert [row[0] for row in shown] == [one["name"] for one in said[kind]]
        assert len(shown) == said[f"{kind}_total"]
    sums = window.page.locator("dl.totals > div")
    assert sums.count() == len(said["totals"])


#: What makes the page wider than the window: each such element, with its text.
_STICKS_OUT = """() => {
  const root = document.documentElement, wide = root.clientWidth;
  if (root.scrollWidth <= wide) return [];
  return [`${root.scrollWidth} of ${wide}`, ...[...document.body.querySelectorAll("*")]
    .filter((one) => one.getBoundingClientRect().right > wide)
    .map((one) => `${one.tagName}.${one.className}: ${one.textContent.slice(0, 80)}`)];
}"""


def test_a_phone_shows_why_and_keeps_the_moment_in_reach(window: Window) -> None:
    wide, high = 390, 844
    window.page.set_viewport_size({"width": wide, "height": high})
    window.open(f"/jobs?entry={PAST}")
    first = window.table("Jobs").locator("tbody tr:not(.gap)").first
    why = first.locator("td").filter(has=window.page.locator(".text")).bounding_box()
    assert why is not None
    assert why["width"] > 120
    assert why["x"] + why["width"] <= wide
    for path, label in (("/decisions", "Decisions"), ("/audit", "What was asked for")):
        window.open(path)
        boxes = [one.bounding_box() for one in window.table(label).locator("th:visible").all()]
        shown = [box for box in boxes if box is not None]
        assert shown[-1]["x"] + shown[-1]["width"] > wide - 60, (
            "columns that are hidden take no room"
        )
        assert min(box["width"] for box in shown) > 60
    scrubber = window.page.locator(".scrubber")
    for path in (f"/jobs?entry={PAST}", "/health"):
        window.open(path)
        box = scrubber.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= high + 1
        assert box["height"] < high / 5
        assert window.page.evaluate(_STICKS_OUT) == []


def test_the_narrowest_phone_has_room_for_a_long_name_and_the_time(window: Window) -> None:
    window.page.set_viewport_size({"width": 360, "height": 740})
    window.expected.append("404 (Not Found)")
    window.open(f"/jobs/{'j' * 128}?entry={PAST}")
    assert window.page.evaluate(_STICKS_OUT) == []
    clock = window.page.locator(".when strong").bounding_box()
    button = window.page.get_by_role("button", name="Compare").bounding_box()
    assert clock is not None
    assert button is not None
    assert clock["x"] + clock["width"] <= button["x"]


def test_a_mistyped_address_names_the_nearest_view(window: Window) -> None:
    window.expected.append("404 (Not Found)")
    window.open("/jbos/job-0009")
    page = window.page
    expect(page.locator("main")).to_contain_text("There is no view “\u2068jbos\u2069”")
    page.get_by_role("main").get_by_role("link", name="Jobs").click()
    expect(page.locator("h1")).to_contain_text("job-0009")
