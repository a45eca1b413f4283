"""The sections of a configuration that say how a scheduler decides, and for whom."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bus.contract import BusError
from scheduler.admission import PoolRule
from scheduler.core.settings import Settings
from scheduler.intake import SOURCE_RATES
from schemas.events import PoolKind
from schemas.values import MAX_GPUS_PER_NODE, Name
from services.keys import Count, Seconds, Section

#: A name in which `*` stands for anything.
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._:*-]{0,127}$")]


class PoolSection(Section):
    """`[[scheduler.pool]]`: a pool whose nodes may join, as its operator signs it off."""

    #: Of the pool, as its agents have it in `agent.pool`.
    name: Name
    #: Who owns the GPUs.
    kind: PoolKind
    #: The most GPUs that one of its nodes may have.
    gpus_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE)]
    #: How fast the GPUs are, against those that jobs declare their rates for; as its agents say.
    speed_factor: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    #: Agents that may look after nodes of it; `*` in a name stands for anything: `edge-*`.
    agents: tuple[_Pattern, ...] = ("*",)


class SchedulerSection(Section):
    """`[scheduler]`: how a scheduler decides."""

    #: Who this process is, as the journal and the other schedulers know it.
    name: Name = "scheduler-0"
    #: Which policy decides: any of those that `tidegate policies` lists, with options if wanted:
    #: `tide:loans.cool_down_s=300`.
    policy: str = "tide"
    #: Whether it learns from what jobs report how fast they are at each size: docs/learning.md.
    learn: bool = True
    #: After the first record, wait this long for more; it is added to each decision.
    gather_s: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    #: Ticks are at least this far apart: a transaction that follows another within 10 ms finds
    #: Kafka still completing it, and takes 20 ms longer.
    spacing_s: Annotated[float, Field(ge=0.0, le=10.0)] = 0.01
    #: The most records one tick takes; it bounds the size of a transaction.
    records_max: Count = 2000
    #: How long a policy may take in a cycle; then `fifo` stands in for it in that cycle, and
    #: `tidegate_policy_failures_total` counts it. The process goes on meanwhile.
    cycle_budget_s: Seconds = 10.0
    #: Messages that each source may say a second, in the long run. All operators are one source.
    source_rate_per_s: Annotated[float, Field(gt=0.0, lt=1e9)] = SOURCE_RATES.rate_per_s
    #: Messages that each source may say at once.
    source_burst: Annotated[float, Field(ge=1.0, lt=1e9)] = SOURCE_RATES.burst
    #: A snapshot after this many journal entries, or half as many as there are nodes, jobs
    #: and open commands if that is more: a restart folds no more than that.
    snapshot_entries: Count = 5000
    #: Who leads is said this often; of one silent for 3 minutes, `tidegate jobs` warns.
    heartbeat_s: Annotated[float, Field(gt=0.0, le=60.0)] = 60.0
    #: Check the whole state every so many ticks; 0 never.
    validate_ticks: Annotated[int, Field(ge=0)] = 100
    #: An Ed25519 private key in PEM form; without one, commands are not signed.
    signing_key_file: Path | None = None
    #: Under this id the agents know the public key.
    signing_key_id: str = "k1"
    #: Whose nodes may join: those of the pools listed, or any. Unset: listed, but in a file any.
    births: Literal["listed", "any"] | None = None
    pool: tuple[PoolSection, ...] = ()
    settings: Settings = Field(default_factory=Settings)

    @model_validator(mode="after")
    def _pools_fit(self) -> "SchedulerSection":
        names = [pool.name for pool in self.pool]
        if len(set(names)) != len(names):
            raise ValueError("pool: two have one name")
        if self.births == "any" and self.pool:
            raise ValueError("births: is any, so that no pool need be listed; take one of the two")
        return self

    def pool_rules(self, *, on_file: bool) -> tuple[PoolRule, ...] | None:
        """Give the pools that are listed; None if births are taken as they come.

        Args:
            on_file: The log is a file, whose writers are all one user.

        Raises:
            BusError: none is listed, and nobody said that any may join.
        """
        if self.births == "any" or (on_file and self.births is None and not self.pool):
            return None
        if not self.pool:
            raise BusError(
                "scheduler.pool: no pool is listed, so no node may join; add [[scheduler.pool]] "
                "with name, kind and gpus_per_node for each (docs/deploy.md), or, where whoever "
                'can write to the bus is trusted, say scheduler.births = "any"'
            )
        return tuple(PoolRule(**dict(pool)) for pool in self.pool)
