"""Builds a real machine from the configuration: executor, meters and an owner."""

import grp
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cloud_agent.options import KubernetesOptions, SlurmOptions
from cloud_agent.sections import KubernetesSection, SlurmSection
from explain.shares import counted
from runtime.build import MachineMaker
from runtime.checkpoints.disk import STORE_DISK
from runtime.checkpoints.store import CheckpointStore
from runtime.core import NodeSpec
from runtime.executor import Machine
from runtime.executors.locks import lock_path
from runtime.executors.log_files import LogFiles
from runtime.executors.options import ProcessOptions
from runtime.executors.process import ProcessExecutor
from runtime.executors.sections import MachineOptions, WorkerOptions
from runtime.executors.tenants import Tenants
from runtime.logs import LogSource, NoLogs
from runtime.metering.dcgm import DcgmGpus
from runtime.metering.host import HostSlots
from runtime.metering.load import ScrapedLoad
from runtime.metering.nvml import NvmlGpus, NvmlUnavailable
from runtime.metering.sampled import GpuSource, Reading, SampledMeter
from runtime.metering.scrape import Replica, Scraper
from runtime.metering.servers import server_named, server_of
from runtime.meters import Owner
from runtime.owners import HookLender, Lender, ReplicaLender, ServedOwner, WebhookLender
from services.config import Config, ConfigError
from services.machine_metrics import of_executor, of_part, of_store
from services.machine_sections import (
    LoadSection,
    MeterSection,
    OwnerSection,
    WorkersSection,
)
from services.metrics import Sample

if TYPE_CHECKING:
    from cloud_agent.kubernetes.executor import KubernetesExecutor
    from cloud_agent.slurm.executor import SlurmExecutor

#: What `gpu_type` says of a machine whose GPUs are slots of its processors.
CPU = "cpu"
#: Where nobody owns the GPUs nothing is to be measured; by then the scheduler knows the nodes.
_KNOWN_S = 5.0
#: Options that each executor has.
_Told = dict[str, Any]


class _HasProblems(Protocol):
    def problems(self) -> list[str]: ...


@dataclass(slots=True)
class RealMachine:
    """Makes the machine of an agent; afterwards gives its problems and metrics."""

    config: Config
    #: Makes the owner where none is configured; None: the nodes have none.
    no_owner: Callable[[Sequence[NodeSpec], float], Owner | None]
    #: Whether its nodes are of a pool that lends, so that somebody may serve on them.
    lendable: bool = False
    #: Gives the jobs and epochs that the agent ran when it ended.
    remembered: Callable[[], Mapping[str, int]] = dict
    _parts: list[_HasProblems] = field(default_factory=list)
    _executor: "ProcessExecutor | SlurmExecutor | KubernetesExecutor | None" = None
    _store: CheckpointStore | None = None

    def maker(self) -> MachineMaker:
        """Give what makes the machine.

        Raises:
            ConfigError: the configuration does not describe one.
        """
        section = self.config.agent
        workers, load, owner = section.workers, section.load, section.owner
        if workers is None or section.name is None or section.runs is None:
            raise ConfigError(f"agent.workers is not set; runs = {section.runs!r} needs it")
        if self.lendable and owner is None:
            raise ConfigError(
                "agent.owner is not set; whoever serves on these GPUs would lose them to training: "
                'say how it leaves them ([agent.owner], docs/lending.md), or owner = "none" if '
                "they serve nobody"
            )

        def make(specs: Sequence[NodeSpec], now_s: float) -> Machine:
            store = CheckpointStore(
                workers.checkpoints,
                rate_mib_per_s=workers.rate_mib_per_s,
                cell=self.config.cell,
                disk_file=workers.folder / STORE_DISK,
            )
            self._store = store
            told: _Told = {"root": workers.folder, "store": store, "agent": section.name}
            remembered = self.remembered()
            if section.runs == "slurm":
                self._executor = _on_slurm(told, workers, section.slurm, remembered)
            elif section.kubernetes is not None:
                self._executor = _on_kubernetes(told, workers, section.kubernetes, remembered)
            else:
                self._executor = _executor(told, workers, specs, remembered)
            here = self._executor if isinstance(self._executor, ProcessExecutor) else None
            source = _source(specs, section.meter, workers, here)
            logs = _logs(section.runs, workers, store)
            meter = SampledMeter(source, every_s=section.meter.every_s)
            self._parts.append(meter)
            if load is None or owner is None or owner == "none":
                nobody = self.no_owner(specs, now_s)
                return Machine(self._executor, meter, nobody, logs, first_load_s=_KNOWN_S)
            metered = _metered(specs, load)
            # On a cluster, its own scheduler keeps GPUs from being shared.
            locks = _locks(specs, workers) if section.runs == "processes" else {}
            served = _owner(specs, metered, owner, workers, locks, now_s, self._parts)
            return Machine(self._executor, meter, served, logs)

        return make

    def samples(self, now_s: float) -> Iterable[Sample]:
        """Give the figures of what was made."""
        if self._executor is not None:
            yield from of_executor(self._executor, now_s)
        if self._store is not None:
            yield from of_store(self._store)
        for part in tuple(self._parts):
            yield from of_part(part)

    def problems(self, now_s: float) -> list[str]:
        """Say in sentences what is wrong."""
        found = [sentence for part in self._parts for sentence in part.problems()]
        if self._executor is None:
            return found
        if not isinstance(self._executor, ProcessExecutor) and self._executor.away:
            found.append(self._executor.away)
        stuck = self._executor.stuck(now_s)
        return found + [f"{job}: alive, but no step for {now_s - s:.0f} s" for job, s in stuck]


