"""The engine's limits, each with its reason. They are recorded in the journal with every leader."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

_DAY_S = 86_400.0
#: The least that time is divided by: moments are floats, which have no billionths of a second.
_LEAST_S = 0.001


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds."""

    #: The policy is asked at every whole multiple of this: growth needs no more (DeepBoot: 60 s).
    cycle_s: float = 60.0
    #: When something happens it is asked in between too, but not sooner than this after it was
    #: asked last, so that a burst of events makes one plan. 0: at once.
    cycle_gap_s: float = 5.0
    #: Whether it is not asked in between: in rounds alone, as some published policies are.
    rounds_only: bool = False
    #: A node unheard for this long is UNKNOWN: three missed reports of 60 s.
    silence_s: float = 180.0
    #: Workers may run on for this long after their agent was last heard.
    lease_s: float = 900.0
    #: The same for nodes of edge pools, whose links may be down for hours; none: as `lease_s`. It
    #: is also how long the job of a server that is lost waits to go on elsewhere.
    edge_lease_s: float | None = None
    #: A lease ends this much later here: 120 s for the agent to save its gangs, 60 s for clocks.
    lease_margin_s: float = 180.0
    #: A gang told to leave is given this long to save its work; longer if its saves are known to
    #: take longer, and no owner waits for its GPUs.
    grace_s: float = 120.0
    #: An unacknowledged command is sent again after this long, doubling.
    resend_s: float = 60.0
    #: A command unacknowledged for this long is given up. An agent must not begin to obey what it
    #: was sent before its lease ended here, so this is at most `lease_s - silence_s`.
    command_ttl_s: float = 600.0
    #: A gang that is not up after this long (plus twice its declared start) is stopped.
    start_timeout_s: float = 600.0
    #: Of a running gang in contact, nothing was heard for this long: its agent is asked. Progress
    #: is passed on every 15 minutes at least, so this is two reports missed.
    unheard_s: float = 2100.0
    #: An owner of whose load nothing was heard for this long, though its agent is in contact, gets
    #: back what it lent: three times as long as policies believe a report (`loans.stale_s`). Not
    #: at all in logs of before there was this.
    owner_silence_s: float | None = 2700.0
    #: Whether the policy is asked in between as soon as an owner needs more GPUs than those that it
    #: did not lend, too. Not in logs of before there was this.
    short_owners_at_once: bool = True
    #: A claim on GPUs is given up if those that were told to leave them are there for so long
    #: still. Agents that answer are never that late.
    claim_ttl_s: float = 600.0
    #: No turn starts more gangs than this; the next, which follows at once, starts the rest. What a
    #: start adds to an entry of the journal is about 1 KiB, to a transaction 64 KiB at most.
    starts_per_cycle: float = 256.0
    #: After a failure a job waits this long, doubling with each until it has saved further work, at
    #: most an hour.
    backoff_s: float = 60.0
    #: A job that failed this often in a row without saving further work is given up.
    failures_max: float = 20.0
    #: What owners need is remembered as the peak of each stretch this long, 576 of them: two days
    #: of 5 minutes. Where a day is shorter, as in a demonstration, so is this.
    load_slot_s: float = 300.0
    #: A tenant's jobs may take so many MiB of the state: 4 KiB each, and their commands and
    #: environments. Those that ended count until they are forgotten. Further ones are refused. Not
    #: in logs of before there was this.
    tenant_jobs_mib: float | None = 256.0
    #: Finished jobs stay in the state this long; the journal keeps them for good.
    forget_s: float = 2 * 86_400.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("cycle_gap_s", "rounds_only", "short_owners_at_once"):
                if not 0 <= value < 1e9:
                    raise ValueError(f"settings: {item.name} must be from 0 to 1e9, got {value}")
            elif value is not None and not 0 < value < 1e9:
                raise ValueError(f"settings: {item.name} must be above 0, below 1e9, got {value}")
        for name in ("cycle_s", "load_slot_s"):
            if getattr(self, name) < _LEAST_S:
                raise ValueError(f"settings: {name} must be at least {_LEAST_S:g}")
        if self.load_slot_s > _DAY_S:
            raise ValueError(f"settings: load_slot_s must be at most {_DAY_S:g}, a day")
        if self.lease_s <= self.silence_s:
            raise ValueError("settings: lease_s must be above silence_s")
        if self.command_ttl_s > self.lease_s - self.silence_s:
            raise ValueError("settings: command_ttl_s must be at most lease_s - silence_s")
        if self.edge_lease_s is not None and self.edge_lease_s < self.lease_s:
            raise ValueError("settings: edge_lease_s must be at least lease_s")

    @property
    def start_ttl_s(self) -> float:
        """How long an order to start or scale may be carried out.

        It is over well before the lease of a node that fell silent: an agent that comes back then
        must not begin what is being run elsewhere.
        """
        return min(self.command_ttl_s, (self.lease_s - self.silence_s) / 2)

    def next_round_s(self, now_s: float) -> float:
        """Give the first moment after `now_s` at which the policy is asked in any case.

        Rounds are counted, and their moments are whole multiples as floats have them: a quotient
        of floats may be off by a bit, so that a round is passed over, or comes twice.
        """
        count = math.floor(now_s / self.cycle_s)
        while count * self.cycle_s <= now_s:
            count += 1
        return count * self.cycle_s

    def lease_of(self, pool_kind: str) -> float:
        """How long work in a pool of this kind may run on unheard, in seconds."""
        if pool_kind != "edge" or self.edge_lease_s is None:
            return self.lease_s
        return self.edge_lease_s

    def to_dict(self) -> dict[str, float]:
        """Give the settings as they are recorded; what is not set is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def settings_from(recorded: Mapping[str, float]) -> Settings:
    """Read recorded settings; those a later version added take their defaults.

    What is left out where it is not set is not set: a leader of before waited for owners, too, and
    for the next round where one was short, and took all jobs of a tenant.
    """
    known = {item.name for item in fields(Settings)}
    values: dict[str, Any] = {name: value for name, value in recorded.items() if name in known}
    values.setdefault("owner_silence_s", None)
    values.setdefault("short_owners_at_once", False)
    values.setdefault("tenant_jobs_mib", None)
    return Settings(**values)
