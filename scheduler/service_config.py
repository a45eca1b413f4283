"""What a scheduler service is told when it starts."""

from typing import Annotated

from pydantic import Field

from bus.allowance import Rates
from scheduler.core.stimuli import LeaderStarted
from scheduler.dedupe import Dedupe
from scheduler.gateways import Gateways
from scheduler.intake import Intake
from scheduler.node_admission import PoolRule
from scheduler.service_options import SOURCE_RATES, Briefly, ServiceOptions


class ServiceConfig(ServiceOptions):
    """How the scheduler service of a cell runs; by itself on simulated time, in no hurry."""

    cell: str = "default"
    gather_s: Briefly = 0.02
    spacing_s: Briefly = 0.0
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


def intake_of(config: ServiceConfig, dedupe: Dedupe, behind_s: float = 0.0) -> Intake:
    """Make the intake of a service, which goes on with what was taken before."""
    return Intake(
        config.cell,
        f"scheduler-{config.cell}",
        dedupe,
        config.rates,
        gateways=config.gateways,
        accept_unsigned=config.accept_unsigned,
        behind_s=behind_s,
    )


def started(config: ServiceConfig, epoch: int) -> LeaderStarted:
    """Say that a service leads from now on, by what."""
    settings, pinned = config.settings.to_dict(), config.policy_pinned
    return LeaderStarted(config.name, epoch, config.policy, settings, pinned)
