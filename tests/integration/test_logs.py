"""`tidegate logs`: real workers on one machine, and a reader who sees what they write."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.identities import new_token
from tests.integration.machine import CONFIG, ROOT, Ran, served, state, tidegate
from tests.patience import wait_until
from tests.process.gateway_process import Process

_ROBOT = """
[[gateway.auth.robots]]
name = "ci"
role = "admin"
sha256 = "{digest}"
expires = 2099-01-01T00:00:00Z
"""


def test_a_log_is_read_while_it_is_written_and_after_and_never_without_reason(
    tmp_path: Path,
) -> None:
    log, go = tmp_path / "bus.db", tmp_path / "go"
    (tmp_path / "t.toml").write_text(CONFIG.format(folder=tmp_path))
    program = f"printf '\\033[31mred\\033[0m\\n'; until [ -e {go} ]; do sleep 0.1; done; echo last"
    with served(tmp_path, "scheduler", "cloud-agent"):

        def submits(job: str, *command: str) -> bool:
            asked = ("submit", "--job", job, "--gpus", "1", "--log", log, "--", *command)
            return tidegate(*asked).returncode == 0

        def reads(*words: str) -> Ran:
            """Read a log; of one reader no more than eight are read at once, for some seconds."""
            while "as many as may be" in (ran := tidegate("logs", *words, "--log", log)).stderr:
                time.sleep(0.2)
            return ran

        wait_until(lambda: submits("talks", "sh", "-c", program), "a scheduler")
        wait_until(lambda: "red" in reads("talks").stdout, "it writes")
        assert reads("talks").stdout == "\x1b[31mred\x1b[0m\n"
        go.touch()
        followed = reads("talks", "-f")
        assert (followed.returncode, followed.stdout) == (0, "\x1b[31mred\x1b[0m\nlast\n")
        assert followed.stderr.endswith("talks is completed.\n")
        assert reads("talks", "--tail", "5").stdout == "last\n"

        other = reads("talks", "--rank", "7")
        assert other.returncode == 1
        assert "its newest run here has no worker of rank 7 (agent machine)" in other.stderr
        assert submits("quiet", "sleep", "600")
        wait_until(lambda: "has written nothing" in reads("quiet").stderr, "it runs and is silent")
        assert (reads("quiet").returncode, reads("quiet").stdout) == (0, "")
        unknown = reads("none")
        assert (unknown.returncode, "no such job" in unknown.stderr) == (2, True)
        assert submits("bad", "sh", "-c", "echo boom; exit 126")
        wait_until(lambda: state(log, "bad") == "failed", "it fails for good")
        why = " ".join(tidegate("why", "bad", "--log", log).stdout.replace("│", " ").split())
        assert "tidegate logs bad prints it: runs/bad/" in why
        assert reads("bad").stdout == "boom\n"
        (tmp_path / "runs" / "runs" / "bad").rename(tmp_path / "failed")
        kept = reads("bad")
        assert (kept.returncode, kept.stdout) == (0, "boom\n"), kept.stderr
        assert re.search(
            rf"kept at file://{tmp_path}/store/bad/failed-\d+-rank-0\.log", kept.stderr
        )
        assert submits("large", "sh", "-c", "sleep 600")
        wide = tidegate("submit", "--job", "wide", "--gpus", "64", "--log", log, "--", "true")
        assert wide.returncode == 0
        early = reads("wide")
        assert (early.returncode, "wide has not run yet" in early.stderr) == (1, True)
        assert tidegate("cancel", "wide", "--log", log).returncode == 0
        wait_until(lambda: state(log, "wide") == "cancelled", "it is cancelled")
        never = reads("wide")
        assert (never.returncode, "wide never ran" in never.stderr) == (1, True), never.stderr

        again = ("submit", "--key", "dag-17", "--log", log, "--", "true")
        tried = [tidegate(*again) for _ in range(2)]
        assert [one.returncode for one in tried] == [0, 0]
        assert tried[0].stdout == tried[1].stdout
        assert "dag-17 was taken before" in tried[1].stderr

        (tmp_path / "runs" / "runs" / "talks").rename(tmp_path / "moved")
        gone = reads("talks")
        assert (gone.returncode, "cleared away" in gone.stderr) == (1, True)
        assert tidegate("cancel", "large", "--log", log).returncode == 0
        wait_until(lambda: state(log, "large") == "cancelled", "it ends")
    asked = tidegate("audit", "--log", log, "--json", "-")
    verbs = [one["verb"] for one in json.loads(asked.stdout)["acts"]]
    assert verbs.count("job.logs") >= 5, "who read what is in the audit"
    nobody = reads("talks")
    assert (nobody.returncode, "start one and ask again." in nobody.stderr) == (1, True)


def test_a_log_is_followed_across_a_restart_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, token = tmp_path / "bus.db", new_token()
    config = CONFIG.format(folder=tmp_path) + _ROBOT.format(digest=token[1])
    (tmp_path / "t.toml").write_text(config)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TIDEGATE_TOKEN", token[0])

    def serves(port: int | None = None) -> Process:
        found = Process(log, tmp_path / "gateway", "--config", str(tmp_path / "t.toml"), port=port)
        found.token = token[0]
        found.ready()
        return found

    program = f"echo first; for n in 1 2; do until [ -e {tmp_path}/$n ]; do sleep 0.1; done; "
    program += "echo $n; done"
    with served(tmp_path, "scheduler", "cloud-agent"):
        asked = ("submit", "--job", "talks", "--gpus", "1", "--log", log, "--", "sh", "-c", program)
        wait_until(lambda: tidegate(*asked).returncode == 0, "a scheduler")
        wait_until(lambda: "first" in tidegate("logs", "talks", "--log", log).stdout, "it writes")
        gateway = serves()
        assert tidegate("context", "add", "here", gateway.url).returncode == 0
        said, told = tmp_path / "said", tmp_path / "told"
        with said.open("wb") as out, told.open("wb") as err:
            command = [sys.executable, "-m", "console.main", "logs", "talks", "-f"]
            command += ["--context", "here"]
            reader = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, env=os.environ)
        try:
            wait_until(lambda: "first" in said.read_text(), told.read_text())
            gateway.kill()
            wait_until(lambda: "no gateway answers" in told.read_text(), "it says so")
            (tmp_path / "1").touch()  # written while there is no gateway
            gateway = serves(gateway.port)
            wait_until(lambda: said.read_text() == "first\n1\n", "it goes on where it was")
            (tmp_path / "2").touch()
            assert reader.wait(120) == 0
        finally:
            reader.kill()
            gateway.kill()
    assert said.read_text() == "first\n1\n2\n"
    assert told.read_text().count("no gateway answers") == 1
