"""Two gateways over real Kafka, behind one key and a balancer that asks each in its turn."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateways import Gateways, configured, until
from tests.integration.processes import TRAIN, Fleet
from tests.patience import PATIENCE_S, wait_until
from tidegate_client import Client, Job, Refused

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gateways(
    tmp_path: Path,
    fleets: Callable[[Path, str], Fleet],
    kafka_bootstrap: str,
    namespace: str,
) -> Iterator[Gateways]:
    """A fleet of two cells with a node or two in each, and no gateway yet."""
    text, (token,) = configured(
        tmp_path,
        f'bootstrap = "{kafka_bootstrap}"\nreplication = 1\nnamespace = "{namespace}"\n'
        'cells = ["default", "west"]',
    )
    fleet = fleets(tmp_path, text)
    roles = [
        fleet.start("scheduler"),
        fleet.start("cloud-agent", **TRAIN),
        fleet.start("cloud-agent", cell="west", **TRAIN | {"agent__name": "far",
                    "agent__pool": "far", "agent__nodes": "w0"}),
    ]  # fmt: skip
    for role in roles:
        wait_until(role.is_ready, f"ready: {role.log.name}")
    found = Gateways(fleet, token)
    yield found
    found.end()


def tidegate(gateways: Gateways, *arguments: object, cell: str = "default") -> str:
    """Run the command as who has the fleet's `[kafka]` in the environment; give what it shows."""
    kafka = gateways.fleet.config
    said = {
        "TIDEGATE_KAFKA_BOOTSTRAP": kafka.partition('bootstrap = "')[2].partition('"')[0],
        "TIDEGATE_KAFKA__NAMESPACE": kafka.partition('namespace = "')[2].partition('"')[0],
        "TIDEGATE_KAFKA__CELLS": '["default", "west"]',
        "TIDEGATE_KAFKA__REPLICATION": "1",
        "TIDEGATE_CELL": cell,
    }
    command = [sys.executable, "-m", "console.main", *map(str, arguments)]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | said, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_two_gateways_behind_one_key_are_one(gateways: Gateways) -> None:
    first, second = gateways.start(), gateways.start()

    def client(cell: str) -> Client:
        transport = gateways.transport(first, second)
        return Client(first.url, gateways.token, cell=cell, transport=transport)

    with client("default") as here, client("west") as west:
        until(lambda: len(list(here.nodes())) == 2 and len(list(west.nodes())) == 1, "they joined")
        jobs = [
            here.jobs.submit(Job(id=f"j{number}", steps=100_000, rates={1: 50.0}), key=f"k{number}")
            for number in range(3)
        ]
        jobs[0].wait("running", timeout=PATIENCE_S)
        held = jobs[0].hold(reason="its data is wrong", wait=30.0)
        assert held.result == "done"
        # Asked again with its key, of the other gateway, it is the same request.
        again = here.ask("job.hold", job="j0", reason="its data is wrong", key=held.request)
        assert (again.result, again.entry) == ("done", held.entry)
        until(lambda: jobs[0].refresh().state != "running", "it leaves")
        assert jobs[0].release(wait=30.0).result == "done"
        assert jobs[2].cancel(wait=30.0).result == "done"
        until(lambda: jobs[2].refresh().state == "cancelled", "it is cancelled")
        cordoned = here.cordon("n1", reason="the fan is loud", wait=30.0)
        assert cordoned.result == "done"

        # What one has told, the other knows: an entry that is new, a page that goes on elsewhere.
        with Client(second.url, gateways.token, cell="default") as other:
            assert other.at(entry=cordoned.entry).overview().entry == cordoned.entry
        ids = [job.job for job in here.jobs()]
        assert ids == sorted(ids) == ["j0", "j1", "j2"]
        with first.client() as one, second.client() as two:
            seen, cursor, askers = [], None, [one, two, one, two]
            for asker in askers:
                asked = {"cell": "default", "limit": "1"} | ({"cursor": cursor} if cursor else {})
                page = _ok(asker.get("/jobs", params=asked))
                seen += [row["job"] for row in page["jobs"]]
                if (cursor := page["next"]) is None:
                    break
            assert seen == ids
            whole = [_ok(each.get("/overview", params={"cell": "default", "entry": "3"}))
                     for each in (one, two)]  # fmt: skip
            assert whole[0] == whole[1]
            entry = _ok(two.get(f"/entries/{cordoned.entry}", params={"cell": "default"}))
            assert entry["stimulus"]["data"]["request"]["reason"] == "the fan is loud"
            assert {row["cell"] for row in _ok(one.get("/cells"))["cells"]} == {"default", "west"}
        before = here.at(entry=(held.entry or 0) - 1)
        assert before.job("j0").row.state == "running"  # type: ignore[union-attr]
        assert "held" in str(here.at(entry=held.entry).why("j0")).lower()
        then = here.at(entry=held.entry).overview()
        assert here.at(then.now_s).overview().entry >= (held.entry or 0)  # type: ignore[operator]

        # One cell is not the other's.
        assert west.cordon("w0", wait=30.0).result == "done"
        assert [job.job for job in west.jobs()] == []
        with pytest.raises(Refused, match="there is no node w0"):
            here.cordon("w0", wait=30.0)
        with pytest.raises(Refused, match="may not pass on") as refused:
            here.ask("cell.pause", what="all", wait=30.0)
        assert refused.value.parameter == "args.verb"

        stream = here.stream()
        last = next(stream).entry or 0
        here.uncordon("n1", wait=30.0)
        while (next(stream).entry or 0) <= last:
            pass
        with first.client() as one:
            listed = _ok(one.get("/requests", params={"cell": "default"}))["acts"]

    shown = json.loads(tidegate(gateways, "audit", "--log", "kafka:", "--json", "-"))["acts"]
    verbs = ["job.submit"] * 3 + ["job.hold", "job.release", "job.cancel", "node.cordon",
                                  "node.cordon", "node.uncordon"]  # fmt: skip
    assert [act["verb"] for act in shown] == verbs
    assert [(act["entry"], act["subject"]) for act in shown] == [
        (act["entry"], "robot:ci-0") for act in reversed(listed)
    ]
    far = json.loads(tidegate(gateways, "audit", "--log", "kafka:", "--json", "-", cell="west"))
    assert [(act["verb"], act["about"]) for act in far["acts"]] == [("node.cordon", "w0")]
    keys = gateways.fleet.folder / "keys"
    keys.mkdir()
    (keys / "desk.pem").write_bytes((gateways.fleet.folder / "desk.pem").read_bytes())
    for cell, count in (("default", 9), ("west", 1)):
        proved = tidegate(gateways, "audit", "verify", "kafka:", "--keys", keys, cell=cell)
        assert f"{count} request" in proved
        assert "each signed" in proved


def _ok(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
