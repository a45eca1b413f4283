"""A stretch of a log as a file for Perfetto: over HTTP it is what the command writes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway import perfetto
from gateway.limits import SEEKS_AT_ONCE
from gateway.subjects import Role, Sight
from tests.console.conftest import Run
from tests.gateway.conftest import Serving
from tests.gateway.test_sight import As
from tests.unit.test_perfetto import well_formed


async def written(tidegate: Run, log: Path, folder: Path, *more: str) -> Any:
    target = folder / "t.json"
    target.unlink(missing_ok=True)
    await asyncio.to_thread(tidegate.does, "journal", "perfetto", log, target, *more)
    return json.loads(target.read_text())


def slices(events: list[dict[str, Any]]) -> list[str]:
    """Give what was on which GPU, whatever numbers nodes have."""
    nodes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    gpus = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return sorted(
        json.dumps([nodes[e["pid"]], gpus.get((e["pid"], e["tid"])), e | {"pid": 0, "tid": 0}])
        for e in events
        if e["ph"] != "M"
    )


async def test_it_is_the_file_that_the_command_writes(
    log: Path, tidegate: Run, tmp_path: Path, serving: Serving
) -> None:
    async with serving(log) as served:
        answer = await served.raw("perfetto")
        assert answer.headers["content-encoding"] == "gzip"
        last = served.feed.entries - 1
        disposition = f'attachment; filename="tidegate-default-0-{last}.json"'
        assert answer.headers["content-disposition"] == disposition
        assert answer.json() == await written(tidegate, log, tmp_path)
        assert any(event["ph"] == "X" for event in well_formed(answer.json()))
        plain = await served.raw("perfetto", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.json() == answer.json()
        # A stretch begins at a mark of the index, the command at the log's begin.
        for since, until in ((600, 900), (1000, None), (None, 500)):
            asked = {
                name: repr(served.feed.origin_s + at)
                for name, at in (("since", since), ("until", until))
                if at is not None
            }
            part = (await served.raw("perfetto", **asked)).json()
            more = [f"--{name}={value}" for name, value in (("since", since), ("until", until))
                    if value is not None]  # fmt: skip
            whole = await written(tidegate, log, tmp_path, *more)
            assert slices(well_formed(part)) == slices(whole["traceEvents"])


async def test_what_cannot_be_drawn_is_said(log: Path, serving: Serving) -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"since": "soon"}, 400, "since='soon' is no moment"),
        ({"until": "never"}, 400, "until='never' is no moment"),
        ({"since": "2030-01-01"}, 404, "no entry between since and until"),
        ({"until": "2020-01-01"}, 404, "no entry between since and until"),
        ({"entry": 3}, 400, "there is no parameter 'entry'"),
        ({"cell": "b"}, 404, "b"),
    ]
    async with serving(log) as served:
        for asked, status, says in wrong:
            assert says in (await served.get("perfetto", status=status, **asked))["detail"]


async def test_a_trace_is_bounded_and_so_are_those_who_ask(
    log: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(log) as served:
        monkeypatch.setattr(perfetto, "ENTRIES", 100)
        said = await served.get("perfetto", status=400)
        assert "a trace has 100 at most; name a shorter stretch" in said["detail"]
        monkeypatch.undo()
        limits = served.gateway.limits
        limits._seeks["local"] = SEEKS_AT_ONCE
        await served.get("perfetto", status=429)
        limits._seeks["local"] = 0
        await served.raw("perfetto")
        assert limits._seeks["local"] == 0


async def test_pseudonyms_are_not_for_files(log: Path, serving: Serving) -> None:
    for sight, status in ((Sight.ALL_NAMES, 200), (Sight.OWN_NAMES, 403)):
        async with serving(log, authority=As(Role.TENANT, sight, "vision")) as served:
            assert (await served.raw("perfetto")).status_code == status
