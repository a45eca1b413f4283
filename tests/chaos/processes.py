"""Processes of the fleet: started, killed, stopped for a while, and never left behind."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from bus.options import KafkaOptions
from tests.brokers import Brokers

_MAIN = [sys.executable, "-c", "import sys; from console.main import main; sys.exit(main())"]
NAMESPACE = "chaos"
#: How long a process may take to end by itself before it is killed.
END_S = 10.0


class Process:
    """One service of Tidegate as a real process, with what it says in a file.

    What it says goes through a pipe, so that a full disk of the process (`fill_disk`) is not also
    a full disk of its log.
    """

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        self._command = [*_MAIN, *arguments]
        self._folder = folder
        self._popen: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._ours = True  #: That it does not run now is our doing.
        self._frozen = False
        self._closed = False
        self._starting = threading.Lock()
        #: When it ceased to run, for whatever reason, by the wall clock.
        self.deaths_s: list[float] = []

    @property
    def log_file(self) -> Path:
        return self._folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        if self._popen is None or self._popen.poll() is not None:
            return None
        return self._popen.pid

    def start(self) -> None:
        """Start it, unless it runs, or has been ended for good."""
        with self._starting:
            if self.pid is None and not self._closed:
                self._start()

    def _start(self) -> None:
        self._popen = subprocess.Popen(
            self._command,
            cwd=Path(__file__).parents[2],
            # A shell that names other brokers would have it use those.
            env={k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._ours = False
        assert self._popen.stdout is not None
        self._reader = threading.Thread(
            target=_keep, args=(self._popen.stdout, self.log_file), daemon=True
        )
        self._reader.start()

    def kill(self) -> None:
        """End it now, as a crash would."""
        if self._popen is not None and self.pid is not None:
            self._ours = True
            self._popen.kill()
            self._gone()

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does, until `thaw`."""
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self._frozen = False

    def fill_disk(self) -> None:
        """Let every write to a file fail (EFBIG; needs no rights, and SQLite sees an error)."""
        if (pid := self.pid) is not None:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))

    def empty_disk(self) -> None:
        if (pid := self.pid) is not None:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    def ask_to_end(self) -> None:
        """Ask for a good end (SIGTERM), for good; `end` waits for it."""
        with self._starting:
            self._ours = self._closed = True
        if self._frozen:
            self.thaw()
        self._signal(signal.SIGTERM)

    def end(self, patience_s: float = END_S) -> int | None:
        """Wait for its end, or force it; give its exit status, None if it had to be forced."""
        if self._popen is None:
            return 0
        self._ours = True
        try:
            self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self._gone()
        return self._popen.returncode

    def ended_by_itself(self) -> str | None:
        """Tell, once, of an end that was not our doing: exit status and the log's last lines."""
        if self._popen is None or self._ours or self._popen.poll() is None:
            return None
        self._ours = True
        self._gone()
        status = self._popen.returncode
        return f"{self.name} ended by itself with {status}; its log ends:\n{self.tail()}"

    def tail(self, lines: int = 12) -> str:
        if not self.log_file.exists():
            return "  (it said nothing)"
        said = self.log_file.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"  {line[:400]}" for line in said)

    def resident_mib(self) -> float:
        """Give its resident memory; 0 while it does not run."""
        return resident_mib(self.pid)

    def cpu_s(self) -> float:
        """Give the processor time that it has used since it began; 0 while it does not run."""
        return cpu_s(self.pid)

    def _signal(self, number: int) -> None:
        if self._popen is not None and self.pid is not None:
            self._popen.send_signal(number)

    def _gone(self) -> None:
        assert self._popen is not None
        self._popen.wait()
        self._frozen = False
        self.deaths_s.append(time.time())
        if self._reader is not None:
            self._reader.join(2.0)


class Broker:
    """Kafka or Mosquitto, with the verbs of a process."""

    def __init__(self, name: str, brokers: Brokers, ending: threading.Event) -> None:
        self.name, self._brokers, self._ending = name, brokers, ending

    def kill(self) -> None:
        self._brokers.kill(self.name, signal.SIGKILL)

    def start(self) -> None:
        if not self._ending.is_set():
            self._brokers.up(self.name)

    def freeze(self) -> None:
        self._brokers.kill(self.name, signal.SIGSTOP)

    def thaw(self) -> None:
        self._brokers.kill(self.name, signal.SIGCONT)


class Deployment:
    """Brokers, and processes of ours on them, in a folder."""

    #: In the order in which they end: those who have something to say come first.
    agents: Sequence[str] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, Process] = {}
        self._brokers: Brokers | None = None

    @property
    def brokers(self) -> Brokers:
        assert self._brokers is not None
        return self._brokers

    @property
    def kafka(self) -> KafkaOptions:
        return KafkaOptions(self.brokers.kafka_bootstrap, namespace=NAMESPACE, replication=1)

    def begin_brokers(self) -> None:
        (self.folder / "brokers").mkdir(parents=True)
        self._brokers = Brokers(self.folder / "brokers")
        self._brokers.up()

    def add(self, name: str, role: str, config: str) -> Process:
        """Give a service its configuration; it is not started yet."""
        file = self.folder / f"{name}.toml"
        file.write_text(config)
        self.processes[name] = Process(name, [role, "--config", str(file)], self.folder)
        return self.processes[name]

    def end_agents(self) -> None:
        """End the agents in good order: what they have left to say finds its way."""
        self.end_processes(self.agents)

    def end_processes(self, names: Sequence[str]) -> None:
        running = [self.processes[name] for name in names if name in self.processes]
        for process in running:
            process.ask_to_end()
        for process in running:
            process.end()

    def effects_file(self, agent: str) -> Path:
        return self.folder / f"{agent}.effects.jsonl"

    def restart_ended(self) -> list[str]:
        """Start again what ended though nobody killed it; tell of each."""
        found = []
        for process in self.processes.values():
            if (text := process.ended_by_itself()) is not None:
                found.append(text)
                process.start()
        return found

    async def look_after(self, tell: Callable[[str], None]) -> None:
        """Start again what ends by itself, as whoever looks after a service does; and tell."""
        while True:
            for text in await asyncio.to_thread(self.restart_ended):
                tell(text)
            await asyncio.sleep(0.5)


def resident_mib(pid: int | None) -> float:
    """Give the resident memory of a process; 0 if there is none."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * resource.getpagesize() / 2**20


def cpu_s(pid: int | None) -> float:
    """Give the processor time of a process, in seconds; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def _keep(pipe: IO[bytes], path: Path) -> None:
    with path.open("ab") as file:
        while piece := pipe.read1(65536):  # type: ignore[attr-defined]
            file.write(piece)
            file.flush()
    pipe.close()
