"""Real Kafka and Mosquitto for tests: those of the environment, or a pair of our own."""

import fcntl
import itertools
import json
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from tests.composed import ROOT, compose, lacks
from tests.patience import wait_until
from tests.ports import alive, answers, lacking, send

JARS = Path(os.environ.get("TIDEGATE_KAFKA_JARS") or ROOT / ".brokers" / "jars")
_CLASSES = JARS / "classes.jsa"
#: Java finds Kafka's classes there as it wants them, if `compose/brokers fetch` kept them. Where
#: they are not, this says nothing: Java would not read its own then, either.
QUICK_JAVA = (f"-XX:SharedArchiveFile={_CLASSES}",) if _CLASSES.exists() else ()
#: Kafka's own programs begin so; the name of one comes next.
JAVA = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *QUICK_JAVA,
        "-cp", f"{JARS}/*"]  # fmt: skip
#: Brokers of the caller, as `compose/brokers env` says it; tests see none of it but by a fixture.
_KAFKA, _MQTT = (os.environ.get(f"TIDEGATE_{name}") for name in ("KAFKA_BOOTSTRAP", "MQTT_URL"))
_RUN = secrets.token_hex(4)
_numbers = itertools.count()


def fresh_namespace() -> str:
    """Give a namespace that nobody used before."""
    return f"t-{_RUN}-{os.getpid()}-{next(_numbers)}"


class Brokers:
    """A Kafka and a Mosquitto of our own, which a test may pause and kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def start(cls, folder: Path, only: str | None = None) -> Self:
        """Start both, or only `kafka` or `mosquitto`, keeping what they store in `folder`."""
        brokers = cls(folder)
        brokers.up(only)
        return brokers

    @property
    def kafka_bootstrap(self) -> str:
        return f"127.0.0.1:{self._port('kafka')}"

    @property
    def mqtt_url(self) -> str:
        return f"mqtt://127.0.0.1:{self._port('mqtt')}"

    def up(self, name: str | None = None) -> None:
        """Start what does not run; a paused one goes on."""
        for one in [name] if name else ["kafka", "mosquitto"]:
            if (self.folder / f"{one}.pid").exists() and alive(pid := self._pid(one)):
                os.kill(pid, signal.SIGCONT)
                wait_until(partial(self._answers, one), f"{one} does not go on")
        self._run("up", "--native", *(["--only", name] if name else []))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to `kafka` or `mosquitto`, if it is there still."""
        with suppress(ProcessLookupError):
            send(self._pid(name), number)

    def down(self) -> None:
        """Stop both, and forget what they stored."""
        self._run("down", "--wipe")

    def _pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text().split()[0])

    def _answers(self, name: str) -> bool:
        return answers(self._port("mqtt" if name == "mosquitto" else name))

    def _port(self, name: str) -> int:
        return int(json.loads((self.folder / "ports.json").read_text())[name])

    def _run(self, *arguments: str) -> None:
        folders = {"TIDEGATE_BROKERS_DIR": str(self.folder), "TIDEGATE_KAFKA_JARS": str(JARS)}
        compose("brokers", *arguments, **folders)


def missing() -> str | None:
    """Say why brokers of our own cannot be started here; None if they can."""
    found = lacking("java", "mosquitto")
    if not (JARS / ".complete").exists() and lacking("mvn"):
        found.append("Kafka (run compose/brokers up once)")
    return f"{' and '.join(found)} not found" if found else None


def need_brokers() -> None:
    """Skip where no broker can be started, saying so; on CI that is a failure."""
    if (reason := missing()) is not None:
        lacks("brokers", reason)


@pytest.fixture(scope="session")
def _shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One pair for all workers: the first starts it, and whoever leaves last stops it.

    A Kafka of each worker would warm up anew, and take a second of processor time a minute for
    nothing. Namespaces keep the workers' tests apart.
    """
    need_brokers()
    session = tmp_path_factory.getbasetemp()
    folder = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "shared-brokers"
    folder.mkdir(exist_ok=True)
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)  # of a worker that dies, the system takes it back
        try:
            yield Brokers.start(folder)
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            with suppress(BlockingIOError):  # somebody else uses them, or stops them
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Brokers(folder).down()


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> str:
    """Where Kafka is."""
    return _KAFKA or str(request.getfixturevalue("_shared_brokers").kafka_bootstrap)


@pytest.fixture(scope="session")
def mqtt_url(request: pytest.FixtureRequest) -> str:
    """Where Mosquitto is."""
    return _MQTT or str(request.getfixturevalue("_shared_brokers").mqtt_url)


@pytest.fixture(scope="module")
def own_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A pair of brokers for one file of tests, which may do anything to it."""
    need_brokers()
    brokers = Brokers.start(tmp_path_factory.mktemp("brokers"))
    try:
        yield brokers
    finally:
        brokers.down()
