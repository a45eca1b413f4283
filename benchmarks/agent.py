"""What an edge agent takes of its machine: `python -m benchmarks.agent --seconds 60`.

The real `tidegate edge-agent` over a real Mosquitto, with 8 GPUs, telemetry and load said once a
second, one gang of 8 workers that says a step a second, and a bridge (in this process, so that it
does not count). Three machines:

    simulated   workers, GPUs and owner are closed forms of time
    slots       workers are processes, the GPUs 8 slots of this machine's processors
    nvml        the same with NVML's meter, on a stand-in for the driver's library, and an owner
                whose vLLM page is scraped once a second

CPU is user and system time of the agent alone; its supervisor (one for each gang) is told apart,
the workers are the job's own. Memory is resident (rss) and proportional (pss: what processes share
is divided among them). What the driver itself takes is not in it.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.figures import parser_of, show
from bus.bridge import Bridge
from bus.clock import SystemClock
from bus.contract import Message
from bus.signing import Signer
from runtime.executors.processes import workers_of
from schemas.commands import CommandData, GangSpec, LendNode, StartGang
from schemas.events import CommandAcknowledged, RatePoint
from schemas.programs import Program
from schemas.topics import COMMANDS, EVENTS
from schemas.values import NodeGpus
from tests.memory_bus import MemoryBus
from tests.metering.pages import page, served, text
from tests.mosquitto import Mosquitto, wired
from tests.post import ordered

MACHINES = ("simulated", "slots", "nvml")
_ROOT = Path(__file__).resolve().parent.parent
_GPUS = 8
#: For the first turns, whose work is not that of the steady state.
_SETTLE_S = 3.0
_PATIENCE_S = 60.0
_MIB, _TICKS = 1024.0, os.sysconf("SC_CLK_TCK")

_WORKER = """
import json, os, time
step = 0
while True:
    time.sleep(1.0)
    step += 1
    if os.environ["RANK"] == "0":
        with open(os.environ["TIDEGATE_PROGRESS"], "a") as file:
            file.write(json.dumps({"step": step, "samples_per_s": 8.0}) + chr(10))
"""
_CONFIG = """
[mqtt]
url = "mqtt://127.0.0.1:{port}"
[agent]
name = "{name}"
gpus = {gpus}
runs = "{runs}"
{owner}
state_file = "{folder}/agent.db"
[agent.schedule]
telemetry_every_s = 1
load_every_s = 1
progress_every_s = 1
[agent.simulated]
drain_s = 0
[agent.trusted_keys]
bench = "{key}"
"""
_PROCESSES = """
[agent.workers]
folder = "{folder}/runs"
isolation = "none"
checkpoints = "file://{folder}/store"
"""
_OWNER = """
[agent.load]
every_s = 1
[agent.load.demand]
latency_target_s = 5
[[agent.load.server]]
name = "llm"
node = "{name}"
url = "{url}"
gpus = {gpus}
[agent.owner.hooks]
drain = ["true"]
hand_back = ["true"]
"""
#: What the agent imports for NVML's binding.
_STAND_IN = """
import sys
from tests.metering.fake_nvml import Card, FakeNvml
sys.modules[__name__] = FakeNvml([Card(f"GPU-{{n}}") for n in range({gpus})])
"""


def missing() -> str | None:
    """Say what this benchmark lacks here; None: nothing."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    return None if shutil.which("mosquitto", path=path) else "mosquitto not found; install it"


def run(seconds: float, machines: Sequence[str] = MACHINES) -> dict[str, float]:
    """Measure each kind of machine for so many seconds; nothing where there is no Mosquitto."""
    if (problem := missing()) is not None:
        sys.stderr.write(f"agents are NOT measured: {problem}\n")
        return {}
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, _page() as url:
        _compile(Path(folder))
        for machine in machines:
            (place := Path(folder, machine)).mkdir()
            figures |= asyncio.run(_measured(machine, seconds, place, url))
    return figures


def _compile(folder: Path) -> None:
    """Import all of an agent once, or the first one would hold what compiling left behind."""
    modules = "import console.main, services.config, services.edge_agent, bus.signing, tomllib"
    environment = _environment(folder / "nobody")
    subprocess.run([sys.executable, "-c", modules], cwd=_ROOT, env=environment, check=True)


@contextlib.contextmanager
def _page() -> Iterator[str]:
    with served(text(page("vllm_v1"))) as site:
        yield site.url


async def _measured(machine: str, seconds: float, folder: Path, url: str) -> dict[str, float]:
    name = f"bench-{machine}-{os.getpid()}"
    broker, signer = Mosquitto(folder), Signer("bench", Ed25519PrivateKey.generate())
    bus = MemoryBus(SystemClock())
    try:
        async with (
            _bridge(broker, bus) as bridge,
            _agent(machine, name, folder, broker.port, url, signer.public()) as pid,
        ):
            said = bridge.counters
            await _until(lambda: said.forwarded_up > 0, "the agent does not report its birth")
            await _order(bus, name, LendNode(node=name, loan="loan-1"), 0, signer)
            await _answered(bus)
            await _order(bus, name, _gang(name), 1, signer)
            if machine != "simulated":
                await _until(lambda: _processes(name) > _GPUS, "the gang does not begin")
            await asyncio.sleep(_SETTLE_S)
            return await _watched(f"agent_{machine}", pid, name, bridge, seconds)
    finally:
        broker.stop()
        for worker in workers_of(name):
            worker.identity.send(9)


