"""How many GPUs an owner needs for what it serves. Pure; never from GPU utilisation.

A busy GPU may serve one request or a hundred, so its utilisation does not tell how much room is
left; requests and their latency do. For each replica i of g GPUs, in GPUs:

    served_i  = max(running, rate x service)                        Little's law, L = lambda W
    backlog_i = waiting x min(1, service / drain_s)                 slots that empty it in drain_s
    need_i    = max((served_i + backlog_i) (1 + headroom) / concurrency,   by count of requests
                    g x min(2, p99 / target)    if above the target,       by latency
                    g x cache / cache_target    if above it,               by cache
                    g                           if its target is down)     taken as fully loaded
    needed    = the sum over i, rounded up to whole replicas

- Little's law (Little, 1961) turns a rate and a time in service into requests in service; the
  measured count is taken where it is higher, so the need is never below what runs.
- One slot serves drain_s / service requests in drain_s; that gives the backlog's term. A waiting
  request never counts for more than one slot, nor for less than its service is known to take.
- The ratios by latency and cache are those of the horizontal pod autoscaler of Kubernetes (desired
  = current x metric / target); twice at most in one step, since latency in a queue has no bound.
- `concurrency` is how many requests one GPU serves at once within the target. It begins at
  `concurrency_per_gpu`. It rises to the highest count seen with a p99 within the target and no
  request waiting. A p99 above the target lowers it to a tenth less than the most that ran in the
  time that the p99 is of, or to that number if others waited then, since no more could run. That
  time reaches back, because a request that ends late now arrived when others ran: blaming the low
  load of the present would lower it far too much, and nothing would be lent for
  `capacity_recovery_s`. What was learned above the prior is forgotten with the time constant
  `capacity_decay_s`, what was learned below it with `capacity_recovery_s`.
- A lower need counts only once it has lasted `stabilization_window_s`: the highest need of that
  time counts, as with that autoscaler's `stabilizationWindowSeconds` (300 s by default there too).
- A replica whose metrics cannot be read counts with the larger of its last reading and all its
  GPUs. From `stale_s` to `metrics_timeout_s` without metrics the need grows from there to all of
  the owner's GPUs: a replica that is not seen is not idle. A page with missing or absurd series
  doubles the headroom of its replica.
- A replica that joins the others comes without requests: until its metrics are first read, for
  `stale_s` at most, it counts for nothing. Otherwise each node handed back would raise the need by
  a node for `stabilization_window_s`, and so keep the next one from being lent. Replicas that are
  there at the first look may have any load.

The need is capped at the GPUs that the owner has.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from schemas.options import CHECKED, Delay, Rate, Seconds

_RATIO_MAX = 2.0
#: After a missed target, this share of the load is believed to be within it.
_MISSED = 0.9
#: A late answer is blamed on the load of at most this long ago.
_LATE_MAX_S = 120.0
#: Keeps a floating-point error from being rounded up to one more GPU.
_TINY = 1e-9


@checked(frozen=True, slots=True, config=CHECKED)
class DemandSettings:
    """How the GPUs needed follow from the load: the latency target, and margins."""

    #: The p99 latency that the owner promises.
    latency_target_s: Seconds
    #: Requests that one GPU is taken to serve at once within the target, until measured.
    concurrency_per_gpu: Rate = 16.0
    #: How soon a queue of requests must be empty.
    drain_s: Seconds = 30.0
    #: Added to the need, as a share of it.
    headroom: Annotated[float, Field(ge=0.0)] = 0.2
    #: A replica counts as full when it uses this share of its cache.
    cache_target: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    #: A replica whose last metrics are older than this counts as fully loaded.
    stale_s: Seconds = 15.0
    #: Without metrics for this long, all of the owner's GPUs count as needed.
    metrics_timeout_s: Seconds = 60.0
    #: A lower need counts only after it has lasted this long.
    stabilization_window_s: Delay = 300.0
    #: Time constant with which a concurrency learned above `concurrency_per_gpu` returns to it.
    capacity_decay_s: Seconds = 86_400.0
    #: Time constant with which a concurrency learned below `concurrency_per_gpu` returns to it.
    capacity_recovery_s: Seconds = 3600.0
    #: The least that is needed, also without load: without a replica no load is seen.
    gpus_min: Annotated[int, Field(ge=0)] = 1

    def __post_init__(self) -> None:
        if self.metrics_timeout_s <= self.stale_s:
            raise ValueError("metrics_timeout_s: must be longer than stale_s")


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica by its last metrics; zeros in its load if there never were any."""

    name: str
    gpus: int
    #: Since its metrics were last read, or first asked for.
    silent_s: float
    #: Whether its metrics were ever read.
    known: bool = True
    running: float = 0.0
    waiting: float = 0.0
    rate_per_s: float | None = None
    service_s: float | None = None
    latency_p99_s: float | None = None
    #: Of requests that ended within this, if longer than the rate's.
    latency_of_s: float = 0.0
    kv_cache_use: float | None = None
    #: Whether its page lacks something or has something absurd.
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What the owner needs now."""

    gpus_needed: int
    #: The same, before the stabilization window.
    gpus_now: int
    #: Requests that one GPU serves at once within the target, as learned.
    concurrency_per_gpu: float
    #: The replicas whose metrics cannot be read.
    targets_down: tuple[str, ...] = ()


def need_of(replica: ReplicaLoad, concurrency_per_gpu: float, settings: DemandSettings) -> float:
    """Give the GPUs that one replica's load takes; rises with each figure of the load."""
    service_s = replica.service_s
    served = max(replica.running, (replica.rate_per_s or 0.0) * (service_s or 0.0))
    share = 1.0 if service_s is None else min(1.0, service_s / settings.drain_s)
    margin = 1 + settings.headroom * (2 if replica.doubtful else 1)
    need = (served + replica.waiting * share) * margin / concurrency_per_gpu
    latency_s = replica.latency_p99_s
    if latency_s is not None and latency_s > settings.latency_target_s:
        need = max(need, replica.gpus * min(_RATIO_MAX, latency_s / settings.latency_target_s))
    cache = replica.kv_cache_use
    if cache is not None and cache > settings.cache_target:
        need = max(need, replica.gpus * cache / settings.cache_target)
    if not _is_up(replica, settings):
        need = max(need, float(replica.gpus))
    return need


