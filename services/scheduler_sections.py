"""The sections of a configuration for schedulers."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from bus.contract import BusError
from scheduler.core.settings import Settings
from scheduler.gateways import Gateway, Gateways
from scheduler.intake import SOURCE_RATES
from scheduler.node_admission import PoolRule
from scheduler.policies.spec import line_of
from schemas.events import PoolKind
from schemas.options import Count, Seconds, Section
from schemas.requests import VERB_NAMES
from schemas.values import MAX_GPUS_PER_NODE, Name

#: A name in which `*` stands for anything.
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._:*-]{0,127}$")]


def _line(policy: object) -> object:
    return line_of(policy) if isinstance(policy, dict) else policy


class PoolSection(Section):
    """`[[scheduler.pool]]`: a pool whose nodes may join."""

    #: The name of the pool, as in the agents' `agent.pool`.
    name: Name
    #: Who owns the GPUs.
    kind: PoolKind
    #: The most GPUs of one node.
    gpus_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE)]
    #: Speed of the GPUs relative to those for which jobs declare their rates; as in its agents.
    speed_factor: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    #: Agents whose nodes may join; `*` in a name matches anything: `edge-*`.
    agents: tuple[_Pattern, ...] = ("*",)


def _verbs(value: object) -> object:
    """Refuse a verb that there is not, with those that there are."""
    if isinstance(value, list | tuple):
        for name in value:
            if name not in VERB_NAMES:
                raise ValueError(f"{name!r} is no verb; there are {', '.join(VERB_NAMES)}")
    return value


class TrustedGatewaySection(Section):
    """`[scheduler.trusted_gateways.NAME]`: by key id, a key that signs people's requests."""

    #: An Ed25519 public key: base64 of its 32 bytes, or the path of a PEM file.
    key: str
    #: The verbs of requests that it may sign, such as `job.submit`.
    may: Annotated[tuple[str, ...], BeforeValidator(_verbs)]


class SchedulerSection(Section):
    """`[scheduler]`: a scheduler."""

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
    gather_s: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    #: The least time between two ticks: a transaction within 10 ms after another finds Kafka still
    #: completing it, and takes 20 ms longer.
    spacing_s: Annotated[float, Field(ge=0.0, le=10.0)] = 0.01
    #: The most records of one tick, and so of a transaction.
    records_max: Count = 2000
    #: How long a policy may take in a cycle; then `fifo` is used for that cycle, and
    #: `tidegate_policy_failures_total` counts it.
    cycle_budget_s: Seconds = 10.0
    #: The rate limit of each source, in messages per second. All operators are one source.
    source_rate_per_s: Annotated[float, Field(gt=0.0, lt=1e9)] = SOURCE_RATES.rate_per_s
    #: The burst of each source, in messages.
    source_burst: Annotated[float, Field(ge=1.0, lt=1e9)] = SOURCE_RATES.burst
    #: A snapshot is written after this many journal entries, or half as many as there are nodes,
    #: jobs and open commands if that is more. A restart replays no more than that.
    snapshot_entries: Count = 5000
    #: How often the leader sends a heartbeat; after 3 minutes without one `tidegate jobs` warns.
    heartbeat_s: Annotated[float, Field(gt=0.0, le=60.0)] = 60.0
    #: The whole state is checked every this many ticks; 0: never.
    validate_ticks: Annotated[int, Field(ge=0)] = 100
    #: An Ed25519 private key in PEM form; without one, commands are not signed.
    signing_key_file: Path | None = None
    #: The id of its public key in the agents' `trusted_keys`.
    signing_key_id: str = "k1"
    #: Whose nodes may join: those of listed pools, or any. Unset: listed; on a SQLite bus any.
    births: Literal["listed", "any"] | None = None
    #: Whether jobs may be submitted and cancelled by events, which nobody signs. Unset: until a
    #: gateway is trusted. It will be gone in the next release, and such events be refused.
    accept_unsigned: bool | None = None
    #: Whose requests are taken, by key id; on a SQLite bus requests are not signed.
    trusted_gateways: dict[Name, TrustedGatewaySection] = Field(default_factory=dict)
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

    def gateways(self, *, on_file: bool) -> Gateways | None:
        """Give who signs people's requests; None if they are not signed.

        Args:
            on_file: The log is a file, whose writers are all one user.

        Raises:
            BusError: one of the keys cannot be used.
        """
        if on_file:
            return None
        found = self.trusted_gateways.items()
        return Gateways({key_id: Gateway(one.key, one.may) for key_id, one in found})

    @property
    def takes_unsigned(self) -> bool:
        """Whether jobs may be submitted and cancelled by events."""
        return (
            self.accept_unsigned if self.accept_unsigned is not None else not self.trusted_gateways
        )

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
