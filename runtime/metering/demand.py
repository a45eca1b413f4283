"""How many GPUs an owner needs for what it serves. Pure; never from GPU utilisation.

A busy GPU may serve one request or a hundred, so its utilisation says nothing of room that is
left; requests and their latency do. For each replica i of g GPUs, in GPUs:

    served_i  = max(running, rate x service)                        Little's law, L = lambda W
    backlog_i = waiting x min(1, service / drain_s)                 places that empty it in drain_s
    need_i    = max((served_i + backlog_i) (1 + headroom) / places, by count of requests
                    g x min(2, p99 / target)    if above the target, by latency
                    g x cache / cache_target    if above it,         by cache
                    g                           if not heard)        taken as fully loaded
    needed    = the sum over i, rounded up to whole replicas

- Little's law (Little, 1961) turns a rate and a time in service into requests in service; the
  measured count is taken where it is higher, so the need is never below what runs.
- A place serves drain_s / service requests in drain_s; that gives the backlog's term. A request
  that waits never counts for more than one place, nor for less than its service is known to take.
- The ratios by latency and cache are those of the horizontal pod autoscaler of Kubernetes (desired
  = current x metric / target); twice at most in one step, since latency in a queue has no bound.
- `places` are the requests that one GPU serves at once within the target: from a prior upwards by
  the highest count seen with a p99 within it and nobody waiting; downwards by a p99 above it,
  to a tenth less than the most that ran in the time that the p99 is of, or to that if others
  waited then, since it was all that could. Whoever ends late now came when others ran: the load
  of an ebb must not pass for the flood's, or nothing would be lent for `forgive_s`.
  The prior returns with a time constant of `remember_s` after the one, of `forgive_s` after the
  other.
- A need that falls is believed only after `hold_s`: the highest of that time counts, as in that
  autoscaler's stabilisation window (300 s by default there too).
- A replica not heard counts with the larger of its last reading and all its GPUs. From `stale_s` to
  `blind_s` of silence the need grows from there to all of the owner's GPUs: what is not seen is
  not idle. A page with missing or absurd series doubles the headroom of its replica.
- A replica that joins the others comes without requests: until it is first heard, for `stale_s` at
  most, it counts for nothing. Else each node handed back raised the need by a node for `hold_s`,
  and so kept the next one from being lent. Those there at the first look may have any load.

The need is capped at the GPUs that the owner has.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

_RATIO_MAX = 2.0
#: Where the target was missed, so much of the load is believed to be within it.
_MISSED = 0.9
#: Of longer ago nobody's lateness is.
_LATE_MAX_S = 120.0
#: Against rounding up what floats put above a whole number.
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class DemandSettings:
    """What the owner promises, and how careful it is."""

    #: The p99 latency that the owner promises.
    latency_target_s: float
    #: Requests that one GPU is believed to serve at once within the target, until shown.
    places_per_gpu: float = 16.0
    #: Within which a queue is to be gone.
    drain_s: float = 30.0
    #: Share kept free beyond what is needed.
    headroom: float = 0.2
    #: Share of the cache from which a replica counts as full.
    cache_target: float = 0.9
    #: The age from which a reading is no longer the present.
    stale_s: float = 15.0
    #: The silence after which all GPUs are needed.
    blind_s: float = 60.0
    #: How long a lower need must last.
    hold_s: float = 300.0
    #: How fast it is forgotten that a GPU served more than believed.
    remember_s: float = 86_400.0
    #: How fast it is forgotten that a GPU served less than believed.
    forgive_s: float = 3600.0
    #: Needed even without load: without a replica no load is seen.
    gpus_min: int = 1

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{one.name}: must not be negative or infinite")
        for name in (
            *("latency_target_s", "places_per_gpu", "drain_s", "stale_s"),
            *("remember_s", "forgive_s"),
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be positive")
        if not 0 < self.cache_target <= 1:
            raise ValueError("cache_target: must be a share above 0")
        if self.blind_s <= self.stale_s:
            raise ValueError("blind_s: must be longer than stale_s")


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica as last heard; zeros in its load if it never was."""

    name: str
    gpus: int
    #: Since it was last heard, or first looked for.
    silent_s: float
    #: Whether it was ever heard.
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
    #: Before a fall is held back.
    gpus_now: int
    #: Requests that one GPU serves at once within the target, as learned.
    places_per_gpu: float
    #: Replicas that are not heard.
    unheard: tuple[str, ...] = ()


