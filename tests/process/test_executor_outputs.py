"""What a job names as its outputs is in the store once its workers are gone, and nothing else."""

import os
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.store import CheckpointStore
from runtime.core import GangCompleted, GangFailed, GangStopped, OutputsStored
from runtime.executors import outputs
from runtime.executors.tenants import Tenants
from schemas.programs import Program
from tests.process.test_executor_isolation import FIRST, need_root, place, start
from tests.workers import Bench, bench, shell

__all__ = ["place"]
WRITES = (
    "mkdir -p out/sub; echo 1 > out/a.csv; echo 2 > out/sub/b.csv; echo 3 > c.txt; echo 4 > d.bin"
)


def kept(jig: Bench, epoch: int = 1, job: str = "j") -> dict[str, str]:
    """Give what the store has of a job's outputs."""
    folder = jig.root / "store" / job / "outputs" / str(epoch)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text().strip() for path in files}


def test_outputs_are_in_the_store_when_the_job_is_said_to_be_complete(jig: Bench) -> None:
    jig.start(shell(WRITES, outputs=["out", "*.txt", "none/*.x"]))
    jig.hears(GangCompleted)
    (said,) = jig.all(OutputsStored)
    assert kept(jig) == {"out/a.csv": "1", "out/sub/b.csv": "2", "c.txt": "3"}
    assert (said.files, said.size_mib) == (3, 1)
    assert said.uri == f"file://{jig.root}/store/j/outputs/1"
    assert said.left_out == "none/*.x: there is none"


def test_of_a_gang_that_fails_what_is_there_is_kept_and_gives_way_to_the_next(jig: Bench) -> None:
    jig.start(shell(f"{WRITES}; exit 3", outputs=["out/**/b.csv", "x"]))
    jig.hears(GangFailed)
    assert kept(jig) == {"out/sub/b.csv": "2"}
    jig.start(shell("exit 3", outputs=["x"]), epoch=2)
    jig.hears(GangFailed, 2)
    assert len(jig.all(OutputsStored)) == 1, "there is nothing to tell of"
    jig.start(shell(WRITES, outputs=["c.txt"]), epoch=3)
    jig.hears(GangCompleted)
    assert kept(jig, 3) == {"c.txt": "3"}
    assert kept(jig) == {}


def test_who_is_told_to_leave_leaves_nothing_behind_yet(jig: Bench) -> None:
    jig.begins(shell(f"{WRITES}; sleep 1000", outputs=["out"]))
    jig.ends()
    assert jig.all(OutputsStored) == []
    assert jig.all(GangStopped)
    assert kept(jig) == {}


def test_what_is_no_plain_file_or_too_much_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the agent's")
    text = (
        f"mkdir out; ln -s {tmp_path}/secret out/link; mkfifo out/pipe; ln -s {tmp_path} out/way; "
        "head -c 3000000 /dev/zero > out/large; echo 1 > out/small; touch \"$(printf 'out/a\\nb')\""
    )
    with bench(tmp_path, outputs_max_mib=2) as jig:
        jig.start(shell(text, outputs=["out"]))
        jig.hears(GangCompleted)
        (said,) = jig.all(OutputsStored)
        assert kept(jig) == {"out/small": "1"}
        for word in ("out/link: is no plain file", "out/pipe: is no", "out/large: more than 2 MiB"):
            assert word in said.left_out
        assert "the agent's" not in str(kept(jig))


class Away(CheckpointStore):
    """A store that is away for its first tries."""

    tries = 0

    def keep_output(self, *what: Any) -> None:
        self.tries += 1
        if self.tries < 3:
            raise CheckpointError("the store is away")
        super().keep_output(*what)


def test_a_pattern_names_what_it_says_however_many_folders_it_leaves_open(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"a" * 40)
    deep.mkdir(parents=True)
    for path in ("x", "a/x", "a/a/a/y"):
        (tmp_path / path).touch()
    many = "/".join(["**"] * 20)
    for pattern, files in {
        f"{many}/y": ["a/a/a/y"],
        f"{many}/a/**/a/{many}/x": [],
        "**/x": ["a/x", "x"],
        "**/a/x": ["a/x"],
        "a/**/a/y": ["a/a/a/y"],
        "a/*": ["a/a/a/y", "a/x"],
        "*/x": ["a/x"],
        "a/a/**": ["a/a/a/y"],
        "**": ["a/a/a/y", "a/x", "x"],
    }.items():
        assert sorted(outputs.find(tmp_path, [pattern], 1).files) == files, pattern


def test_a_job_is_complete_once_the_store_has_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_WAIT_S", 0.01)
    store = Away(f"file://{tmp_path}/store")
    with bench(tmp_path, store=store) as jig:
        jig.start(shell(WRITES, outputs=["c.txt"]))
        jig.hears(GangCompleted)
        assert store.tries == 3
        assert kept(jig) == {"c.txt": "3"}


class Shaky(CheckpointStore):
    """A store that is away after each file."""

    calls = 0

    def keep_output(self, *what: Any) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            raise CheckpointError("the store is away")
        super().keep_output(*what)


def test_over_a_link_that_lasts_for_a_file_at_a_time_all_come_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try began with the first one again, and none ever ended."""
    monkeypatch.setattr(outputs, "_WAIT_S", 0.01)
    store = Shaky(f"file://{tmp_path}/store")
    with bench(tmp_path, store=store) as jig:
        jig.start(shell(WRITES, outputs=["*"]))
        jig.hears(GangCompleted)
        assert store.calls == 7
        assert sorted(kept(jig)) == ["c.txt", "d.bin", "out/a.csv", "out/sub/b.csv"]


def test_a_name_as_long_as_a_disk_takes_is_kept_and_one_that_no_store_takes_is_left_out(
    jig: Bench,
) -> None:
    """The job was tried for ever, and held its GPUs."""
    long = "a" * 255
    program = shell(f"echo 1 > {long}; echo 2 > c", outputs=["*"])
    jig.start(program)
    jig.hears(GangCompleted)
    assert kept(jig) == {long: "1", "c": "2"}
    # A path may have 4095 bytes.
    deep = f"{jig.root}/{'/'.join(['s' * 99] * 40)}"[:3900].rstrip("/")
    with bench(jig.root / "far", store=CheckpointStore(f"file://{deep}")) as far:
        far.start(shell(f"head -c 3000000 /dev/zero > {long}; echo 2 > c", outputs=["*"]))
        far.hears(GangCompleted)
        (said,) = far.all(OutputsStored)
        assert (said.files, said.size_mib) == (1, 1)
        assert f"{long}: its name is longer than a store takes" in said.left_out


@need_root
def test_a_tenants_outputs_are_read_as_its_user(place: Path) -> None:
    secret = place / "secret"
    secret.mkdir(mode=0o700)
    (secret / "key").write_text("the agent's")
    tenants = Tenants(place / "agent", FIRST)
    with bench(place, tenants=tenants) as site:
        # Its workdir is a way to where it may not go itself.
        program = Program(argv=["true"], workdir=str(place), outputs=["secret", "agent"])
        start(site, "red", program)
        site.hears(GangCompleted)
        assert kept(site) == {}
        assert os.geteuid() == 0


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "", "a\nb", "a//b"])
def test_outputs_are_within_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="outputs"):
        Program(argv=["true"], outputs=[path])
