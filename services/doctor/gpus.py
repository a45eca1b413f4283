"""Whether the GPUs that are offered are there."""

import os
from collections.abc import Iterator

from edge_agent.agent import EdgeAgentConfig
from explain.shares import counted
from runtime.metering.nvml import Gpu, NvmlUnavailable, inventory, least_mib, offered
from services.agents import gpus_of
from services.doctor.finding import CheckContext, Finding, Reporter
from services.machines import CPU

_report = Reporter("gpu")
#: The driver keeps some of what a GPU is sold with, so up to this share more may be said.
_OF_MEMORY = 1.05


def check(context: CheckContext) -> Iterator[Finding]:
    """Compare the configuration with the GPUs that the driver lists, or with the processors."""
    section = context.config.agent
    if section.runs is None:
        if section.model_fields_set:  # else it is another role's configuration
            yield _report.problem(
                "agent.runs is not set: no agent starts without it",
                'set agent.runs = "processes" and [agent.workers]; "simulated" is for trying out',
            )
        return
    if section.runs == "simulated":
        yield _report.warning(
            "workers and GPUs are simulated: no job really runs",
            'set agent.runs = "processes" and [agent.workers]',
        )
        return
    lendable = not context.is_cluster or section.pool_kind != "training"
    if lendable and section.owner is None:
        yield _report.problem(
            "it is not said who else needs the GPUs, so no agent starts",
            'describe their owner ([agent.owner], docs/lending.md), or say agent.owner = "none"',
        )
    if section.runs != "processes":
        return  # they are other machines'
    count = gpus_of(section)
    key = "agent.gpus_per_node" if context.is_cluster else "agent.gpus"
    if section.gpu_type == CPU:
        yield _slots(count, key)
        return
    try:
        found = inventory()
    except NvmlUnavailable as error:
        yield _report.problem(
            f"{counted(count, 'GPU')} configured, and none can be seen: {error}",
            'see that nvidia-smi works for this user; on a machine without GPUs: gpu_type = "cpu"',
        )
        return
    gpu_ids = section.workers.gpu_ids if section.workers else ()
    yield from _of_driver(found, count, key, gpu_ids)
    if not context.is_cluster and section.speed_factor is None and found:
        speed = EdgeAgentConfig("unnamed").speed_factor
        yield _report.warning(
            f"agent.speed_factor is not set: jobs are expected to reach {speed:g} of the speed "
            "that they declare, until it was measured",
            "set it to the speed of one of these GPUs over those that jobs declare theirs for",
        )
    given = offered(found, gpu_ids, count)
    said_mib, memory_mib = section.gpu_memory_mib, least_mib(given)
    if given and memory_mib is None and said_mib is None:
        yield _report.problem(
            "the driver does not say how much memory the GPUs have, so no agent starts",
            "set agent.gpu_memory_mib to what the jobs on one GPU may use",
        )
    elif memory_mib is not None and (said_mib or 0) > _OF_MEMORY * memory_mib:
        yield _report.problem(
            f"agent.gpu_memory_mib says {said_mib}, and the driver {memory_mib}: jobs "
            "that fit what is said end without memory",
            "leave it out: the driver is asked then",
        )


def _slots(count: int, key: str) -> Finding:
    cores = len(os.sched_getaffinity(0))
    slots, on = counted(count, "CPU slot"), counted(cores, "core")
    if count > cores:
        return _report.warning(
            f"{slots} offered, on {on}: workers share them and are slow",
            f"set {key} to {cores} or fewer",
        )
    return _report.ok(f"{slots} on {on}; no GPUs are offered")


def _of_driver(
    found: list[Gpu], count: int, key: str, gpu_ids: tuple[str, ...]
) -> Iterator[Finding]:
    known = {gpu.uuid for gpu in found} | {str(gpu.index) for gpu in found}
    missing = [one for one in gpu_ids if one not in known]
    if missing:
        listed = ", ".join(gpu.uuid for gpu in found) or "none"
        yield _report.problem(
            f"agent.workers.gpu_ids names {', '.join(missing)}; the driver lists {listed}",
            "write the UUIDs as nvidia-smi -L gives them, in the order of the nodes",
        )
    uuids = {str(gpu.index): gpu.uuid for gpu in found}
    named = [uuids.get(one, one) for one in gpu_ids]
    twice = sorted({one for one in named if named.count(one) > 1})
    if twice:
        yield _report.problem(
            f"agent.workers.gpu_ids names {', '.join(twice)} twice",
            "name each GPU once, by its UUID or by its index",
        )
    if gpu_ids and len(gpu_ids) != count:
        yield _report.problem(
            f"{key} offers {counted(count, 'GPU')}, and agent.workers.gpu_ids names {len(gpu_ids)}",
            f"set {key} to the number of gpu_ids",
        )
    if count > len(found):
        yield _report.problem(
            f"{key} offers {counted(count, 'GPU')}, and the driver lists {len(found)}",
            f"set {key} = {len(found)}, or see why nvidia-smi lists fewer than there are",
        )
    elif count < len(found) and not gpu_ids:
        yield _report.warning(
            f"{key} offers {count} of {len(found)} GPUs; the others are never used",
            f"set {key} = {len(found)}, or name those that are meant in agent.workers.gpu_ids",
        )
    elif not missing and not twice:
        kinds = ", ".join(sorted({gpu.name for gpu in found}))
        yield _report.ok(f"{count} of {counted(len(found), 'GPU')} offered: {kinds}")
