"""Whose a demo's log is: one run at a time, gone on with as it was begun, kept when it is over."""

import fcntl
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from console.output import fail, say
from explain.moments import DEMO_START_S
from runtime.durable import write_file
from simulator.profiles import load_profiles
from simulator.scenario import Scenario, default_scenario, first_hour, scenario_for
from simulator.workload import read_workload

_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was begun with; kept beside its log, so that it can only go on as it began."""

    hours: float
    seed: int
    policy: str
    workload: str | None
    throughputs: str | None
    failures_per_gpu_hour: float

    @property
    def start_s(self) -> float:
        """When the simulated time begins, on a Monday in UTC; a trace's begins at midnight."""
        return DEMO_START_S + 3600.0 * (first_hour(self.hours) if self.workload is None else 0)

    @property
    def end_s(self) -> float:
        """When the simulated time is over."""
        return self.start_s + self.hours * 3600.0

    def document(self) -> dict[str, Any]:
        """Give what is kept of it beside its log."""
        return asdict(self) | {"start_s": self.start_s}

    def scenario(self) -> Scenario:
        """Make the world of the run.

        Raises:
            WorkloadError: the workload or the throughputs cannot be read.
        """
        if self.workload is None:
            return default_scenario(self.seed, self.hours)
        profiles = None if self.throughputs is None else load_profiles(Path(self.throughputs))
        workload = read_workload(Path(self.workload), profiles=profiles).fit(self.hours)
        return scenario_for(workload, self.seed, self.hours)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to, and how many messages the log held then that a scheduler reads."""

    result: dict[str, Any]
    said: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A log that no other demo gets, until this is closed or the process ends."""

    finished: Finished | None  #: None unless the run came to its end before.
    _lock: TextIO

    def __enter__(self) -> "Claim":
        """Hold the log within a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the log up."""
        self._lock.close()


def agents_dir(path: Path) -> Path:
    """Give the folder where the agents of a log keep their state."""
    return path.with_name(path.name + ".agents")


def _parameters(path: Path) -> Path:
    return agents_dir(path) / "run.json"


def claim(path: Path, run: Run, *, anew: bool = False) -> Claim:
    """Take a log for a run, so that no other demo gets it.

    With `anew`, a log that this run cannot go on with is set aside. Otherwise it must be of the
    same run, or not there.
    """
    if path.is_dir():
        fail(f"--log: {path} is a folder; name a file.")
    if not path.parent.is_dir():
        fail(f"--log: there is no folder {path.parent}.")
    if path.exists() and not _parameters(path).exists() and not anew:
        fail(f"{path} exists and is not a demo's log; give another --log.")
    agents_dir(path).mkdir(parents=True, exist_ok=True)
    lock = (agents_dir(path) / _LOCK).open("a")
    try:
        # Given up by the system when the process ends, however that comes about.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if anew:
            _set_aside(path, run)
        if not path.exists():
            _forget_agents(path)
        return Claim(_begun(path, run), lock)
    except BlockingIOError:
        lock.close()
        fail(f"{path} is in use by another demo; wait for its end, or give another --log.")
    except BaseException:
        lock.close()
        raise


def finish(path: Path, run: Run, result: dict[str, Any], said: int) -> None:
    """Keep what a run came to, and how many messages its log held then."""
    _write(_parameters(path), run, Finished(result, said))


def _set_aside(path: Path, run: Run) -> None:
    """Keep the log of another or a finished run as the previous one."""
    parameters = _parameters(path)
    if parameters.exists():
        with suppress(ValueError):
            if json.loads(parameters.read_text()) == run.document() | {"finished": False}:
                return
    elif not path.exists():
        return
    previous = path.with_name(f"{path.stem}.previous{path.suffix}")
    replaced = previous.exists()
    for suffix in ("", "-wal", "-shm"):
        previous.with_name(previous.name + suffix).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(previous.with_name(previous.name + suffix))
    agents_dir(previous).mkdir(exist_ok=True)
    for old in _files(agents_dir(previous)):
        old.unlink()
    for old in _files(agents_dir(path)):
        old.rename(agents_dir(previous) / old.name)
    before = "; the one before it is gone" if replaced else ""
    say(f"A new log begins; the last one is kept as {previous}{before}.")


def _forget_agents(path: Path) -> None:
    """Remove what agents remember of a log that is gone: they would disturb a new one."""
    found, parameters = _files(agents_dir(path)), _parameters(path)
    if found and parameters not in found:
        fail(f"{agents_dir(path)} holds what no demo wrote; move it away, or give another --log.")
    # What says whose they are goes last: it may be cut off.
    for one in sorted(found, key=lambda one: one == parameters):
        one.unlink()


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name != _LOCK)


def _begun(path: Path, run: Run) -> Finished | None:
    """Write the run's parameters, or check that they are the same."""
    parameters = _parameters(path)
    if not parameters.exists():
        _write(parameters, run, None)
        return None
    try:
        known = json.loads(parameters.read_text())
    except ValueError:
        known = None
    if not isinstance(known, dict):
        fail(f"{parameters} is damaged; restore it from a copy, or give another --log.")
    over = known.pop("finished", False)
    result, said = known.pop("result", None), known.pop("said", known.pop("events", 0))
    began_s = known.pop("start_s", DEMO_START_S)  # earlier versions began every run at midnight
    if known != asdict(run):
        different = [name for name, value in asdict(run).items() if known.get(name) != value]
        fail(
            f"{path} was begun with another {', '.join(different)}; "
            "give the same again, or another --log."
        )
    if began_s != run.start_s:
        fail(f"{path} was begun by another version, at another hour; give another --log.")
    return Finished(result, said) if over and result else None


def _write(parameters: Path, run: Run, finished: Finished | None) -> None:
    # Written whole or not at all: a crash in between must not leave a run that cannot go on.
    document = run.document() | {"finished": finished is not None}
    if finished is not None:
        document |= asdict(finished)
    write_file(parameters, (json.dumps(document, indent=1) + "\n").encode(), synced=False)
