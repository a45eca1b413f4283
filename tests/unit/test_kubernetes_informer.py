"""What is followed of Kubernetes when its server breaks off, forgets, hangs or talks nonsense."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cloud_agent.kubernetes.api import Api, Away, Refused
from cloud_agent.kubernetes.informer import Informer
from tests.patience import wait_until

Json = dict[str, Any]
Seen = Callable[[], list[str] | None]


def job(name: str, version: int) -> Json:
    """Give a Job as the API shows it."""
    notes = {"tidegate.io/job": name, "tidegate.io/epoch": "1"}
    meta = {"name": name, "uid": name, "resourceVersion": str(version), "annotations": notes}
    return {"metadata": meta, "spec": {"suspend": False}, "status": {}}


def pod(name: str, version: int, **meta: str) -> Json:
    """Give a Pod as the API shows it."""
    said = job(name, version)
    said["metadata"] |= meta
    return said | {"spec": {"nodeName": "n1"}}


def event(kind: str, said: Json) -> bytes:
    return json.dumps({"type": kind, "object": said}).encode() + b"\n"


class Server:
    """An API server that says what the test wants, and notes what it was asked."""

    def __init__(self) -> None:
        #: What is there, with the version of the list.
        self.jobs: list[Json] = []
        self.pods: list[Json] = []
        self.version = 10
        #: What each watch of Jobs gets, in turn; then silence.
        self.streams: list[bytes] = []
        #: The same of Pods.
        self.pod_streams: list[bytes] = []
        #: Versions from which Jobs were followed; `list` for a list of them.
        self.asked: list[str] = []
        #: Answer all with this status, and in these words if there are any.
        self.status, self.words = 200, b""
        #: What one has to log in with.
        self.token = "t"
        #: How many requests came.
        self.count = 0
        self.ending = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            do_POST = do_DELETE = do_GET  # noqa: N815 - the names that are called

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        is_jobs = url.path.endswith("/jobs")
        self.count += 1
        is_known = request.headers["Authorization"] == f"Bearer {self.token}"
        status = self.status if is_known else 401
        request.send_response(status)
        request.end_headers()
        if self.words:
            request.wfile.write(self.words)
        elif status != 200:
            request.wfile.write(json.dumps({"message": "no", "sent": body.decode()}).encode())
        elif "watch" not in query:
            items = self.jobs if is_jobs else self.pods
            self.asked += ["list"] if is_jobs else []
            said = {"items": items, "metadata": {"resourceVersion": str(self.version)}}
            request.wfile.write(json.dumps(said).encode())
        elif is_jobs and self.streams:
            self.asked.append(query["resourceVersion"])
            request.wfile.write(self.streams.pop(0))
        elif not is_jobs and self.pod_streams:
            request.wfile.write(self.pod_streams.pop(0))
        else:
            self.asked += [query["resourceVersion"]] if is_jobs else []
            self.ending.wait()

    def close(self) -> None:
        self.ending.set()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    try:
        yield made
    finally:
        made.close()


def log_in(server: Server, path: Path, **user: object) -> None:
    """Write a kubeconfig."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Iterator[Api]:
    path = tmp_path / "kubeconfig"
    log_in(server, path, token="t")
    made = Api("default", path, 5.0)
    made.open()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def seen(server: Server, api: Api) -> Iterator[Seen]:
    """Begin to follow at the first call; give the names of the Jobs that are seen."""
    informer = Informer(api, "tidegate.io/agent=a")
    begun: list[bool] = []

    def names() -> list[str] | None:
        if not begun:
            begun.append(True)
            informer.begin(lambda: None)
        view = informer.view()
        return None if view is None else sorted(one.job for one in view.jobs)

    yield names
    server.ending.set()


def test_what_changes_is_followed_from_where_the_list_was(server: Server, seen: Seen) -> None:
    server.jobs = [job("a", 3)]
    big = job("c", 12)
    big["spec"]["padding"] = "x" * 3_000_000
    server.streams = [
        event("ADDED", job("b", 11)) + event("ADDED", big),
        event("DELETED", job("a", 13)),
    ]
    wait_until(lambda: seen() == ["b", "c"])
    wait_until(lambda: server.asked == ["list", "10", "12", "13"])


