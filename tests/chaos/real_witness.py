"""An outside witness of real work: who uses which GPU, from /proc and the lock files alone.

    python -m tests.chaos.real_witness FOLDER OUT

Imports nothing of Tidegate. Several times a second it looks at every process of the machine and
writes a line to OUT for each moment at which, below FOLDER,

    two_epochs   workers of two epochs of one job live, or of two lives of one epoch
    shared_gpu   two tenants, epochs of jobs or replicas of an owner, have one GPU
    no_lock      a tenant lives that does not hold the lock file of a GPU of its own

Replicas of one owner may share a GPU. Of checkpoints below FOLDER/store it notes when each was
first seen to be durable. On SIGTERM it says how much it has looked.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["two_epochs", "shared_gpu", "no_lock"]
EVERY_S = 0.15
#: What replicas of an owner say of themselves, as the witness's deployments configure them.
OWNER, OF_FOLDER = b"WITNESS_OWNER", b"WITNESS_FOLDER"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process that may use GPUs."""

    pid: int
    started: int  #: Clock ticks since boot: a pid is used again, both together are not.
    name: str  #: `job epoch N`, or `owner`: replicas share.
    job: str  #: Empty for an owner's.
    session: int  #: The supervisor that began it, alive or not.
    gpus: frozenset[str]
    locked: frozenset[str]  #: GPUs whose lock file it holds, itself or by inheritance.

    def lives_on(self) -> bool:
        """Whether it is still there, with its memory: one that is just dying uses no GPU."""
        return _started(self.pid) == self.started and bool(_environ(self.pid))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must never be."""

    kind: Kind
    text: str


def look(folder: Path) -> list[Tenant]:
    """Give the tenants whose files are below the folder."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    found = (_tenant(pid, os.fsencode(folder)) for pid in pids)
    return [tenant for tenant in found if tenant is not None]


def judge(tenants: Sequence[Tenant]) -> Iterator[Finding]:
    """Find what must not be; of processes that were really there at the same moment.

    A look takes a while. So both of a pair must outlive it: then they were there together.
    """
    for tenant in tenants:
        missing = tenant.gpus - tenant.locked
        if missing and missing <= tenant.gpus - _locked(tenant.pid) and tenant.lives_on():
            yield Finding("no_lock", f"{_said(tenant)} does not hold {sorted(missing)}")
    for one, other in itertools.combinations(tenants, 2):
        if one.name == other.name and (not one.job or one.session == other.session):
            continue
        shared = one.gpus & other.gpus
        if not shared and not (one.job and one.job == other.job):
            continue
        if one.lives_on() and other.lives_on():
            both = f"{_said(one)} and {_said(other)}"
            if shared:
                yield Finding("shared_gpu", f"{both} have {sorted(shared)}")
            if one.job and one.job == other.job:
                yield Finding("two_epochs", both)


def _tenant(pid: int, folder: bytes) -> Tenant | None:
    said = dict(part.split(b"=", 1) for part in _environ(pid) if b"=" in part)
    is_worker = said.get(b"TIDEGATE_CHECKPOINT_DIR", b"").startswith(folder + b"/")
    started = _started(pid)
    if started is None or (b"TIDEGATE_NODE" not in said if is_worker else OWNER not in said):
        return None  # among those without a node are the supervisors, which use no GPU
    if not is_worker and said.get(OF_FOLDER) != folder:
        return None
    gpus = frozenset(filter(None, said.get(b"CUDA_VISIBLE_DEVICES", b"").decode().split(",")))
    job = said[b"TIDEGATE_JOB"].decode() if is_worker else ""
    name = f"{job} epoch {said[b'TIDEGATE_EPOCH'].decode()}" if is_worker else "owner"
    try:
        session = os.getsid(pid)
    except ProcessLookupError:
        return None
    return Tenant(pid, started, name, job, session, gpus, _locked(pid))


def _environ(pid: int) -> list[bytes]:
    try:
        return [part for part in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if part]
    except OSError:
        return []


def _started(pid: int) -> int | None:
    """Give when the process began; None if there is none, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


def _locked(pid: int) -> frozenset[str]:
    """Give the GPUs whose lock the process holds, by the open files that the kernel says have it.

    A lock file that was removed locks nothing: whoever comes next makes another.
    """
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                path = link.readlink()  # "... (deleted)" if it is no file any more
                if path.name.startswith("gpu-") and path.suffix == ".lock":
                    if "FLOCK" in Path(f"/proc/{pid}/fdinfo/{link.name}").read_text():
                        found.add(path.stem.removeprefix("gpu-"))
    return frozenset(found)


def _said(tenant: Tenant) -> str:
    return f"{tenant.name} (process {tenant.pid}, GPUs {','.join(sorted(tenant.gpus))})"


def _durable(store: Path, known: set[str]) -> Iterator[dict[str, Any]]:
    """Give the checkpoints that have become durable since the last look."""
    for manifest in store.glob("*/*-*/manifest.json"):
        name = str(manifest.parent.relative_to(store))
        if name not in known:
            known.add(name)
            epoch, _, step = manifest.parent.name.partition("-")
            yield {"job": manifest.parent.parent.name, "epoch": int(epoch), "step": int(step)}


def watch(folder: Path, out: Path) -> None:
    """Look until SIGTERM, and once more after it: what was there when it came is seen whole."""
    asked: list[int] = []
    last = False
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    known: set[str] = set()
    told: set[Finding] = set()
    names: set[str] = set()
    scans, most, longest_s, before_s = 0, 0, 0.0, time.monotonic()
    with out.open("a", buffering=1) as file:

        def write(kind: str, **fields: Any) -> None:
            file.write(json.dumps({"kind": kind, "at_s": time.time(), **fields}) + "\n")

        write("began")
        while not last:
            last = bool(asked)
            tenants = look(folder)
            for finding in set(judge(tenants)) - told:
                told.add(finding)
                write(finding.kind, text=finding.text)
            for one in _durable(folder / "store", known):
                write("durable", **one)
            names.update(tenant.name for tenant in tenants)
            scans, most = scans + 1, max(most, len(tenants))
            if not asked:
                time.sleep(EVERY_S)
            now_s = time.monotonic()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        write(
            "ended", scans=scans, tenants=len(names), most=most, longest_gap_s=round(longest_s, 2)
        )


def main() -> int:
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m tests.chaos.real_witness FOLDER OUT\n")
        return 2
    watch(Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
