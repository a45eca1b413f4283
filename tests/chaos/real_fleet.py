"""Real work on real services, small enough for one machine: brokers, services, two agents.

A scheduler, a bridge, a cloud agent whose four nodes an owner lends (two made-up GPUs each, served
by real replicas), and an edge agent with two. GPUs are names alone: nothing here needs one. All
that belongs to a deployment is below one folder. Times are seconds instead of minutes.
"""

import json
import os
import sys
import time
from pathlib import Path

from schemas.events import JobSubmitted, RatePoint
from schemas.programs import Program
from tests.builders import submitted
from tests.chaos.processes import NAMESPACE, Deployment
from tests.ports import free_ports, kill

ROOT = Path(__file__).parents[2]
CLOUD, EDGE = "cloud", "edge-1"
AGENTS = {CLOUD: "cloud-agent", EDGE: "edge-agent"}
SERVICES = {"scheduler": "scheduler", "bridge": "bridge"}
NODES, SLOTS = ("serve-1", "serve-2", "serve-3", "serve-4"), 2
#: Requests in service with which the owner leaves so many of its nodes to training.
REQUESTS = {2: 1.0, 1: 3.0, 0: 5.0}
STEPS, WORK_S, SAVE_EVERY, SAVE_S, BALLAST_MIB, RATE_MIB_PER_S = 120, 0.5, 15, 0.7, 2.0, 4.0
#: N GPUs are N**GAIN times as fast: each more helps less, so that jobs share what there is.
GAIN = 0.5
POLICY = (
    "tide:loans.lend_horizon_s=3:loans.warm_up_s=3:loans.lead_s=3:loans.loan_min_s=2"
    ":loans.cool_down_s=2:loans.forecast.season=none:loans.forecast.burst_slots=1"
    ":loans.forecast.half_life_slots=0.3:loans.forecast.trend_slots=2"
    ":horizon_s=60"
)
COMMON = """
[kafka]
bootstrap = "{kafka}"
replication = 1
namespace = "{space}"
[mqtt]
url = "{mqtt}"
namespace = "{space}"
keepalive_s = 5
[log]
format = "text"
[http]
port = "off"
"""
SETTINGS = """
[scheduler]
births = "any"
policy = "{policy}"
heartbeat_s = 5
[scheduler.settings]
cycle_s = 2
cycle_gap_s = 0.3
load_slot_s = 2
silence_s = 20
lease_s = 90
lease_margin_s = 10
grace_s = 15
resend_s = 3
command_ttl_s = 30
start_timeout_s = 60
unheard_s = 120
claim_ttl_s = 20
backoff_s = 0.05
failures_max = 1000
"""
AGENT = """
[agent]
name = "{name}"
gpu_type = "L4"
runs = "processes"
state_file = "{folder}/{name}.db"
effects_file = "{folder}/{name}.effects.jsonl"
{own}
[agent.schedule]
telemetry_every_s = 5
load_every_s = 1
progress_every_s = 1
retry_s = 1
[agent.meter]
source = "host"
[agent.simulated]
drain_s = 1
warm_up_s = 1
[agent.workers]
isolation = "none"
folder = "{folder}/{name}"
checkpoints = "file://{folder}/store"
locks = "{folder}/locks"
rate_mib_per_s = {rate}
gpu_ids = {gpus}
"""
LOAD = """
[agent.load]
every_s = 0.5
window_s = 2
[agent.load.demand]
latency_target_s = 4
concurrency_per_gpu = 1
stabilization_window_s = 2
drain_s = 5
headroom = 0
stale_s = 10
metrics_timeout_s = 30
[agent.owner.replicas]
grace_s = 5
[agent.owner.protect]
multiplier = 0
"""
REPLICA = """
[[agent.owner.replica]]
name = "llm-{node}"
node = "{node}"
argv = ["{python}", "{root}/tests/chaos/real_server.py", "{node}", "{port}", "{folder}"]
ready = "http://127.0.0.1:{port}/health"
[agent.owner.replica.env]
CUDA_VISIBLE_DEVICES = "{gpus}"
WITNESS_OWNER = "llm-{node}"
WITNESS_FOLDER = "{folder}"
[[agent.load.server]]
name = "llm-{node}"
node = "{node}"
url = "http://127.0.0.1:{port}/metrics"
gpus = {slots}
"""


