"""Real workers, moved about by a real tide: what `make demo-real` runs.

On the brokers of this machine: a scheduler, a bridge, a cloud agent with four inference servers of
two slots each (two speak of themselves as vLLM does, two as Triton), and an edge agent with two
slots. Slots are shares of this machine's processors. A job trains (`train_numpy.py`, or PyTorch's
`train_ddp.py`) wherever the servers' load leaves room; the load makes it start with 2 workers, grow
to 4, leave for the edge when users come back, return, and finish. Then its weights are compared with
those of a run that nobody disturbed.
"""

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from load import Load, trace
from verdict import TIDEGATE, effects, judged, tidegate

from benchmarks.provenance import provenance

HERE = Path(__file__).resolve().parent
#: Inference servers, one to a node, and how each speaks of itself.
NODES = {"serve-1": "vllm", "serve-2": "triton", "serve-3": "vllm", "serve-4": "triton"}
SLOTS, PLACES = 2, 8
#: Requests in service, from each second on: two servers' worth, one, four, one.
TIDE = ((0.0, 5.0), (90.0, 0.7), (150.0, 22.0), (210.0, 0.7))
#: Steps of so much work that a busy machine makes them little longer: what four GPUs gain shows.
STEPS, WORK_S = 1000, 1.0
#: The edge server connects this late, so that the job begins in the cloud.
EDGE_AFTER_S = 90.0
POLICY = (
    "tide:loans.lend_horizon_s=10:loans.warm_up_s=8:loans.lead_s=10:loans.loan_min_s=5"
    ":loans.cool_down_s=5:loans.forecast.season=none:loans.forecast.burst_slots=1:horizon_s=120"
)


@dataclass(frozen=True)
class Work:
    """A job that can be moved, and how near its weights must be to those of an undisturbed run."""

    command: tuple[str, ...]
    start_cost_s: float
    tolerance: float


JOBS = {
    # It adds gradients up in one order, whoever computed them.
    "numpy": Work((sys.executable, str(HERE / "train_numpy.py")), 2.0, 0.0),
    # Rounding stays below 1e-14, a lost or repeated step shows above 1e-4: see the file.
    "torch": Work(("/usr/bin/python3", str(HERE / "train_ddp.py")), 6.0, 1e-9),
}


def ports(count: int) -> list[int]:
    """Find free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def wanted(now_s: float) -> float:
    """Requests in service that users keep up."""
    return next(count for since_s, count in reversed(TIDE) if since_s <= now_s)


def configure(folder: Path, servers: list[int], space: str) -> None:
    """Write what an operator would: one file for the services, one for each agent.

    An agent knows its processes by its name, so each demonstration gives others.
    """
    common = f"""
[kafka]
namespace = "{space}"
replication = 1
[mqtt]
namespace = "{space}"
[log]
format = "text"
[http]
port = "off"
"""
    (folder / "services.toml").write_text(f"""{common}
[bridge]
group = "{space}"
[scheduler]
births = "any"
policy = "{POLICY}"
[scheduler.settings]
cycle_s = 5
cycle_gap_s = 1
load_slot_s = 5
grace_s = 20
backoff_s = 5
""")
    schedule = "telemetry_every_s = 5\nload_every_s = 2\nprogress_every_s = 2"
    workers = f"""
[agent.schedule]
{schedule}
[agent.limits]
checkpoint_min_s = 20
checkpoint_max_s = 30
[agent.workers]
checkpoints = "file://{folder}/checkpoints"
isolation = "none"
"""
    replicas = "".join(
        f"""
[[agent.owner.replica]]
name = "llm-{node}"
node = "{node}"
argv = ["{sys.executable}", "{HERE}/inference_server.py", "--port", "{port}", "--places", "{PLACES}", "--format", "{speaks}"]
ready = "http://127.0.0.1:{port}/health"
[[agent.load.server]]
name = "llm-{node}"
node = "{node}"
url = "http://127.0.0.1:{port}/metrics"
gpus = {SLOTS}
"""
        for (node, speaks), port in zip(NODES.items(), servers, strict=True)
    )
    (folder / "cloud.toml").write_text(f"""{common}
[agent]
name = "cloud-{space}"
pool = "serving"
pool_kind = "inference"
nodes = {json.dumps(list(NODES))}
gpus_per_node = {SLOTS}
gpu_type = "cpu"
runs = "processes"
state_file = "{folder}/cloud.db"
effects_file = "{folder}/cloud.effects"
{workers}folder = "{folder}/cloud"
[agent.load]
every_s = 1
window_s = 8
[agent.load.demand]
latency_target_s = 4
concurrency_per_gpu = {PLACES / SLOTS}
stabilization_window_s = 8
drain_s = 5
headroom = 0.2
stale_s = 10
metrics_timeout_s = 20
[agent.owner.replicas]
grace_s = 10
[agent.owner.protect]
multiplier = 0
{replicas}""")
    (folder / "edge.toml").write_text(f"""{common}
