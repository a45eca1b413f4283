"""What clients ask for: keys, retries, refusals, and waiting for a job."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from scheduler.core.transitions import JobState
from schemas.requests import VERB_NAMES, SubmitJob
from tidegate_client import (
    BadRequest,
    Client,
    Job,
    JobEnded,
    NoGateway,
    NotAllowed,
    NotKnown,
    Refused,
    TimedOut,
    Unavailable,
    operations,
)
from tidegate_client.flow import Call, Moment, Pause
from tidegate_client.jobs import STATES

pytestmark = pytest.mark.usefixtures("slept")
Answering = Callable[[httpx.Request], httpx.Response]
NOW_S = 1_767_600_000.0
_GZIP = {"Content-Encoding": "gzip"}


class Gateway:
    """Answers as the API's contract says, after `failures`."""

    def __init__(self, *failures: httpx.Response | Exception) -> None:
        self.failures, self.asked = list(failures), list[httpx.Request]()
        self.said: dict[str, Any] = {"result": "done", "entry": 7}
        self.states: list[str] = ["running"]
        self.known: dict[str, dict[str, Any]] = {}
        self.now_s = NOW_S

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        if request.method == "POST":
            name = request.headers["idempotency-key"]
            assert request.headers["prefer"] == "wait=5"
            place = {"Location": f"/api/v1/requests/{name}"}
            return httpx.Response(200, json={"request": name, **self.said}, headers=place)
        if "/requests/" in request.url.path:
            name = request.url.path.rpartition("/")[2]
            if name not in self.known:
                return problem(404, "there is no such request")
            said = {"request": name, **self.known[name], **self.said}
            return httpx.Response(200, json=said)
        if request.url.path.endswith("/overview"):
            return httpx.Response(200, json={**OVERVIEW, "now_s": self.now_s})
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state == "missing":
            return problem(404, "there is no such job")
        return httpx.Response(200, json=answer(request.url.path.rpartition("/")[2], state))

    def client(self) -> Client:
        return Client("http://127.0.0.1:1", "t", transport=httpx.MockTransport(self))


OVERVIEW = {
    "cell": "default", "now_s": NOW_S, "origin_s": NOW_S - 60, "leader": "", "leader_epoch": 1,
    "policy": "tide", "jobs": {}, "nodes": {}, "pools": [], "totals": {},
    "gpus": {"alive": 0, "held": 0, "loaned": 0, "serving": 0.0},
    "loans": {"loans_granted": 0, "loans_reclaimed": 0, "reclaims_late": 0, "loaned_gpu_s": 0.0,
              "inference_shortfall_gpu_s": 0.0},
    "deadlines": {"met": 0, "total": 0},
}  # fmt: skip


def answer(job: str, state: str) -> dict[str, Any]:
    row = {
        "job": job, "tenant": "a", "model": "m", "state": state, "gpus": 0, "gpus_min": 1,
        "gpus_max": 1, "allocation": {}, "step": 0, "progress": 0.0, "samples_per_s": 0.0,
        "submit_s": 0.0, "priority": 0, "preemptions": 0, "migrations": 0, "failures": 0,
        "length": {"steps": 1.0, "known_from": "declared", "kin_ended": 0, "kin_took": [],
                   "kin_running": 0},
        "why_in_words": "its worker broke", "why_in_short": "",
    }  # fmt: skip
    return {"cell": "default", "now_s": NOW_S, "origin_s": 0.0, "job": row}


def problem(status: int, detail: str, **headers: str) -> httpx.Response:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": detail}
    return httpx.Response(status, json=body, headers=headers)