def gpus_for(
    replicas: Sequence[ReplicaLoad],
    concurrency_per_gpu: float,
    gpus_total: int,
    settings: DemandSettings,
    unseen_s: float = 0.0,
) -> int:
    """Give the GPUs needed now, before the stabilization window.

    Args:
        replicas: The owner's, with or without metrics.
        concurrency_per_gpu: Requests that one GPU serves at once within the target.
        gpus_total: All that the owner has.
        settings: What the owner promises.
        unseen_s: For how long there has been no replica at all.
    """
    if gpus_total < 1:
        return 0
    total = math.fsum(need_of(one, concurrency_per_gpu, settings) for one in replicas)
    silence_s = max((one.silent_s for one in replicas), default=unseen_s)
    if silence_s > settings.stale_s:
        blind = (silence_s - settings.stale_s) / (settings.metrics_timeout_s - settings.stale_s)
        total += max(0.0, gpus_total - total) * min(1.0, blind)
    size = max((one.gpus for one in replicas), default=1)
    whole = size * math.ceil(max(total, settings.gpus_min) / size - _TINY)
    return min(gpus_total, whole)


class DemandModel:
    """The owner's need over time: the concurrency it learns, and its stabilization window."""

    def __init__(self, settings: DemandSettings, gpus_total: int) -> None:
        """Begin with the prior.

        Raises:
            ValueError: the owner has no GPUs.
        """
        if gpus_total < 1:
            raise ValueError("gpus_total: must be positive")
        self._settings = settings
        self._total = gpus_total
        self._concurrency = settings.concurrency_per_gpu
        self._updated_s: float | None = None
        self._unseen_since_s: float | None = None
        #: The names of the replicas at the last look, and of those that came since the first one.
        self._present: frozenset[str] | None = None
        self._joined: frozenset[str] = frozenset()
        #: By replica: when it served how many requests, and whether others waited.
        self._served: dict[str, deque[tuple[float, float, bool]]] = {}
        #: Falling needs that no later one exceeds: the first is the highest of the window.
        self._recent: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, replicas: Sequence[ReplicaLoad]) -> Demand:
        """Give the need now."""
        settings = self._settings
        replicas = self._with_joining(replicas)
        passed_s = 0.0 if self._updated_s is None else max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        up = [one for one in replicas if _is_up(one, settings)]
        self._learn(now_s, up, passed_s)
        if replicas:
            self._unseen_since_s = None
        elif self._unseen_since_s is None:
            self._unseen_since_s = now_s
        unseen_s = 0.0 if self._unseen_since_s is None else now_s - self._unseen_since_s
        now = gpus_for(replicas, self._concurrency, self._total, settings, unseen_s)
        return Demand(
            gpus_needed=self._stabilized(now_s, now),
            gpus_now=now,
            concurrency_per_gpu=self._concurrency,
            targets_down=tuple(one.name for one in replicas if one not in up),
        )

    def _with_joining(self, replicas: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        """Take those that joined since the first look, and have no metrics yet, as idle."""
        present = frozenset(one.name for one in replicas)
        if self._present is not None:
            self._joined = (self._joined | (present - self._present)) & present
        self._present = present
        return [
            replace(one, known=True)
            if one.name in self._joined and one.silent_s <= self._settings.stale_s
            else one
            for one in replicas
        ]

    def _learn(self, now_s: float, up: Sequence[ReplicaLoad], passed_s: float) -> None:
        settings = self._settings
        prior = settings.concurrency_per_gpu
        fade_s = (
            settings.capacity_decay_s if self._concurrency > prior else settings.capacity_recovery_s
        )
        concurrency = prior + (self._concurrency - prior) * math.exp(-passed_s / fade_s)
        met, missed = 0.0, math.inf
        self._served = {one.name: self._served.get(one.name, deque()) for one in up}
        for one in up:
            if one.latency_p99_s is None or one.doubtful:
                continue
            rate_per_s = one.rate_per_s
            mean = one.running if rate_per_s is None else rate_per_s * (one.service_s or 0.0)
            served = self._served[one.name]
            served.append((now_s, max(one.running, mean), one.waiting > 0))
            since_s = now_s - min(_LATE_MAX_S, one.latency_of_s + one.latency_p99_s)
            while served[0][0] < now_s - _LATE_MAX_S:
                served.popleft()
            of_it = (moment for moment in served if moment[0] >= since_s)
            _, most, waited = max(of_it, key=lambda moment: moment[1:])
            if one.latency_p99_s > settings.latency_target_s and most > 0:
                missed = min(missed, max(most * (1.0 if waited else _MISSED), 1.0) / one.gpus)
            elif one.latency_p99_s <= settings.latency_target_s and one.waiting == 0:
                met = max(met, min(one.running, mean) / one.gpus)
        self._concurrency = min(max(concurrency, met), missed)

    def _stabilized(self, now_s: float, need: int) -> int:
        recent = self._recent
        while recent and recent[-1][1] <= need:
            recent.pop()
        recent.append((now_s, need))
        # The time of a need is when it was last so high: it counts for the window after it fell.
        while recent[0][0] < now_s - self._settings.stabilization_window_s:
            recent.popleft()
        return recent[0][1]


def _is_up(replica: ReplicaLoad, settings: DemandSettings) -> bool:
    return replica.known and replica.silent_s <= settings.stale_s