def _executor(
    told: _Told, section: WorkersSection, specs: Sequence[NodeSpec], remembered: Mapping[str, int]
) -> ProcessExecutor:
    chosen = told | _chosen(section, MachineOptions)
    if section.isolation == "tenant":
        chosen["tenants"] = Tenants(section.folder, section.first_uid)
    try:
        chosen["groups"] = [grp.getgrnam(name).gr_gid for name in section.groups]
    except KeyError as error:
        raise ConfigError(
            f"agent.workers.groups: {error.args[0]}; make it, or take it out"
        ) from None
    return ProcessExecutor(ProcessOptions(gpu_ids=_names(specs, section), **chosen), remembered)


def _on_slurm(
    told: _Told, workers: WorkersSection, section: SlurmSection, remembered: Mapping[str, int]
) -> "SlurmExecutor":
    from cloud_agent.slurm.executor import SlurmExecutor  # an edge agent does without

    if workers.isolation != "none":
        raise ConfigError(
            "agent.workers.isolation: Slurm runs all jobs as this agent's user, who can read its "
            'keys and other tenants\' runs; say isolation = "none" if all who submit may'
        )
    chosen = told | _chosen(workers, WorkerOptions) | dict(section)
    return SlurmExecutor(SlurmOptions(**chosen), remembered)


def _on_kubernetes(
    told: _Told, workers: WorkersSection, section: KubernetesSection, remembered: Mapping[str, int]
) -> "KubernetesExecutor":
    # Its client is a hundred MiB, and an extra of its own.
    try:
        from cloud_agent.kubernetes.executor import KubernetesExecutor
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"agent.runs: kubernetes needs {error.name}; install tidegate[kubernetes]"
        ) from None
    chosen = told | _chosen(workers, WorkerOptions) | dict(section)
    return KubernetesExecutor(KubernetesOptions(**chosen), remembered)


def _chosen(section: WorkersSection, kind: type[WorkerOptions]) -> dict[str, Any]:
    """Give what the section says of options of this kind."""
    return {name: getattr(section, name) for name in kind.model_fields}


def _names(specs: Sequence[NodeSpec], section: WorkersSection) -> dict[str, tuple[str, ...]]:
    """Give by node what CUDA calls its GPUs; nodes of one machine share its GPUs out."""
    counts = {spec.node: spec.gpu_count for spec in specs if spec.gpu_type != CPU}
    names = section.gpu_ids or tuple(map(str, range(sum(counts.values()))))
    if len(set(names)) != sum(counts.values()):
        named = counted(len(set(names)), "GPU")
        raise ValueError(
            f"gpu_ids: {named} named, but {', '.join(counts) or 'the nodes'} "
            f"have {sum(counts.values())}; name each once, in the order of the nodes"
        )
    left = iter(names)
    return {node: tuple(islice(left, count)) for node, count in counts.items()}


def _logs(runs: str | None, workers: WorkersSection, store: CheckpointStore) -> LogSource:
    if runs == "kubernetes":
        return NoLogs("Kubernetes has what its Pods write: kubectl logs, or the cluster's own logs")
    return LogFiles(workers.folder, store)


