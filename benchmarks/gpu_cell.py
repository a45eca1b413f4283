"""The cell of `benchmarks.gpu`: its configuration, and the jobs' declared speed."""

POLICY = (
    "tide:loans.lend_horizon_s=5:loans.warm_up_s=8:loans.lead_s=5:loans.loan_min_s=3"
    ":loans.cool_down_s=3:loans.forecast.season=none:loans.forecast.burst_slots=1"
    ":loans.forecast.half_life_slots=0.3:loans.forecast.trend_slots=2:horizon_s=120"
)
#: The declared speed of jobs, samples/s: far above what they reach, to see what is learned instead.
DECLARED = 20_000.0
#: A job with a process on the GPU in a session of its own, which signals to its group do not reach.
LEAVES = """
import pathlib, subprocess, sys, time
if len(sys.argv) > 2:
    if sys.argv[2] == "cuda":
        import torch
        held = torch.ones(2**33, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(600)
else:
    where = "{device}"
    subprocess.Popen([sys.executable, __file__, sys.argv[1], where], start_new_session=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    time.sleep(600)
"""
FILES = """
bus = "sqlite:{folder}/bus.db"
[log]
format = "text"
[http]
port = "off"
[scheduler]
births = "any"
policy = "{policy}"
heartbeat_s = 5
[scheduler.settings]
cycle_s = 2
cycle_gap_s = 0.3
load_slot_s = 2
grace_s = 30
backoff_s = 2
[agent]
name = "gpu-1"
gpus = 1
{gpu_type}
runs = "processes"
state_file = "{folder}/agent.db"
effects_file = "{folder}/agent.effects"
[agent.schedule]
telemetry_every_s = 2
load_every_s = 1
progress_every_s = 1
[agent.limits]
checkpoint_min_s = 10
checkpoint_max_s = 15
[agent.workers]
isolation = "{isolation}"
folder = "{folder}/agent"
checkpoints = "file://{folder}/checkpoints"
[agent.load]
every_s = 0.5
window_s = 5
[[agent.load.server]]
name = "door"
url = "http://127.0.0.1:{door}/metrics"
[agent.load.demand]
latency_target_s = 60
concurrency_per_gpu = 8
stabilization_window_s = 4
drain_s = 5
gpus_min = 0
[agent.owner.replicas]
grace_s = 10
[agent.owner.protect]
multiplier = 0
[[agent.owner.replica]]
name = "llm"
node = "gpu-1"
argv = {serve}
ready = "http://127.0.0.1:{port}/health"
"""
