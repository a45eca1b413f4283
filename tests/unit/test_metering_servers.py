"""What the pages of vLLM, SGLang, TGI, Triton and others say of the load."""

import math
import re
from contextlib import suppress

import pytest

from runtime.metering.exposition import parse
from runtime.metering.rates import CounterHistory
from runtime.metering.reading import NoLoadError, ServerReading, read_page
from runtime.metering.servers import SERVERS, Server, recognise, server_named, server_of
from tests.metering.pages import page


def read(server: Server, *pages: str, every_s: float = 10.0) -> ServerReading:
    """The reading after these pages."""
    history = CounterHistory(60.0)
    for place, text in enumerate(pages[:-1]):
        with suppress(NoLoadError):
            read_page(server, parse(text, server.wanted), place * every_s, history)
    last = parse(pages[-1], server.wanted)
    return read_page(server, last, (len(pages) - 1) * every_s, history)


def grown(text: str, *series: tuple[str, float]) -> str:
    """The page with some series higher; each is named by how its line begins."""
    for begin, growth in series:
        pattern = re.compile(rf"^({re.escape(begin)}.*?) (\S+)$", re.MULTILINE)
        lines = pattern.findall(text)
        assert lines, begin
        for line, value in lines:
            text = text.replace(f"{line} {value}\n", f"{line} {float(value) + growth}\n")
    return text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vllm_v0", "vllm"),
        ("vllm_v1", "vllm"),
        ("sglang", "sglang"),
        ("tgi", "tgi"),
        ("triton", "triton"),
        ("dcgm", None),
    ],
)
def test_servers_are_recognised_by_what_is_there(name: str, kind: str | None) -> None:
    server = recognise(parse(page(name), ()).names)
    assert (None if server is None else server.name) == kind


def test_vllm_of_the_first_engine() -> None:
    first = page("vllm_v0")
    assert read(server_named("vllm") or SERVERS[0], first) == ServerReading(
        running=7.0, waiting=5.0, kv_cache_use=0.41
    )
    # 20 done in 10 s, and 5 more in flight.
    second = grown(
        first,
        ('vllm:request_success_total{finished_reason="stop"', 20.0),
        ('vllm:e2e_request_latency_seconds_bucket{le="2.5"', 20.0),
        *((f'vllm:e2e_request_latency_seconds_bucket{{le="{n}.0"', 20.0) for n in (5, 10, 15, 20)),
        *((f'vllm:e2e_request_latency_seconds_bucket{{le="{n}0.0"', 20.0) for n in (3, 4, 5, 6)),
        ('vllm:e2e_request_latency_seconds_bucket{le="+Inf"', 20.0),
        ("vllm:request_inference_time_seconds_sum", 36.0),
        ("vllm:request_inference_time_seconds_count", 20.0),
        ("vllm:num_requests_running", 4.0),
        ("vllm:num_requests_waiting", 1.0),
    )
    reading = read(server_named("vllm") or SERVERS[0], first, second)
    assert (reading.running, reading.waiting) == (11.0, 6.0)
    assert reading.rate_per_s == pytest.approx(2.5)
    assert reading.service_s == pytest.approx(1.8)
    assert reading.latency_p99_s == pytest.approx(2.0 + 0.5 * 0.99)
    assert reading.latency_of_s == 0.0, "its requests ended since the page before"
    assert reading.doubts == ()


def test_vllm_of_now_with_two_engines_and_both_cache_names() -> None:
    first = page("vllm_v1")
    reading = read(SERVERS[0], first)
    assert (reading.running, reading.waiting, reading.kv_cache_use) == (11.0, 1.0, 0.62)
    slow = grown(
        first,
        ('vllm:request_success_total{engine="0",finished_reason="stop"', 10.0),
        ('vllm:e2e_request_latency_seconds_bucket{le="+Inf",engine="0"', 10.0),
        ('vllm:e2e_request_latency_seconds_sum{engine="0"', 700.0),
        ('vllm:e2e_request_latency_seconds_count{engine="0"', 10.0),
    )
    reading = read(SERVERS[0], first, slow)
    assert reading.rate_per_s == 1.0
    assert (reading.latency_p99_s, reading.latency_told_s) == (math.inf, 60.0)
    assert reading.service_s == 70.0  # with waiting, since nothing better is on this page


def test_sglang_ranks_of_one_replica_are_counted_once() -> None:
    reading = read(SERVERS[1], page("sglang"))
    assert (reading.running, reading.waiting, reading.kv_cache_use) == (21.0, 5.0, 0.33)


def test_tgi_counts_arrivals() -> None:
    first = page("tgi")
    reading = read(SERVERS[2], first, grown(first, ("tgi_request_count", 40.0)))
    assert (reading.running, reading.waiting, reading.rate_per_s) == (9.0, 5.0, 4.0)


