"""`--dry-run`: what would come of a verb and what would follow is said, and nothing is written."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.signing import Signer
from console.at_gateway import GatewaySource
from console.dry_run import show
from console.request import left_unchecked
from console.source import Wish
from explain.acts import right_unchecked
from scheduler.core.trial import refused
from schemas.events import JobCancelled
from schemas.requests import CancelJob, HoldJob, RequeueJob
from tests.builders import request_of
from tests.console.conftest import Run
from tests.console.stories import Teller
from tidegate_client import Client

GOLDEN = Path(__file__).parent.parent / "golden"
SAID = "Dry run: a scheduler would do this now; nothing was asked for.\n"


@pytest.fixture
def untouched(log: Path) -> Any:
    before = log.read_bytes()
    yield log
    assert log.read_bytes() == before, "a dry run must leave no trace"


@pytest.mark.parametrize(
    "verb",
    [
        ("cancel", "waiter", "--preview", "0"),
        ("job", "hold", "mover", "--preview", "0"),
        ("job", "requeue", "mover", "--preview", "0"),
        ("job", "priority", "mover", "3"),
        ("job", "scale", "mover", "2", "--preview", "0"),
        ("node", "cordon", "n0"),
        ("node", "drain", "n0", "--preview", "0"),
        ("pause", "--for", "2h"),
        ("loans", "freeze"),
        ("quota", "set", "acme", "--gpus", "4..8"),
        ("policy", "set", "tide", "--preview", "0"),
    ],
)
def test_of_each_verb_it_says_that_it_would_be_done(
    tidegate: Run, untouched: Path, verb: tuple[str, ...]
) -> None:
    ran = tidegate.does(*verb, "--dry-run", "--log", untouched)
    assert ran.out.startswith(SAID), ran.out
    assert len(ran.out.splitlines()) >= 2, "and what the verb says"
    told = tidegate.tells(*verb, "--dry-run", "--log", untouched)
    assert (told["dry_run"], told["result"], told["preview"]) == (True, "would_be_done", None)


def test_a_submission_is_tried_as_it_would_be_asked(tidegate: Run, untouched: Path) -> None:
    wide = ("--steps", "9", "--rate", "64=1", "--job", "mine")
    submit = ("submit", *wide, "--dry-run", "--log", untouched)
    ran = tidegate.does(*submit)
    assert ran.out.startswith(f"{SAID}mine\n")
    assert "until a site has 64 GPUs" in ran.err
    assert "Submitted" not in ran.err


def test_a_submission_is_shown_whole_as_a_file_that_submits_the_same(
    tidegate: Run, untouched: Path, tmp_path: Path
) -> None:
    submit = ("submit", "--dry-run", "--log", untouched)
    code = "print('[é]: - \\u202e')\nprint(2)"
    said = ("--job", "mine", "--gpus", "1..3", "--deadline", "2h", "--in-place", "--no-edge", "--")
    ran = tidegate.does(*submit, *said, "python3", "-c", code)
    whole = ran.out.removeprefix(f"{SAID}mine\n")
    assert "  tenant: operator\n" in whole, "also what was not said"
    assert "  - {gpus: 2, samples_per_s: 2.0}\n" in whole
    file = tmp_path / "job.yaml"
    file.write_text(dedent(whole))
    assert tidegate.does(*submit, file).out == ran.out
    told = tidegate.tells(*submit, file)
    assert told["spec"] == yaml.safe_load(whole)
    assert told["spec"]["program"]["argv"] == ["python3", "-c", code]
    assert "spec" not in tidegate.tells("loans", "freeze", "--dry-run", "--log", untouched)
    file.write_text('job: mine\ncommand: [echo, "é \\u202e\\u2066"]\n')
    hidden = tidegate.does(*submit, file)
    assert 'argv: [echo, "\\xE9 \\u202E\\u2066"]' in hidden.out
    assert tidegate.tells(*submit, file)["spec"]["program"]["argv"][1] == "é \u202e\u2066"
    file.write_text("priority: high\ncommand: [a]\n")
    assert "priority: " in tidegate.refuses(*submit, file)


def test_what_would_be_refused_is_said_with_its_field_and_ends_with_1(
    tidegate: Run, untouched: Path
) -> None:
    verb = ("job", "scale", "mover", "3000", "--dry-run", "--log", untouched)
    ran = tidegate(*verb)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Dry run: a scheduler would refuse it: gpus: 3000 is no size")
    ran = tidegate(*verb, "--json", "-")
    assert ran.code == 1
    assert '"result": "refused"' in ran.out
    assert '"field": "args.gpus"' in ran.out
    # What the command line itself knows to be wrong is said as without.
    assert "no such job" in tidegate.refuses(
        "job", "hold", "nobody", "--dry-run", "--log", untouched
    )


def test_one_that_comes_long_after_the_last_entry_is_answered_as_of_now(told: Teller) -> None:
    """A log whose scheduler has stopped is behind the clock; no clock is wrong for that."""
    late = request_of(told.now_s + 90_000.0, RequeueJob(job="mover"), "r1").request
    assert refused(told.state, late) is None
    number = told.state.number
    twice = request_of(told.now_s, RequeueJob(job="waiter"), "r2").request
    assert refused(told.state, twice) == ("args.job", "waiter waits already")
    assert told.state.number == number


@pytest.fixture
def lending(tidegate: Run, tmp_path: Path) -> Path:
    """A log that ends with jobs on the GPUs of a lender."""
    path = tmp_path / "lending.db"
    archive, whole = GOLDEN / "aryl.jsonl.zst", tmp_path / "whole.db"
    tidegate.does("journal", "import", archive, "--log", whole)
    tidegate.does("branch", whole, "--entry", 80, "--hours", 0.1, "--save", path)
    return path


def test_what_moves_work_shows_what_would_follow(tidegate: Run, lending: Path) -> None:
    """The branch of `tidegate branch` with this request; a policy's choice is in no way ours."""
    nodes = {one["node"]: one for one in tidegate.tells("nodes", "--log", lending)["nodes"]}
    node = next(name for name in sorted(nodes) if any(nodes[name]["holders"]))
    there = {job for job in nodes[node]["holders"] if job}
    drain = ("node", "drain", node, "--dry-run", "--preview", "1", "--log", lending)
    before = lending.read_bytes()
    ran = tidegate.does(*drain)
    assert f"  {node} is free " in ran.out, ran.out
    told = tidegate.tells(*drain)["preview"]
    assert [one["node"] for one in told["nodes"]] == [node]
    assert {one["job"] for one in told["moves"] if one["is_subject"]} == there
    assert told["until_s"] - told["at_s"] == 3600.0
    assert all(f"{job} " in ran.out for job in there)
    held = tidegate.tells("job", "hold", min(there), "--dry-run", "--log", lending)["preview"]
    assert held["moves"][0]["job"] == min(there)
    assert held["until_s"] - held["at_s"] == 6 * 3600.0
    assert lending.read_bytes() == before


