"""What befalls a simulated system: drawn from a seed before anything runs, so that a part of it can
be left out and the rest stays what it was.

Each seed enables some kinds at rates of its own (swarm testing: Groce and others, ISSTA 2012), so
that rare combinations come up that a mixture of everything would drown. Sizes are drawn, too: most
worlds are small and short, so that there can be many of them.

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
    "asked": 24.0,
    "request_forged": 8.0,
    "request_copied": 8.0,
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
    "agent_moved": 2.0,
    "mqtt_held": 4.0,
}
#: The share of kinds that a seed enables.
ENABLED = 0.4
#: After these less holds (`laws.Books.losses`), so fewer seeds have them.
LOSSES = ("tail_lost", "log_restored")
ENABLED_LOSSES = 0.1
#: What befalls bridges, MQTT's broker and connections to it: only where there is an edge.
OF_THE_EDGE = ("bridge_", "mqtt_", "cell_")
#: These may wait for a moment in the life of a job or a loan, which few would hit by chance.
AIMED = (
    *("agent_crash", "agent_dead", "agent_torn", "agent_cut", "agent_pause", "agent_farewell"),
    "agent_moved",
    *("scheduler_crash", "scheduler_pause", "scheduler_cut", "cancelled", "asked"),
    *("worker_fails", "worker_ends_for_good", "store_fails", "mqtt_held"),
)
AIMED_SHARE = 0.5
#: The facts of the engine that they wait for: in the life of a job, and of a loan, where there are
#: far fewer of them.
JOB_AIMS = (
    *("GangStarting", "GangRunning", "GangScaling", "GangCheckpointing", "GangStopping"),
    *("JobMigrating", "JobQueued"),
)
LOAN_AIMS = ("LoanRequested", "ReclaimStarted", "ReturnOrdered")
#: A birth that comes late says nothing of a gang that began after it.
HELD_AIMS = ("LoanRequested", "GangStarting")
#: How many hours a storm lasts, at least and at most: as many of any length as of its double.
HOURS = 0.25, 1.2
#: How many machines there may be (`agents.places`): one of training, two more, the edge's last.
PLACES = 5
EDGE = (3, 4)
#: Owners that lend need none of their GPUs and all in turn, for so long each.
TIDE_S = 900.0, 3600.0
#: How long a lease is: the shorter, the more of them end in a storm.
LEASE_S = 420.0, 900.0
#: How long is looked on after all has ended.
REST_S = 120.0, 900.0
#: How many policies there are to begin with (`policies.POLICIES`). The last lends nothing and gives
#: nothing back that another has lent, so who begins with it stays with it.
POLICIES = 5


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault: when (seconds after the beginning), what, to whom, and how hard (0 to 1)."""

    at_s: float
    kind: str
    who: int
    size: float
    aim: str = ""  #: The fact that it waits for, to strike whom that is about.


@dataclass(frozen=True, slots=True)
class Job:
    """One job that a tenant submits."""

    at_s: float
    name: str
    gpus_min: int
    gpus_max: int
    steps: int
    tenant: str
    deadline_s: float | None = None  #: Seconds after it is submitted.
    start_s: float = 10.0
    save_s: float = 5.0
    saved_mib: int = 100


@dataclass(frozen=True, slots=True)
class Storm:
    """All that a seed brings."""

    seed: int
    hours: float
    blows: tuple[Blow, ...]
    jobs: tuple[Job, ...]
    places: tuple[int, ...] = tuple(range(PLACES))  #: Of `agents.places`.
    bridges: int = 2
    policy: int = 0  #: Of `policies.POLICIES`, to begin with.
    tide_s: float = TIDE_S[1]
    lease_s: float = LEASE_S[1]
    rest_s: float = REST_S[1]


def draw(seed: int, hours: float | None = None, sure: Collection[str] = ()) -> Storm:
    """Draw a storm.

    Args:
        seed: Decides everything.
        hours: How many virtual hours it lasts; None: drawn as well.
        sure: Kinds that are enabled at their full rate, and strike once at least.
    """
    rng = np.random.default_rng([seed, 3])
    drawn_h, *times = (_between(rng, *ends) for ends in (HOURS, TIDE_S, LEASE_S, REST_S))
    hours = drawn_h if hours is None else hours
    edges, bridges, policy = (int(rng.integers(*ends)) for ends in ((0, 3), (1, 3), (0, POLICIES)))
    if not edges and any(kind.startswith(OF_THE_EDGE) for kind in sure):
        edges = 1
    clusters = [one for one, likely in ((1, 0.4), (2, 0.7)) if rng.random() < likely]
    places = (0, *(clusters if clusters or edges else (2,)), *EDGE[:edges])
    if "policy_changed" in sure:
        policy %= POLICIES - 1
    left_out: tuple[str, ...] = () if edges else OF_THE_EDGE
    left_out += ("policy_changed",) if policy == POLICIES - 1 else ()
    blows = []
    for kind in KINDS:
        if not kind.startswith(left_out):
            blows += _blows(seed, hours, kind, kind in sure)
    blows.sort(key=lambda blow: blow.at_s)
    bridges = bridges if edges else 0
    jobs = _jobs(seed, hours)
    return Storm(seed, hours, tuple(blows), jobs, places, bridges, policy, *times)


def _blows(seed: int, hours: float, kind: str, sure: bool) -> list[Blow]:
    rng = np.random.default_rng([seed, 1, crc32(kind.encode())])
    likely = ENABLED_LOSSES if kind in LOSSES else ENABLED
    enabled, share = rng.random() < likely, 10.0 ** -rng.random()
    count = int(rng.poisson(KINDS[kind] * share * hours)) if enabled else 0
    if sure:
        count = max(1, int(rng.poisson(KINDS[kind] * hours)))
    found = []
    for _ in range(count):
        at_s = float(rng.uniform(0.02, 1.0) * hours * 3600.0)
        who, size = int(rng.integers(1 << 16)), float(rng.random())
        of_jobs = rng.random() < 0.5 or not kind.startswith("agent_")
        aims: tuple[str, ...] = JOB_AIMS if of_jobs else LOAN_AIMS
        if kind == "mqtt_held":
            aims = HELD_AIMS
        aim = aims[rng.integers(len(aims))] if rng.random() < AIMED_SHARE else ""
        found.append(Blow(at_s, kind, who, size, aim if kind in AIMED else ""))
    return found


def _jobs(seed: int, hours: float) -> tuple[Job, ...]:
    """Draw what tenants submit; it takes the longer the longer the storm is."""
    rng = np.random.default_rng([seed, 1])
    jobs = []
    for number in range(int(rng.integers(4, 13) * max(1.0, hours / 4.0))):
        at_s = float(rng.uniform(0.0, 0.8) * hours * 3600.0)
        least, most = int(2 ** rng.integers(0, 3)), int(2 ** rng.integers(2, 4))
        steps = int(min(1.0, hours / 2.0) * 10 ** rng.uniform(2.5, 4.3))
        tenant = f"t{rng.integers(3)}"
        deadline_s = steps * _between(rng, 0.05, 5.0) if rng.random() < 0.25 else None
        start_s, save_s, saved_mib = (_between(rng, *e) for e in ((5, 60), (2, 90), (10, 1e5)))
        costs = start_s, save_s, int(saved_mib)
        jobs.append(Job(at_s, f"j{number}", least, most, steps, tenant, deadline_s, *costs))
    return tuple(sorted(jobs, key=lambda job: job.at_s))


def _between(rng: np.random.Generator, least: float, most: float) -> float:
    """Draw a number, as likely near the one as near the other by its logarithm."""
    return float(least * (most / least) ** rng.random())