async def _watched(
    prefix: str, pid: int, name: str, bridge: Bridge, seconds: float
) -> dict[str, float]:
    shims = _supervisors(name)
    sent, began_s = bridge.counters.forwarded_up, time.perf_counter()
    before, shims_before = _cpu_s(pid), sum(map(_cpu_s, shims))
    rss_before = _memory_mib(pid)[0]
    await asyncio.sleep(seconds)
    passed_s = time.perf_counter() - began_s
    rss, pss = _memory_mib(pid)
    figures = {
        f"{prefix}_core_percent": (_cpu_s(pid) - before) / passed_s * 100,
        f"{prefix}_rss_mib_at_first": rss_before,
        f"{prefix}_rss_mib": rss,
        f"{prefix}_pss_mib": pss,
        f"{prefix}_threads": float(_threads(pid)),
        f"{prefix}_messages_per_s": (bridge.counters.forwarded_up - sent) / passed_s,
    }
    if shims:
        rss, pss = _memory_mib(shims[0])
        share = (sum(map(_cpu_s, shims)) - shims_before) / passed_s / len(shims)
        figures |= {
            f"{prefix}_supervisor_core_percent": share * 100,
            f"{prefix}_supervisor_rss_mib": rss,
            f"{prefix}_supervisor_pss_mib": pss,
        }
    return figures


@contextlib.asynccontextmanager
async def _bridge(broker: Mosquitto, bus: MemoryBus) -> AsyncIterator[Bridge]:
    clock = SystemClock()
    wire = wired(broker.options, "bench-bridge", clock)
    bridge = Bridge(name="bench", wire=wire, buses={"default": bus}, clock=clock)
    running = asyncio.create_task(bridge.run(["default"]))
    try:
        await _until(lambda: bridge.wire.connected, "the bridge does not connect")
        yield bridge
    finally:
        bridge.stop()
        await running


@contextlib.asynccontextmanager
async def _agent(
    machine: str, name: str, folder: Path, port: int, url: str, key: str
) -> AsyncIterator[int]:
    said = _CONFIG + {"simulated": "", "slots": _PROCESSES, "nvml": _PROCESSES + _OWNER}[machine]
    config = folder / "tidegate.toml"
    config.write_text(
        said.format(
            name=name,
            folder=folder,
            port=port,
            url=url,
            gpus=_GPUS,
            key=key,
            runs="simulated" if machine == "simulated" else "processes",
            owner='owner = "none"' if machine == "slots" else "",
        )
    )
    flags = {
        "simulated": [],
        "slots": ["agent.gpu_type=cpu"],
        "nvml": ["agent.meter.source=nvml"],
    }[machine]
    (folder / "stand-in").mkdir()
    (folder / "stand-in" / "pynvml.py").write_text(_STAND_IN.format(gpus=_GPUS))
    with (folder / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "console.main", "edge-agent", "--config", str(config),
            *(part for flag in flags for part in ("--set", flag)),
            cwd=_ROOT, env=_environment(folder),
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process.pid
    except RuntimeError as error:
        raise RuntimeError(f"{error}; it said:\n{(folder / 'agent.log').read_text()}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _environment(folder: Path) -> dict[str, str]:
    """Give that of an installed agent: nothing configured beside the file, modules compiled."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE")}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    compiled = str(folder.parent / "compiled")
    return {**own, "PYTHONPATH": str(folder / "stand-in"), "PYTHONPYCACHEPREFIX": compiled}


async def _order(
    bus: MemoryBus, agent: str, data: CommandData, sequence: int, signer: Signer
) -> None:
    value = ordered(data, sequence, agent, time.time())
    await bus.publish(Message(COMMANDS.name, agent, value, signer.headers(value)))


async def _answered(bus: MemoryBus) -> None:
    """Wait until the agent has said that its node is lent: nothing starts there before."""
    said, until_s = CommandAcknowledged.TYPE.encode(), time.perf_counter() + _PATIENCE_S
    while not [one async for one in bus.read(EVENTS.name) if said in (one.value or b"")]:
        if time.perf_counter() > until_s:
            raise RuntimeError("the node is not lent")
        await asyncio.sleep(0.05)


def _gang(node: str) -> StartGang:
    spec = GangSpec(
        model="m",
        total_steps=1_000_000,
        samples_per_step=8.0,
        rates=[RatePoint(gpus=_GPUS, samples_per_s=8.0)],
        checkpoint_mib=1,
        checkpoint_cost_s=1.0,
        start_cost_s=0.0,
        program=Program(argv=[sys.executable, "-S", "-c", _WORKER]),
    )
    placement = [NodeGpus(node=node, gpus=list(range(_GPUS)))]
    return StartGang(job="bench", epoch=1, placement=placement, spec=spec, step=0)


# --- /proc --------------------------------------------------------------------------------------


def _processes(agent: str) -> int:
    return sum(1 for _ in workers_of(agent))


def _supervisors(agent: str) -> list[int]:
    """Find them among the agent's processes: they lead a session of their own."""
    pids = [worker.identity.pid for worker in workers_of(agent)]
    return [pid for pid in pids if os.getsid(pid) == pid]


def _cpu_s(pid: int) -> float:
    """User and system time of a process, not of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def _memory_mib(pid: int) -> tuple[float, float]:
    """What is resident, and the share of it that is the process's."""
    said = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: float(value.split()[0]) for name, value in (line.split(":") for line in said)}
    return kib["Rss"] / _MIB, kib["Pss"] / _MIB


async def _until(condition: Callable[[], bool], problem: str) -> None:
    until_s = time.perf_counter() + _PATIENCE_S
    while not condition():
        if time.perf_counter() > until_s:
            raise RuntimeError(problem)
        await asyncio.sleep(0.05)


def main() -> int:
    """Measure the machines asked for."""
    parser = parser_of("agent", __doc__)
    parser.add_argument("--machines", default=",".join(MACHINES), help="by commas (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each (%(default)g)")
    options = parser.parse_args()
    figures = run(options.seconds, options.machines.split(","))
    show(figures, "{:48} {:10.2f}", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