def test_triton_requests_that_run_follow_from_rate_and_duration() -> None:
    first = page("triton")
    second = grown(
        first,
        ('nv_inference_request_success{model="resnet"', 100.0),
        ('nv_inference_request_duration_us{model="resnet"', 5_000_000.0),
    )
    reading = read(SERVERS[3], first, second)
    assert reading.rate_per_s == pytest.approx(10.0)
    assert reading.service_s == pytest.approx(0.05)
    assert reading.running == pytest.approx(0.5)
    assert reading.waiting == 5.0
    assert reading.latency_p99_s == pytest.approx(0.098)
    assert reading.latency_of_s == 60.0, "of requests of the last minute"
    with pytest.raises(NoLoadError, match="next page"):
        read(SERVERS[3], first)


@pytest.mark.parametrize("name", ["vllm_v0", "vllm_v1", "sglang", "tgi", "triton"])
@pytest.mark.parametrize("value", ["NaN", "-1", "1e12", "+Inf"])
def test_absurd_counts_of_waiting_requests_are_no_reading(name: str, value: str) -> None:
    server = recognise(parse(page(name), ()).names)
    assert server is not None
    begin = server.waiting[0].names[0]
    text = re.sub(rf"^({begin}\b.*) \S+$", rf"\1 {value}", page(name), flags=re.MULTILINE)
    with pytest.raises(NoLoadError, match=f"{begin} is .*, which no server has"):
        read(server, text)


def test_the_latency_of_a_model_is_known_though_another_has_no_users() -> None:
    """A missed target was seen only while all models of a server had users."""
    triton = server_named("triton")
    assert triton is not None
    served = 'nv_inference_request_summary_us{model="resnet",version="1",quantile="0.99"} '
    idle = page("triton").replace(f"{served}98000", f"{served}NaN")
    assert idle != page("triton")
    found = read(triton, idle, grown(idle, ("nv_inference_request_success", 100.0)))
    assert found.latency_p99_s == pytest.approx(0.064)
    assert found.doubts == ()


def test_a_missing_count_is_no_reading() -> None:
    with pytest.raises(NoLoadError, match="vllm:num_requests_waiting is not on the page"):
        read(SERVERS[0], "vllm:num_requests_running 1\n")


def test_missing_and_absurd_series_beside_it_are_doubts() -> None:
    reading = read(
        SERVERS[0],
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 7\n"
        "vllm:request_success_total NaN\n",
    )
    assert reading.doubts == (
        "vllm:request_success_total: 1 of its series are not what a counter can be",
        "vllm:e2e_request_latency_seconds is not on the page",
        "vllm:kv_cache_usage_perc is 7, which cannot be",
    )
    assert reading.kv_cache_use is None


def test_a_counter_that_leaps_is_a_doubt_and_no_rate() -> None:
    first = page("tgi")
    reading = read(SERVERS[2], first, grown(first, ("tgi_request_count", 1e12)))
    assert reading.rate_per_s is None
    assert reading.doubts == ("tgi_request_count grew by 1e+11 a second, which cannot be",)


def test_a_restart_is_told() -> None:
    first = page("tgi")
    restarted = re.sub(r"^tgi_request_count 2200$", "tgi_request_count 30", first, flags=re.M)
    reading = read(SERVERS[2], first, restarted)
    assert reading.restarted
    assert reading.rate_per_s == 3.0


def test_a_mapping_of_ones_own() -> None:
    server = server_of(
        {
            "name": "ours",
            "waiting": [{"names": ["queue_depth"], "labels": {"pool": "chat"}}],
            "running": [{"names": ["busy_percent"], "scale": 0.16, "aggregate": "mean"}],
        }
    )
    text = (
        'queue_depth{pool="chat"} 4\nqueue_depth{pool="batch"} 900\n'
        'busy_percent{worker="1"} 100\nbusy_percent{worker="2"} 50\n'
    )
    assert read(server, text) == ServerReading(running=12.0, waiting=4.0)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"name": "x"}, "mapping: waiting: "),
        ({"name": "x", "waiting": []}, "mapping: .*waiting: name the metric of requests that wait"),
        ({"name": "x", "waiting": [{"names": []}]}, "mapping: waiting.0: .*names: give at least"),
        ({"name": "x", "waiting": [{"names": ["a"]}]}, "running: name it"),
        ({"name": "x", "wating": []}, "mapping: w.*ting: "),
    ],
)
def test_a_wrong_mapping_is_refused_by_field(settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        server_of(settings)


def test_an_unknown_kind_is_refused_with_those_there_are() -> None:
    assert server_named("auto") is None
    with pytest.raises(ValueError, match="say auto, vllm, sglang, tgi, triton, or give a mapping"):
        server_named("vlm")
