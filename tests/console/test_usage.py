"""Every way to misuse the command ends in one sentence and exit code 2, never in a traceback."""

import io
import os
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from hypothesis import HealthCheck, given, settings, strategies as st

from console.at_gateway import told
from console.main import main
from console.verbs import make_app
from tests.console.conftest import Run
from tidegate_client import NotAllowed, Problem, Refused

READERS = ("jobs", "nodes", "loans")


def test_help_teaches_every_verb(tidegate: Run) -> None:
    ran = tidegate.does("--help")
    for verb in ("demo", "why", "jobs", "nodes", "loans", "submit", "cancel", "replay", "log"):
        assert f" {verb} " in ran.out
    assert "Exit codes" in ran.out


@pytest.mark.parametrize(
    "verb",
    sorted(str(command.name) for command in make_app().registered_commands),
)
def test_every_verb_has_an_example(tidegate: Run, verb: str) -> None:
    ran = tidegate.does(verb, "--help")
    assert "Example: tidegate" in ran.out


@pytest.mark.parametrize(
    "app", [make_app(), *(one.typer_instance for one in make_app().registered_groups)]
)
def test_paragraphs_of_help_wrap_at_the_width_of_the_terminal(app: typer.Typer) -> None:
    for verb in app.registered_commands:
        assert verb.help is not None
        assert all("\n" not in one for one in verb.help.split("\n\n")), verb.name


@pytest.mark.parametrize("arguments", [(), ("log",)])
def test_without_a_verb_the_help_is_shown(tidegate: Run, arguments: tuple[str, ...]) -> None:
    ran = tidegate(*arguments)
    assert ran.code == 2
    assert "Usage: tidegate" in ran.out
    assert ran.err == ""


def test_version(tidegate: Run) -> None:
    ran = tidegate.does("--version")
    assert ran.out.startswith("tidegate ")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("nonsense",), "See `tidegate --help`."),
        (("jbos",), "Did you mean 'jobs'?"),
        (("install",), "there is `tidegate edge-agent install`; docs/deploy.md says"),
        (("drain",), "No such command 'drain'; there is `tidegate node drain`. See"),
        (("verify",), "there is `tidegate audit verify` and `tidegate journal verify`. See"),
        (("jobs", "--colour"), "No such option"),
        (("why",), "Missing argument"),
        (("pause", "nodes"), "Invalid value for 'what': 'nodes' is not one of 'starts', 'loans'"),
        (("jobs", "--log"), "requires an argument. See `tidegate jobs --help`."),
        (("jobs", "--json"), "requires an argument: - is standard output, anything else a file."),
        (("jobs", "kafka:"), "the log is named by --log kafka:. See"),
        (("why", "mine", "run.db"), "the log is named by --log run.db. See"),
        (
            ("policy", "fofi"),
            "`tidegate policy set fifo` lets the nearest policy decide; `",
        ),
        (("policy", "tide:patience_s=7200"), "`tidegate policy set tide` lets the"),
        (("policy", "~"), "No such command '~'; `tidegate policies` lists all there are."),
        (("policy", "sett"), "Did you mean 'set'?"),
        (("submit", "--steps", "many"), "--steps"),
        (("jobs",), "tidegate-demo.db does not exist; name the log of a scheduler with --log"),
        (("jobs",), "or a gateway: tidegate context add NAME URL. tidegate demo makes a log."),
        (
            ("jobs", "--log", "none.db"),
            "none.db does not exist; start the scheduler that writes it, or name another log.",
        ),
        (("jobs", "--log", "sqlite:none.db"), "--log: leave out sqlite:, which `bus` of a service"),
        (("jobs", "--log", "."), ". is a folder"),
        (("jobs", "--log", "run.jsonl.zst"), "does not exist"),
    ],
)
def test_bad_usage_is_one_sentence(
    tidegate: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = tidegate.refuses(*arguments)
    assert part in said
    assert said.count("\n") == 1
    assert "Traceback" not in said


def test_each_wrong_key_of_a_configuration_has_a_line(
    tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.toml").write_text("[kafka]\nreplication = 0\nbootstrp = 'k:1'\n")
    ran = tidegate("config", "--config", "t.toml", "--set", "http.port=x")
    first, *others = ran.err.splitlines()
    assert ran.code == 2
    assert first == "t.toml: kafka.replication: input should be greater than or equal to 1."
    assert [line.split(": ")[1] for line in others] == ["kafka.bootstrp", "http.port"]
    assert all(line.endswith((".", "?")) for line in others)


@pytest.mark.parametrize("verb", [("config",), ("scheduler", "--set", "bus=sqlite:none.db")])
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("tyde", "'tyde' is not known, nearest: tide"),
        ("tide:nosuch=1", "tide: nosuch: is no option"),
        (" tide", "must be one line"),
    ],
)
def test_a_policy_that_there_is_not_is_refused_as_the_scheduler_does(
    tidegate: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: tuple[str, ...],
    policy: str,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = tidegate(*verb, "--set", f"scheduler.policy='{policy}'")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"scheduler.policy: {reason}")


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("content", [b"", b"not a log at all" * 100, b"SQLite format 3\0" * 100])
def test_a_foreign_file_is_one_sentence(
    tidegate: Run, tmp_path: Path, verb: str, content: bytes
) -> None:
    path = tmp_path / "foreign.db"
    path.write_bytes(content)
    said = tidegate.refuses(verb, "--log", path)
    assert "foreign.db" in said
    assert said.count("\n") == 1


