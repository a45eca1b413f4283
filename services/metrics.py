"""The metrics page: the table of all metrics, and a collector that asks the role at each scrape."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

RoleName = Literal["scheduler", "bridge", "cloud-agent", "edge-agent"]
SCHEDULER: tuple[RoleName, ...] = ("scheduler",)
BRIDGE: tuple[RoleName, ...] = ("bridge",)
AGENTS: tuple[RoleName, ...] = ("cloud-agent", "edge-agent")
ALL: tuple[RoleName, ...] = (*SCHEDULER, *BRIDGE, *AGENTS)


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """The definition of a metric."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    roles: tuple[RoleName, ...]
    named: str = ""  #: Its labels, with spaces in between.

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its labels, in order."""
        return tuple(self.named.split())


_counter = partial(MetricDefinition, "counter")
_gauge = partial(MetricDefinition, "gauge")
_histogram = partial(MetricDefinition, "histogram")
#: Every metric, by name. Tests compare dashboards and rules with it.
METRICS: dict[str, MetricDefinition] = {
    "tidegate_build_info": _gauge("Which release runs, as what.", ALL, "version role"),
    "tidegate_loop_lag_seconds": _gauge(
        "The latest that the event loop was, over the last 15 to 30 s.", ALL
    ),
    "tidegate_clock_off_seconds": _gauge(
        "How far the machine's clock is from the time that is gone by, while a step has not "
        "lasted for a minute.",
        ALL,
    ),
    "tidegate_clock_steps_total": _counter("Steps of the machine's clock above a second.", ALL),
    "tidegate_dead_letters_total": _counter(
        "Messages that could not be taken and were set aside. Of a bridge, cell is empty.",
        ALL,
        "cell role",
    ),
    "tidegate_oldest_unacked_seconds": _gauge(
        "How long the oldest message has waited to be stored by the bus.", BRIDGE + AGENTS
    ),
    "tidegate_link_up": _gauge(
        "1 while the connection to the broker is up; of a cloud agent, while the bus takes what "
        "it says.",
        BRIDGE + AGENTS,
    ),
    # --- scheduler
    "tidegate_events_total": _counter("Events and telemetry read.", SCHEDULER, "cell"),
    "tidegate_event_lag": _gauge("Records stored and not yet read.", SCHEDULER, "cell"),
    "tidegate_duplicates_total": _counter("Messages that came again.", SCHEDULER, "cell"),
    "tidegate_sequence_gaps_total": _counter(
        "Sequence numbers that were skipped, whether or not they came later.", SCHEDULER, "cell"
    ),
    "tidegate_decision_seconds": _histogram("Time of one decision.", SCHEDULER, "cell"),
    "tidegate_transaction_seconds": _histogram(
        "Time to store a tick's decisions, commands and offsets together.", SCHEDULER, "cell"
    ),
    "tidegate_loans": _gauge("Nodes on loan, by state of the loan.", SCHEDULER, "cell state"),
    "tidegate_reclaim_seconds": _histogram(
        "From the decision to reclaim a node until its owner has it.", SCHEDULER, "cell"
    ),
    "tidegate_queueing_seconds": _histogram(
        "From a job's submission to its first start.", SCHEDULER, "cell"
    ),
    "tidegate_gpus": _gauge(
        "GPUs by use: serving their owner, training, loaned (on loan and free), idle, or unknown "
        "(their agent is silent). Those of dead nodes are not counted.",
        SCHEDULER,
        "cell pool state",
    ),
    "tidegate_gpu_utilisation": _gauge(
        "Mean utilisation, from 0 to 1, of the GPUs that agents measured in the last five minutes.",
        SCHEDULER,
        "cell pool",
    ),
    "tidegate_gpu_memory_used_bytes": _gauge(
        "Memory used on those GPUs together.", SCHEDULER, "cell pool"
    ),
    "tidegate_gpu_power_watts": _gauge(
        "Power that those GPUs draw together.", SCHEDULER, "cell pool"
    ),
    "tidegate_node_gpu_utilisation": _gauge(
        "Mean utilisation of a node's GPUs, as its agent measured them in the last five minutes; "
        "of an edge server too, which need not be scraped. The first 2,000 nodes by name.",
        SCHEDULER,
        "cell pool node",
    ),
    "tidegate_node_gpu_memory_used_bytes": _gauge(
        "Memory used on a node's GPUs together. The first 2,000 nodes by name.",
        SCHEDULER,
        "cell pool node",
    ),
    "tidegate_requests_total": _counter(
        "What people asked for: done, refused by the engine, or a dead letter, by why. Of one that "
        "no trusted key has signed, verb is empty.",
        SCHEDULER,
        "cell verb outcome",
    ),
    "tidegate_over_rate_total": _counter(
        "Messages not taken, since their source said more than it may.", SCHEDULER, "cell"
    ),
    "tidegate_dead_letters_dropped_total": _counter(
        "Messages refused without a dead letter, since their source had too many.",
        SCHEDULER,
        "cell",
    ),
    "tidegate_jobs": _gauge("Jobs remembered, by state.", SCHEDULER, "cell state"),
    "tidegate_tenant_jobs": _gauge(
        "Jobs remembered, by tenant and state. The first 500 tenants by name.",
        SCHEDULER,
        "cell tenant state",
    ),
    "tidegate_tenant_gpus": _gauge(
        "GPUs that a tenant's jobs hold. The first 500 tenants by name.", SCHEDULER, "cell tenant"
    ),
    "tidegate_commands_total": _counter("Commands issued since the cell began.", SCHEDULER, "cell"),
    "tidegate_claims_total": _counter(
        "Claims on GPUs set since the cell began.", SCHEDULER, "cell"
    ),
    "tidegate_claims_timed_out_total": _counter(
        "Claims given up on agents that did not answer since the cell began.", SCHEDULER, "cell"
    ),
    "tidegate_policy_failures_total": _counter(
        "Plans that the policy failed to give, or malformed, since the cell began.",
        SCHEDULER,
        "cell",
    ),
    "tidegate_learning_failures_total": _counter(
        "Reports or curves that the estimator failed on; anything but 0 is a bug.",
        SCHEDULER,
        "cell",
    ),
    "tidegate_invariant_violations_total": _counter(
        "Conservation laws found broken; anything but 0 is a bug.", SCHEDULER, "cell"
    ),
    "tidegate_leader": _gauge("1 while this process leads the cell.", SCHEDULER, "cell"),
    "tidegate_cell_ahead_seconds": _gauge(
        "How far the cell's time is ahead of the leader's clock: one of before was ahead.",
        SCHEDULER,
        "cell",
    ),
    "tidegate_leader_epoch": _gauge(
        "Number of this leader; the next one's is higher.", SCHEDULER, "cell"
    ),
    "tidegate_takeovers_total": _counter("Cells that this process has taken over.", SCHEDULER),
    # --- bridge
    "tidegate_bridge_forwarded_total": _counter(
        "Messages carried, up to Kafka or down to agents.", BRIDGE, "direction"
    ),
    "tidegate_bridge_refused_total": _counter(
        "Messages not carried; `expired`: commands that were too late.", BRIDGE, "reason"
    ),
    "tidegate_bridge_unacked": _gauge("Messages that Kafka does not have yet.", BRIDGE),
    # --- agents
    "tidegate_spool_messages": _gauge("Messages that wait for the bus.", AGENTS),
    "tidegate_spool_bytes": _gauge("Their size.", AGENTS),
    "tidegate_spool_dropped_total": _counter(
        "Messages dropped because the spool was full.", AGENTS
    ),
    "tidegate_published_total": _counter("Messages that the bus has confirmed.", AGENTS),
    "tidegate_publish_failures_total": _counter("Times that the bus did not take a batch.", AGENTS),
    "tidegate_commands_refused_total": _counter("Commands not obeyed.", AGENTS, "reason"),
    "tidegate_reconnects_total": _counter(
        "Connections to the MQTT broker after the first.", ("bridge", "edge-agent")
    ),
    # --- agents of real machines
    "tidegate_gangs_stuck": _gauge("Gangs whose workers live and take no steps.", AGENTS),
    "tidegate_cluster_away": _gauge(
        "1 while the cluster that runs the gangs, or its folder, does not answer.", AGENTS
    ),
    "tidegate_orphans_killed_total": _counter(
        "Worker processes of earlier runs that the agent found at its start, and killed.", AGENTS
    ),
    "tidegate_resize_restarts_total": _counter(
        "Changes of size in place that failed, so that the gang was restarted instead.", AGENTS
    ),
    "tidegate_transfers_total": _counter(
        "Checkpoints brought to the store or from it: done, or failed (or stopped).",
        AGENTS,
        "way outcome",
    ),
    "tidegate_transfer_bytes_total": _counter("What of them was moved.", AGENTS, "way"),
    "tidegate_transfer_left_bytes": _gauge(
        "What transfers under way have still to bring.", AGENTS, "way"
    ),
    "tidegate_gpu_samples_total": _counter(
        "Samples of the GPUs, failures to take one, values left out as absurd, and how often a "
        "GPU or the driver was lost.",
        AGENTS,
        "outcome",
    ),
    "tidegate_inference_targets_down": _gauge(
        "Servers of the owner whose metrics cannot be read, and so count as fully loaded.", AGENTS
    ),
    "tidegate_load_scrapes_total": _counter(
        "Scrapes of the owner's servers; doubtful ones and restarts count as good, too.",
        AGENTS,
        "outcome",
    ),
    "tidegate_owner_moves_total": _counter(
        "Drains and hand-backs of the owner's nodes, done or failed.", AGENTS, "outcome"
    ),
    "tidegate_gpus_protected": _gauge(
        "GPUs kept from lending because they served a moment ago.", AGENTS
    ),
}


_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0,
)  # fmt: skip


def histogram(name: str, *labels: str) -> Histogram:
    """Make the histogram of seconds of a metric in the table, which shows 0 of these labels."""
    what = METRICS[name]
    made = Histogram(name, what.help, what.labels, registry=None, buckets=_BOUNDS_S)
    made.labels(*labels)
    return made


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric; or a histogram, which has its labels itself."""

    name: str
    value: float | Histogram
    labels: Sequence[str] = ()


class Page(Collector):
    """The metrics page of a role: all of its metrics in the table, with what the role says now."""

    def __init__(self, role: RoleName, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read
        self._table = {name: what for name, what in METRICS.items() if role in what.roles}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        """Give the page in Prometheus's text format."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Say nothing yet: the role may not have begun when the page is registered."""
        return []

    def collect(self) -> Iterable[Metric]:
        families = {name: _family(name, what) for name, what in self._table.items()}
        for sample in self._read():
            family, value = families[sample.name], sample.value
            if isinstance(value, Histogram):
                (observed,) = value.collect()
                family.samples += [one for one in observed.samples if "_created" not in one.name]
            else:
                assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
                family.add_metric(list(sample.labels), value)
        return families.values()


def _family(name: str, what: MetricDefinition) -> Metric:
    kinds = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    family: Metric = kinds[what.kind](name, what.help, labels=what.labels)
    return family
