"""What the page about jobs shows is whole: its configuration runs, and its job ends there."""

import json
import re
import sys
from pathlib import Path

from tests.integration.machine import ROOT, served, state, tidegate
from tests.patience import wait_until

PAGE = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_machine_of_the_page_takes_the_job_of_the_page_to_its_end(tmp_path: Path) -> None:
    log, job = tmp_path / "bus.db", tmp_path / "job.json"
    # Others on this machine may have the usual port.
    (tmp_path / "t.toml").write_text(
        block("toml").replace("/srv/tidegate", str(tmp_path)) + '[http]\nport = "off"\n'
    )
    job.write_text(
        block("json")
        .replace("/opt/tidegate", str(ROOT))
        .replace('"python3"', f'"{sys.executable}"')
    )
    with served(tmp_path, "scheduler", "cloud-agent"):
        wait_until(lambda: tidegate("submit", job, "--log", log).returncode == 0)
        wait_until(
            lambda: state(log, "elastic") == "completed",
            (tmp_path / "cloud-agent.log").read_text(),
        )
        named = tidegate("submit", "--log", log, "--job", "bad", "--", "pyton", "my.py")
        assert named.returncode == 0, named.stderr
        # As the page says it: from a folder that the agent has never seen.
        (tmp_path / "mine").mkdir()
        text = "print('from my folder'); open('report', 'w').write('all is well')"
        (tmp_path / "mine" / "lib.py").write_text(text)
        flags = ("--code", tmp_path / "mine", "--code-store", f"file://{tmp_path}/code")
        file = tmp_path / "coded.json"
        command = [sys.executable, "-c", "import lib"]
        file.write_text(json.dumps({"job": "coded", "command": command, "outputs": ["rep*"]}))
        coded = tidegate("submit", "--log", log, *flags, file)
        assert coded.returncode == 0, coded.stderr
        wait_until(lambda: state(log, "bad") == "failed")
        wait_until(lambda: state(log, "coded") == "completed")
        why = json.loads(tidegate("why", "coded", "--log", log, "--json", "-").stdout)
    assert why["outputs"]["files"] == 1
    kept = Path(why["outputs"]["uri"].removeprefix("file://")) / "report"
    assert kept.read_text() == "all is well"
    (said,) = (tmp_path / "runs").glob("runs/coded/*/logs/rank-0.log")
    assert said.read_text() == "from my folder\n"
    assert (
        "No such file or directory: pyton"
        in tidegate("jobs", "--all", "--log", log, "--json", "-").stdout
    )
    assert any((tmp_path / "checkpoints" / "elastic").iterdir())
