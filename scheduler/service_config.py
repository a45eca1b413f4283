"""What a scheduler service is told when it starts."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from bus.allowance import Rates
from scheduler.core.settings import Settings
from scheduler.core.stimuli import LeaderStarted
from scheduler.dedupe import Dedupe
from scheduler.gateways import Gateways
from scheduler.intake import SOURCE_RATES, Intake
from scheduler.node_admission import PoolRule
from scheduler.policies.spec import line_of
from schemas.options import Count, Seconds, Section
from schemas.values import Name

_Briefly = Annotated[float, Field(ge=0.0, le=10.0)]


def _line(policy: object) -> object:
    return line_of(policy) if isinstance(policy, dict) else policy


class ServiceOptions(Section):
    """How a scheduler service runs, as operators set it. Times in seconds."""

    #: The name of this process in the journal and among the schedulers.
    name: Name = "scheduler-0"
    #: The policy: any that `tidegate policies` lists. With options it is a line, such as
    #: `tide:loans.cool_down_s=300`, or a table, `[scheduler.policy]` with `name` and the options.
    policy: Annotated[str, BeforeValidator(_line)] = "tide"
    #: Whether that one decides from each start on. Otherwise one that an administrator chose with
    #: `tidegate policy set` goes on to decide, until `tidegate policy clear`.
    policy_pinned: bool = False
    #: Whether it learns from jobs' reports how fast they are at each size: docs/learning.md.
    learn: bool = True
    #: How long to wait for more records after the first, like `linger.ms`; delays each decision.
    gather_s: _Briefly = 0.0
    #: The least time between two ticks: a transaction within 10 ms after another finds Kafka still
    #: completing it, and takes 20 ms longer.
    spacing_s: _Briefly = 0.01
    #: The most records of one tick, and so of a transaction.
    records_max: Count = 2000
    #: How long a policy may take in a cycle; then `fifo` is used for that cycle, and
    #: `tidegate_policy_failures_total` counts it.
    cycle_budget_s: Seconds = 10.0
    #: A snapshot is written after this many journal entries, or half as many as there are nodes,
    #: jobs and open commands if that is more. A restart replays no more than that.
    snapshot_entries: Count = 5000
    #: How often the leader sends a heartbeat; after 3 minutes without one `tidegate jobs` warns.
    heartbeat_s: Annotated[float, Field(gt=0.0, le=60.0)] = 60.0
    #: The whole state is checked every this many ticks; 0: never.
    validate_ticks: Annotated[int, Field(ge=0)] = 100
    settings: Settings = Field(default_factory=Settings)


class ServiceConfig(ServiceOptions):
    """How the scheduler service of a cell runs; by itself on simulated time, in no hurry."""

    cell: str = "default"
    gather_s: _Briefly = 0.02
    spacing_s: _Briefly = 0.0
    #: Real seconds; infinite: as long as it wants, and nothing else happens meanwhile.
    cycle_budget_s: Annotated[float, Field(gt=0.0, allow_inf_nan=True)] = float("inf")
    #: What each source may say.
    rates: Rates = SOURCE_RATES
    #: Whose births are taken; None: all, as they come.
    pools: tuple[PoolRule, ...] | None = None
    #: Who signs people's requests; None: the log is a file, whose writers are its owner.
    gateways: Gateways | None = None
    #: Whether jobs may be submitted and cancelled by events, too, which nobody signs.
    accept_unsigned: bool = True
    #: What says nothing and decides nothing need not be marked as read at once, only this often.
    mark_s: float = 1.0
    #: As `snapshot_entries`, for what these take.
    snapshot_bytes: int = 64 * 1024 * 1024
    #: Let the bus remove what its topics' retention allows, this often.
    prune_s: float = 3600.0


def intake_of(config: ServiceConfig, dedupe: Dedupe) -> Intake:
    """Make the intake of a service, which goes on with what was taken before."""
    return Intake(
        config.cell,
        f"scheduler-{config.cell}",
        dedupe,
        config.rates,
        gateways=config.gateways,
        accept_unsigned=config.accept_unsigned,
    )


def started(config: ServiceConfig, epoch: int) -> LeaderStarted:
    """Say that a service leads from now on, by what."""
    settings, pinned = config.settings.to_dict(), config.policy_pinned
    return LeaderStarted(config.name, epoch, config.policy, settings, pinned)