def test_what_cannot_be_simulated_is_said(tidegate: Run, untouched: Path) -> None:
    """The scheduler would take it all the same."""
    ran = tidegate.does("job", "cancel", "mover", "--dry-run", "--log", untouched)
    assert ran.out.startswith(SAID)
    assert "What follows cannot be simulated: " in ran.err
    assert "policy 'scripted' is not known" in ran.err


def test_what_a_gateway_cannot_know_is_said_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        said = {
            "request": "r",
            "result": "would_be_done",
            "note": right_unchecked("ops", "job.hold"),
        }
        return httpx.Response(200, json=said)

    source = GatewaySource("here", None)
    asked = Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    vars(source)["_client"] = asked
    wish = Wish(HoldJob(job="mover"), "Asked to hold mover.", {"job": "mover"})
    show(wish, source.tries(wish, "", 0.0), None)
    said = capsys.readouterr()
    assert said.out.startswith(SAID)
    assert said.err == (
        "Whether the scheduler lets key ops pass on job.hold was not looked at: its configuration "
        "says so, in scheduler.trusted_gateways.ops.may.\n"
    )


@pytest.mark.parametrize(
    ("sign", "said"),
    [("ops", "--sign: 'ops' is not KEY_ID=FILE"), ("ops=absent.pem", "absent.pem")],
)
def test_a_key_that_cannot_sign_is_said_already(
    tidegate: Run, untouched: Path, sign: str, said: str
) -> None:
    asked = "job", "hold", "mover", "--dry-run", "--sign", sign, "--log", untouched
    assert said in tidegate.refuses(*asked)


def test_over_kafka_it_is_said_what_the_key_decides() -> None:
    wish = Wish(HoldJob(job="mover"), "", {})
    key = Signer("ops", Ed25519PrivateKey.generate())
    assert left_unchecked("/run.db", wish, None) == left_unchecked("/run.db", wish, key) == ()
    assert left_unchecked("kafka:", wish, key) == (right_unchecked("ops", "job.hold"),)
    (unsigned,) = left_unchecked("kafka:", wish, None)
    assert "must be signed; name a key" in unsigned
    cancelled = Wish(CancelJob(job="j"), "", {}, as_event=JobCancelled(job="j"))
    assert left_unchecked("kafka:", cancelled, None) == (), "an event, which nobody signs"