def test_what_pods_were_between_two_looks_is_told_at_the_next(server: Server, api: Api) -> None:
    leaving = pod("b", 12, deletionTimestamp="2023-11-14T22:13:20Z")
    gone = pod("b", 13, deletionTimestamp="2023-11-14T22:13:20Z")
    server.pod_streams = [
        event("ADDED", pod("a", 10))
        + event("ADDED", pod("b", 11))
        + event("MODIFIED", leaving)
        + event("DELETED", gone)
    ]
    informer = Informer(api, "tidegate.io/agent=a")
    informer.begin(lambda: None)
    heard: list[tuple[str, bool]] = []

    def all_heard() -> bool:
        view = informer.view()
        heard.extend((one.name, one.leaves) for one in (view.heard if view else ()))
        return len(heard) >= 3

    wait_until(all_heard)
    assert heard == [("a", False), ("b", False), ("b", True)]
    wait_until(lambda: (view := informer.view()) is not None and len(view.pods) == 1)
    view = informer.view()
    assert view is not None
    assert ([one.name for one in view.pods], view.heard) == (["a"], ())
    server.ending.set()


def test_what_is_as_it_was_is_not_told_again(server: Server, api: Api) -> None:
    """Else what waits for the next look would grow for as long as nobody looks."""
    server.pods = [pod("a", 3), pod("b", 3)]
    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
    leaving = pod("b", 14, deletionTimestamp="2023-11-14T22:13:20Z")
    server.pod_streams = [
        event("MODIFIED", pod("a", 11)) + event("ERROR", gone),
        event("ERROR", gone),
        event("MODIFIED", pod("a", 12)) + event("MODIFIED", leaving),
    ]
    informer = Informer(api, "tidegate.io/agent=a")
    informer.begin(lambda: None)
    wait_until(lambda: not server.pod_streams)
    heard: list[tuple[str, bool]] = []

    def is_told() -> bool:
        view = informer.view()
        heard.extend((one.name, one.leaves) for one in (view.heard if view else ()))
        return ("b", True) in heard

    wait_until(is_told)
    assert heard == [("a", False), ("b", False), ("b", True)]
    server.ending.set()


def test_who_is_told_to_list_again_each_time_does_so_after_a_pause(
    server: Server, seen: Seen
) -> None:
    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
    server.streams = [event("ERROR", gone)] * 1000
    wait_until(lambda: seen() is not None)
    time.sleep(0.5)
    assert server.asked.count("list") <= 5


def test_bookmark_moves_on_without_a_change(server: Server, seen: Seen) -> None:
    server.jobs = [job("a", 3)]
    mark = {"kind": "Job", "metadata": {"resourceVersion": "40"}}
    server.streams = [event("BOOKMARK", mark)]
    seen()
    wait_until(lambda: server.asked == ["list", "10", "40"])
    wait_until(lambda: seen() == ["a"])


def test_forgotten_version_is_listed_anew(server: Server, seen: Seen) -> None:
    server.jobs = [job("a", 3)]
    server.streams = [event("ERROR", {"code": 410, "message": "too old"})]
    wait_until(lambda: seen() is not None)
    wait_until(lambda: server.asked == ["list", "10", "list", "10"])
    assert seen() == ["a"]


def test_broken_stream_is_taken_up_where_it_was(server: Server, seen: Seen) -> None:
    server.jobs = [job("a", 3)]
    server.streams = [event("ADDED", job("b", 11)) + b"<html>\n"]
    seen()
    wait_until(lambda: server.asked == ["list", "10", "11"])
    wait_until(lambda: seen() == ["a", "b"])


def test_refused_it_shows_nothing_and_says_why(server: Server, api: Api) -> None:
    server.status = 403
    informer = Informer(api, "")
    informer.begin(lambda: None)
    wait_until(lambda: "refuses to show" in (informer.away or ""))
    assert informer.view() is None
    server.status = 200
    wait_until(lambda: informer.view() is not None)
    assert informer.away is None


