"""Real workers, moved about by a real tide: what `make demo-real` runs.

On the brokers of this machine: a scheduler, a bridge, a cloud agent with four inference servers of
two slots each, and an edge agent with two slots. Slots are shares of this machine's processors. A
job trains (`train_numpy.py`) wherever the servers' load leaves room; the load makes it start with 2
workers, grow to 4, leave for the edge when users come back, return, and finish. Then its weights are
compared with those of a run that nobody disturbed.
"""

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from load import Load, trace

HERE = Path(__file__).resolve().parent
TIDEGATE = [sys.executable, "-m", "console.main"]
NODES, SLOTS, PLACES = ("serve-1", "serve-2", "serve-3", "serve-4"), 2, 8
#: Requests in service, from each second on: two servers' worth, one, four, one.
TIDE = ((0.0, 5.0), (90.0, 0.7), (150.0, 22.0), (210.0, 0.7))
STEPS, WORK_S = 1500, 0.5
#: The edge server connects this late, so that the job begins in the cloud.
EDGE_AFTER_S = 90.0
POLICY = (
    "tide:loans.lend_horizon_s=10:loans.drain_s=8:loans.lead_s=10:loans.loan_min_s=5"
    ":loans.cool_down_s=5:loans.forecast.season=none:loans.forecast.burst_slots=1:elastic.interval_s=5:elastic.horizon_s=60:moves.interval_s=10"
)


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
    """Write what an operator would: one file for the services, one for each agent."""
    common = f"""
[kafka]
namespace = "{space}"
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
"""
    replicas = "".join(
        f"""
[[agent.owner.replica]]
name = "llm-{node}"
node = "{node}"
argv = ["{sys.executable}", "{HERE}/inference_server.py", "--port", "{port}", "--places", "{PLACES}"]
ready = "http://127.0.0.1:{port}/health"
[[agent.load.server]]
name = "llm-{node}"
node = "{node}"
url = "http://127.0.0.1:{port}/metrics"
gpus = {SLOTS}
"""
        for node, port in zip(NODES, servers, strict=True)
    )
    (folder / "cloud.toml").write_text(f"""{common}
[agent]
name = "cloud"
pool = "serving"
pool_kind = "inference"
nodes = {json.dumps(NODES)}
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
places_per_gpu = {PLACES / SLOTS}
hold_s = 8
drain_s = 5
headroom = 0.2
stale_s = 10
blind_s = 20
[agent.owner.replicas]
grace_s = 10
[agent.owner.protect]
multiplier = 0
{replicas}""")
    (folder / "edge.toml").write_text(f"""{common}
[agent]
name = "edge-1"
gpus = {SLOTS}
gpu_type = "cpu"
speed_factor = 1.0
runs = "processes"
state_file = "{folder}/edge.db"
effects_file = "{folder}/edge.effects"
{workers}folder = "{folder}/edge"
[agent.simulated]
drain_s = 1
warm_up_s = 1
""")


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIDEGATE, *arguments], capture_output=True, text=True, check=False)


