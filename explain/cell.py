"""Tenants' quotas and the policy in force as plain data: what holds, and who set it.

What an administrator set holds, whatever the configuration says, until it is cleared; a tenant or a
policy about which nobody said anything is as configured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from explain.answer import Reading
from scheduler.core.quotas import counted
from scheduler.core.standing import Accepted, Freeze, Pause
from scheduler.core.state import ClusterState
from scheduler.policies.interface import Policy
from scheduler.policies.registry import make_policy
from scheduler.policies.tide.quotas import NO_LIMIT, read


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """What a tenant may have, and has."""

    tenant: str
    guaranteed: int
    gpus: int | None  #: That its jobs may hold at once; None: any number.
    jobs: int | None  #: That may hold GPUs at once; None: any number.
    gpus_held: int
    jobs_holding: int
    set_by: str | None  #: None: the configuration.
    since_s: float | None
    reason: str
    configured: str | None  #: What the configuration says, which may be what does not hold.


@dataclass(frozen=True, slots=True)
class Quotas:
    """Tenants' quotas at a moment."""

    now_s: float
    quotas: Sequence[QuotaRow]


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """Which policy decides, and whose word that is."""

    now_s: float
    policy: str
    set_by: str | None  #: None: the configuration.
    since_s: float | None
    reason: str
    configured: str  #: What the configuration of the latest leader names.


@dataclass(frozen=True, slots=True)
class CellRules:
    """What holds in a cell at a moment: what people asked for and what is configured."""

    now_s: float
    origin_s: float  #: When the log began.
    policy: PolicyInForce
    quotas: Sequence[QuotaRow]
    pauses: Mapping[str, Pause]  #: By what is paused: `starts`, `loans`.
    #: By node or pool, of every lender by the empty name: who keeps them from being borrowed.
    freezes: Mapping[str, Freeze]
    # What a gateway of an earlier release does not say:
    #: By node or agent: what may join besides what the operator's list has.
    accepted: Mapping[str, Accepted] = field(default_factory=dict)


def rules_of(reading: Reading) -> CellRules:
    """Give what holds in a cell."""
    state, standing = reading.state, reading.state.standing
    return CellRules(
        now_s=state.now_s,
        origin_s=reading.origin_s,
        policy=policy_in_force(reading),
        quotas=quotas_table(reading).quotas,
        pauses={str(part): pause for part, pause in standing.pauses.items()},
        freezes=standing.freezes,
        accepted=standing.accepted,
    )


def quotas_table(reading: Reading) -> Quotas:
    """Give the quota of each tenant that has one, by tenant."""
    state = reading.state
    configured = configured_quotas(state)
    tenants, rows = sorted({*configured, *state.standing.quotas}), []
    held = _held(state) if tenants else {}  # goes through all jobs
    for tenant in tenants:
        said, text = state.standing.quotas.get(tenant), configured.get(tenant)
        least, most = read(tenant, text) if text is not None else (0, NO_LIMIT)
        if said is not None:
            least, most = said.guaranteed, said.gpus
        gpus, jobs = held.get(tenant, (0, 0))
        rows.append(
            QuotaRow(
                tenant=tenant,
                guaranteed=least,
                gpus=None if most == NO_LIMIT else most,
                jobs=None if said is None else said.jobs,
                gpus_held=gpus,
                jobs_holding=jobs,
                set_by=None if said is None else said.by,
                since_s=None if said is None else said.since_s,
                reason="" if said is None else said.reason,
                configured=text,
            )
        )
    return Quotas(state.now_s, rows)


def policy_in_force(reading: Reading) -> PolicyInForce:
    """Say which policy decides."""
    state = reading.state
    line, chosen = state.leader.policy, state.standing.policy
    if chosen is None:
        return PolicyInForce(state.now_s, line, None, None, "", line)
    by, since_s, why = chosen.by, chosen.since_s, chosen.reason
    return PolicyInForce(state.now_s, line, by, since_s, why, chosen.configured)


def configured_quotas(state: ClusterState) -> Mapping[str, str]:
    """Give the quotas among the options of the policy in force, by tenant: `16..32`."""
    try:
        return quotas_in(make_policy(state.leader.policy))
    except ValueError:  # it is not one of this release's
        return {}


def quotas_in(policy: Policy) -> Mapping[str, str]:
    """Give the quotas among the options of a policy, by tenant: `16..32`."""
    found = getattr(policy, "quotas", {})
    return found if isinstance(found, Mapping) else {}


def _held(state: ClusterState) -> dict[str, tuple[int, int]]:
    """Give what the jobs of each tenant hold or are to have, and how many of them do."""
    found: dict[str, tuple[int, int]] = {}
    for job in state.jobs.values():
        if gpus := counted(job):
            before, jobs = found.get(job.tenant, (0, 0))
            found[job.tenant] = before + gpus, jobs + 1
    return found