@pytest.mark.parametrize(
    ("status", "kind"), [(503, Away), (429, Away), (403, Refused), (422, Refused)]
)
def test_not_now_is_told_from_no(
    server: Server, api: Api, status: int, kind: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(kind, match=rf"no \(HTTP {status}\)"):
        api.create_job({"metadata": {}})


def test_a_login_that_has_expired_is_read_again(
    server: Server, api: Api, seen: Seen, tmp_path: Path
) -> None:
    """Tokens that a cloud gives last for minutes: nobody was stopped or started after them."""
    server.jobs = [job("a", 3)]
    wait_until(lambda: seen() == ["a"])
    server.token = "t2"
    with pytest.raises(Away, match="HTTP 401"):
        api.now("pods", "")
    log_in(server, tmp_path / "kubeconfig", token="t2")
    assert api.now("pods", "") == []
    server.jobs = [job("b", 4)]
    wait_until(lambda: seen() == ["a"], "what is watched is watched on")


@pytest.mark.process
def test_a_command_for_a_login_that_hangs_is_no_answer(server: Server, tmp_path: Path) -> None:
    """The agent waited for it, and did and said nothing else."""
    path, ran = tmp_path / "kubeconfig", tmp_path / "ran"
    argv = ["-c", f"echo >> {ran}; sleep 2"]
    version = "client.authentication.k8s.io/v1"
    told = {"apiVersion": version, "command": "sh", "args": argv, "interactiveMode": "Never"}
    log_in(server, path, exec=told)
    api = Api("default", path, 0.2)
    api.open()
    try:
        for _ in range(2):
            with pytest.raises(Away, match=r"login takes longer than 0\.2 s"):
                api.now("pods", "")
        assert ran.read_text() == "\n", "one at a time"
        log_in(server, path, token="t")

        def answers() -> bool:
            try:
                return api.now("pods", "") == []
            except Away:
                return False

        wait_until(answers)
    finally:
        api.close()


def test_a_refusal_that_is_no_text_is_one_nevertheless(server: Server, api: Api) -> None:
    """A proxy's page in Latin-1: it ended the agent."""
    server.status, server.words = 502, b"<p>M\xe4chtig</p>"
    with pytest.raises(Away, match="HTTP 502"):
        api.now("pods", "")


def test_streams_that_end_at_once_are_asked_for_after_a_pause(server: Server, seen: Seen) -> None:
    server.streams, server.pod_streams = [b""] * 10_000, [b""] * 10_000
    seen()
    time.sleep(1.0)
    assert 4 < server.count < 40


@pytest.mark.parametrize("words", [b"null", b"[]", b'"fine"', b'{"kind": "Status"}'])
def test_what_is_no_object_of_kubernetes_is_no_answer(
    server: Server, api: Api, words: bytes
) -> None:
    """A proxy's word, with status 200: it ended the agent."""
    server.words = words
    for ask in (lambda: api.now("pods", ""), lambda: api.job("j"), lambda: api.create_job({})):
        with pytest.raises(Away, match="no object of Kubernetes"):
            ask()


@pytest.mark.parametrize("items", ["", '"items": null,', '"items": {},'])
def test_a_list_without_a_list_says_of_nothing_that_it_is_gone(
    server: Server, api: Api, items: str
) -> None:
    server.words = f'{{{items} "metadata": {{"resourceVersion": "1"}}}}'.encode()
    with pytest.raises(Away, match="no list of pods"):
        api.now("pods", "")


def test_what_is_gone_needs_no_deleting(server: Server, api: Api) -> None:
    server.status = 404
    api.delete_job("j", "uid")
    assert api.job("j") is None


def test_nobody_there_is_no_answer(server: Server, api: Api) -> None:
    server.close()
    with pytest.raises(Away):
        api.now("pods", "")


def test_closed_it_asks_nothing(server: Server, api: Api) -> None:
    api.close()
    with pytest.raises(Away, match="closed"):
        api.now("pods", "")
    assert server.asked == []


def test_what_makes_no_sense_is_not_believed_and_all_is_asked_anew(
    server: Server, seen: Seen
) -> None:
    server.jobs = [job("a", 10)]
    broken = job("b", 11)
    del broken["metadata"]["uid"]  # a cluster of another release, or a proxy in between
    server.streams = [event("ADDED", broken)]
    seen()
    wait_until(lambda: server.asked.count("list") >= 2, "it believes its informer for ever")
    wait_until(lambda: seen() == ["a"])
