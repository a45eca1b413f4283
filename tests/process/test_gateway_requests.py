"""Requests through `tidegate serve`: beside a running demo, and killed at random moments."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import orjson

from bus.clock import SystemClock
from bus.contract import Message
from bus.sqlite import SqliteBus
from scheduler.policies.registry import make_policy
from scheduler.service import SchedulerService
from scheduler.service_config import ServiceConfig
from schemas.codec import encode, event
from schemas.topics import EVENTS, JOURNAL
from tests.builders import node_born
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port
from tests.process.gateway_process import Process

_POSTS = 50


def test_what_is_asked_beside_a_running_demo_is_done(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "day.db"
    command = ["demo", "--hours", "6", "--seconds", "60", "--no-live", "--serve"]
    demo = subprocess.Popen(
        [sys.executable, "-m", "console.main", *command, "--port", str(port), "--log", str(log)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert demo.stderr is not None
        token = demo.stderr.readline().strip().partition("token=")[2]
        headers = {"Authorization": f"Bearer {token}", "Prefer": "wait=30"}
        url = f"http://127.0.0.1:{port}/api/v1"
        with httpx.Client(base_url=url, headers=headers, timeout=60.0) as client:
            wait_until(lambda: _nodes(client), "the demo never had a node")
            node = _nodes(client)[0]

            def ask(args: dict[str, Any]) -> dict[str, Any]:
                answer = client.post("/requests", json={"args": args, "reason": "a test"})
                assert answer.status_code == 200, answer.text
                done: dict[str, Any] = answer.json()
                assert done["result"] == "done"
                return done

            done = ask({"verb": "node.cordon", "node": node})
            entry = client.get(f"/entries/{done['entry']}").json()
            assert ["NodeCordoned", node] in [
                [kind, fields.get("node")] for kind, fields in entry["decision"]["facts"]
            ]
            now_s = client.get("/overview").json()["now_s"]
            drained = ask({"verb": "node.drain", "node": node, "by_s": now_s + 7200.0})
            row = client.get("/nodes", params={"text": node, "entry": drained["entry"]}).json()
            (shown,) = [one for one in row["nodes"] if one["node"] == node]
            assert "drain" in orjson.dumps(shown).decode()
            listed = client.get("/requests", params={"about": node}).json()["acts"]
            assert [act["verb"] for act in listed] == ["node.drain", "node.cordon"]
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=PATIENCE_S)


def _nodes(client: httpx.Client) -> list[str]:
    with contextlib.suppress(httpx.TransportError):
        answer = client.get("/nodes", params={"pool": "training"})
        answer = answer if answer.status_code == 200 else client.get("/nodes")
        if answer.status_code == 200:
            rows = answer.json()["nodes"]
            return [one["node"] for one in rows if "train" in one["node"]]
    return []


class Working:
    """A scheduler on a file, in a thread, in real time."""

    def __init__(self, log: Path) -> None:
        self._log, self._end = log, threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        clock = SystemClock()
        bus = SqliteBus.open(self._log, clock, durability="process_crash")
        said = event(
            node_born("n0"),
            source="/agents/agent-train",
            sequence=0,
            bootid=0,
            time_s=clock.now_s(),
        )
        await bus.publish(Message(EVENTS.name, "default", encode(said)))
        service = SchedulerService(bus, clock, ServiceConfig(policy="fifo"), make_policy)
        task = asyncio.create_task(service.run())
        await asyncio.to_thread(self._end.wait)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await bus.close()

    def end(self) -> None:
        self._end.set()
        self.thread.join()


def test_killed_at_random_moments_each_request_is_done_once(tmp_path: Path) -> None:
    log, chance = tmp_path / "run.db", random.Random(7)
    scheduler = Working(log)
    scheduler.thread.start()
    wait_until(log.exists)
    alive: list[Process] = []
    answers: dict[str, Any] = {}
    kills = cut = 0

    def begun() -> Process:
        found = Process(log, tmp_path / "run")
        alive.append(found)
        found.ready()
        return found

    try:
        gateway = begun()
        for number in range(_POSTS):
            key = f"key-{number}"
            # Every third is refused: there is no such node.
            node = "n9" if number % 3 == 2 else "n0"
            verb = "node.cordon" if number % 2 == 0 else "node.uncordon"
            timer = None
            if number % 5 == 0:
                timer = threading.Timer(chance.uniform(0.0, 0.1), gateway.process.kill)
                timer.start()
                kills += 1
            while key not in answers:
                headers = {"Idempotency-Key": key, "Prefer": "wait=20"}
                args = {"verb": verb, "node": node}
                try:
                    with gateway.client() as client:
                        answer = client.post(
                            "/requests", json={"args": args}, headers=headers, timeout=60.0
                        )
                except httpx.TransportError:
                    cut += 1
                    gateway.process.wait()
                    gateway = begun()
                    continue
                if answer.status_code in (429, 503):
                    time.sleep(0.3)
                    continue
                answers[key] = (answer.status_code, answer.json())
            if timer is not None:
                timer.join()
                if gateway.process.poll() is not None or not _there(gateway):
                    gateway.process.wait()
                    gateway = begun()
        told = {}
        with gateway.client() as client:
            for key in answers:
                told[key] = client.get(f"/requests/{key}").json()
                time.sleep(0.06)
        assert gateway.end()[0] == 0
    finally:
        for one in alive:
            one.kill()
        scheduler.end()
    entries = asyncio.run(_entries(log))
    assert entries.keys() == answers.keys(), "each is in the journal; once, as _entries saw"
    for key, (status, said) in answers.items():
        number, fact, fields = entries[key]
        assert status == (200 if fact == "RequestDone" else 409), (key, status, said)
        assert said["request"] == key
        assert said["entry"] == told[key]["entry"] == number
        assert told[key]["result"] == ("done" if fact == "RequestDone" else "refused")
        if status == 409:
            assert said["parameter"] == told[key]["field"] == fields["field"]
    assert kills == _POSTS // 5
    assert cut > kills // 3, "many were killed before they answered"
    assert {status for status, _ in answers.values()} == {200, 409}


def _there(gateway: Process) -> bool:
    with contextlib.suppress(httpx.TransportError), gateway.client() as client:
        return client.get("/health").status_code == 200
    return False


async def _entries(log: Path) -> dict[str, tuple[int, str, dict[str, Any]]]:
    """By request, the entry that took it; a request that was taken twice fails."""
    bus, found = SqliteBus.open_readonly(log, SystemClock()), {}
    async for record in bus.read(JOURNAL.name):
        entry = orjson.loads(record.value or b"")["data"]
        if entry["stimulus"]["kind"] == "Requested":
            key = entry["stimulus"]["data"]["request"]["id"]
            assert key not in found, "it was taken twice"
            ((fact, fields),) = [
                one for one in entry["decision"]["facts"]
                if one[0] in ("RequestDone", "RequestRefused")
            ]  # fmt: skip
            found[key] = (entry["number"], fact, fields)
    await bus.close()
    return found
