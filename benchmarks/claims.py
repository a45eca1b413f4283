"""What docs/results claims, and what code each of its pages measures.

A claim's figure is worked out from the raw files in docs/results/data where these were kept, and
typed where they were not; command, commit, date and minutes come from the same place. What was not
written down when it ran is `not recorded`, and stays so until somebody runs it again.
"""

from collections.abc import Mapping

from benchmarks import claims_policies, claims_system
from benchmarks.claim import Claim

_DECIDES = ("schemas", "scheduler")
_SIMULATED = (*_DECIDES, "simulator")
_AGENTS = ("runtime", "cloud_agent", "edge_agent", "services")
_DEPLOYED = (*_DECIDES, "bus", *_AGENTS)

#: By page, the files and folders whose code its figures measure: what runs, and what measures it.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "simulated-day.md": (*_SIMULATED, "bus", "runtime", "demo", "benchmarks/day.py"),
    "completion-times.md": (*_SIMULATED, "benchmarks/jct.py"),
    "unknown-lengths.md": (*_SIMULATED, "benchmarks/jct.py", "benchmarks/resampled.py"),
    "capacity.md": (
        *_SIMULATED,
        "benchmarks/more_capacity.py",
        "benchmarks/several_agents.py",
    ),
    "tail.md": (*_SIMULATED, "benchmarks/tail.py", "benchmarks/more_capacity.py"),
    "deadlines.md": (*_SIMULATED, "benchmarks/deadlines.py", "benchmarks/deadline_bound.py"),
    "loans.md": (
        *_SIMULATED,
        "benchmarks/loaning.py",
        "benchmarks/reclaim.py",
        "benchmarks/forecast.py",
    ),
    "edge.md": (*_SIMULATED, "benchmarks/edge.py"),
    "gpu-types.md": (*_SIMULATED, "benchmarks/gpu_types.py", "benchmarks/sia_types.py"),
    "failures.md": (*_SIMULATED, "benchmarks/failing.py"),
    "peers.md": (*_SIMULATED, "benchmarks/published.py"),
    "speed.md": (
        *_SIMULATED,
        "bus",
        "benchmarks/codec.py",
        "benchmarks/telemetry.py",
        "benchmarks/engine.py",
        "benchmarks/decisions.py",
        "benchmarks/fleet.py",
        "benchmarks/replay.py",
        "benchmarks/simulator.py",
    ),
    "branches.md": (*_SIMULATED, "bus", "runtime", "demo", "benchmarks/branches.py"),
    "scale.md": (*_DECIDES, "bus", "benchmarks/scale.py", "benchmarks/large_cell.py"),
    "gateway.md": (
        *_DECIDES,
        "bus",
        "gateway",
        "explain",
        "benchmarks/gateway.py",
        "benchmarks/gateway_cell.py",
        "benchmarks/large_cell.py",
        "benchmarks/requests.py",
    ),
    "console.md": (
        *_DECIDES,
        "bus",
        "gateway",
        "explain",
        "web/src",
        "benchmarks/console_page.py",
        "benchmarks/console_watch.py",
        "benchmarks/console_log.py",
        "benchmarks/gateway_cell.py",
        "benchmarks/large_cell.py",
    ),
    "brokers.md": (
        *_DEPLOYED,
        "benchmarks/bus.py",
        "benchmarks/brokers.py",
        "benchmarks/device_fleet.py",
        "benchmarks/raw_clients.py",
        "tests/chaos",
    ),
    "faults.md": (*_DEPLOYED, "tests/whole"),
    "gpu.md": (
        *_DEPLOYED,
        "examples",
        "benchmarks/gpu.py",
        "benchmarks/gpu_cell.py",
        "benchmarks/gpu_cluster.py",
        "benchmarks/gpu_door.py",
        "benchmarks/gpu_processes.py",
        "benchmarks/gpu_witness.py",
    ),
    "real-work.md": (
        *_DEPLOYED,
        "examples",
        "benchmarks/agent.py",
        "benchmarks/checkpoints.py",
        "benchmarks/migration.py",
        "benchmarks/reclaim_real.py",
        "benchmarks/resize.py",
        "benchmarks/scrape.py",
        "tests/chaos",
    ),
}

#: Commits that were rebased after they were measured, without a change to what runs -> what they
#: are in this history, as the pages say (loans, unknown-lengths).
REBASED: Mapping[str, str] = {
    "0885d0e31c5d": "08661fa",
    "dcc0edbb4771": "f926258",
}

CLAIMS: tuple[Claim, ...] = (*claims_policies.CLAIMS, *claims_system.CLAIMS)