def submit(folder: Path, log: str) -> None:
    """Submit the job, as soon as there is a scheduler."""
    command = [sys.executable, str(HERE / "train_numpy.py"), "--steps", str(STEPS)]
    command += [
        "--work-s",
        str(WORK_S),
        "--loss",
        f"{folder}/loss",
        "--out",
        f"{folder}/weights.npz",
    ]
    job = {
        "job": "train",
        "model": "numpy",
        "gpus_min": 2,
        "gpus_max": 4,
        "total_steps": STEPS,
        "samples_per_step": 256.0,
        "rates": [{"gpus": n, "samples_per_s": 256.0 * n / WORK_S} for n in (2, 4)],
        "start_cost_s": 2.0,
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


def effects(folder: Path) -> list[dict]:
    """What both agents did to GPUs, in order of time."""
    found = []
    for name in ("cloud", "edge"):
        file = folder / f"{name}.effects"
        if file.exists():
            found += [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(found, key=lambda one: one["at_s"])


def double_owners(done: list[dict]) -> int:
    """Count the times that a GPU was taken while it was held, or a job ran in two places."""
    held: dict[tuple[str, int], tuple[str, int]] = {}
    found = 0
    for one in done:
        gpus = [(one["node"], gpu) for gpu in one.get("gpus", [])] if "node" in one else []
        if one["effect"] == "start":
            found += sum(gpu in held for gpu in gpus)
            found += any(
                job == one["job"] and epoch != one["epoch"] for job, epoch in held.values()
            )
        if one["effect"] in ("start", "scale"):
            held |= dict.fromkeys(gpus, (one["job"], one["epoch"]))
        elif one["effect"] in ("left", "ended"):
            for gpu in gpus:
                held.pop(gpu, None)
    return found


def judged(folder: Path, space: str, load: Load) -> dict:
    """Say what became of the job, of the owners' requests, and of the record."""
    log = f"kafka:/{space}"
    picture = folder / "timeline.png"
    told = tidegate(
        "timeline", "train", "--log", log, "--loss", f"{folder}/loss", "--plot", str(picture),
        "--json", f"{folder}/timeline.json",
    )  # fmt: skip
    print(told.stdout, told.stderr)
    stays = json.loads((folder / "timeline.json").read_text())["stays"]
    loans = json.loads(tidegate("loans", "--log", log, "--json", "-").stdout)["totals"]
    replayed = tidegate("replay", log)
    print(replayed.stdout)
    subprocess.run(
        [sys.executable, str(HERE / "train_numpy.py"), "--steps", str(STEPS), "--out", "straight.npz"],
        check=True, cwd=folder,
    )  # fmt: skip
    with np.load(folder / "straight.npz") as one, np.load(folder / "weights.npz") as other:
        apart = [float(np.abs(one[key] - other[key]).max()) for key in one.files]
    steps = [int(line.split()[1]) for line in (folder / "loss").read_text().splitlines()]
    pools = [stay["pool"] for stay in stays]
    return {
        "moves": sum(a != b for a, b in pairwise(pools)),
        "sizes": [stay["gpus"] for stay in stays],
        "pools": pools,
        "steps": STEPS,
        "steps_repeated": len(steps) - len(set(steps)),
        "steps_lost": STEPS - len(set(steps)),
        "weights_equal": max(apart) == 0.0,
        "max_weight_difference": max(apart),
        "double_owners": double_owners(effects(folder)),
        "loans": loans["loans_granted"],
        "late_reclaims": loans["reclaims_late"],
        "replay_identical": replayed.returncode == 0,
        "requests": len(load.served),
        "requests_late": len(load.late),
        "requests_late_in_a_late_reclaim": len(load.late) if loans["reclaims_late"] else 0,
        "requests_lost": load.lost,
        "picture": str(picture),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("demo-real"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--trace", type=Path, help="requests, as Azure publishes them (CSV)")
    parser.add_argument("--minutes", type=float, default=10.0, help="give up after (%(default)s)")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if folder.exists():
        print(f"{folder} exists: remove it, or name another with --folder.")
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

    load = Load(trace(options.trace), servers, wanted, latency_target_s=4.0)
    print(f"Everything is in {folder}.")
    try:
        serve("scheduler", "scheduler", "--config", f"{folder}/services.toml")
        serve("bridge", "bridge", "--config", f"{folder}/services.toml")
        serve("cloud", "cloud-agent", "--config", f"{folder}/cloud.toml")
        load.start()
        submit(folder, f"kafka:/{space}")
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
    if not (folder / "weights.npz").exists():
        print(f"The job did not finish in {options.minutes:g} minutes; logs are in {folder}.")
        return 1
    figures = judged(folder, space, load)
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    good = (
        figures["weights_equal"] and figures["replay_identical"] and figures["moves"] >= 2
        and max(figures["sizes"]) == 4
        and not any(figures[name] for name in ("steps_lost", "double_owners", "late_reclaims"))
    )  # fmt: skip
    print("Everything is as it should be." if good else "Something is not as it should be.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
