"""Gangs begin in the code that their job names, unpacked as their user, or say why they do not."""

import gzip
import hashlib
import stat
import tarfile
from pathlib import Path
from typing import Any

from console.packing import Packed, packed
from runtime.core import GangCompleted, GangFailed, GangStarted
from runtime.executors.tenants import Tenants
from runtime.jobcode.fetching import CODE
from schemas.programs import Program
from tests.archives import entry, tar
from tests.process.test_executor_isolation import FIRST, need_root, output, place, start
from tests.workers import TRAINER, Bench, bench, kill_all

__all__ = ["place"]


def archive(tmp_path: Path, **files: str) -> Packed:
    """Put a folder of these files into the store."""
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    for name, text in files.items():
        (source / f"{name}.py").write_text(text)
    made = packed(str(source), f"file://{tmp_path}/shared")
    made.told()
    return made


def runs(made: Packed, /, *arguments: str, **more: Any) -> Program:
    program = {"argv": ["python3", *arguments], "code": made.url, "code_sha256": made.sha256}
    return Program.model_validate({**program, **more})


def fails(jig: Bench, program: Program, job: str = "j") -> GangFailed:
    """Order a start; give why it fails."""
    before = len(jig.all(GangFailed))
    jig.start(program, job=job)
    jig.until(lambda: len(jig.all(GangFailed)) > before)
    return jig.all(GangFailed)[-1]


def test_workers_begin_in_the_code_also_at_another_size_and_without_its_store(
    tmp_path: Path,
) -> None:
    code = archive(tmp_path, train="import steps", steps=TRAINER)
    with bench(tmp_path, code=(f"file://{tmp_path}/shared",)) as jig:
        jig.trains(runs(code, "-u", "train.py"), 0)
        assert (jig.run() / "work" / "steps.py").read_text() == TRAINER
        (tmp_path / "shared").rename(tmp_path / "away")
        reached = jig.step()
        jig.scale(0, 1, epoch=2)
        jig.until(lambda: jig.step() > reached and len(jig.all(GangStarted)) == 2)
        assert jig.run(2).joinpath("work", "steps.py").exists()
        jig.ends(2)
        assert jig.all(GangFailed) == []


def test_a_run_whose_supervisor_was_never_started_begins_in_its_code(tmp_path: Path) -> None:
    code = archive(tmp_path, train=TRAINER)
    with bench(tmp_path, code=(f"file://{tmp_path}/shared",)) as jig:
        jig.trains(runs(code, "-u", "train.py"), 0)
        jig.executor.close()
        kill_all(jig.agent)
        (jig.run() / "shim.json").unlink()
        (jig.run() / "work" / "train.py").unlink()
        jig.executor = jig.make()
        jig.hears(GangStarted, 2)
        assert (jig.run() / "work" / "train.py").read_text() == TRAINER
        assert jig.all(GangFailed) == []


def test_at_its_end_the_archive_is_gone(tmp_path: Path) -> None:
    code = archive(tmp_path, train="print('here')")
    with bench(tmp_path, code=(f"file://{tmp_path}",)) as jig:
        jig.start(runs(code, "train.py"))
        jig.hears(GangCompleted)
        assert (jig.run() / "logs" / "rank-0.log").read_text() == "here\n"
        jig.until(lambda: not (jig.run().parent / CODE).exists())
        assert (jig.run() / "work" / "train.py").exists()


def test_code_that_may_not_be_is_refused_for_good_and_what_is_away_is_not(tmp_path: Path) -> None:
    code = archive(tmp_path, train="print('here')")
    with bench(tmp_path) as jig:
        said = fails(jig, runs(code, "train.py"))
        assert "this agent fetches no code" in said.error
        assert not said.retriable
    with bench(tmp_path, code=(f"file://{tmp_path}/shared",)) as jig:
        for program, word, retriable in (
            (runs(code, "train.py", code_sha256="0" * 64), "code_sha256: ", False),
            (runs(code, code=f"{code.url[:-7]}x.zip"), "it is not there", True),
        ):
            said = fails(jig, program, f"j{retriable}")
            assert word in said.error
            assert (said.retriable, said.ran) == (retriable, False)
        assert not (jig.options.root / "runs" / "jFalse" / CODE / code.sha256).exists()


def hostile(folder: Path, made: bytes) -> Program:
    """Put an archive that nobody may have packed where code comes from."""
    folder.mkdir(exist_ok=True)
    name = f"{hashlib.sha256(made).hexdigest()}.tar.gz"
    (folder / name).write_bytes(made)
    return Program(argv=["true"], code=f"file://{folder}/{name}")


def test_hostile_archives_end_the_job_and_touch_nothing(tmp_path: Path) -> None:
    out = tar(entry("out", tarfile.SYMTYPE, "/etc"))
    bomb, above = tar((entry("bomb"), bytes(3 * 2**20))), tar(entry("../../x"))
    with bench(tmp_path, code=(f"file://{tmp_path}/shared",), code_max_mib=2) as jig:
        before = sorted(path.name for path in jig.options.root.iterdir())
        for number, (made, word) in enumerate(
            ((out, "leads out of the folder"), (bomb, "more than 2 MiB"), (above, "leads out of"))
        ):
            said = fails(jig, hostile(tmp_path / "shared", made), f"j{number}")
            assert (word in said.error, said.retriable) == (True, False), said
            assert list((jig.options.root / "runs").glob("*/x")) == []
        assert before == sorted(path.name for path in jig.options.root.iterdir())


def test_what_needs_too_much_memory_is_ended(tmp_path: Path) -> None:
    head, zeros = tarfile.TarInfo("head"), bytes(2**24)
    head.type, head.size = tarfile.XHDTYPE, 2**31
    shared = tmp_path / "shared"
    shared.mkdir()
    with gzip.open(shared / "a.tgz", "wb", 1) as file:
        file.write(head.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(40):
            file.write(zeros)
    with bench(tmp_path, code=(f"file://{shared}",)) as jig:
        said = fails(jig, Program(argv=["true"], code=f"file://{shared}/a.tgz"))
        assert "more memory to be unpacked than it may have" in said.error


@need_root
def test_code_is_its_tenants_and_only_that_tenant_reads_it(place: Path) -> None:
    code = archive(place, train="import os; print(os.getuid(), os.stat('train.py').st_uid)")
    (place / "shared").chmod(0o700)  # the agent fetches, not the job
    tenants = Tenants(place / "agent", FIRST)
    with bench(place, tenants=tenants, code=(f"file://{place}/shared",)) as site:
        start(site, "red", runs(code, "train.py", argv=["sh", "-c", "stat -c '%u %a' . *"]))
        site.hears(GangCompleted)
        lines = [line.split() for line in output(site).splitlines()]
        assert lines == [[str(FIRST), "700"], [str(FIRST), "600"]]
        top = (site.run() / "work").stat()
        assert (top.st_uid, stat.S_IMODE(top.st_mode)) == (FIRST, 0o700)
        assert site.run().stat().st_uid == 0