def test_a_job_becomes_what_the_scheduler_takes() -> None:
    gateway = Gateway()
    job = Job(model="resnet50", gpus=(1, 8), steps=20_000, deadline="2h", command=["true"])
    handle = gateway.client().jobs.submit(job, key="dag-17", reason="nightly")
    body = json.loads(gateway.asked[-1].content)
    assert body["reason"] == "nightly"
    assert "tenant" not in body["args"]["spec"], "the gateway knows whose it is"
    assert job.model_copy(update={"tenant": "vision"}).spec("j", NOW_S)["tenant"] == "vision"
    body["args"]["spec"]["tenant"] = "research"
    args = SubmitJob.model_validate(body["args"])
    assert args.job == handle.id
    assert args.spec.deadline_s == NOW_S + 7200
    assert [point.gpus for point in args.spec.rates] == [1, 2, 4, 8]
    asked = len(gateway.asked)
    first = json.loads(gateway.asked[-1].content)["args"]
    gateway.known = {"dag-17": {"args": first, "asked_s": NOW_S + 5}}
    gateway.now_s += 30
    again = gateway.client().jobs.submit(job, key="dag-17")
    assert [one.method for one in gateway.asked[asked:]] == ["GET", "POST"]
    assert json.loads(gateway.asked[-1].content)["args"] == first, "its deadline counts from then"
    other = gateway.client().jobs.submit(job, key="dag-18")
    assert again.id == handle.id != other.id
    with pytest.raises(ValueError, match="no length of time"):
        Job(deadline="soon")
    with pytest.raises(ValueError, match="program: goes with command"):
        Job(program={"argv": ["true"]})


def test_every_verb_is_one_that_the_scheduler_knows() -> None:
    gateway = Gateway()
    client = gateway.client()
    client.cordon("n")
    client.uncordon("n")
    client.drain("n", "30m")
    client.job("j").cancel(reason="no longer needed")
    asked = [json.loads(one.content) for one in gateway.asked if one.method == "POST"]
    for one in asked:
        VERB_NAMES[one["args"]["verb"]].model_validate(one["args"])
    assert [one["args"]["verb"] for one in asked] == [
        "node.cordon", "node.uncordon", "node.drain", "job.cancel",
    ]  # fmt: skip
    assert asked[2]["args"]["by_s"] == NOW_S + 1800
    assert asked[3]["reason"] == "no longer needed"


def test_tries_keep_the_key_and_wait_as_long_as_they_are_told(slept: list[float]) -> None:
    gateway = Gateway(
        httpx.ConnectError("refused"),
        problem(429, "later", **{"Retry-After": "3"}),
        problem(503, "the log cannot be read now"),
    )
    assert gateway.client().ask("node.cordon", node="n").result == "done"
    keys = [one.headers["idempotency-key"] for one in gateway.asked]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert slept == [pytest.approx(0.4), 3.0, pytest.approx(1.6)]
    gateway.client().ask("node.cordon", node="n")
    assert gateway.asked[-1].headers["idempotency-key"] != keys[0]


def test_tries_end(slept: list[float]) -> None:
    broken = Gateway(*[httpx.ConnectError("refused")] * 9)
    with pytest.raises(NoGateway, match="refused") as away:
        broken.client().overview()
    assert len(broken.asked) == 5
    assert isinstance(away.value.__cause__, httpx.ConnectError)
    busy = Gateway(*[problem(503, "busy")] * 9)
    with pytest.raises(Unavailable, match="busy"):
        busy.client().overview()
    assert len(busy.asked) == 5
    long = Gateway(*[problem(503, "tomorrow", **{"Retry-After": "86400"})] * 9)
    with pytest.raises(Unavailable, match="tomorrow") as raised:
        long.client().overview()
    assert raised.value.after_s == 86_400
    assert len(long.asked) == 1
    assert max(slept) < 60


