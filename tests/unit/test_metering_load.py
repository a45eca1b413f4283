"""The owner's load as the agent says it: from real pages to GPUs needed and what fell short."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from runtime.metering.demand import DemandSettings
from runtime.metering.load import ScrapedLoad
from runtime.metering.scrape import Replica, Scraper
from runtime.meters import LoadMeter
from runtime.periodic import monotonic_s
from schemas.events import InferenceLoad
from tests.metering.pages import Site, hanging, page, served, text
from tests.patience import wait_until

SETTINGS = DemandSettings(
    latency_target_s=5.0, concurrency_per_gpu=10.0, stabilization_window_s=0.0
)


class Desk:
    """A meter with its owner."""

    def __init__(self, replicas: Sequence[Replica], settings: DemandSettings = SETTINGS) -> None:
        self.replicas = list(replicas)
        self.serving = 4
        self.ahead_s = 0.0
        self.meter = ScrapedLoad(
            "chat",
            lambda: self.replicas,
            lambda: self.serving,
            8,
            settings,
            scraper=Scraper(every_s=0.02, timeout_s=0.5, steady=self._steady),
        )
        self.now_s = 1000.0

    def load(self, passed_s: float = 0.0) -> InferenceLoad:
        self.now_s += passed_s
        (load,) = self.meter.loads(self.now_s)
        return load

    def hear(self, scrapes: int) -> None:
        """Wait for some more scrapes."""
        until = self.meter.counters.scrapes + scrapes
        wait_until(lambda: self.meter.counters.scrapes > until)

    def _steady(self) -> float:
        return monotonic_s() + self.ahead_s


def test_a_load_is_the_sum_of_the_replicas() -> None:
    with served(text(page("vllm_v1"))) as first, served(text(page("tgi"))) as second:
        desk = Desk([Replica("1", first.url), Replica("2", second.url)])
        wait_until(lambda: desk.load().requests_running == 20)
        load = desk.load()
        desk.meter.close()
    assert load.pool == "chat"
    assert load.node is None
    assert load.requests_waiting == 6
    assert load.kv_cache_use == 0.62
    assert load.gpus_serving == 4
    assert load.gpus_needed == 4  # (11 + 1) 1.2 / 10, (9 + 5) 1.4 / 10 or so
    assert load.latency_p99_s is None  # nothing was done between the pages
    assert not desk.meter.problems()


def test_a_replica_that_hangs_is_full_then_everything_and_is_reported() -> None:
    with (
        served(hanging) as stuck,
        served(text("tgi_queue_size 0\ntgi_batch_current_size 0\n")) as w,
    ):
        desk = Desk([Replica("stuck", stuck.url, gpus=2), Replica("well", w.url)])
        wait_until(lambda: desk.meter.counters.timeouts and desk.meter.counters.good)
        assert desk.load().gpus_needed == 2
        desk.ahead_s = 1000.0
        good = desk.meter.counters.good
        wait_until(lambda: desk.meter.counters.good > good + 1)
        assert desk.load().gpus_needed == 8
        problems = desk.meter.problems()
        desk.meter.close()
    assert problems[0].startswith("stuck: counts as fully loaded, no metrics for 10")
    assert "no whole answer within 0.5 s" in problems[0]
    assert problems[1:] == [
        "well: counts with a wider margin: tgi_request_count is not on the page",
        "well: counts with a wider margin: tgi_request_duration is not on the page",
    ]


def test_garbage_and_silence_never_look_like_calm() -> None:
    site = Site(text(page("sglang")))
    desk = Desk([Replica("r", site.url, gpus=4)])
    wait_until(lambda: desk.load().requests_running == 21)
    before = desk.load()
    for answer in (text("NaN\n"), text("sglang:num_running_reqs NaN\n"), hanging):
        site.answer = answer
        desk.hear(3)
        assert desk.load().gpus_needed >= before.gpus_needed
        assert desk.load().requests_running == 21
    site.down()
    desk.ahead_s = 1000.0
    assert desk.load().gpus_needed == 8
    desk.meter.close()


def test_no_replicas_are_reported() -> None:
    desk = Desk([])
    assert desk.load().gpus_needed == 1
    assert desk.meter.problems() == [
        "chat: no replica to ask, so no load is seen; keep one serving"
    ]
    assert desk.load(60.0).gpus_needed == 8
    desk.meter.close()


def test_shortfall_is_what_was_needed_and_not_there_over_time() -> None:
    desk = Desk([])
    desk.serving = 0
    assert desk.load().shortfall_gpu_s == 0.0
    assert desk.load(10.0).shortfall_gpu_s == 10.0
    assert desk.load(60.0).shortfall_gpu_s == 70.0  # 8 are needed from here on
    desk.serving = 6
    assert desk.load(10.0).shortfall_gpu_s == 150.0
    assert desk.load(10.0).shortfall_gpu_s == 170.0
    assert desk.load(-5.0).shortfall_gpu_s == 170.0
    desk.serving = 8
    assert desk.load(10.0).shortfall_gpu_s == 190.0
    assert desk.load(100.0).shortfall_gpu_s == 190.0
    desk.meter.close()


def test_a_latency_above_what_the_page_can_tell_is_said_as_the_most_it_can() -> None:
    calm = (
        "vllm:num_requests_running 4\nvllm:num_requests_waiting 0\n"
        'vllm:e2e_request_latency_seconds_bucket{le="60.0"} 5\n'
        'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 5\n'
    )
    with served(text(calm)) as site:
        settings = replace(SETTINGS, stabilization_window_s=300.0)
        desk = Desk([Replica("r", site.url, gpus=4)], settings)
        wait_until(lambda: desk.meter.counters.good >= 2)
        assert desk.load().latency_p99_s is None
        site.answer = text(calm.replace('Inf"} 5', 'Inf"} 50'))
        wait_until(lambda: desk.load().latency_p99_s == 60.0)
        assert desk.load().gpus_needed == 8
        assert "more GPUs do not help: raise the target" in desk.meter.problems()[-1]
        desk.meter.close()


def test_a_latency_below_zero_is_none_and_ends_nothing() -> None:
    """It ended the agent, at each of its reports."""
    said = (
        "vllm:num_requests_running 4\nvllm:num_requests_waiting 0\n"
        'vllm:e2e_request_latency_seconds_bucket{le="-5.0"} 5\n'
        'vllm:e2e_request_latency_seconds_bucket{le="1.0"} 5\n'
        'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 5\n'
    )
    with served(text(said)) as site:
        desk = Desk([Replica("r", site.url, gpus=4)])
        wait_until(lambda: desk.meter.counters.good >= 2)
        site.answer = text(said.replace("} 5", "} 50"))
        desk.hear(3)
        assert desk.load().latency_p99_s is None
        assert "a bucket whose bound is no time" in desk.meter.problems()[0]
        desk.meter.close()


def test_a_meter_of_one_node_names_it() -> None:
    meter = ScrapedLoad("edge", list, lambda: 1, 1, SETTINGS, node="edge-1")
    as_the_agent_sees_it: LoadMeter = meter
    assert as_the_agent_sees_it.loads(0.0)[0].node == "edge-1"
    meter.close()


def test_an_owner_without_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="gpus_total: must be positive"):
        ScrapedLoad("chat", list, lambda: 0, 0, SETTINGS)