class RealFleet(Deployment):
    """Starts and ends everything, in a folder."""

    agents = tuple(AGENTS)

    def start(self) -> None:
        """Start everything; whatever happens then, `end` must be called."""
        self.begin_brokers()
        self.tide(0)
        for name, role in (SERVICES | AGENTS).items():
            self.add(name, role, self._config(name)).start()

    def end(self) -> None:
        """End everything, and whatever of it is left."""
        self.end_agents()
        self.end_processes(list(self.processes))
        for pid in self.pids():
            kill(pid)
        if self._brokers is not None:
            self._brokers.down()
            self._brokers = None

    def tide(self, lent: int) -> None:
        """Let the owner have so little to do that it can leave this many nodes to training."""
        draft = self.folder / "requests.draft"
        draft.write_text(str(REQUESTS[lent]))
        draft.replace(self.folder / "requests")

    # --- where things are ---

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def runs(self, agent: str) -> Path:
        """Folder of the agent's runs."""
        return self.folder / agent / "runs"

    def loss_file(self, job: str) -> Path:
        return self.folder / f"{job}.loss"

    def weights_file(self, job: str) -> Path:
        return self.folder / f"{job}.npz"

    def pids(self, agent: str | None = None) -> list[int]:
        """Find what lives of supervisors, workers and replicas, by their environment."""
        ours, below = f"WITNESS_FOLDER={self.folder}".encode(), os.fsencode(self.folder) + b"/"
        named = b"TIDEGATE_AGENT=" + (agent or "").encode()
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal() or int(folder.name) == os.getpid():
                continue
            try:
                environ = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            is_run = any(part.startswith(b"TIDEGATE_PROGRESS=" + below) for part in environ)
            is_run = is_run and (agent is None or named in environ)
            if is_run or (ours in environ and agent in (None, CLOUD)):
                found.append(int(folder.name))
        return found

    def reboot(self, agent: str) -> None:
        """Kill the agent and all that it ever started, and let their notes be of another boot."""
        self.processes[agent].kill()
        while pids := self.pids(agent):
            for pid in pids:
                kill(pid)
            time.sleep(0.01)
        for file in self.runs(agent).glob("*/*/shim.json"):
            said = json.loads(file.read_text())
            draft = file.with_name("shim.json.reboot")
            draft.write_text(json.dumps({**said, "boot": "an earlier one"}))
            draft.replace(file)

    # --- configuration ---

    def _config(self, name: str) -> str:
        brokers = self.brokers
        text = COMMON.format(space=NAMESPACE, kafka=brokers.kafka_bootstrap, mqtt=brokers.mqtt_url)
        if name in SERVICES:
            return text + SETTINGS.format(policy=POLICY)
        count = SLOTS * len(NODES)
        gpus = [f"GPU-{n}" for n in range(count)] if name == CLOUD else ["GPU-e0", "GPU-e1"]
        own = f'gpus = {SLOTS}\nspeed_factor = 1.0\nowner = "none"'
        if name == CLOUD:
            own = f'pool = "serving"\npool_kind = "inference"\nnodes = {json.dumps(NODES)}\n'
            own += f"gpus_per_node = {SLOTS}"
        text += AGENT.format(
            name=name, own=own, folder=self.folder, rate=RATE_MIB_PER_S, gpus=json.dumps(gpus)
        )
        if name == CLOUD:
            text += LOAD
            for number, (node, port) in enumerate(zip(NODES, free_ports(len(NODES)), strict=True)):
                text += REPLICA.format(
                    node=node,
                    port=port,
                    python=sys.executable,
                    root=ROOT,
                    folder=self.folder,
                    slots=SLOTS,
                    gpus=",".join(gpus[number * SLOTS : (number + 1) * SLOTS]),
                )
        return text

    def job(self, name: str, steps: int = STEPS, *, urgent: bool = False) -> JobSubmitted:
        """Describe a job that trains wherever there is room, on 1 to 4 GPUs.

        An urgent one takes one GPU, before others have any.
        """
        argv = [
            *(sys.executable, str(ROOT / "tests/chaos/real_job.py")),
            *("--steps", str(steps), "--save-every", str(SAVE_EVERY)),
            *("--work-s", str(WORK_S), "--gain", str(GAIN)),
            *("--save-s", str(SAVE_S), "--ballast-mib", str(BALLAST_MIB)),
            *("--loss", str(self.loss_file(name)), "--out", str(self.weights_file(name))),
        ]
        told = {
            "tenant": "chaos",
            "samples_per_step": 256.0,
            "rates": [RatePoint(gpus=n, samples_per_s=256.0 * n**GAIN / WORK_S) for n in (1, 2, 4)],
            "checkpoint_mib": 2,
            "checkpoint_cost_s": 0.0,
            "start_cost_s": 0.0,
            "program": Program(argv=argv),
        }
        if urgent:
            told |= {"priority": 1, "gpus_max": 1}
        return submitted(name, gpus_max=4, total_steps=steps).model_copy(update=told)