@pytest.mark.parametrize(
    ("wait", "said", "read_s"), [(30.0, "wait=30", 60.0), (900.0, "wait=30", 60.0),
                                 (2.5, "wait=3", 33.0), (0.0, None, 30.0)],
)  # fmt: skip
def test_an_answer_that_waits_may_take_so_much_longer(
    wait: float, said: str | None, read_s: float
) -> None:
    """Else the longest wait ended as if nobody answered, five times over."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers.get("prefer") == said
        assert request.extensions["timeout"]["read"] == read_s
        assert request.extensions["timeout"]["connect"] == 30.0
        return httpx.Response(202, json={"request": "r", "result": "pending"})

    asked = Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    assert asked.ask("node.cordon", node="n", wait=wait).result == "pending"


def test_who_does_not_answer_is_named_and_the_token_is_not() -> None:
    def away(text: str, url: str = "https://tide.example:8321") -> Client:
        def fails(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectTimeout(text)

        return Client(url, "the-secret", transport=httpx.MockTransport(fails))

    asks: tuple[Callable[[Client], object], ...] = (
        lambda client: list(client.jobs(state="queued")),
        lambda client: client.ask("node.cordon", node="n"),
        lambda client: list(client.stream()),
    )
    for ask in asks:
        with pytest.raises(NoGateway) as raised:
            ask(away("timed out"))
        said = str(raised.value)
        assert said.startswith("no gateway answers at https://tide.example:8321: timed out; see")
        assert "tidegate serve" in said
        assert "the-secret" not in said
    with pytest.raises(NoGateway, match=r"at http://\[::1\]:5: ConnectTimeout; see"):
        away("", "http://[::1]:5").overview()
    # Its patience may end while it is away.
    slow = Gateway(problem(429, "later", **{"Retry-After": "59.9"}), httpx.ConnectError("gone"))
    with pytest.raises(NoGateway, match=r"at http://127\.0\.0\.1:1: gone; see"):
        slow.client().overview()


def test_errors_have_a_type_and_say_what_to_do() -> None:
    for status, kind in ((400, BadRequest), (409, Refused), (422, BadRequest)):
        gateway = Gateway(problem(status, "node: there is no such node"))
        with pytest.raises(kind, match="node: there is no such node"):
            gateway.client().ask("node.cordon", node="n")
        assert len(gateway.asked) == 1
    gateway = Gateway(httpx.Response(418, text="<html>a proxy</html>"))
    with pytest.raises(BadRequest, match="a proxy"):
        gateway.client().overview()
    refused = Gateway()
    refused.said = {"result": "refused", "field": "args.node", "refused_because": "is not known"}
    with pytest.raises(Refused, match=r"args\.node: is not known"):
        refused.client().ask("node.cordon", node="train-9")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (lambda: httpx.Response(301, headers={"Location": "https://tide.test/"}), "leads to https"),
        (lambda: httpx.Response(200, text="<html>sign in</html>"), "answers with '<html>sign in"),
        (lambda: httpx.Response(200, json=[]), "as no gateway does; see that the address"),
        (lambda: httpx.Response(200, headers=_GZIP, content=iter([b"plain"])), "no gateway answer"),
    ],
)
def test_what_is_no_gateway_is_said_to_be_none(
    page: Callable[[], httpx.Response], said: str
) -> None:
    """As a proxy that wants another address, or shows a page to sign in at."""
    asks: tuple[Callable[[Client], object], ...] = (
        lambda client: client.overview(),
        lambda client: client.at("06:30").overview(),
        lambda client: client.ask("node.cordon", node="n"),
        lambda client: client.branches(),
        lambda client: client.branches.begin(),
    )
    for ask in asks:
        with pytest.raises(NoGateway, match=said):
            ask(Gateway(*(page() for _ in range(5))).client())


def test_a_job_is_waited_for(slept: list[float]) -> None:
    gateway = Gateway()
    gateway.states = ["missing", "queued", "starting", "running"]
    handle = gateway.client().jobs.submit(Job(id="j"))
    assert handle.wait("running").row == gateway.client().job("j").row
    assert len(slept) == 3
    gateway.states = ["completed"]
    handle.wait("running")
    gateway.states = ["failed"]
    with pytest.raises(JobEnded, match="j is failed: its worker broke"):
        handle.wait("running")
    gateway.states = ["queued"]
    with pytest.raises(TimedOut, match="j is queued after 0 s; it was to be running"):
        handle.wait("running", timeout=0)
    assert set(STATES) == {state.value for state in JobState}
    with pytest.raises(ValueError, match="state: 'finished' is none of a job's; choose among"):
        handle.wait("finished")


def test_a_wait_goes_on_while_the_gateway_is_away(slept: list[float]) -> None:
    gateway = Gateway()
    gateway.states = ["queued", "queued", "completed"]
    handle = gateway.client().jobs.submit(Job(id="j"))
    asked = len(gateway.asked)

    def away(request: httpx.Request) -> httpx.Response:
        if len(gateway.asked) == asked + 1 and not gateway.failures:
            gateway.failures = [
                *[httpx.ConnectError("refused") for _ in range(20)],
                problem(503, "the log is being read", **{"Retry-After": "40"}),
                httpx.Response(502, text="<html>no upstream</html>"),
                httpx.Response(200, text="<html>we are back soon</html>"),
            ]
        return gateway(request)

    handle._http = Client("http://127.0.0.1:1", transport=httpx.MockTransport(away))._http
    assert handle.wait("completed").row == gateway.client().job("j").row
    assert len(gateway.asked) == asked + 27
    assert slept[:3] == [0.25, pytest.approx(0.375), pytest.approx(0.5625)]
    assert max(slept[:21]) == 15.0, "it looks ever more rarely"
    assert slept[21] == 40.0, "as it was told"
    assert slept[-1] == 2.0, "it is back"


def test_a_wait_ends_where_it_can_come_to_nothing() -> None:
    gateway = Gateway()
    handle = gateway.client().jobs.submit(Job(id="j"))
    for failures, wrong in (
        ([httpx.ConnectError("refused")] * 5, NoGateway),
        ([httpx.Response(200, text="<html>sign in</html>")], NoGateway),
        ([problem(401, "who are you?")], NotKnown),
        ([problem(403, "it is not for you")], NotAllowed),
    ):
        gateway.failures = [*failures]
        with pytest.raises(wrong):
            handle.wait("completed")
        assert not gateway.failures
    passed = iter([0.0, 0.0, 9.0])
    flow = operations.wait(Moment(), "j", timeout=5.0, now_s=lambda: next(passed))
    assert isinstance(next(flow), Call)
    assert isinstance(flow.send(httpx.Response(200, json=answer("j", "queued"))), Pause)
    assert isinstance(flow.send(None), Call)
    late = "j is queued after 5 s; it was to be completed; but no gateway answers at http://tide"
    with pytest.raises(TimedOut, match=late):
        flow.throw(httpx.ConnectError("refused", request=httpx.Request("GET", "http://tide/")))


def test_a_job_may_say_its_command_as_a_line_for_the_shell() -> None:
    line = Job(command="python3 train.py | tee out.txt").spec("j", NOW_S)
    assert line["program"]["argv"] == ["sh", "-c", "python3 train.py | tee out.txt"]
    words = Job(command=["python3", "train.py"]).spec("j", NOW_S)
    assert words["program"]["argv"] == ["python3", "train.py"]
    with pytest.raises(ValueError, match=r"-5\.0 is no length of time; it counts from now"):
        Job(deadline=-5.0)


def test_a_dry_run_is_asked_as_one_and_only_then() -> None:
    gateway = Gateway()
    gateway.said = {"result": "would_be_done", "entry": None}
    assert gateway.client().ask("node.cordon", node="n", dry_run=True).result == "would_be_done"
    gateway.client().ask("node.cordon", node="n")
    asked = [json.loads(one.content) for one in gateway.asked]
    assert [one.get("dry_run") for one in asked] == [True, None]
    refused = Gateway(problem(409, "the scheduler refused it: args.node: there is no node n"))
    with pytest.raises(Refused, match="there is no node n"):
        refused.client().ask("node.cordon", node="n", dry_run=True)
