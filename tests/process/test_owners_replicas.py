"""Replicas as real processes: started once, found again, stopped with all they started."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.owners import Outcome, ReplicaLender, ReplicaOptions, ReplicaSpec
from runtime.owners.processes import recorded, take_lock
from tests.lending import PYTHON, lines, living, outcome, swept
from tests.patience import wait_until
from tests.ports import alive, free_port

QUICK = ReplicaOptions(
    grace_s=60.0, kill_timeout_s=60.0, restart_s=0.05, restart_max_s=0.2, tend_every_s=0.1
)
SERVER = """
import http.server, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = pathlib.Path(sys.argv[1])
        self.send_response(200 if path.exists() else 503)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
pathlib.Path(sys.argv[3]).write_text(str(server.server_port))
server.serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path / "replicas") as place:
        yield place


def spec(name: str, script: str, node: str = "s1", **more: object) -> ReplicaSpec:
    return ReplicaSpec(name, node, ("sh", "-c", script), **more)  # type: ignore[arg-type]


def serving(folder: Path, *specs: ReplicaSpec, options: ReplicaOptions = QUICK) -> ReplicaLender:
    lender = ReplicaLender(specs, sorted({one.node for one in specs}), folder, options)
    back(lender)
    return lender


def back(lender: ReplicaLender, node: str = "s1") -> None:
    lender.begin(node, "hand_back", time.time())
    assert outcome(lender) == Outcome(node, "hand_back")


def drained(lender: ReplicaLender, node: str = "s1") -> None:
    lender.begin(node, "drain", time.time())
    assert outcome(lender) == Outcome(node, "drain")


def pid(folder: Path, name: str) -> int:
    who = recorded(folder / f"{name}.json")
    assert who is not None
    return who.pid


def test_a_drain_stops_those_of_the_node_and_a_hand_back_starts_them(
    folder: Path, tmp_path: Path
) -> None:
    script = "echo {replica} $GPU >> {}/{node}; exec sleep 600".replace("{}", str(tmp_path))
    specs = [spec(f"r{i}", script, env={"GPU": f"{{node}}/{i}"}) for i in range(2)]
    lender = serving(folder, *specs, spec("other", script, "s2"))
    wait_until(lambda: lender.poll(time.time()) or lines(tmp_path / "s2"), "s2 is not served")
    wait_until(lambda: len(lines(tmp_path / "s1")) == 2, "two were to start")
    assert sorted(lines(tmp_path / "s1")) == ["r0 s1/0", "r1 s1/1"]
    first = [pid(folder, "r0"), pid(folder, "r1")]

    drained(lender)
    assert not any(map(alive, first))
    assert alive(pid(folder, "other"))
    drained(lender)

    back(lender)
    again = [pid(folder, "r0"), pid(folder, "r1")]
    assert all(map(alive, again))
    assert not set(first) & set(again)
    back(lender)
    assert [pid(folder, "r0"), pid(folder, "r1")] == again, "a second order starts nobody"
    assert lender.problems() == []


def test_requests_under_way_have_the_grace_even_behind_a_shell(
    folder: Path, tmp_path: Path
) -> None:
    worker = f"trap 'sleep 0.3; echo served >> {tmp_path}/said; exit' TERM; echo up > {tmp_path}/up"
    script = f'sh -c "{worker}; while :; do sleep 0.05; done"; true'
    lender = serving(folder, spec("r", script))
    wait_until(lambda: lines(tmp_path / "up"), "it is not up")
    drained(lender)
    assert lines(tmp_path / "said") == ["served"]


def test_who_ignores_the_request_is_killed_with_all_it_started(
    folder: Path, tmp_path: Path
) -> None:
    # The second one has left the session, as a daemon does, but has the lock.
    script = (
        f"trap '' TERM; sleep 600 & echo $! >> {tmp_path}/pids;"
        f"setsid sleep 600 & echo $! >> {tmp_path}/pids; echo $$ >> {tmp_path}/pids; wait;"
        "sleep 600"
    )
    options = ReplicaOptions(grace_s=0.3, kill_timeout_s=60.0)
    lender = serving(folder, spec("r", script), options=options)
    wait_until(lambda: len(lines(tmp_path / "pids")) == 3, "not all are up")
    drained(lender)
    assert not any(alive(int(line)) for line in lines(tmp_path / "pids"))


def test_the_drain_has_failed_while_something_holds_the_gpu(folder: Path) -> None:
    lender = serving(
        folder,
        spec("r", "exec sleep 600"),
        options=ReplicaOptions(grace_s=0.0, kill_timeout_s=0.3),
    )
    os.kill(pid(folder, "r"), signal.SIGKILL)
    wait_until(lambda: not alive(pid(folder, "r")), "it does not die")
    held = None
    while held is None:
        held = take_lock(folder / "r.lock")  # this process, which nobody kills, has the lock
    lender.begin("s1", "drain", time.time())
    assert outcome(lender) == Outcome("s1", "drain", "still there after SIGKILL: r")
    os.close(held)
    drained(lender)