[agent]
name = "edge-{space}"
gpus = {SLOTS}
gpu_type = "cpu"
speed_factor = 1.0
runs = "processes"
owner = "none"
state_file = "{folder}/edge.db"
effects_file = "{folder}/edge.effects"
{workers}folder = "{folder}/edge"
[agent.simulated]
drain_s = 1
warm_up_s = 1
""")


def submit(folder: Path, log: str, name: str, work: Work) -> None:
    """Submit the job, as soon as there is a scheduler."""
    command = [*work.command, "--steps", str(STEPS), "--work-s", str(WORK_S)]
    command += ["--loss", f"{folder}/loss", "--out", f"{folder}/weights.npz"]
    job = {
        "job": "train",
        "model": name,
        "gpus_min": 2,
        "gpus_max": 4,
        "total_steps": STEPS,
        "samples_per_step": 256.0,
        "rates": [{"gpus": n, "samples_per_s": 256.0 * n / WORK_S} for n in (2, 4)],
        "start_cost_s": work.start_cost_s,
        "checkpoint_cost_s": 1.0,
        "program": {"argv": command, "saves": "on_signal"},
    }
    file = folder / "job.json"
    file.write_text(json.dumps(job, indent=1))
    for _ in range(60):
        said = tidegate("submit", "--log", log, str(file))
        if said.returncode == 0:
            return
        time.sleep(1)
    sys.exit(f"the job could not be submitted: {said.stderr}")


def end_rest(space: str, servers: list[int]) -> None:
    """End what outlives its agent, as it should: the servers, and a gang that is not done."""
    marks = [f"inference_server.py\0--port\0{port}\0".encode() for port in servers]
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            said = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if f"-{space}\0".encode() in said or any(mark in said for mark in marks):
                os.kill(int(folder.name), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("demo-real"))
    parser.add_argument("--job", choices=JOBS, default="numpy", help="what trains (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--trace", type=Path, help="requests, as Azure publishes them (CSV)")
    parser.add_argument("--minutes", type=float, default=15.0, help="give up after (%(default)s)")
    options = parser.parse_args()
    folder, work = options.folder.resolve(), JOBS[options.job]
    if folder.exists():
        print(f"{folder} exists: remove it, or name another with --folder.")
        return 2
    try:
        requests = trace(options.trace)
    except (OSError, ValueError, KeyError) as error:
        print(f"--trace {options.trace}: not Azure's CSV of TIMESTAMP, GeneratedTokens: {error!r}")
        return 2
    ready = subprocess.run([*work.command, "--help"], capture_output=True, text=True, check=False)
    if ready.returncode:
        print(ready.stderr.strip())
        return 2
    folder.mkdir(parents=True)
    servers = ports(len(NODES))
    space = f"real-{secrets.token_hex(3)}"
    configure(folder, servers, space)
    os.environ["PYTHONPATH"] = str(HERE.parent)
    running: dict[str, subprocess.Popen] = {}

    def serve(name: str, *arguments: str) -> None:
        log = (folder / f"{name}.log").open("w")
        running[name] = subprocess.Popen([*TIDEGATE, *arguments], stdout=log, stderr=log)

    load = Load(requests, servers, wanted, latency_target_s=4.0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"Everything is in {folder}.", flush=True)
    try:
        serve("scheduler", "scheduler", "--config", f"{folder}/services.toml")
        serve("bridge", "bridge", "--config", f"{folder}/services.toml")
        serve("cloud", "cloud-agent", "--config", f"{folder}/cloud.toml")
        load.start()
        submit(folder, f"kafka:/{space}", options.job, work)
        shown, began = 0, time.monotonic()
        until = began + options.minutes * 60
        while time.monotonic() < until and not (folder / "weights.npz").exists():
            time.sleep(1)
            if "edge" not in running and time.monotonic() - began > EDGE_AFTER_S:
                serve("edge", "edge-agent", "--config", f"{folder}/edge.toml")
            for one in effects(folder)[shown:]:
                print({k: v for k, v in one.items() if k != "n"}, flush=True)
                shown += 1
            for name, process in running.items():
                if process.poll() is not None:
                    print(f"{name} ended: see {folder}/{name}.log")
                    return 1
    finally:
        load.stop()
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait(60)
        end_rest(space, servers)
    if not (folder / "weights.npz").exists():
        print(f"The job did not finish in {options.minutes:g} minutes; logs are in {folder}.")
        return 1
    figures = judged(folder, f"kafka:/{space}", load, work.command, STEPS, work.tolerance)
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps({**provenance(), **figures}, indent=1) + "\n")
    good = (
        figures["weights_equal"] and figures["replay_identical"] and figures["moves"] >= 2
        and max(figures["sizes"]) == 4
        and not any(figures[name] for name in ("steps_lost", "double_owners", "late_reclaims"))
    )  # fmt: skip
    print("Everything is as it should be." if good else "Something is not as it should be.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
