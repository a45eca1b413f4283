"""The doctor's checks of disks, of the store, and of who may read and write which file."""

import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from bus.clock import SystemClock
from runtime.trees import remove_tree
from services.config import ConfigError
from services.doctor import (
    bus,
    certificates,
    context,
    disk,
    permissions,
    store,
)
from services.doctor.context import load_context
from services.install.systemd import Unit
from tests.process.test_executor_isolation import need_root
from tests.process.ward import Ward, as_nobody, ward
from tests.workers import DEEP

__all__ = ["ward"]  # the fixture


def test_the_store_is_tried_and_left_clean(ward: Ward) -> None:
    assert ward.only(store.check).verdict == "ok"
    assert list((ward.folder / "store").iterdir()) == []


def test_a_store_whose_kind_is_unknown_or_that_refuses(ward: Ward) -> None:
    ward.settings["agent.workers.checkpoints"] = "ftpx://b/c"
    assert "use file:///folder" in ward.only(store.check).fix
    (ward.folder / "file").write_text("")
    ward.settings["agent.workers.checkpoints"] = f"file://{ward.folder}/file"
    assert ward.only(store.check).verdict == "problem"


def test_room_is_counted_in_checkpoints(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.verdict for one in ward.says(disk.check)} <= {"ok", "warning"}
    saved = ward.folder / "runs/runs/j/1/checkpoints/step-1"
    saved.mkdir(parents=True)
    (saved / "w").write_bytes(b"x" * 2**20)
    assert "3 checkpoints of 1 MiB" in ward.says(disk.check)[-1].found
    usage = type("Usage", (), {"free": 2**20})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    found = ward.says(disk.check)[-1]
    assert found.verdict == "problem"
    assert "free 1 MiB there" in found.fix


def test_room_is_counted_whatever_a_job_has_put_into_its_checkpoint(ward: Ward) -> None:
    saved = ward.folder / "runs/runs/j/1/checkpoints/step-1"
    saved.mkdir(parents=True)
    (saved / "w").write_bytes(b"x" * 2**20)
    (saved / "latest").symlink_to("gone")
    (ward.folder / "large").write_bytes(b"x" * 2**22)
    (saved / "link").symlink_to(ward.folder / "large")
    (saved.parent / "link").symlink_to(ward.folder / "large")
    subprocess.run([sys.executable, "-c", DEEP, saved, "1000"], check=True)
    found = ward.says(disk.check)[-1].found
    remove_tree(saved)
    assert "3 checkpoints of 1 MiB" in found


def test_what_the_job_holds_already_need_not_be_free(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job, epoch, mib in (("j", 1, 3), ("j", 2, 4), ("small", 1, 1)):
        saved = ward.folder / f"runs/runs/{job}/{epoch}/checkpoints/step"
        saved.mkdir(parents=True)
        (saved / "w").write_bytes(b"x" * mib * 2**20)
    usage = type("Usage", (), {"free": 5 * 2**20})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    # 12 MiB for three, of which the job holds 7.
    assert ward.says(disk.check)[-1].verdict == "ok"
    usage.free -= 1
    assert ward.says(disk.check)[-1].verdict == "problem"
    # However much it holds, the next one wants room.
    (ward.folder / "runs/runs/j/1/checkpoints/more").write_bytes(b"x" * 4 * 2**20)
    assert ward.says(disk.check)[-1].verdict == "ok"
    usage.free = 4 * 2**20 - 1
    assert ward.says(disk.check)[-1].verdict == "problem"


def test_the_file_system_of_a_path_is_that_of_the_longest_mount(tmp_path: Path) -> None:
    line, mounts = "1 1 0:1 / {} rw - {} none rw\n", tmp_path / "mountinfo"
    mounts.write_text(
        "".join(
            line.format(*one)
            for one in (
                ("/", "ext4"),
                ("/usr", "xfs"),
                ("/us", "nfs"),
                ("/usr/with\\040x", "tmpfs"),
            )
        )
    )
    assert disk.filesystem(Path("/usr/lib"), mounts) in ("xfs", "ext4")
    assert disk.filesystem(Path("/usr/with x/y"), mounts) == "tmpfs"
    assert disk.filesystem(Path("/nowhere"), mounts) == "ext4"


def test_a_mount_point_that_is_not_utf8_ends_no_check(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        more = b"9 1 0:9 / /mnt/\xff rw - ext4 none rw\n"
        return real(path) + (more if path.name == "mountinfo" else b"")

    monkeypatch.setattr(Path, "read_bytes", read)
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: read(path).decode(encoding))
    assert {one.verdict for one in ward.says(disk.check)} <= {"ok", "warning"}
    assert [one.verdict for one in ward.says(store.check)] == ["ok"]


def test_a_disk_that_takes_no_more_files_is_a_problem(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_files=1000, f_favail=0, f_frsize=1, f_bavail=0, f_blocks=0, f_bfree=0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**40))
    monkeypatch.setattr("os.statvfs", lambda _: full)
    assert {one.verdict for one in ward.says(disk.check)} == {"problem"}
    full.f_files = 0  # btrfs, which has no table of them
    assert {one.verdict for one in ward.says(disk.check)} == {"ok"}


def test_a_folder_in_memory_forgets(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "filesystem", lambda *_: "tmpfs")
    found = ward.says(disk.check)
    assert "set agent.workers.folder to a folder on a disk" in [one.fix for one in found]


