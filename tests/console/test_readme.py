"""The commands in the README do what it says they do."""

import re
import shlex
from pathlib import Path

import pytest

from benchmarks.public_data import DATA
from tests.console.conftest import Run

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LINES = "".join(BLOCKS).replace("\\\n", " ").splitlines()
COMMANDS = [
    words
    for line in LINES
    for part in line.split("#")[0].split(";")
    if (words := shlex.split(part))
]
#: Need files that the reader fetches: ElasticFlow's traces and tables, Pollux's workloads.
FETCHED = [words for words in COMMANDS if any(word.endswith(".csv") for word in words)]
#: Needs Kafka: `test_demo_brokers` does the same.
BROKER = "kafka:"


@pytest.fixture(scope="module")
def demo_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short demo where the reader would have a long one."""
    from console.main import main

    folder = tmp_path_factory.mktemp("readme")
    short = ["--hours", "0.6", "--seconds", "0", "--no-live"]
    assert main(["demo", *short, "--log", str(folder / "tidegate-demo.db")]) == 0
    return folder


def test_every_command_is_known() -> None:
    assert len(COMMANDS) > 8
    assert {words[0] for words in COMMANDS} == {"make", "tidegate", "compose/brokers", "eval"}
    assert (ROOT / "compose" / "brokers").is_file()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in COMMANDS:
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [
        words[1:]
        for words in COMMANDS
        if words[0] == "tidegate" and words not in FETCHED and BROKER not in words
    ],
    ids=" ".join,
)
def test_a_command_works_as_written(
    tidegate: Run, demo_log: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(demo_log)
    shorter = ("--days", "0.2") if words[0] == "simulate" else ()
    ran = tidegate.does(*words, *shorter)
    assert ran.out


@pytest.mark.parametrize("words", [words[1:] for words in FETCHED if words[1] == "demo"])
def test_the_real_trace_runs(
    tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    traces = sorted(DATA.rglob("cluster10.csv"))
    tables = sorted(path for path in DATA.rglob("A100") if path.is_dir())
    if not traces or not tables:
        pytest.skip("needs ElasticFlow's traces and tables; set TIDEGATE_DATA to their folder")
    (tmp_path / "throughputs").mkdir()
    (tmp_path / "cluster10.csv").symlink_to(traces[0])
    (tmp_path / "throughputs" / "A100").symlink_to(tables[0])
    monkeypatch.chdir(tmp_path)
    ran = tidegate.does(*words, "--hours", "0.5", "--seconds", "0", "--no-live")
    assert "what came of it" in ran.out


@pytest.mark.parametrize("words", [words[1:] for words in FETCHED if words[1] == "simulate"])
def test_the_policies_are_compared(
    tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    if not (DATA / "pollux").is_dir():
        pytest.skip("needs Pollux's workloads and profiles; set TIDEGATE_DATA to their folder")
    (tmp_path / "pollux").mkdir()
    workloads = DATA / "pollux" / "workloads" / "load-0.5"
    (tmp_path / "pollux" / "profiles").symlink_to(DATA / "pollux" / "profiles")
    (tmp_path / "pollux" / "workload-1.csv").symlink_to(workloads / "workload-1.csv")
    monkeypatch.chdir(tmp_path)
    ran = tidegate.does(*words)
    assert all(policy in ran.out for policy in ("tide", "pollux", "tiresias"))