def _locks(specs: Sequence[NodeSpec], section: WorkersSection) -> dict[str, tuple[Path, ...]]:
    """Give by node the lock files of its GPUs, which gangs take too."""
    folder, names = section.locks or section.folder / "locks", _names(specs, section)
    return {
        spec.node: tuple(lock_path(folder, spec.node, n, names) for n in range(spec.gpu_count))
        for spec in specs
    }


class _Unmeasured:
    """GPUs of other machines, which are not measured here."""

    def __init__(self, gpus: Mapping[str, int]) -> None:
        self.gpus = gpus

    def read(self) -> Mapping[str, Sequence[Reading]]:
        return {}


def _source(
    specs: Sequence[NodeSpec],
    section: MeterSection,
    workers: WorkersSection,
    here: ProcessExecutor | None,
) -> GpuSource:
    gpus = {spec.node: spec.gpu_count for spec in specs}
    names: Mapping[str, Sequence[str]] = (
        _names(specs, workers)
        if here is not None
        else {node: tuple(map(str, range(count))) for node, count in gpus.items()}
    )
    if here is None and section.source in ("dcgm", "nvml") and len(specs) > 1:
        raise ConfigError(
            f"agent.meter.source: {section.source} sees the GPUs of one machine, and would say "
            f"them of each of this agent's {len(specs)} nodes; take it out"
        )
    if section.source == "dcgm":
        return DcgmGpus(section.dcgm_url, names)
    has_gpus = here is not None and all(spec.gpu_type != CPU for spec in specs)
    if section.source == "nvml" or (section.source == "auto" and has_gpus):
        try:
            return NvmlGpus(names)
        except NvmlUnavailable as error:
            raise ConfigError(
                f"agent.gpu_type: {specs[0].gpu_type} is offered, and no GPU can be seen: {error}; "
                'see that nvidia-smi works for this user; say gpu_type = "cpu" for slots of the '
                'processors, or agent.meter.source = "host" where GPUs cannot be measured'
            ) from None
    return _Unmeasured(gpus) if here is None else HostSlots(gpus, here.pids)


def _metered(
    specs: Sequence[NodeSpec], load: LoadSection
) -> Callable[[Callable[[], Sequence[str]]], ScrapedLoad]:
    """Give a function that makes the owner's meter from a function that gives its nodes."""
    gpus = {spec.node: spec.gpu_count for spec in specs}
    kind = server_named(load.kind) if load.mapping is None else server_of(load.mapping)
    servers = [(one.node, Replica(one.name, one.url, one.gpus, kind)) for one in load.server]
    for node, replica in servers:
        if node is None and len(gpus) > 1:
            raise ValueError(
                f"load.server: {replica.name} needs a node; only an agent of one can do without"
            )
        if node is not None and node not in gpus:
            raise ValueError(f"load.server: {replica.name} is on {node}, no node of this agent")
    return lambda serving: ScrapedLoad(
        specs[0].pool,
        lambda: [replica for node, replica in servers if node is None or node in serving()],
        lambda: sum(gpus[node] for node in serving()),
        sum(gpus.values()),
        load.demand,
        node=specs[0].node if specs[0].pool_kind == "edge" else None,
        scraper=Scraper(every_s=load.every_s, window_s=load.window_s),
    )


def _owner(
    specs: Sequence[NodeSpec],
    metered: Callable[[Callable[[], Sequence[str]]], ScrapedLoad],
    section: OwnerSection,
    workers: WorkersSection,
    locks: Mapping[str, Sequence[Path]],
    now_s: float,
    parts: list[_HasProblems],
) -> ServedOwner:
    """Make the owner; add it and its meter to the parts that report problems."""

    def make(serving: Callable[[], Sequence[str]]) -> ScrapedLoad:
        meter = metered(serving)
        parts.append(meter)
        return meter

    gpus = {spec.node: spec.gpu_count for spec in specs}
    folder = workers.folder / "owner"
    owner = ServedOwner(
        make,
        _lender(gpus, section, folder, locks),
        gpus,
        folder / "owner.json",
        now_s,
        protect=section.protect,
        retry=section.retry,
    )
    parts.append(owner)
    return owner


def _lender(
    gpus: Mapping[str, int],
    section: OwnerSection,
    folder: Path,
    locks: Mapping[str, Sequence[Path]],
) -> Lender:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # what the owner's servers write is not for jobs, which run as other users
    if section.hooks is not None:
        return HookLender(section.hooks, folder)
    if section.webhook is not None:
        return WebhookLender(section.webhook, folder)
    return ReplicaLender(section.replica, gpus, folder, section.replicas, locks)