def test_a_folder_that_cannot_be_written(ward: Ward) -> None:
    (ward.folder / "runs").chmod(0o500)
    found = as_nobody(ward, "permissions")
    closed = [one for one in found if one.found.startswith("agent.workers.folder")]
    assert closed or found[0].found.startswith("agent.state_file")
    assert {one.verdict for one in found} == {"problem"}
    assert "may not write in" in found[0].found
    assert "chown" in found[0].fix


def test_where_all_may_be_written_that_is_said(ward: Ward) -> None:
    assert ward.only(permissions.check).verdict == "ok"


def test_an_agent_that_cannot_keep_tenants_apart(ward: Ward) -> None:
    ward.settings["agent.workers.isolation"] = "tenant"
    *_, found = as_nobody(ward, "permissions")
    assert "is not root" in found.found
    assert 'isolation = "none"' in found.fix
    ward.settings["agent.runs"] = "slurm"
    found = ward.only(permissions.check)
    assert (found.verdict, "Slurm" in found.found) == ("problem", True)
    ward.settings["agent.workers.isolation"] = "none"
    assert ward.only(permissions.check).verdict == "ok"


@need_root
def test_a_folder_that_is_closed_to_tenants_users(ward: Ward) -> None:
    with tempfile.TemporaryDirectory() as closed:
        ward.settings["agent.workers.isolation"] = "tenant"
        ward.settings["agent.workers.folder"] = f"{closed}/runs"
        found = ward.only(permissions.check)
        assert (found.verdict, found.fix.partition(",")[0]) == ("problem", f"chmod o+x {closed}")
        Path(closed).chmod(0o711)
        assert ward.only(permissions.check).verdict == "ok"
        (behind := Path(closed, "behind")).mkdir(mode=0o700)
        for end in (behind, behind / "open"):
            end.mkdir(exist_ok=True)
            (link := Path(closed, f"to-{end.name}")).symlink_to(end)
            ward.settings["agent.workers.folder"] = link / "runs"
            assert ward.only(permissions.check).fix.startswith(f"chmod o+x {behind}, ")


@pytest.mark.parametrize("option", ["mqtt.key_file", "gateway.auth.secret_file"])
def test_a_key_that_everybody_can_read(ward: Ward, option: str) -> None:
    key = ward.folder / "agent.key"
    key.write_text("secret")
    key.chmod(0o644)
    ward.settings[option] = key
    del ward.settings["bus"]
    found = ward.only(permissions.check)
    assert "every user of this machine can read" in found.found
    assert found.fix.startswith(f"chmod o= {key}")
    key.chmod(0o640)
    assert ward.only(permissions.check).verdict == "ok"
    key.unlink()
    assert f"correct {option}" in ward.only(permissions.check).fix


@pytest.mark.parametrize("section", ["mqtt", "kafka"])
def test_a_certificate_with_its_key_that_everybody_can_read(ward: Ward, section: str) -> None:
    both = ward.folder / "agent.pem"
    both.write_text("-----BEGIN CERTIFICATE-----\n")
    both.chmod(0o644)
    ward.settings[f"{section}.cert_file"] = both
    assert ward.only(permissions.check).verdict == "ok"
    both.write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n")
    assert ward.only(permissions.check).found.startswith(f"{section}.cert_file: every user of")


@pytest.mark.parametrize(
    "line",
    ["password = 'x'", "'password'=\"x\"", "url = 'mqtt://u:x@b'"],
)
def test_a_configuration_with_a_password_that_everybody_can_read(ward: Ward, line: str) -> None:
    file = ward.folder / "own.toml"
    file.write_text(f"[mqtt]\n{line}\n")
    file.chmod(0o644)
    found = ward.only(permissions.check, file=file)
    assert (found.verdict, found.fix.partition(";")[0]) == ("problem", f"chmod o= {file}")
    file.chmod(0o640)
    assert ward.only(permissions.check, file=file).verdict == "ok"


def test_a_services_environment_that_everybody_can_read(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ward.folder / "edge-agent.env"
    monkeypatch.setattr(permissions, "ENVIRONMENT", file)
    assert ward.only(permissions.check, unit=Unit({}, "")).verdict == "ok"
    file.write_text("AWS_SECRET_ACCESS_KEY=x\n")
    file.chmod(0o644)
    assert "edge-agent.env" in ward.only(permissions.check, unit=Unit({}, "")).found


def test_trusted_keys_are_read_as_the_agent_would(ward: Ward) -> None:
    ward.settings["agent.trusted_keys.k1"] = "/nope/k.pem"
    found = ward.only(certificates.check)
    assert found.verdict == "problem"
    assert found.found == "agent.trusted_keys.k1: /nope/k.pem: No such file or directory"
    assert "-pubout" in found.fix
    ward.settings["agent.trusted_keys.k1"] = "A" * 43 + "="
    assert ward.says(certificates.check) == []


def test_keys_of_another_kind_of_agent_stop_the_doctor_of_an_installed_one(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ward.folder / "own.toml"
    file.write_text("[agent]\nname = 'edge-17'\nnodes = ['a']\n")
    load_context(file, [], SystemClock())
    for name, value in (("CONFIG", file), ("find_unit", lambda *_: Unit({}, ""))):
        monkeypatch.setattr(context, name, value)
    monkeypatch.setattr(context, "_become", lambda _: None)
    with pytest.raises(ConfigError, match=r"agent\.nodes is for another kind"):
        load_context(file, [], SystemClock())


def test_a_bus_in_a_file(ward: Ward) -> None:
    assert ward.only(bus.check).verdict == "warning"
    (ward.folder / "bus.db").touch()
    assert ward.only(bus.check).verdict == "ok"