def test_a_foreign_database_says_what_to_do(tidegate: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert "not a Tidegate log" in tidegate.refuses("jobs", "--log", path)


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst"])
def test_an_exported_log_says_which_command_helps(
    tidegate: Run, log: Path, tmp_path: Path, ending: str
) -> None:
    exported = tmp_path / f"my run{ending}"
    assert tidegate("journal", "export", log, exported).code == 0
    said = tidegate("why", "mover", "--log", exported).err
    command = shlex.split(said.partition(" it: ")[2])
    assert command[0] == "tidegate"
    assert tidegate(*command[1:]).code == 0
    assert tidegate("why", "mover", "--log", command[-1]).code == 0


@pytest.mark.parametrize("verb", ["stats", "tail", "verify"])
def test_every_verb_of_log_takes_the_log_first(tidegate: Run, log: Path, verb: str) -> None:
    first = tidegate("log", verb, log)
    assert (first.code, first.out) == (0, tidegate("log", verb, "--log", log).out)
    assert first.out


def test_a_narrow_terminal_shows_whole_topics(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    rows = [line.split() for line in tidegate.does("journal", "stats", log).out.splitlines()]
    names = {row[0] for row in rows if row and row[0].startswith("tidegate.")}
    assert names == set(tidegate.tells("journal", "stats", log)["topics"])


def test_a_damaged_record_is_one_sentence(tidegate: Run, log: Path) -> None:
    with sqlite3.connect(log) as connection:
        connection.execute("UPDATE records SET value = 'x' WHERE offset = 3 AND topic = 1")
    connection.close()
    for arguments in (("jobs",), ("why", "mover"), ("submit", "--steps", "1", "--rate", "1=1")):
        said = tidegate.refuses(*arguments, "--log", log)
        assert "damaged" in said
        assert said.count("\n") == 1


def test_debug_keeps_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.write_bytes(b"")
    monkeypatch.setenv("TIDEGATE_DEBUG", "1")
    with pytest.raises(Exception, match="is empty"):
        main(["jobs", "--log", str(path)])


def test_an_interrupt_is_one_sentence(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("console.at_log.ask_log", interrupted)
    said = tidegate.refuses("jobs", "--log", log)
    assert said.startswith("Stopped.")


@pytest.mark.parametrize("verb", ["jobs", "why"])
def test_what_is_piped_is_plain_and_a_terminal_gets_colour(log: Path, verb: str) -> None:
    subject = ["mover"] if verb == "why" else []
    command = [sys.executable, "-m", "console.main", verb, *subject, "--log", str(log)]
    piped = subprocess.run(command, capture_output=True, check=False)
    assert piped.returncode == 0, piped.stderr
    assert piped.stderr == b""
    assert b"\x1b" not in piped.stdout
    coloured = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "FORCE_COLOR": "1"}
    )
    assert b"\x1b[" in coloured.stdout
    ascii_only = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert ascii_only.returncode == 0, ascii_only.stderr


def test_a_closed_pipe_is_no_traceback(log: Path) -> None:
    script = (
        f"{sys.executable} -m console.main jobs --all --log {log} | true; exit ${{PIPESTATUS[0]}}"
    )
    ran = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert ran.returncode == 0
    assert ran.stderr == b""
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        (("why", ""), "JOB"),
        (("logs", ""), "JOB"),
        (("cancel", ""), "JOB"),
        (("node", "drain", ""), "NODE"),
        (("quota", "set", "", "--gpus", "3"), "TENANT"),
        (("loans", "recall", ""), "LENDER"),
    ],
)
def test_an_argument_of_no_letter_is_named(
    tidegate: Run, log: Path, words: tuple[str, ...], argument: str
) -> None:
    """A variable of the shell that is not set, say; `: no such job` told nobody that."""
    said = tidegate.refuses(*words, "--log", log)
    assert said == f"{argument}: is empty; name one.\n"