@pytest.mark.parametrize("kind", ["http", "tcp", "file"])
def test_it_is_back_only_when_ready(folder: Path, tmp_path: Path, kind: str) -> None:
    go, port = tmp_path / "go", tmp_path / "port"
    if kind == "file":
        ready = f"file://{tmp_path}/{{replica}}"
        (tmp_path / "r").touch()  # of the run before: it must not count
        server = spec(
            "r", f"while ! test -e {go}.now; do sleep 0.05; done; touch {tmp_path}/r; sleep 600"
        )
    else:
        number = free_port()
        ready = f"{kind}://127.0.0.1:{number}" + ("/health" if kind == "http" else "")
        wait = "" if kind == "http" else f"while ! test -e {go}.now; do sleep 0.05; done;"
        server = spec("r", f'{wait} exec "$0" -c "$1" {go}.now {number} {port}')
        server = replace(server, argv=(*server.argv, PYTHON, SERVER))
    lender = ReplicaLender([replace(server, ready=ready)], ["s1"], folder, QUICK)
    lender.begin("s1", "hand_back", time.time())
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        assert lender.poll(time.time()) == [], "it is not ready yet"
        time.sleep(0.02)
    Path(f"{go}.now").touch()
    assert outcome(lender) == Outcome("s1", "hand_back")


def test_a_slow_start_fails_the_hand_back_but_is_not_cut_short(
    folder: Path, tmp_path: Path
) -> None:
    script = (
        f"while ! test -e {tmp_path}/go; do sleep 0.05; done; touch {tmp_path}/ready; sleep 600"
    )
    options = ReplicaOptions(ready_timeout_s=0.4)
    lender = ReplicaLender(
        [spec("r", script, ready=f"file://{tmp_path}/ready")], ["s1"], folder, options
    )
    lender.begin("s1", "hand_back", time.time())
    assert outcome(lender) == Outcome("s1", "hand_back", "not ready: r")
    first = pid(folder, "r")
    (tmp_path / "go").touch()
    wait_until(lambda: (tmp_path / "ready").exists(), "it never became ready")
    back(lender)
    assert pid(folder, "r") == first


def test_one_that_dies_is_started_again_and_reported(folder: Path, tmp_path: Path) -> None:
    script = (
        f"echo up >> {tmp_path}/ups; test -e {tmp_path}/well && exec sleep 600; echo no GPU; exit 7"
    )
    specs = [spec("r", script, ready=f"file://{tmp_path}/well")]
    lender = ReplicaLender(specs, ["s1"], folder, QUICK)
    wait_until(lambda: lender.poll(time.time()) or len(lines(tmp_path / "ups")) >= 3, "not again")
    wait_until(lambda: lender.poll(time.time()) or lender.problems(), "it was not said")
    (problem,) = lender.problems()
    assert problem.startswith("replica r on s1: it died (status 7); ")
    assert problem.endswith("no GPU")


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (ReplicaSpec("r", "s1", ("/no/such/server",)), ["/no/such/server: not found"]),
        (spec("r", "true", workdir=Path("/no/such/folder")), ["be started", "/no/such/folder"]),
    ],
)
def test_what_is_missing_is_named(folder: Path, one: ReplicaSpec, says: list[str]) -> None:
    lender = ReplicaLender([one], ["s1"], folder, QUICK)
    wait_until(lambda: lender.poll(time.time()) or lender.problems(), "it was not said")
    assert all(part in lender.problems()[0] for part in says)


def test_another_agent_finds_them_and_starts_none_twice(folder: Path, tmp_path: Path) -> None:
    specs = [spec(f"r{i}", f"echo up >> {tmp_path}/ups; exec sleep 600") for i in range(3)]
    serving(folder, *specs)
    wait_until(lambda: len(lines(tmp_path / "ups")) == 3, "not all are up")
    pids = [pid(folder, one.name) for one in specs]
    lender = serving(folder, *specs)
    assert [pid(folder, one.name) for one in specs] == pids
    drained(lender)
    assert not any(map(alive, pids))
    assert len(lines(tmp_path / "ups")) == 3


def test_a_drain_before_the_first_poll_starts_nobody(folder: Path, tmp_path: Path) -> None:
    lender = ReplicaLender(
        [spec("r", f"echo up >> {tmp_path}/ups; exec sleep 600")], ["s1"], folder
    )
    drained(lender)
    assert not lines(tmp_path / "ups")


