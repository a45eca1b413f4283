"""Fetches the code of a job, once, and unpacks it for each run into the folder of its workers.

Whoever submits a job names its archive, and the agent fetches with its own rights, from its own
network: so only from where its operator allows. It is unpacked by another process
(`runtime.jobcode.unpacking`), as the user of the job.
"""

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import runtime
from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.filesystem import Filesystem
from runtime.jobcode.unpacking import UNFIT
from runtime.untrusted_files import open_regular_file
from schemas.programs import Program

#: The folder, within a job's, of its archive and of what is unpacked for a run to come.
CODE = "code"
#: In a place from which code may be fetched, this stands for the name of the job's tenant.
TENANT = "{tenant}"
_MIB = 1024 * 1024
_PIECE = _MIB
#: Unpacking may take so long, in seconds.
_UNPACK_S = 900.0
_LOOK_S = 0.1


class CodeRefused(Exception):
    """The code may not be fetched or cannot be unpacked, however often one tries; says why."""


@dataclass(frozen=True, slots=True)
class CodeSource:
    """A job's code, and what the agent allows of it."""

    program: Program
    tenant: str | None
    #: Places from which it may be fetched: what its address must begin with.
    allowed: Sequence[str]
    #: The most MiB that it may have, as an archive and unpacked.
    mib_max: int
    #: As whom it is unpacked; None: as the agent's own user.
    uid: int | None


def split_address(url: str, tenant: str | None, allowed: Sequence[str]) -> tuple[str, str]:
    """Split an address into the allowed place that it is in, and the rest.

    Raises:
        CodeRefused: it is in none.
    """
    for place in allowed:
        if TENANT in place and tenant is None:
            continue
        begin = place.replace(TENANT, str(tenant)).rstrip("/") + "/"
        if url.startswith(begin):
            return begin.rstrip("/"), url.removeprefix(begin)
    own = [place.replace(TENANT, tenant or TENANT) for place in allowed]
    if not own:
        raise CodeRefused(
            "code: this agent fetches no code; its operator allows it by "
            f'agent.workers.code = ["{url.rpartition("/")[0]}"] (asked for: {url})'
        )
    raise CodeRefused(
        f"code: this agent fetches code from {', '.join(own)} alone; put it there, or ask its "
        f"operator to add the place to agent.workers.code (asked for: {url})"
    )


def fetch_code(source: CodeSource, job: Path, stop: threading.Event) -> Path:
    """Fetch the code and unpack it; give the folder, which the caller moves. Blocks.

    Args:
        source: What to fetch, and the limits.
        job: The folder of all runs of the job.
        stop: Set it to give up.

    Raises:
        CodeRefused: it is not allowed, has another digest than was named, or cannot be unpacked.
        CheckpointError: it cannot be fetched now; it may be possible later.
        OSError: the disk refused it.
    """
    folder = job / CODE
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive = _fetch_archive(source, folder, stop)
    into = Path(tempfile.mkdtemp(prefix="unpacked-", dir=folder))
    try:
        if source.uid is not None:
            os.chown(into, source.uid, source.uid)
        _unpack(source, archive, into, stop)
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise
    return into


def _fetch_archive(source: CodeSource, folder: Path, stop: threading.Event) -> Path:
    """Give the archive: fetched once if its digest is named, else for every run."""
    url, digest = str(source.program.code), source.program.code_sha256
    place, rest = split_address(url, source.tenant, source.allowed)
    path = folder / ("archive" if digest is None else digest)
    if digest is not None and _digest_of(path) == digest:
        return path
    for left in folder.glob("draft*"):  # of an agent that was killed, or a fetch that was given up
        left.unlink(missing_ok=True)
    # Of its own: a fetch that was given up may still wait for its store.
    draft = folder / f"draft-{secrets.token_hex(8)}"
    most, hashed, size = source.mib_max * _MIB, hashlib.sha256(), 0
    try:
        with Filesystem(place).reading(rest) as stream, draft.open("xb") as file:
            while piece := stream.read(_PIECE):
                size += len(piece)
                if stop.is_set():
                    raise CheckpointError(f"{url}: stopped")
                if size > most:
                    raise CodeRefused(
                        f"code: {url} has more than {source.mib_max} MiB, which is the most that "
                        "this agent takes (agent.workers.code_max_mib); leave data out of it"
                    )
                hashed.update(piece)
                file.write(piece)
        if digest is not None and hashed.hexdigest() != digest:
            raise CodeRefused(
                f"code_sha256: {url} has {hashed.hexdigest()}, not {digest}; see who replaced it, "
                "or name the new one"
            )
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _digest_of(path: Path) -> str | None:
    found = hashlib.sha256()
    try:
        with open_regular_file(path) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError:
        return None
    return found.hexdigest()


def _unpack(source: CodeSource, archive: Path, into: Path, stop: threading.Event) -> None:
    url = str(source.program.code)
    kind = "zip" if url.endswith(".zip") else "tar"
    user = "-" if source.uid is None else str(source.uid)
    with open_regular_file(archive) as file:
        process = subprocess.Popen(
            # Without site packages: it needs the standard library alone.
            [sys.executable, "-P", "-S", "-X", "utf8", "-m", "runtime.jobcode.unpacking",
             kind, user, str(source.mib_max * _MIB)],
            cwd=into,
            env={"PYTHONPATH": str(Path(runtime.__file__).parent.parent)},
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        with process:
            said = _wait_for_end(process, stop)
    if process.returncode == UNFIT:
        raise CodeRefused(f"code: {url} is not unpacked: {said}; pack it again without that")
    if process.returncode != 0:
        how = said or f"what unpacks it ended with {process.returncode}"
        raise CheckpointError(f"{url}: could not be unpacked: {how}")


def _wait_for_end(process: "subprocess.Popen[bytes]", stop: threading.Event) -> str:
    """Wait for the process, and give the end of its output. Kills it when stopped or late."""
    for _ in range(int(_UNPACK_S / _LOOK_S)):
        try:
            _, said = process.communicate(timeout=_LOOK_S)
            break
        except subprocess.TimeoutExpired:
            if stop.is_set():
                process.kill()
    else:
        process.kill()
        _, said = process.communicate()
    text = said.decode(errors="replace")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[-500:]
