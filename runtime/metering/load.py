"""The owner's load, from its replicas' metrics: what it serves, and the GPUs that it needs."""

import math
from collections.abc import Callable, Sequence

from runtime.metering.demand import Demand, DemandModel, DemandSettings, ReplicaLoad
from runtime.metering.reading import LATENCY_MAX_S
from runtime.metering.scrape import Replica, ScrapeCounters, Scraper, TargetState
from schemas.events import InferenceLoad


class ScrapedLoad:
    """A `LoadMeter`: scrapes the owner's replicas and says how many GPUs they need.

    `loads` never waits: threads scrape, and it judges what they last brought. Also where no server
    answers it gives a load, with a need that grows to all GPUs.
    """

    def __init__(
        self,
        pool: str,
        replicas: Callable[[], Sequence[Replica]],
        gpus_serving: Callable[[], int],
        gpus_total: int,
        settings: DemandSettings,
        *,
        node: str | None = None,
        scraper: Scraper | None = None,
    ) -> None:
        """Begin to scrape what replicas there are.

        Args:
            pool: The pool that loads are reported for.
            replicas: The servers that should answer now: without those that the owner has left.
            gpus_serving: The GPUs that the owner has to serve with now.
            gpus_total: The GPUs that it has when none is lent.
            settings: What the owner promises.
            node: The node, if the load is one node's.
            scraper: How replicas are scraped; every 5 s by default.

        Raises:
            ValueError: the owner has no GPUs.
        """
        self._pool = pool
        self._node = node
        self._replicas = replicas
        self._gpus_serving = gpus_serving
        self._model = DemandModel(settings, gpus_total)
        self._settings = settings
        self._scraper = scraper or Scraper()
        self._scraper.watch(replicas())
        self._counted_s: float | None = None
        self._short = 0
        self._demand: Demand | None = None
        self._targets: list[TargetState] = []
        self.shortfall_gpu_s = 0.0

    @property
    def counters(self) -> ScrapeCounters:
        """What the scraping has come to."""
        return self._scraper.counters

    @property
    def targets_down(self) -> int:
        """How many replicas have had no metrics for too long, and count as fully loaded."""
        return 0 if self._demand is None else len(self._demand.targets_down)

    def loads(self, now_s: float) -> list[InferenceLoad]:
        self._scraper.watch(self._replicas())
        self._targets = self._scraper.targets()
        replicas = [_load_of(target) for target in self._targets]
        demand = self._demand = self._model.update(now_s, replicas)
        serving = self._gpus_serving()
        self._count(now_s, demand.gpus_needed - serving)
        return [
            InferenceLoad(
                pool=self._pool,
                node=self._node,
                requests_running=math.ceil(math.fsum(one.running for one in replicas)),
                requests_waiting=math.ceil(math.fsum(one.waiting for one in replicas)),
                request_rate_per_s=math.fsum(one.rate_per_s or 0.0 for one in replicas),
                latency_p99_s=_latency_s(self._targets),
                kv_cache_use=max(
                    (one.kv_cache_use for one in replicas if one.kv_cache_use is not None),
                    default=None,
                ),
                gpus_needed=demand.gpus_needed,
                gpus_serving=serving,
                shortfall_gpu_s=self.shortfall_gpu_s,
            )
        ]

    def problems(self) -> list[str]:
        """Give, in sentences, why the need is higher than the measured load."""
        down = () if self._demand is None else self._demand.targets_down
        found: list[str] = []
        if self._demand is not None and not self._targets:
            found.append(f"{self._pool}: no replica to ask, so no load is seen; keep one serving")
        for target in self._targets:
            name = target.replica.name
            if name in down:
                why = target.error or "no page came"
                found.append(
                    f"{name}: counts as fully loaded, no metrics for {target.age_s:.0f} s: {why}"
                )
            elif (reading := target.reading) is not None:
                found += [f"{name}: counts with a wider margin: {d}" for d in reading.doubts]
                target_s, p99_s = self._settings.latency_target_s, reading.latency_p99_s
                alone = reading.waiting == 0 and reading.running <= target.replica.gpus
                if alone and p99_s is not None and p99_s > target_s:
                    found.append(
                        f"{name}: p99 above latency_target_s ({target_s:g} s) with a request a GPU"
                        " at most; if it stays so, more GPUs do not help: raise the target"
                    )
        return found

    def close(self) -> None:
        """Scrape no more."""
        self._scraper.close()

    def _count(self, now_s: float, short: int) -> None:
        """Add the shortfall since the last count, at the need of then."""
        if self._counted_s is not None and now_s > self._counted_s:
            self.shortfall_gpu_s += self._short * (now_s - self._counted_s)
        self._counted_s, self._short = now_s, max(0, short)


def _load_of(target: TargetState) -> ReplicaLoad:
    replica, reading = target.replica, target.reading
    if reading is None:
        return ReplicaLoad(replica.name, replica.gpus, target.age_s, known=False)
    return ReplicaLoad(
        replica.name,
        replica.gpus,
        target.age_s,
        running=reading.running,
        waiting=reading.waiting,
        rate_per_s=reading.rate_per_s,
        service_s=reading.service_s,
        latency_p99_s=reading.latency_p99_s,
        latency_of_s=reading.latency_of_s,
        kv_cache_use=reading.kv_cache_use,
        doubtful=bool(reading.doubts),
    )


def _latency_s(targets: Sequence[TargetState]) -> float | None:
    """Give the p99 of the slowest replica; the longest that its page can tell, if above that."""
    found = [
        min(one.reading.latency_p99_s, one.reading.latency_told_s or 0.0, LATENCY_MAX_S)
        for one in targets
        if one.reading is not None and one.reading.latency_p99_s is not None
    ]
    return max(found, default=None)
