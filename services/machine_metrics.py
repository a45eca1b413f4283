"""The figures of a real machine: its executor, its store of checkpoints, its meters, its owner."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from runtime.checkpoints.store import CheckpointStore
from runtime.executors.process import ProcessExecutor
from runtime.metering.load import ScrapedLoad
from runtime.metering.nvml import NvmlGpus
from runtime.metering.sampled import SampledMeter
from runtime.owners import ServedOwner
from services.metrics import Sample

if TYPE_CHECKING:  # an edge agent does without
    from cloud_agent.clusters.executor import ClusterExecutor


def of_executor(executor: "ProcessExecutor | ClusterExecutor", now_s: float) -> Iterable[Sample]:
    """Give what runs the gangs, at this moment."""
    yield Sample("tidegate_gangs_stuck", len(executor.stuck(now_s)))
    if isinstance(executor, ProcessExecutor):
        yield Sample("tidegate_orphans_killed_total", executor.orphans_killed)
        yield Sample("tidegate_resize_restarts_total", executor.fallbacks)
    else:
        yield Sample("tidegate_cluster_away", float(bool(executor.away)))


def of_store(store: CheckpointStore) -> Iterable[Sample]:
    """Give the transfers of a store of checkpoints."""
    for way, traffic in (("to_store", store.commits), ("from_store", store.fetches)):
        yield Sample("tidegate_transfers_total", traffic.done, (way, "done"))
        yield Sample("tidegate_transfers_total", traffic.failed, (way, "failed"))
        # Of those under way too: a thin link may be busy with one for hours.
        under_way = sum(flow.moved_bytes for flow in tuple(traffic.under_way))
        yield Sample("tidegate_transfer_bytes_total", traffic.moved_bytes + under_way, (way,))
        yield Sample("tidegate_transfer_left_bytes", traffic.left_bytes, (way,))


def of_part(part: object) -> Iterable[Sample]:
    """Give a meter or an owner; nothing of what is neither."""
    if isinstance(part, SampledMeter):
        source = part.source
        counts = asdict(part.counters)
        counts |= asdict(source.counters) if isinstance(source, NvmlGpus) else {}
        for outcome, count in counts.items():
            yield Sample("tidegate_gpu_samples_total", count, (outcome,))
    elif isinstance(part, ScrapedLoad):
        yield Sample("tidegate_inference_targets_down", part.targets_down)
        for outcome, count in asdict(part.counters).items():
            if outcome != "scrapes":  # the sum of the good and those that were not
                yield Sample("tidegate_load_scrapes_total", count, (outcome,))
    elif isinstance(part, ServedOwner):
        yield Sample("tidegate_gpus_protected", part.protected)
        for outcome, count in asdict(part.counters).items():
            yield Sample("tidegate_owner_moves_total", count, (outcome,))