def test_what_is_not_utf8_is_named(tidegate: Run, log: Path) -> None:
    said = tidegate.refuses("why", os.fsdecode(b"e\xff"), "--log", log)
    assert said == "e\\xff is not UTF-8; write it in letters that are.\n"


def test_what_ends_the_program_itself_is_no_closed_pipe(
    tidegate: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: object, **__: object) -> None:
        sys.exit(3)

    monkeypatch.setattr("console.at_log.LogSource.why", ends)
    with pytest.raises(SystemExit, match="3"):
        tidegate("why", "mover", "--log", log)


VERBS = st.sampled_from([*READERS, "why", "submit", "cancel", "", "job"])
FLAGS = st.sampled_from(
    [
        "--json", "--state", "--all", "--job", "--gpus", "--steps", "--rate", "--deadline",
        "--memory-mib", "--priority", "--no-edge", "--tenant", "--samples-per-step", "--reason",
        "--model", "--in-place", "--saves-on-signal", "--", "-", "-h", "--version", "--nope", "-x",
    ]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["1..8", "1=120,2=220", "2h", "mover", "queued", "-1", "1e309", "nan", "100"]),
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    verb=VERBS,
    rest=st.lists(st.one_of(FLAGS, VALUES, st.tuples(FLAGS, VALUES)), max_size=7),
)
def test_no_arguments_whatever_give_a_traceback(
    verb: str,
    rest: list[str | tuple[str, str]],
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cwd").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "cwd")  # a `--json x` may write there
    monkeypatch.setenv("TIDEGATE_LOG", str(log))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO()))
    arguments = [verb]
    for one in rest:
        arguments += [one] if isinstance(one, str) else one
    arguments = [a for a in arguments if not a.startswith("/")]
    code = main(arguments)
    said = capsys.readouterr()
    assert code in (0, 1, 2)
    assert "Traceback" not in said.err
    if code == 2 and arguments != [""]:
        assert said.err or "Usage" in said.out


def test_linear_algebra_starts_no_threads() -> None:
    look = "import os; from console.main import main; main(['policies']); import numpy.linalg; "
    look += "print(len(os.listdir('/proc/self/task')))"
    own = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
    ran = subprocess.run(
        [sys.executable, "-c", look], env=own, capture_output=True, check=True, text=True
    )
    assert ran.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize(
    ("kind", "said", "shown"),
    [
        (Refused, "args.spec.job: is taken. Nothing was done", "job: is taken."),
        (
            Refused,
            "the scheduler refused it: args.gpus: is 9",
            "The scheduler refused it: gpus: is",
        ),
        (NotAllowed, "args.spec.tenant: is speech", "ci: tenant: is speech. Ask somebody"),
    ],
)
def test_a_field_that_a_gateway_refuses_is_named_as_a_file_has_it(
    kind: type[Problem], said: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, told("ci"):
        raise kind(409, said, None, None)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.startswith(shown)