def test_a_stranger_under_an_old_number_is_left_alone(folder: Path, tmp_path: Path) -> None:
    serving(folder, spec("r", "exec sleep 600"))
    mine = pid(folder, "r")
    os.kill(mine, signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    record = folder / "r.json"
    record.write_text(record.read_text().replace(f'"pid":{mine}', f'"pid":{stranger.pid}'))
    lender = ReplicaLender([spec("r", "exec sleep 600")], ["s1"], folder, QUICK)
    drained(lender)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_one_whose_record_was_lost_is_found_by_its_lock(folder: Path, tmp_path: Path) -> None:
    one = spec("r", f"echo $$ >> {tmp_path}/pids; exec sleep 600")
    serving(folder, one)
    wait_until(lambda: lines(tmp_path / "pids"), "it is not up")
    (folder / "r.json").unlink()
    lender = serving(folder, one)
    wait_until(lambda: lender.poll(time.time()) or len(lines(tmp_path / "pids")) == 2, "not again")
    first, second = map(int, lines(tmp_path / "pids"))
    assert not alive(first)
    assert alive(second)


#: Agents that drain or hand back a node, then the other; each is killed before the n-th line of
#: code that it comes to, as told, or when it has nothing more to do.
AGENTS = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from runtime.owners import ReplicaLender, ReplicaOptions, ReplicaSpec
folder, ups = Path(sys.argv[1]), sys.argv[2]

def agent(operations, fatal_line):
    seen = set()
    def trace(frame, event, _):
        if "owners" not in frame.f_code.co_filename:
            return None
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        if len(seen) > fatal_line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    specs = [
        ReplicaSpec(f"r{i}", "s1", ("sh", "-c", f"echo up $$ >> {ups}; exec sleep 600"))
        for i in range(2)
    ]
    sys.settrace(trace)
    options, locks = ReplicaOptions(restart_s=0.01), {"s1": [folder / "gpu-0.lock"]}
    lender = ReplicaLender(specs, ["s1"], folder, options, locks)
    for operation in operations:
        lender.begin("s1", operation, time.time())
        while not lender.poll(time.time()):
            pass
    os.kill(os.getpid(), signal.SIGKILL)

for line in sys.stdin:
    *operations, fatal_line = line.split()
    pid = os.fork()
    if pid == 0:
        agent(operations, int(fatal_line))
    print(os.waitpid(pid, 0)[1], flush=True)
"""


def test_a_kill_at_any_line_leaves_no_replica_twice(folder: Path, tmp_path: Path) -> None:
    ups = tmp_path / "ups"
    agents = subprocess.Popen(
        [PYTHON, "-c", AGENTS, str(folder), str(ups)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agents.stdin is not None
    assert agents.stdout is not None
    for turn in range(70):
        operations = ("drain hand_back", "hand_back drain")[turn % 2]
        print(operations, 3 * turn, file=agents.stdin, flush=True)
        assert agents.stdout.readline() == f"{signal.SIGKILL.value}\n"
        assert len(living(ups)) <= 2, f"after turn {turn}"
    agents.communicate()

    specs = [spec(f"r{i}", f"echo up $$ >> {ups}; exec sleep 600") for i in range(2)]
    lender = serving(folder, *specs)
    up = {pid(folder, one.name) for one in specs}
    assert len(up) == 2
    wait_until(lambda: up == living(ups), "not these two alone")
    drained(lender)
    assert not living(ups)
    assert len(lines(ups)) > 6, "several were started and ended on the way"


@pytest.mark.parametrize(
    ("specs", "nodes", "says"),
    [
        ([spec("r", "x")], ["s1", "s2"], "none serves on s2"),
        ([spec("r", "x"), spec("r", "x")], ["s1"], "'r' must be a file name that no other has"),
        # Its record would be written over which nodes are lent.
        ([spec("owner", "x")], ["s1"], "no replica may be called owner"),
        ([spec("a/b", "x")], ["s1"], "must be a file name"),
        ([spec("r", "x", "s9")], ["s1"], "r names s9, which is no node here"),
        ([ReplicaSpec("r", "s1", ())], ["s1"], "r has no argv"),
        ([spec("r", "x", ready="127.0.0.1:80")], ["s1"], "ready: '127.0.0.1:80' is no address"),
        ([spec("r", "x", ready="tcp://host")], ["s1"], "ready: "),
        ([spec("r", "x", ready="file://relative")], ["s1"], "ready: "),
    ],
)
def test_wrong_replicas_are_refused(
    folder: Path, specs: list[ReplicaSpec], nodes: list[str], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        ReplicaLender(specs, nodes, folder)


@pytest.mark.parametrize("name", ReplicaOptions.__slots__)
def test_options_name_the_field_that_is_wrong(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ReplicaOptions(**{name: -1})
