"""A service that starts warns of secrets that every user of the machine can read."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from services import process
from services.config import Config, load
from services.metrics import RoleName, Sample
from services.secret_files import open_to_all

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


class Brief:
    """A role that has nothing to do."""

    async def run(self) -> None:
        """End at once."""

    def stop(self) -> None:
        """Nothing was begun."""

    async def refresh(self) -> None:
        """Nothing needs it."""

    def problems(self) -> list[str]:
        return []

    def details(self) -> dict[str, object]:
        return {}

    def samples(self) -> Iterable[Sample]:
        return ()


def config(folder: Path, key: Path) -> Config:
    file = folder / "tidegate.toml"
    file.write_text(
        f'[http]\nport = "off"\n[kafka]\nbootstrap = "k:1"\n[scheduler]\nsigning_key_id = "k"\n'
        f'signing_key_file = "{key}"\n[gateway.auth]\nsecret_file = "{key}"\n'
    )
    return load(file)


@pytest.mark.parametrize(
    ("mode", "may"),
    [(0o644, "read"), (0o642, "write"), (0o646, "read and write"), (0o640, ""), (0o600, "")],
)
def test_a_service_warns_of_its_secrets_that_all_can_read_or_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, may: str
) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(mode)
    found = config(tmp_path, key)

    def warned(role: RoleName) -> list[str]:
        assert process.serve(role, "x", found, lambda _: Brief()) == 0, "it starts all the same"
        said = map(json.loads, capsys.readouterr().err.splitlines())
        return [one["event"] for one in said if one["level"] == "warning"]

    expected = (
        f"scheduler.signing_key_file: every user of this machine can {may} {key} "
        f"(mode {mode:04o}); chmod o= {key}, or have it mounted so"
    )
    assert warned("scheduler") == ([expected] if may else [])
    assert warned("bridge") == [], "it does not read that file"
    of_gateway = [sentence.split(":")[0] for sentence in open_to_all(found, "gateway")]
    assert of_gateway == (["gateway.auth.secret_file"] if may else [])
    key.unlink()
    assert list(open_to_all(found, "gateway")) == [], "who needs it says that it is not there"


@pytest.mark.timeout(20)
def test_a_certificate_that_is_no_file_is_left_to_whom_it_is_for(tmp_path: Path) -> None:
    """To open a pipe to which nobody writes takes for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in (str(pipe), "a\0b", str(tmp_path), str(tmp_path / "none")):
        config = load(None, [f"mqtt.cert_file={name}"])
        assert list(open_to_all(config, "edge-agent")) == []
