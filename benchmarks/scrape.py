"""What meters cost: a scrape of a server's page, a sample of 8 GPUs, a minute's measure, our page.

CPU of the thread that does it, so that the page's server is not counted. NVML is a stand-in: what
the driver itself takes is not in it.
"""

import time
from collections.abc import Callable

from runtime.metering.demand import DemandModel, DemandSettings, ReplicaLoad
from runtime.metering.exposition import parse
from runtime.metering.fetch import fetch
from runtime.metering.host import HostSlots
from runtime.metering.nvml import NvmlGpus
from runtime.metering.rates import CounterHistory
from runtime.metering.reading import read_page
from runtime.metering.sampled import SampledMeter
from runtime.metering.scrape import Scraper
from runtime.metering.servers import VLLM
from services.machine_metrics import of_part
from services.metrics import Page
from tests.metering.fake_nvml import Card, FakeNvml
from tests.metering.pages import page, served, text

_GPUS = 8
_WINDOW_S = 60


def _cpu_ms(work: Callable[[], object], seconds: float) -> float:
    """CPU of one call, a mean over about so many seconds."""
    calls, until_s = 0, time.perf_counter() + seconds
    began_s = time.thread_time()
    while time.perf_counter() < until_s:
        work()
        calls += 1
    return (time.thread_time() - began_s) / calls * 1e3


def _genuine() -> str:
    """A page as long as a vLLM server's: what we read is a small part of it."""
    body = page("vllm_v1")
    for metric in range(20):
        name = f"vllm:other_seconds_{metric}"
        body += f"# HELP {name} Histogram.\n# TYPE {name} histogram\n"
        body += "".join(
            f'{name}_bucket{{engine="{engine}",le="{bound}.0",model_name="acme/llama-8b"}} 1.0\n'
            for engine in range(2)
            for bound in range(25)
        )
    return body


def run(seconds: float) -> dict[str, float]:
    """Measure for about so many seconds."""
    part_s = seconds / 6
    body, history, at_s = _genuine(), CounterHistory(_WINDOW_S), 0.0
    with served(text(body)) as site:

        def scrape() -> None:
            nonlocal at_s
            at_s += 1.0
            read_page(VLLM, parse(fetch(site.url, 60.0), VLLM.wanted), at_s, history)

        began_s = time.perf_counter()
        scrape()
        first_ms = (time.perf_counter() - began_s) * 1e3
        scrape_ms = _cpu_ms(scrape, part_s)
    gpus = NvmlGpus({"node": range(_GPUS)}, FakeNvml([Card(f"GPU-{n}") for n in range(_GPUS)]))
    sample_ms = _cpu_ms(gpus.read, part_s)
    meter = SampledMeter(gpus, every_s=0.001)
    while meter.counters.samples < _WINDOW_S:
        time.sleep(0.01)
    meter.close()
    time.sleep(0.05)
    with_all = meter.counters.samples
    measure_ms = _cpu_ms(lambda: meter.measure(0.0, 1e6), part_s) / with_all * _WINDOW_S
    page_ms = _cpu_ms(Page("edge-agent", lambda: of_part(meter)).text, part_s)
    host_ms = _cpu_ms(HostSlots({"node": _GPUS}).read, part_s)
    model = DemandModel(DemandSettings(latency_target_s=5.0), 64)
    loads = [ReplicaLoad(f"r{n}", 1, 1.0, running=8.0, latency_p99_s=2.0) for n in range(_GPUS)]
    demand_ms = _cpu_ms(lambda: model.update(time.monotonic(), loads), part_s)
    every_s = Scraper.EVERY_S
    return {
        "scrape_page_kib": len(body) / 1024,
        "scrape_first_wall_ms": first_ms,
        "scrape_cpu_ms": scrape_ms,
        "scrape_8_replicas_core_percent": 8 * scrape_ms / every_s / 10,
        "scrape_8_replicas_1hz_core_percent": 8 * scrape_ms / 10,
        "demand_8_replicas_cpu_ms": demand_ms,
        "meter_8_gpus_sample_cpu_ms": sample_ms,
        "meter_8_gpus_measure_cpu_ms": measure_ms,
        # A sample a second, and a measure of the last minute each second too: the worst schedule.
        "meter_8_gpus_1hz_core_percent": (sample_ms + measure_ms) / 10,
        "meter_host_sample_cpu_ms": host_ms,
        "page_of_an_agent_cpu_ms": page_ms,
    }
