"""A client and the command line of a real gateway: found, asked, and saying what the file says."""

import json
from pathlib import Path

import pytest

from gateway.identities import new_token
from tests.console.conftest import Run
from tests.process.gateway_process import Process, gateway
from tidegate_client import AsyncClient, Client, ContextError, NoGateway, NotFound

__all__ = ["gateway"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No context or gateway of whoever runs the tests."""
    for name in ("TIDEGATE_CONTEXT", "TIDEGATE_TOKEN", "TIDEGATE_LOG", "TIDEGATE_CELL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path


@pytest.fixture
def tidegate(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


async def test_a_client_finds_the_gateway_of_this_machine(gateway: Process) -> None:
    with Client.from_context() as client:
        now = client.overview()
        then = client.at(entry=100)
        assert then.overview().entry == 100
        assert next(client.stream()).entry == now.entry
        with pytest.raises(NotFound):
            client.job("no-such-job")
        (job, *_) = client.jobs(sort="job")
        assert job.job in str(client.why(job.job))
    async with AsyncClient.from_context() as other:
        async for head in other.stream():
            assert head.entry == now.entry
            break
    gateway.process.kill()
    gateway.process.communicate()
    assert list(gateway.runtime.glob("gateway-*.json"))  # it had no time to remove it
    with pytest.raises(NoGateway, match="none runs here"):
        Client.from_context()


def test_the_command_says_the_same_of_a_context_and_of_the_file(
    gateway: Process, log: Path, tidegate: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = home / "token"
    token.write_text(gateway.token + "\n")
    token.chmod(0o644)
    ran = tidegate("context", "add", "here", gateway.url, "--token-file", token)
    assert (ran.code, "chmod 600" in ran.err) == (2, True)
    token.chmod(0o600)
    tidegate.does("context", "add", "here", gateway.url, "--token-file", token)
    assert (home / "config" / "tidegate" / "contexts.toml").stat().st_mode & 0o777 == 0o600
    assert gateway.token not in (home / "config" / "tidegate" / "contexts.toml").read_text()
    assert tidegate.does("context", "current").out == "here\n"
    jobs = tidegate.does("jobs", "--all", "--log", log)
    assert tidegate.does("jobs", "--all").out == jobs.out
    assert tidegate.does("jobs").out == tidegate.does("jobs", "--log", log).out
    assert tidegate.does("jobs", "--state", "running").out == (
        tidegate.does("jobs", "--state", "running", "--log", log).out
    )
    told = tidegate.does("jobs", "--all", "--json", "-", "--log", log).out
    assert json.loads(tidegate.does("jobs", "--all", "--json", "-").out) == json.loads(told)
    names = [one["job"] for one in json.loads(told)["jobs"]]
    for name in names[::9]:
        assert tidegate.does("why", name).out == tidegate.does("why", name, "--log", log).out
        document = tidegate.does("why", name, "--json", "-", "--log", log).out
        assert json.loads(tidegate.does("why", name, "--json", "-").out) == json.loads(document)
    ran = tidegate("why", "no-such-job")
    assert ran.code == 2
    assert ran.err.startswith("here: ")
    assert "no-such-job" in ran.err
    # --log, then --context, then $TIDEGATE_LOG, then the current context.
    assert tidegate("jobs", "--log", log, "--context", "here").code == 2
    monkeypatch.setenv("TIDEGATE_LOG", str(log.with_name("none.db")))
    assert "none.db does not exist" in tidegate("jobs").err
    assert tidegate.does("jobs", "--all", "--context", "here").out == jobs.out
    monkeypatch.delenv("TIDEGATE_LOG")
    monkeypatch.setenv("TIDEGATE_TOKEN", "wrong")
    assert tidegate("jobs").code == 2
    monkeypatch.delenv("TIDEGATE_TOKEN")
    gateway.end()
    ran = tidegate("jobs")
    assert ran.code == 2
    assert ran.err.startswith(f"here: no gateway answers at {gateway.url}: ")


@pytest.fixture
def here(gateway: Process, tidegate: Run, home: Path) -> str:
    """A context of the gateway, in force."""
    (home / "token").write_text(gateway.token)
    (home / "token").chmod(0o600)
    tidegate.does("context", "add", "here", gateway.url, "--token-file", home / "token")
    return "here"


@pytest.mark.usefixtures("here")
def test_each_verb_that_looks_says_the_same_both_ways(log: Path, tidegate: Run) -> None:
    (job, *_) = [
        one["job"] for one in tidegate.tells("jobs", "--all", "--log", log)["jobs"] if one["step"]
    ]
    for verb in (
        ("jobs", "--position"),
        ("nodes",),
        ("loans",),
        ("quota",),
        ("policy",),
        ("audit",),
        ("timeline", job),
    ):
        assert tidegate.does(*verb).out == tidegate.does(*verb, "--log", log).out, verb
        assert tidegate.tells(*verb) == tidegate.tells(*verb, "--log", log), verb


@pytest.mark.usefixtures("here")
def test_each_verb_that_asks_is_one_request_of_the_gateways_both_ways_in_the_same_words(
    log: Path, tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.at_gateway._ANSWER_S", 0.2)  # no scheduler runs: none answers
    copy = tmp_path / "copy.db"
    copy.write_bytes(log.read_bytes())
    rows = tidegate.tells("jobs", "--log", log)["jobs"]
    runs = next(one["job"] for one in rows if one["state"] == "running")
    waits = next(one["job"] for one in rows if one["job"] != runs)
    node = tidegate.tells("nodes", "--log", log)["nodes"][0]["node"]
    submit = ("submit", "--job", "mine", "--steps", "10", "--rate", "1=1", "--key", "k1")
    for verb in (
        ("node", "cordon", node, "--reason", "fan"), ("node", "drain", node, "--by", "30m"),
        ("job", "hold", waits), ("job", "requeue", runs), ("job", "priority", waits, "7"),
        ("job", "scale", runs, "1"), ("job", "cancel", waits), ("pause", "starts", "--for", "2h"),
        ("loans", "freeze", "--for", "2h"), ("quota", "set", "vision", "--gpus", "4..8"), submit,
    ):  # fmt: skip
        tried = tidegate.does(*verb, "--dry-run").out.replace("in here.", f"in {copy}.")
        alone = tidegate.does(*verb, "--dry-run", "--log", copy)
        # The gateway knows whose a job is that is submitted.
        assert alone.out.replace("  tenant: operator\n", "").startswith(tried), verb
        asked, alone = tidegate.does(*verb), tidegate.does(*verb, "--log", copy)
        assert asked.out.replace("in here.", f"in {copy}.") == alone.out, verb
        assert "No scheduler has answered yet" in asked.err, verb
    wrong_size = ("job", "scale", runs, "3000", "--dry-run")
    ran, alone = tidegate(*wrong_size), tidegate(*wrong_size, "--log", copy)
    assert (ran.code, ran.err) == (alone.code, alone.err)
    assert ran.code == 1
    again = tidegate.does(*submit)
    assert (again.out, "was taken before" in again.err) == ("mine\n", True)
    other = tidegate.refuses(*submit, "--job", "other")
    assert "k1 was taken before, for mine; give another key" in other
    other = tidegate.refuses(*submit, "--steps", "20", "--deadline", "2h")
    assert other == (
        "--key: k1 was taken before, for mine, from which this differs in --steps and "
        "--deadline; give another key, or ask for the same.\n"
    )
    timed = (*submit[:-1], "k2", "--job", "timed", "--deadline", "2h")
    assert tidegate.does(*timed).out == tidegate.does(*timed).out == "timed\n"
    other = tidegate.refuses(*timed[:-1], "4h")
    assert "for timed, from which this differs in --deadline;" in other
    with Client.from_context("here") as client:
        assert (client.outcome("k1").result, client.outcome("k1").about) == ("pending", "mine")
    for wrong, said in (
        (("node", "cordon", "nowhere"), "nowhere: no such node in "),
        (("job", "hold", "nobody"), "nobody: no such job in "),
        (("logs", "nobody"), "nobody: no such job in "),
        (("loans", "recall", "nowhere"), "no such node or pool in "),
    ):
        in_log = tidegate.refuses(*wrong, "--log", log)
        assert tidegate.refuses(*wrong) == in_log.replace(f"in {log};", "in here;"), wrong
        assert said in in_log
    for so, said in (
        (("node", "uncordon", node), "is not cordoned"),
        (("job", "release", waits), "is not held"),
        (("resume",), "Nothing is paused"),
        (("loans", "unfreeze"), "nothing to lift"),
        (("policy", "clear"), "No policy was set"),
    ):
        assert tidegate.needs_nothing(*so) == tidegate.needs_nothing(*so, "--log", log), so
        assert said in tidegate.needs_nothing(*so)


@pytest.mark.usefixtures("here")
def test_a_log_that_is_named_wins_over_the_context_for_verbs_that_ask(
    log: Path, tidegate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(log.read_bytes())
    told = tidegate.tells("pause", "--log", copy)
    assert told["log"] == str(copy)
    assert "context" not in told
    assert tidegate.tells("pause")["context"] == "here"
    assert "leave one of the two out" in tidegate.refuses(
        "pause", "--log", copy, "--context", "here"
    )
    assert "--sign: the gateway" in tidegate.refuses("pause", "--sign", "a=b")
    monkeypatch.setenv("TIDEGATE_TOKEN", "wrong")
    said = tidegate.refuses("pause")
    assert said.endswith(
        " Put a token that is in force into $TIDEGATE_TOKEN, which counts before any file.\n"
    )
    monkeypatch.delenv("TIDEGATE_TOKEN")
    (tmp_path / "token").write_text("another")
    said = tidegate.refuses("pause")
    assert said.startswith("here: who are you? Open the address that `tidegate serve` printed")
    assert said.endswith(f" Put a token that is in force into {tmp_path / 'token'}.\n")
    assert "login" not in said, "nobody signs in there"
    url = tidegate.tells("context", "list")["contexts"][0]["url"]
    tidegate.does("context", "add", "bare", url)
    said = tidegate.refuses("pause", "--context", "bare")
    assert said.endswith(f"name it: tidegate context add bare {url} --token-file FILE\n")


def test_contexts_are_added_chosen_and_removed(
    tidegate: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tidegate("context", "current").code == 1
    assert "No contexts yet" in tidegate.does("context", "list").out
    tidegate.does("context", "add", "one", "https://one.example:8321")
    tidegate.does("context", "add", "two", "https://two.example/api/v1/")
    assert tidegate.does("context", "current").out == "one\n"
    tidegate.does("context", "use", "two")
    assert "> two  https://two.example\n" in tidegate.does("context", "list").out
    monkeypatch.setenv("TIDEGATE_CONTEXT", "one")
    assert tidegate.does("context", "current").out == "one\n"
    monkeypatch.delenv("TIDEGATE_CONTEXT")
    tidegate.does("context", "remove", "two")
    assert [one["name"] for one in tidegate.tells("context", "list")["contexts"]] == ["one"]
    assert "there are one" in tidegate("context", "use", "two").err
    for wrong, said in (
        ("http://one.example", "write https"),
        ("one.example:8321", "is no address"),
        ("https://user:word@one.example", "is no address"),
        ("https://one.example/?token=x", "leave out what stands after host and port"),
        ("https://one.example:x", "is no address"),
    ):
        ran = tidegate("context", "add", "bad", wrong)
        assert ran.code == 2
        assert said in ran.err
    file = home / "config" / "tidegate" / "contexts.toml"
    file.write_text("[contexts.one]\nurl = 3\n")
    with pytest.raises(ContextError, match="mend it, or remove it"):
        Client.from_context("one")


def test_a_tenants_dry_run_is_of_its_own_job(log: Path, home: Path, tidegate: Run) -> None:
    token, digest = new_token()
    (home / "secret").write_text("a secret of this test alone, " * 2)
    config = home / "tidegate.toml"
    config.write_text(
        f'[gateway.auth]\nsecret_file = "{home}/secret"\n[[gateway.auth.robots]]\nname = "ci"\n'
        f'role = "tenant"\ntenant = "acme"\nsha256 = "{digest}"\nexpires = 2099-01-01T00:00:00Z\n'
    )
    gateway = Process(log, home / "run-tenant", "--config", str(config))
    gateway.token = token
    try:
        gateway.ready()
        (home / "token").write_text(token)
        (home / "token").chmod(0o600)
        tidegate.does("context", "add", "ci", gateway.url, "--token-file", home / "token")
        submit = ("submit", "--steps", "9", "--rate", "1=1", "--dry-run")
        told = tidegate.tells(*submit)
        assert (told["result"], "tenant" in told["spec"]) == ("would_be_done", False)
        ran = tidegate(*submit, "--tenant", "zeta")
        assert (ran.code, "tenant" in ran.err) == (1, True), ran
    finally:
        gateway.kill()
