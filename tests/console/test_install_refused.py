"""`tidegate edge-agent install`: what it refuses, with what to do, and then nothing is there."""

import pytest

from services.install import setup as setups
from tests.certificates import Authority
from tests.console.conftest import Run
from tests.console.installing import Site


def test_every_mistake_is_named_by_its_option_at_once(tidegate: Run, site: Site) -> None:
    other = Authority(site.folder / "other").sign("edge-9", begins=-9, ends=-1)
    ran = tidegate(
        *site.words(
            cert=other.cert,
            checkpoints="ftpx://x",
            broker="https://broker",
            trusted_key=f"k1={site.private}",
            gpu_type=None,
        )
    )
    assert ran.code == 2
    lines = ran.err.splitlines()
    for start, part in {
        "--broker": "write mqtt://HOST:PORT",
        "--checkpoints": "use file:///folder",
        "--cert": "ended on",
        "--key": "not the key of the certificate",
        "--trusted-key": "openssl pkey -in",
        "--gpus": "a tree has none to look at",
    }.items():
        assert any(line.startswith(start) and part in line for line in lines), (start, ran.err)
    assert any("is for edge-9, but the agent is edge-17" in line for line in lines)
    assert not site.tree.exists()


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"name": None}, "--name is missing: who the agent is"),
        ({"broker": "mqtt://broker"}, "certificates are for mqtts://broker:8883"),
        ({"broker": "mqtts://u:secret@broker"}, "mqtt.password_file"),
        ({"cert": None}, "--key: goes with --cert"),
        ({"trusted_key": "k1"}, "is not KID=FILE"),
        ({"key": "/none.key"}, "--key: /none.key: No such file"),
        ({"config": "/none.toml"}, "--config: the file says what --name would"),
        ({"broker": "b:8883"}, "--broker: 'b:8883' is no MQTT address; write mqtts://HOST:PORT"),
        ({"checkpoints": "file://x/y"}, "--checkpoints: file://x/y: names another machine"),
        ({"gpus": -1}, "--gpus: input should be greater than or equal to 1"),
        ({"gpu_type": "a b"}, "--gpu-type: string should match"),
        ({"environment": "/none.env"}, "--environment: /none.env: No such file"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    tidegate: Run, site: Site, other: dict[str, object], part: str
) -> None:
    said = tidegate.refuses(*site.words(**other))
    assert part in said
    assert "secret" not in said
    assert not site.tree.exists()


def test_one_file_that_is_missing_hides_no_other_mistake(tidegate: Run, site: Site) -> None:
    other = Authority(site.folder / "other").sign("edge-9")
    said = tidegate.refuses(*site.words(ca="/none.pem", cert=other.cert, key=None, gpus=-1))
    for part in (
        "--ca: /none.pem: No such file",
        "is for edge-9, but the agent is edge-17",
        "--key: ",
        "--gpus: input should be greater",
    ):
        assert part in said
    ran = tidegate(*site.words(cert="/none.pem", key="/none.key"))
    assert "--cert: /none.pem" in ran.err
    assert "--key: /none.key" in ran.err


def test_nothing_to_go_by_is_told_with_an_example(tidegate: Run, site: Site) -> None:
    said = tidegate.refuses("edge-agent", "install", "--root", site.tree)
    assert "tidegate edge-agent install --name edge-17 --broker mqtts://HOST:8883" in said
    assert "--owner none --trusted-key k1=trusted-k1.pem" in said, "else the next try is refused"


def test_without_systemd_it_says_how_to_run_it_by_hand(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "booted", lambda: False)
    monkeypatch.setattr(setups, "_check_reach", lambda *_: None)
    said = tidegate.refuses("edge-agent", "install", "--config", site.simulated())
    assert "systemd does not run this machine" in said
    assert "edge-agent --config FILE" in said


def test_who_may_not_install_is_told_so_by_another_code_than_who_asks_wrongly(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setups, "booted", lambda: True)
    monkeypatch.setattr(setups, "_check_reach", lambda *_: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    ran = tidegate("edge-agent", "install", "--config", site.simulated())
    assert (ran.code, "installing takes root" in ran.err) == (1, True), ran


def test_what_the_user_may_not_enter_is_told_before_anything_is_done(
    tidegate: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = site.folder / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(setups, "program_of", lambda _: [str(closed / "tidegate")])
    said = tidegate.refuses("edge-agent", "install", "--config", site.simulated(), "--dry-run")
    assert "--user: tidegate may not enter" in said
    assert "python3 -m venv /opt/tidegate" in said
