"""What befalls a simulated system: drawn from a seed before anything runs, so that a part of it can
be left out and the rest stays what it was.

Each seed enables some kinds at rates of its own (swarm testing: Groce and others, ISSTA 2012), so
that rare combinations come up that a mixture of everything would drown.

Each kind is drawn from a stream of its own: a seed keeps its other blows when a kind is added.
"""

from collections.abc import Collection
from dataclasses import dataclass
from zlib import crc32

import numpy as np

#: By kind, how often at most in an hour.
KINDS = {
    "scheduler_crash": 8.0,
    "scheduler_pause": 6.0,
    "scheduler_cut": 6.0,
    "agent_crash": 12.0,
    "agent_dead": 2.0,
    "agent_torn": 4.0,
    "agent_flaps": 2.0,
    "agent_pause": 6.0,
    "agent_cut": 12.0,
    "agent_leave": 4.0,
    "agent_farewell": 3.0,
    "disk_full": 3.0,
    "disk_errs": 3.0,
    "disk_unreadable": 2.0,
    "worker_fails": 8.0,
    "slow": 8.0,
    "answers_lost": 8.0,
    "deadly": 6.0,
    "late_copy": 30.0,
    "garbage": 30.0,
    "forged": 12.0,
    "offsets_forgotten": 2.0,
    "topic_recreated": 1.0,
    "tail_lost": 1.0,
    "log_restored": 0.5,
    "resubmitted": 8.0,
    "cancelled": 4.0,
    "bridge_crash": 8.0,
    "bridge_leave": 3.0,
    "bridge_pause": 6.0,
    "bridge_cut": 8.0,
    "bridge_slow": 4.0,
    "cell_sick": 4.0,
    "mqtt_cut": 12.0,
    "mqtt_snap": 20.0,
    "mqtt_answers_lost": 6.0,
    "mqtt_deadly": 4.0,
    "mqtt_crash": 4.0,
    "mqtt_repeats": 6.0,
    "mqtt_late_copy": 20.0,
    "mqtt_forged": 12.0,
    "clock_leaps": 4.0,
    "clock_off": 4.0,
    "scheduler_upgrade": 1.0,
    "agent_upgrade": 2.0,
    "policy_changed": 3.0,
    "worker_ends_for_good": 1.0,
    "store_fails": 3.0,
}
#: The share of kinds that a seed enables.
ENABLED = 0.4
#: After these less holds (`laws.Books.losses`), so fewer seeds have them.
LOSSES = ("tail_lost", "log_restored")
ENABLED_LOSSES = 0.1


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault: when (seconds after the beginning), what, to whom, and how hard (0 to 1)."""

    at_s: float
    kind: str
    who: int
    size: float


@dataclass(frozen=True, slots=True)
class Job:
    """One job that a tenant submits."""

    at_s: float
    name: str
    gpus_min: int
    gpus_max: int
    steps: int
    tenant: str


@dataclass(frozen=True, slots=True)
class Storm:
    """All that a seed brings."""

    seed: int
    hours: float
    blows: tuple[Blow, ...]
    jobs: tuple[Job, ...]


def draw(seed: int, hours: float = 2.0, sure: Collection[str] = ()) -> Storm:
    """Draw a storm of so many virtual hours.

    Args:
        seed: Decides everything.
        hours: How long it lasts.
        sure: Kinds that are enabled at their full rate, and strike once at least.
    """
    blows = []
    for kind, most in KINDS.items():
        rng = np.random.default_rng([seed, 1, crc32(kind.encode())])
        likely = ENABLED_LOSSES if kind in LOSSES else ENABLED
        enabled, share = rng.random() < likely, 10.0 ** -rng.random()
        count = int(rng.poisson(most * share * hours)) if enabled else 0
        if kind in sure:
            count = max(1, int(rng.poisson(most * hours)))
        for _ in range(count):
            at_s = float(rng.uniform(0.02, 1.0) * hours * 3600.0)
            blows.append(Blow(at_s, kind, int(rng.integers(1 << 16)), float(rng.random())))
    blows.sort(key=lambda blow: blow.at_s)
    rng = np.random.default_rng([seed, 1])
    jobs = []
    for number in range(int(rng.integers(4, 13))):
        at_s = float(rng.uniform(0.0, 0.8) * hours * 3600.0)
        least = int(2 ** rng.integers(0, 3))
        most_gpus = int(2 ** rng.integers(2, 4))
        steps, tenant = int(10 ** rng.uniform(2.5, 4.3)), f"t{rng.integers(3)}"
        jobs.append(Job(at_s, f"j{number}", least, most_gpus, steps, tenant))
    return Storm(seed, hours, tuple(blows), tuple(sorted(jobs, key=lambda job: job.at_s)))
