"""What a scheduler service is told when it starts."""

from dataclasses import dataclass, field

from bus.allowance import Rates
from scheduler.core.settings import Settings
from scheduler.core.stimuli import LeaderStarted
from scheduler.dedupe import Dedupe
from scheduler.gateways import Gateways
from scheduler.intake import SOURCE_RATES, Intake
from scheduler.node_admission import PoolRule


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """How a scheduler service runs. Times in seconds."""

    cell: str = "default"
    leader: str = "scheduler-0"
    policy: str = "tide"
    #: Whether that one decides from the start of the service, whatever an administrator chose.
    policy_pinned: bool = False
    settings: Settings = field(default_factory=Settings)
    #: Whether it learns from reports how fast jobs are.
    learn: bool = True
    #: How long, in real seconds, a policy may take in a cycle before another stands in; infinite:
    #: as long as it wants, and nothing else happens meanwhile.
    cycle_budget_s: float = float("inf")
    #: What each source may say.
    rates: Rates = SOURCE_RATES
    #: Whose births are taken; None: all, as they come.
    pools: tuple[PoolRule, ...] | None = None
    #: Who signs people's requests; None: the log is a file, whose writers are its owner.
    gateways: Gateways | None = None
    #: Whether jobs may be submitted and cancelled by events, too, which nobody signs.
    accept_unsigned: bool = True
    #: What comes within this time after the first record is decided in the same tick.
    gather_s: float = 0.02
    #: No tick begins sooner than this after the one before: transactions back to back wait for
    #: each other's end in Kafka, and one of twice the size costs no more.
    spacing_s: float = 0.0
    #: What says nothing and decides nothing need not be marked as read at once, only this often.
    mark_s: float = 1.0
    #: The most records one tick takes; it bounds the size of a transaction.
    records_max: int = 2000
    #: A snapshot after this many journal entries, or half as many as there are nodes, jobs
    #: and open commands if that is more: a restart folds no more than that.
    snapshot_entries: int = 5000
    #: The same for what these take.
    snapshot_bytes: int = 64 * 1024 * 1024
    #: Who leads is said this often.
    heartbeat_s: float = 60.0
    #: Let the bus remove what its topics' retention allows, this often.
    prune_s: float = 3600.0
    #: Validate the whole state every so many ticks; 0 never.
    validate_ticks: int = 100


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
    return LeaderStarted(config.leader, epoch, config.policy, settings, pinned)