def need_of(replica: ReplicaLoad, places_per_gpu: float, settings: DemandSettings) -> float:
    """Give the GPUs that one replica's load takes; rises with each figure of the load."""
    service_s = replica.service_s
    served = max(replica.running, (replica.rate_per_s or 0.0) * (service_s or 0.0))
    share = 1.0 if service_s is None else min(1.0, service_s / settings.drain_s)
    margin = 1 + settings.headroom * (2 if replica.doubtful else 1)
    need = (served + replica.waiting * share) * margin / places_per_gpu
    latency_s = replica.latency_p99_s
    if latency_s is not None and latency_s > settings.latency_target_s:
        need = max(need, replica.gpus * min(_RATIO_MAX, latency_s / settings.latency_target_s))
    cache = replica.kv_cache_use
    if cache is not None and cache > settings.cache_target:
        need = max(need, replica.gpus * cache / settings.cache_target)
    if not _heard(replica, settings):
        need = max(need, float(replica.gpus))
    return need


def gpus_for(
    replicas: Sequence[ReplicaLoad],
    places_per_gpu: float,
    gpus_total: int,
    settings: DemandSettings,
    unseen_s: float = 0.0,
) -> int:
    """Give the GPUs needed now, before a fall is held back.

    Args:
        replicas: The owner's, heard or not.
        places_per_gpu: Requests that one GPU serves at once within the target.
        gpus_total: All that the owner has.
        settings: What the owner promises.
        unseen_s: For how long there has been no replica at all.
    """
    if gpus_total < 1:
        return 0
    total = math.fsum(need_of(one, places_per_gpu, settings) for one in replicas)
    silence_s = max((one.silent_s for one in replicas), default=unseen_s)
    if silence_s > settings.stale_s:
        blind = (silence_s - settings.stale_s) / (settings.blind_s - settings.stale_s)
        total += max(0.0, gpus_total - total) * min(1.0, blind)
    size = max((one.gpus for one in replicas), default=1)
    whole = size * math.ceil(max(total, settings.gpus_min) / size - _TINY)
    return min(gpus_total, whole)


class DemandModel:
    """The owner's need over time: what is learned of places, and falls held back."""

    def __init__(self, settings: DemandSettings, gpus_total: int) -> None:
        """Begin with the prior.

        Raises:
            ValueError: the owner has no GPUs.
        """
        if gpus_total < 1:
            raise ValueError("gpus_total: must be positive")
        self._settings = settings
        self._total = gpus_total
        self._places = settings.places_per_gpu
        self._updated_s: float | None = None
        self._unseen_since_s: float | None = None
        #: The names of the replicas at the last look, and of those that came since the first one.
        self._present: frozenset[str] | None = None
        self._joined: frozenset[str] = frozenset()
        #: By replica: what it served when, and whether others waited.
        self._served: dict[str, deque[tuple[float, float, bool]]] = {}
        #: Needs that none later exceeds, falling: the first is the highest of the hold.
        self._recent: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, replicas: Sequence[ReplicaLoad]) -> Demand:
        """Give the need now."""
        settings = self._settings
        replicas = self._with_joining(replicas)
        passed_s = 0.0 if self._updated_s is None else max(0.0, now_s - self._updated_s)
        self._updated_s = now_s
        heard = [one for one in replicas if _heard(one, settings)]
        self._learn(now_s, heard, passed_s)
        if replicas:
            self._unseen_since_s = None
        elif self._unseen_since_s is None:
            self._unseen_since_s = now_s
        unseen_s = 0.0 if self._unseen_since_s is None else now_s - self._unseen_since_s
        now = gpus_for(replicas, self._places, self._total, settings, unseen_s)
        return Demand(
            gpus_needed=self._held(now_s, now),
            gpus_now=now,
            places_per_gpu=self._places,
            unheard=tuple(one.name for one in replicas if one not in heard),
        )

    def _with_joining(self, replicas: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        """Take those that have come since the first look, and may not be heard yet, as idle."""
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

    def _learn(self, now_s: float, heard: Sequence[ReplicaLoad], passed_s: float) -> None:
        settings = self._settings
        prior = settings.places_per_gpu
        fade_s = settings.remember_s if self._places > prior else settings.forgive_s
        places = prior + (self._places - prior) * math.exp(-passed_s / fade_s)
        met, missed = 0.0, math.inf
        self._served = {one.name: self._served.get(one.name, deque()) for one in heard}
        for one in heard:
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
        self._places = min(max(places, met), missed)

    def _held(self, now_s: float, need: int) -> int:
        recent = self._recent
        while recent and recent[-1][1] <= need:
            recent.pop()
        recent.append((now_s, need))
        # The moment is when it was last so high: a need counts until `hold_s` after it fell.
        while recent[0][0] < now_s - self._settings.hold_s:
            recent.popleft()
        return recent[0][1]


def _heard(replica: ReplicaLoad, settings: DemandSettings) -> bool:
    return replica.known and replica.silent_s <= settings.stale_s
