"""A Mosquitto of a test's own, with settings of its own, which it may kill and start again."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bus.clock import Clock
from bus.mqtt_client import MqttClient
from bus.mqtt_swift import SwiftConnection
from bus.options import MqttOptions
from bus.wire import Incoming
from tests.patience import wait_until
from tests.ports import PATH, answers, free_port

SHARED = Path(__file__).resolve().parent.parent / "compose" / "mosquitto" / "broker.conf"


def wired(
    options: MqttOptions, client_id: str, clock: Clock
) -> Callable[[Sequence[str], Callable[[Incoming], None]], MqttClient]:
    """Give what connects a bridge to a broker, as `Bridge` takes it."""

    def wire(subscriptions: Sequence[str], hear: Callable[[Incoming], None]) -> MqttClient:
        client = MqttClient(
            options,
            client_id,
            subscriptions=subscriptions,
            hear=hear,
            clock=clock,
            carrier=SwiftConnection,
        )
        client.start()
        return client

    return wire


class Mosquitto:
    """One broker on a port of its own; what it keeps is in `folder`."""

    def __init__(self, folder: Path, settings: str = "allow_anonymous true\n") -> None:
        """Start it, with `settings` after those that every broker of Tidegate shares."""
        self.port = free_port()
        self._folder = folder
        root = "user root\n" if os.geteuid() == 0 else ""
        (folder / "mosquitto.conf").write_text(
            f"{SHARED.read_text()}\n{root}listener {self.port} 127.0.0.1\n"
            f"persistence_location {folder}/\n{settings}"
        )
        self.start()

    @property
    def options(self) -> MqttOptions:
        """Where it is."""
        return MqttOptions("127.0.0.1", self.port)

    def start(self) -> None:
        """Start it, or start it again."""
        program = shutil.which("mosquitto", path=PATH)
        assert program is not None, "mosquitto not found; install it"
        with (self._folder / "mosquitto.log").open("a") as log:
            self._process = subprocess.Popen(
                [program, "-c", "mosquitto.conf"], cwd=self._folder, stdout=log, stderr=log
            )
        wait_until(lambda: answers(self.port) or not self.runs())
        assert self.runs(), (self._folder / "mosquitto.log").read_text()

    def runs(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def stop(self, *, forget: bool = False) -> None:
        """End it; it writes down what it keeps first, unless it is to `forget`."""
        self.signal(signal.SIGKILL if forget else signal.SIGTERM)
        self._process.wait()
        if forget:
            (self._folder / "mosquitto.db").unlink(missing_ok=True)
