"""`tidegate logs`: real workers on one machine, and a reader who sees what they write."""

import json
from pathlib import Path

from tests.integration.machine import CONFIG, served, state, tidegate
from tests.patience import wait_until


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

        wait_until(lambda: submits("talks", "sh", "-c", program), "a scheduler")
        wait_until(lambda: "red" in tidegate("logs", "talks", "--log", log).stdout, "it writes")
        assert tidegate("logs", "talks", "--log", log).stdout == "\x1b[31mred\x1b[0m\n"
        go.touch()
        followed = tidegate("logs", "talks", "-f", "--log", log)
        assert (followed.returncode, followed.stdout) == (0, "\x1b[31mred\x1b[0m\nlast\n")
        assert followed.stderr.endswith("talks is completed.\n")
        assert tidegate("logs", "talks", "--tail", "5", "--log", log).stdout == "last\n"

        other = tidegate("logs", "talks", "--rank", "7", "--log", log)
        assert other.returncode == 1
        assert "its newest run here has no worker of rank 7 (agent machine)" in other.stderr
        unknown = tidegate("logs", "none", "--log", log)
        assert (unknown.returncode, "no such job" in unknown.stderr) == (2, True)
        assert submits("bad", "sh", "-c", "echo boom; exit 126")
        wait_until(lambda: state(log, "bad") == "failed", "it fails for good")
        why = " ".join(tidegate("why", "bad", "--log", log).stdout.replace("│", " ").split())
        assert "tidegate logs bad prints it: runs/bad/" in why
        assert tidegate("logs", "bad", "--log", log).stdout == "boom\n"
        (tmp_path / "runs" / "runs" / "bad").rename(tmp_path / "failed")
        kept = tidegate("logs", "bad", "--log", log)
        assert (kept.returncode, kept.stdout) == (0, "boom\n"), kept.stderr
        assert f"kept at file://{tmp_path}/store/bad/failed-rank-0.log" in kept.stderr
        assert submits("large", "sh", "-c", "sleep 600")
        wide = tidegate("submit", "--job", "wide", "--gpus", "64", "--log", log, "--", "true")
        assert wide.returncode == 0
        early = tidegate("logs", "wide", "--log", log)
        assert (early.returncode, "wide has not run yet" in early.stderr) == (1, True)

        again = ("submit", "--key", "dag-17", "--log", log, "--", "true")
        tried = [tidegate(*again) for _ in range(2)]
        assert [one.returncode for one in tried] == [0, 0]
        assert tried[0].stdout == tried[1].stdout
        assert "dag-17 was taken before" in tried[1].stderr

        (tmp_path / "runs" / "runs" / "talks").rename(tmp_path / "moved")
        gone = tidegate("logs", "talks", "--log", log)
        assert (gone.returncode, "cleared away" in gone.stderr) == (1, True)
        assert tidegate("cancel", "large", "--log", log).returncode == 0
        wait_until(lambda: state(log, "large") == "cancelled", "it ends")
    asked = tidegate("audit", "--log", log, "--json", "-")
    verbs = [one["verb"] for one in json.loads(asked.stdout)["acts"]]
    assert verbs.count("job.logs") >= 5, "who read what is in the audit"
    nobody = tidegate("logs", "talks", "--log", log)
    assert (nobody.returncode, "No scheduler runs" in nobody.stderr) == (1, True)
