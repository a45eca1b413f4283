"""Health as a stranger sees it: also while the loop is stuck."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing

import pytest

from bus.contract import BusError
from services.http import Answer, HttpServer, as_json
from services.loop_monitor import LoopMonitor
from tests.patience import PATIENCE_S, wait_until


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def served(pages: dict[str, Callable[[], Answer]]) -> HttpServer:
    return HttpServer("127.0.0.1", 0, pages)


def test_answers_have_a_status_and_one_object() -> None:
    pages = {
        "/good": lambda: as_json(True, {"ready": True}),
        "/bad": lambda: as_json(False, {"ready": False, "reasons": ["no link"]}),
    }
    with closing(served(pages)) as server:
        assert get(server.port, "/good?x=1") == (200, b'{"ready":true}\n')
        status, body = get(server.port, "/bad")
        assert (status, json.loads(body)["reasons"]) == (503, ["no link"])
        assert get(server.port, "/")[0] == 404
        with socket.create_connection(("127.0.0.1", server.port)):
            # One that says nothing keeps nobody waiting.
            assert get(server.port, "/good")[0] == 200


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BusError, match=r"cannot be listened on: .*set http\.port"):
            HttpServer("127.0.0.1", port, {})


async def test_a_stuck_loop_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.loop_monitor.EVERY_S", 0.02)
    heart = LoopMonitor()
    beating = asyncio.create_task(heart.run())
    server = served({"/": lambda: as_json(heart.silent_s() < 0.2, {})})

    def answers(status: int) -> bool:
        return get(server.port, "/")[0] == status

    try:
        await asyncio.to_thread(wait_until, lambda: answers(200))
        wait_until(lambda: answers(503))  # on the loop, which must not happen in a service
        await asyncio.to_thread(wait_until, lambda: answers(200))
        assert heart.worst_lag_s() > 0.1, "it is remembered for a while"
    finally:
        beating.cancel()
        server.close()
