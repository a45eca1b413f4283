"""The sections of a configuration for schedulers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from bus.contract import BusError
from scheduler.service_options import SOURCE_RATES, ServiceOptions
from schemas.events import PoolKind
from schemas.options import Section
from schemas.requests import VERB_NAMES
from schemas.values import GpusOfNode, Name

if TYPE_CHECKING:  # only a scheduler needs them, and every role reads all sections
    from scheduler.gateways import Gateways
    from scheduler.node_admission import PoolRule

#: A name in which `*` stands for anything.
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._:*-]{0,127}$")]


class PoolSection(Section):
    """`[[scheduler.pool]]`: a pool whose nodes may join."""

    #: The name of the pool, as in the agents' `agent.pool`.
    name: Name
    #: Who owns the GPUs.
    kind: PoolKind
    #: The most GPUs of one node.
    gpus_per_node: GpusOfNode
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


class SchedulerSection(ServiceOptions):
    """`[scheduler]`: a scheduler."""

    #: An Ed25519 private key in PEM form; without one, commands are not signed.
    signing_key_file: Path | None = None
    #: The id of its public key in the agents' `trusted_keys`.
    signing_key_id: str = "k1"
    #: Whose nodes may join: those of listed pools, or any. Unset: listed; on a SQLite bus any.
    births: Literal["listed", "any"] | None = None
    #: Whether jobs may be submitted and cancelled by events, which nobody signs. Unset: until a
    #: gateway is trusted. It will be gone in the next release, and such events be refused.
    accept_unsigned: bool | None = None
    #: The rate limit of each source, in messages per second. All operators are one source.
    source_rate_per_s: Annotated[float, Field(gt=0.0, lt=1e9)] = SOURCE_RATES.rate_per_s
    #: The burst of each source, in messages.
    source_burst: Annotated[float, Field(ge=1.0, lt=1e9)] = SOURCE_RATES.burst
    #: Whose requests are taken, by key id; on a SQLite bus requests are not signed.
    trusted_gateways: dict[Name, TrustedGatewaySection] = Field(default_factory=dict)
    pool: tuple[PoolSection, ...] = ()

    @model_validator(mode="after")
    def _pools_fit(self) -> "SchedulerSection":
        names = [pool.name for pool in self.pool]
        if len(set(names)) != len(names):
            raise ValueError("pool: two have one name")
        if self.births == "any" and self.pool:
            raise ValueError("births: is any, so that no pool need be listed; take one of the two")
        return self

    def check_policy(self) -> None:
        """Make the policy as a leader does; other roles need not import what decides.

        Raises:
            ValueError: there is no such policy, or it cannot have such an option.
        """
        from scheduler.policies.registry import make_policy

        try:
            make_policy(self.policy)
        except ValueError as error:
            reason = str(error).removeprefix("policy").lstrip(": ")
            raise ValueError(f"scheduler.policy: {reason}") from None

    def gateways(self, *, on_file: bool) -> "Gateways | None":
        """Give who signs people's requests; None if they are not signed.

        Args:
            on_file: The log is a file, whose writers are all one user.

        Raises:
            BusError: one of the keys cannot be used.
        """
        from scheduler.gateways import Gateway, Gateways

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

    def pool_rules(self, *, on_file: bool) -> "tuple[PoolRule, ...] | None":
        """Give the pools that are listed; None if births are taken as they come.

        Args:
            on_file: The log is a file, whose writers are all one user.

        Raises:
            BusError: none is listed, and nobody said that any may join.
        """
        from scheduler.node_admission import PoolRule

        if self.births == "any" or (on_file and self.births is None and not self.pool):
            return None
        if not self.pool:
            raise BusError(
                "scheduler.pool: no pool is listed, so no node may join; add [[scheduler.pool]] "
                "with name, kind and gpus_per_node for each (docs/deploy.md), or, where whoever "
                'can write to the bus is trusted, say scheduler.births = "any"'
            )
        return tuple(PoolRule(**dict(pool)) for pool in self.pool)
