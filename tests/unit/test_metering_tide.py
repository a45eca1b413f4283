"""A tide of requests over simulated vLLM servers, read from their pages, closes the loop.

Virtual time. The owner serves with as many GPUs as it was found to need; more come 30 s late, as
by a reclaim. That is enough for its latency target, far less than all GPUs at ebb, and a replica
that falls silent is covered for.
"""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from runtime.metering.demand import DemandModel, DemandSettings, ReplicaLoad
from runtime.metering.exposition import parse
from runtime.metering.rates import CounterHistory
from runtime.metering.reading import read_page
from runtime.metering.servers import VLLM

TARGET_S, SERVICE_S, PLACES, GPUS = 15.0, 4.0, 20, 16
BOUNDS = (1.0, 2.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, math.inf)


@dataclass
class VllmServer:
    """A queue before places, and the page that it would show."""

    random: np.random.Generator
    waiting: list[int] = field(default_factory=list)
    running: list[tuple[float, int]] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    history: CounterHistory = field(default_factory=lambda: CounterHistory(60.0))

    def step(self, now_s: int) -> None:
        while self.running and self.running[0][0] <= now_s:
            ended_s, came_s = heapq.heappop(self.running)
            self.latencies_s.append(ended_s - came_s)
        while self.waiting and len(self.running) < PLACES:
            took_s = SERVICE_S * self.random.lognormal(0.0, 0.3)
            heapq.heappush(self.running, (now_s + took_s, self.waiting.pop(0)))

    def page(self) -> str:
        done, name = len(self.latencies_s), "vllm:e2e_request_latency_seconds"
        counts = np.searchsorted(np.sort(self.latencies_s), BOUNDS, side="right")
        buckets = "".join(
            f'{name}_bucket{{le="{"+Inf" if math.isinf(bound) else bound}"}} {count}\n'
            for bound, count in zip(BOUNDS, counts, strict=True)
        )
        return (
            f"vllm:num_requests_running {len(self.running)}\n"
            f"vllm:num_requests_waiting {len(self.waiting)}\n"
            f"vllm:kv_cache_usage_perc {0.8 * len(self.running) / PLACES}\n"
            f"vllm:request_success_total {done}\n"
            f"vllm:request_inference_time_seconds_sum {done * SERVICE_S}\n"
            f"vllm:request_inference_time_seconds_count {done}\n"
            f"{name}_sum {sum(self.latencies_s)}\n{name}_count {done}\n{buckets}"
        )

    def load(self, name: str, now_s: int, silent_s: float) -> ReplicaLoad:
        reading = read_page(VLLM, parse(self.page(), VLLM.wanted), float(now_s), self.history)
        return ReplicaLoad(
            name,
            gpus=1,
            silent_s=silent_s,
            running=reading.running,
            waiting=reading.waiting,
            rate_per_s=reading.rate_per_s,
            service_s=reading.service_s,
            latency_p99_s=reading.latency_p99_s,
            kv_cache_use=reading.kv_cache_use,
            doubtful=bool(reading.doubts),
        )


@dataclass
class Tide:
    """What came of it."""

    needed: list[int]
    late: float


def tide(prior: float, silent: range = range(0)) -> Tide:
    """Twenty minutes from ebb to flood and back; one replica is silent for a while."""
    random = np.random.default_rng(7)
    servers = [VllmServer(random) for _ in range(GPUS)]
    settings = DemandSettings(TARGET_S, concurrency_per_gpu=prior, stabilization_window_s=60.0)
    model, serving, needed, reclaim = DemandModel(settings, GPUS), GPUS, [], (math.inf, 0)
    for now_s in range(1200):
        rate_per_s = 2.0 + 18.0 * (0.5 - 0.5 * math.cos(2 * math.pi * now_s / 1200))
        for _ in range(random.poisson(rate_per_s)):
            emptiest = min(servers[:serving], key=lambda one: len(one.waiting) + len(one.running))
            emptiest.waiting.append(now_s)
        for server in servers:
            server.step(now_s)
        if now_s % 5 == 0:
            loads = [
                server.load(f"r{n}", now_s, now_s - silent[0] if n == 0 and now_s in silent else 1)
                for n, server in enumerate(servers[:serving])
            ]
            needed.append(model.update(float(now_s), loads).gpus_needed)
            serving = min(serving, needed[-1])
            if needed[-1] > serving and reclaim[0] == math.inf:
                reclaim = (now_s + 30, needed[-1])
        if reclaim[0] <= now_s:
            serving, reclaim = max(serving, reclaim[1]), (math.inf, 0)
    latencies_s = np.concatenate([server.latencies_s for server in servers])
    return Tide(needed, float((latencies_s > TARGET_S).mean()))


@pytest.mark.parametrize("prior", [8.0, 16.0])
def test_the_need_follows_the_tide_and_the_target_is_met(prior: float) -> None:
    came = tide(prior)
    assert came.late < 0.001
    flood, ebb = max(came.needed), min(came.needed)
    # At the flood 20 requests a second of 4 s are 80 places on 4 GPUs; at ebb 8 on one.
    assert 4 <= flood <= 13
    assert ebb <= 3
    assert came.needed[-1] <= flood / 2


def test_a_belief_far_too_high_is_corrected_by_the_first_queue() -> None:
    came = tide(200.0)
    assert came.late < 0.05
    assert max(came.needed) >= 4


def test_silence_at_ebb_takes_all_gpus_back_until_it_is_broken() -> None:
    came = tide(16.0, silent=range(100, 200))
    assert came.needed[160 // 5] == came.needed[255 // 5] == GPUS
    assert came.needed[265 // 5] < GPUS / 2
    assert came.late < 0.001
