"""`tidegate jobs`, `nodes`, `loans`."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from bus.clock import PacedClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from console import tables
from console.columns import LEFT, REST, fitted
from console.reading import ask_log, read_bus
from explain.rows import LoanRow
from scheduler.core.standing import Recall
from scheduler.policies.interface import Reason
from schemas.codec import encode, event
from schemas.requests import CordonNode, DrainNode
from schemas.topics import EVENTS
from tests.builders import node_born, request_of, submitted
from tests.console.conftest import Run
from tests.console.stories import START_S, Teller, node


def test_a_long_name_hides_no_columns_and_is_whole() -> None:
    names = ("n" * 128, "short")
    rows = [(Text(name), Text("running"), Text("worth its price")) for name in names]
    written = io.StringIO()
    console = Console(width=80, file=written)
    columns = {"job": LEFT, "state": LEFT, "why": REST}
    console.print(fitted(Text("Jobs"), columns, rows, ("state", "why"), console))
    _, head, *lines = (line.split() for line in written.getvalue().splitlines())
    assert head == ["job", "state", "why"]
    assert "".join(line[0] for line in lines[:-1]) == names[0]
    assert lines[-1] == ["short", "running", "worth", "its", "price"]


def test_a_narrow_table_that_has_not_all_columns_leaves_out_those_that_it_has() -> None:
    written = io.StringIO()
    console = Console(width=20, file=written)
    rows = [(Text("a-policy-of-one's-own"), Text("1"), Text("2"))]
    columns = {"policy": LEFT, "mean": LEFT, "p99": LEFT}
    drop = ("deadlines", "p99", "claims", "mean")
    console.print(fitted(Text("Runs"), columns, rows, drop, console))
    assert "policy" in written.getvalue()
    assert "p99" not in written.getvalue()


def test_what_an_operator_wrote_of_a_node_hides_no_columns_and_is_whole(
    tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    told, path = Teller(), tmp_path / "cordoned.db"
    told.feed(node("n0", "train", "training"))
    reason = "its fan is loud " * 12
    told.feed(request_of(told.now_s, CordonNode(node="n0"), "r0", reason=reason))
    told.write(path)
    lines = tidegate.does("nodes", "--log", path).out.splitlines()
    head = next(line.split() for line in lines if line.startswith("node "))
    assert head[:5] == ["node", "pool", "agent", "state", "loan"]
    assert " ".join(lines).count("loud") == 12


def test_nodes_say_that_one_is_draining_and_that_it_is_empty(
    tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told = Teller()
    for name in ("n0", "n1", "n2"):
        told.feed(node(name, "train", "training"))
    for job in ("j0", "j1"):
        told.feed(submitted(job, gpus_min=1))
    told.run("j0", n0=1)
    told.run("j1", n1=1)

    def asks(args: CordonNode | DrainNode, key: str, reason: str) -> None:
        told.feed(request_of(told.now_s, args, key, reason=reason))

    asks(CordonNode(node="n0"), "r0", "test")
    for name in ("n0", "n1", "n2"):
        asks(DrainNode(node=name, by_s=told.now_s + 600.0), f"drain-{name}", "psu")
    told.write(path := tmp_path / "draining.db")
    lines = tidegate.does("nodes", "--log", path).out.splitlines()
    head = next(line for line in lines if line.startswith("node "))
    column = slice(head.index("state"), head.index("loan"))
    states = " ".join(" ".join(line[column] for line in lines[lines.index(head) + 1 :]).split())
    until = "alive, draining by ann, to be empty by d0 06:11: psu"
    assert f"{until}, cordoned by ann: test alive" in states
    assert f"{until} alive" in states
    assert "alive, cordoned by ann, empty: psu" in states


def test_jobs_lists_the_unfinished_and_counts_the_rest(tidegate: Run, log: Path) -> None:
    ran = tidegate.does("jobs", "--log", log)
    rows = {line.split()[0]: line for line in ran.out.splitlines() if line.strip()}
    assert {"grown", "victim", "mover", "waiter"} <= rows.keys()
    assert "done" not in rows
    assert "2/1–4" in rows["grown"]
    assert "99%" in rows["grown"], "as it went on since its report"
    assert "too few GPUs free, 0 of 1" in rows["waiter"]
    assert "2 finished jobs are not shown" in ran.out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--all",), {"grown", "victim", "mover", "done", "waiter", "dropped"}),
        (("--state", "queued"), {"victim", "waiter"}),
        (("--state", "completed"), {"done"}),
        (("--state", "failed"), set()),
    ],
)
def test_jobs_as_json(tidegate: Run, log: Path, flags: tuple[str, ...], expected: set[str]) -> None:
    document = tidegate.tells("jobs", "--log", log, *flags)
    assert {row["job"] for row in document["jobs"]} == expected
    assert document["now_s"] >= document["origin_s"]


def test_jobs_of_an_unknown_state_names_those_there_are(tidegate: Run, log: Path) -> None:
    said = tidegate.refuses("jobs", "--state", "asleep", "--log", log)
    assert said.startswith("--state: 'asleep' is no state of a job; choose one of: cancelled,")


def test_nodes_show_who_is_on_them_and_how_used_they_are(tidegate: Run, log: Path) -> None:
    ran = tidegate.does("nodes", "--log", log)
    row = next(line for line in ran.out.splitlines() if line.startswith("n0"))
    assert "████" in row
    assert "50%" in row
    assert "grown ×2, mover ×2" in row
    owned = next(line for line in ran.out.splitlines() if line.startswith("s0"))
    assert "▓▓▓▓" in owned
    document = tidegate.tells("nodes", "--log", log)
    first = {row["node"]: row for row in document["nodes"]}["n0"]
    assert sorted(first["holders"]) == ["grown", "grown", "mover", "mover"]
    assert first["gpu_utilisation"] == pytest.approx(0.5)


def test_loans_tell_what_is_out_and_what_came_back(
    tidegate: Run, log: Path, told: Teller, tmp_path: Path
) -> None:
    ran = tidegate.does("loans", "--log", log)
    assert "No node is on loan now." in ran.out
    assert "1 loan so far, 1 given back (none late)" in ran.out
    told_of = tidegate.does("loans", "history", "--log", log).out
    assert "s0" in told_of
    none = tidegate.does("loans", "history", "--late", "--log", log).out
    assert "No loan is or was late" in none
    target = tmp_path / "loans.json"
    assert tidegate("loans", "--log", log, "--json", target).code == 0
    totals = json.loads(target.read_text())["totals"]
    assert totals["loans_granted"] == told.state.totals.loans_granted == 1
    assert totals["loans_reclaimed"] == 1


def test_a_node_on_loan_is_listed(tidegate: Run, tmp_path: Path) -> None:
    t = Teller()
    t.feed(node("s0", "serving", "inference"))
    t.decides(Reason("s0", "lends", "loans.idle"), lend=("s0",))
    t.acknowledge()
    path = tmp_path / "lent.db"
    t.write(path)
    ran = tidegate("loans", "--log", path)
    row = next(line for line in ran.out.splitlines() if line.startswith("s0"))
    assert "lent" in row
    assert "when needed" in row
    assert "0/4" in row
    (document,) = tidegate.tells("loans", "--log", path)["loans"]
    assert (document["node"], document["state"], document["gpus"]) == ("s0", "lent", 4)
    assert "lent" in tidegate("nodes", "--log", path).out


def test_a_loan_that_ends_says_who_called_it_back() -> None:
    for recall, said in (
        (Recall("r1", "ann", 9.0, 1), "reclaiming, recalled by ann"),
        (Recall("", "", 9.0, 1), "reclaiming, recalled by the policy"),
        (Recall("", "serve", 9.0, 1), "reclaiming, its owner is not heard"),
        (None, "reclaiming"),
    ):
        row = LoanRow("s0", "serve", "l", "reclaiming", 1.0, 9.0, 4, 0, recall)
        assert tables._loan_state(row).plain == said


@pytest.mark.parametrize("width", [40, 50, 120])
def test_a_narrow_table_keeps_the_id_whole_and_drops_what_is_least_needed(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = tidegate("jobs", "--log", log)
    rows = ran.out.splitlines()
    assert max(map(len, rows)) <= width
    assert {"grown", "victim", "mover", "waiter"} <= {row.split()[0] for row in rows if row}
    assert ("tenant" in ran.out) == (width > 100)
    assert "slack" in ran.out
    for verb in ("nodes", "loans"):
        lines = tidegate(verb, "--log", log).out.splitlines()
        assert max(map(len, lines)) <= width
    assert any(row.startswith("n0 ") for row in tidegate("nodes", "--log", log).out.splitlines())


@pytest.mark.parametrize(("width", "cut"), [(40, True), (80, True), (200, False)])
def test_jobs_say_what_shows_the_whole_of_why_where_it_is_cut_or_left_out(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch, width: int, cut: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = tidegate.does("jobs", "--log", log).out
    assert ("…" in shown or " why" not in shown.splitlines()[1]) is cut
    assert ("`tidegate why JOB` says it" in " ".join(shown.split())) is cut


def test_an_empty_log_has_empty_tables(tidegate: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    Teller().write(path)
    for verb, said in (
        ("jobs", "No job waits or runs; `tidegate submit` adds one."),
        ("nodes", f"No nodes in {path} yet: no agent has reported."),
        ("loans", "No node is"),
    ):
        ran = tidegate.does(verb, "--log", path)
        assert said in ran.out


def test_a_log_that_no_scheduler_has_led_says_so(tidegate: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.db"

    async def an_agent_reports() -> None:
        bus = SqliteBus.open(path, PacedClock(START_S, None), durability="process_crash")
        says = event(node_born("n0"), source="/agents/a", sequence=0, bootid=0, time_s=START_S)
        await bus.publish(Message(EVENTS.name, "default", encode(says)))
        await bus.close()

    asyncio.run(an_agent_reports())
    said = tidegate.does("nodes", "--log", path).out
    assert said == f"No nodes in {path} yet: no scheduler has led.\n"


@pytest.mark.parametrize("words", [("jobs",), ("nodes",), ("loans",), ("why", "mover")])
def test_an_old_log_of_real_time_asks_for_a_scheduler(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert tidegate(*words, "--log", log).err == ""  # a demo's: its time is not ours
    monkeypatch.setattr("explain.moments.DEMO_START_S", 0.0)
    ran = tidegate(*words, "--log", log)
    assert ran.err.startswith("The newest entry is ")
    assert ran.err.endswith(" old; is a scheduler running?\n")
    assert ("as of 2026-01-05 06:34 UTC" in ran.out) is (words != ("loans",))  # there are none
    assert tidegate(*words, "--log", log, "--json", "-").err == ""


def test_a_log_of_real_time_that_goes_on_is_not_called_old(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explain.moments.DEMO_START_S", 0.0)
    reading = ask_log(str(log), None, read_bus)
    assert reading.age(reading.heard_s + 120.0) is None
    said = "The newest entry is 7 min old; is a scheduler running?"
    assert reading.age(reading.heard_s + 420.0) == said


def test_jobs_tell_when_their_turn_comes_by_the_policys_own_order(
    tidegate: Run, tmp_path: Path
) -> None:
    path = tmp_path / "fifo.db"
    golden = Path(__file__).parent.parent / "golden" / "fifo.jsonl.zst"
    whole = tmp_path / "whole.db"
    tidegate.does("journal", "import", golden, "--log", whole)
    tidegate.does("branch", whole, "--entry", 100, "--hours", 0.1, "--save", path)
    rows = tidegate.tells("jobs", "--position", "--log", path)["jobs"]
    turns = [row["position"] for row in rows if row["position"] is not None]
    assert turns == list(range(1, len(turns) + 1)), "and they are first, in their order"
    assert turns
    shown = tidegate.does("jobs", "--position", "--log", path).out
    assert "turn: when fifo would try to start it" in shown
    (first,) = [line for line in shown.splitlines() if line.startswith("1 ")]
    assert first.split()[1] == rows[0]["job"]
    plain = tidegate.tells("jobs", "--log", path)["jobs"]
    assert {row["position"] for row in plain} == {None}


def test_where_the_policy_keeps_no_order_none_is_made_up(tidegate: Run, log: Path) -> None:
    rows = tidegate.tells("jobs", "--position", "--log", log)["jobs"]
    assert {row["position"] for row in rows} == {None}
    shown = tidegate.does("jobs", "--position", "--log", log).out
    assert "scripted keeps no order of those that wait" in shown
