"""What the metrics of inference servers mean: mappings, as data.

Sources, as of what could be looked up:
- vLLM: docs.vllm.ai "Production Metrics" (v0.4 to v0.9.1) and `vllm/v1/metrics/loggers.py`. The
  cache gauge was `vllm:gpu_cache_usage_perc` and is `vllm:kv_cache_usage_perc`; both are shares,
  not per cent. Several engines of one server differ in the label `engine`. Version 0 also had
  requests swapped out, which neither run nor wait by its other gauges.
- SGLang: docs.sglang.io "Production Metrics" and `python/sglang/srt/metrics/collector.py`. With
  `--enable-metrics-for-all-schedulers` each rank of one replica shows the same requests; only
  those that differ in `dp_rank` are others.
- TGI: huggingface.co/docs/text-generation-inference/reference/metrics. Its counters have no
  `_total`. As recalled: `tgi_request_count` counts arrivals.
- Triton: docs.nvidia.com Triton user guide, "Metrics". Durations are microseconds; a p99 only with
  `--metrics-config summary_latencies=true`. That `nv_inference_pending_request_count` is a gauge
  of requests that wait, per model, is from public users of it and as recalled. It has no gauge of
  requests that run: they follow from rate and duration (Little's law).
"""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

Aggregate = Literal["sum", "max", "mean"]


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Metric:
    """A figure: which series of a page, and how many become one."""

    #: Names as on the page; the first that is there counts. Of a histogram, the name without
    #: `_bucket`.
    names: tuple[str, ...]
    #: Only series with these labels.
    labels: Mapping[str, str] = field(default_factory=dict)
    aggregate: Aggregate = "sum"
    #: Labels whose series show the same thing again: of these the largest counts.
    repeated_by: tuple[str, ...] = ()
    #: What a value is multiplied by: 1e-6 for microseconds, 0.01 for per cent.
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise ValueError("names: give at least one, none empty")
        if not 0 < self.scale < 1e12:
            raise ValueError("scale: must be positive")


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Server:
    """Where a kind of inference server says what its load is; None where it does not."""

    name: str
    #: Requests that wait: the sum of these. The first must be there.
    waiting: tuple[Metric, ...]
    #: Requests being served: the sum of these. The first must be there.
    running: tuple[Metric, ...] = ()
    #: Share of the cache that is used.
    kv_cache_use: Metric | None = None
    #: A counter of requests.
    requests: Metric | None = None
    #: What it counts.
    requests_are: Literal["arrivals", "completions"] = "completions"
    #: Histogram of seconds from arrival to answer, waiting included.
    latency: Metric | None = None
    #: A gauge or summary quantile that is the latency's p99, where there is no histogram.
    latency_p99: Metric | None = None
    #: Seconds in service without waiting, as `NAME_sum` and `NAME_count`.
    service: Metric | None = None
    #: The same as two counters: seconds, and what they are divided by.
    service_seconds: Metric | None = None
    service_count: Metric | None = None
    #: Metrics that only this server has; one of them is enough to recognise it.
    marks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.waiting:
            raise ValueError("waiting: name the metric of requests that wait")
        if not self.running and self.requests is None:
            raise ValueError("running: name it, or `requests` and a duration to derive it from")
        if (self.service_seconds is None) != (self.service_count is None):
            raise ValueError("service_seconds, service_count: give both or neither")
        if not self.running and self.service is None and self.service_seconds is None:
            raise ValueError("running: name it, or `service` to derive it from")

    @property
    def counters(self) -> frozenset[str]:
        """The names of all series that only grow."""
        parts = [
            *((metric, "") for metric in (self.requests, self.service_seconds)),
            (self.service_count, ""),
            *((self.latency, part) for part in ("_bucket", "_sum", "_count")),
            *((self.service, part) for part in ("_sum", "_count")),
        ]
        return frozenset(
            name + part for metric, part in parts if metric is not None for name in metric.names
        )

    @property
    def wanted(self) -> frozenset[str]:
        """The names of all series that are read."""
        gauges = (*self.waiting, *self.running, self.kv_cache_use, self.latency_p99)
        names = {name for metric in gauges if metric is not None for name in metric.names}
        return self.counters | names


def _of(*names: str) -> Metric:
    return Metric(names)


VLLM = Server(
    "vllm",
    waiting=(_of("vllm:num_requests_waiting"), _of("vllm:num_requests_swapped")),
    running=(_of("vllm:num_requests_running"),),
    kv_cache_use=Metric(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), aggregate="max"),
    requests=_of("vllm:request_success_total"),
    latency=_of("vllm:e2e_request_latency_seconds"),
    service=_of("vllm:request_inference_time_seconds"),
    marks=("vllm:num_requests_running",),
)

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


def _sglang(*names: str) -> Metric:
    return Metric(names, repeated_by=_RANKS)


SGLANG = Server(
    "sglang",
    waiting=(
        _sglang("sglang:num_queue_reqs"),
        _sglang("sglang:num_grammar_queue_reqs"),
        _sglang("sglang:num_prefill_prealloc_queue_reqs"),
        _sglang("sglang:num_decode_prealloc_queue_reqs"),
    ),
    running=(_sglang("sglang:num_running_reqs"),),
    kv_cache_use=Metric(("sglang:token_usage",), aggregate="max"),
    requests=_of("sglang:num_requests_total", "sglang:e2e_request_latency_seconds_count"),
    latency=_of("sglang:e2e_request_latency_seconds"),
    marks=("sglang:num_running_reqs",),
)

TGI = Server(
    "tgi",
    waiting=(_of("tgi_queue_size"),),
    running=(_of("tgi_batch_current_size"),),
    requests=_of("tgi_request_count"),
    requests_are="arrivals",
    latency=_of("tgi_request_duration"),
    service=_of("tgi_request_inference_duration"),
    marks=("tgi_queue_size", "tgi_batch_current_size", "tgi_request_count"),
)

TRITON = Server(
    "triton",
    waiting=(_of("nv_inference_pending_request_count"),),
    requests=_of("nv_inference_request_success"),
    latency_p99=Metric(
        ("nv_inference_request_summary_us",), {"quantile": "0.99"}, aggregate="max", scale=1e-6
    ),
    service_seconds=Metric(("nv_inference_request_duration_us",), scale=1e-6),
    service_count=_of("nv_inference_request_success"),
    marks=("nv_inference_request_success",),
)

#: In the order in which they are tried: Triton may show its back end's metrics beside its own.
SERVERS: tuple[Server, ...] = (VLLM, SGLANG, TGI, TRITON)


def recognise(names: Collection[str]) -> Server | None:
    """Give the kind of server whose page has these series, or None."""
    for server in SERVERS:
        if any(mark in names for mark in server.marks):
            return server
    return None


def server_named(kind: str) -> Server | None:
    """Give the mapping of that name; None for "auto", which is recognised by what is there.

    Raises:
        ValueError: there is no such kind.
    """
    if kind == "auto":
        return None
    for server in SERVERS:
        if server.name == kind:
            return server
    known = ", ".join(server.name for server in SERVERS)
    raise ValueError(f"kind: {kind!r} is not known; say auto, {known}, or give a mapping")


def server_of(settings: Mapping[str, object]) -> Server:
    """Make a mapping of one's own from settings; the fields are those of `Server` and `Metric`.

    Raises:
        ValueError: a field is wrong; the message names it.
    """
    try:
        return TypeAdapter(Server).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"mapping: {where}{where and ': '}{first['msg']}") from None
