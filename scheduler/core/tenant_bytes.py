"""How much of the state tenants' jobs take, so that none fills it (`Settings.tenant_jobs_mib`)."""

from collections.abc import Mapping
from typing import Any

#: What a job takes without its command and environment.
JOB_BYTES = 4096


def bytes_of(program: Mapping[str, Any] | None) -> int:
    """Say how many bytes a job takes, more or less."""
    if program is None:
        return JOB_BYTES
    env = program.get("env", {})
    return JOB_BYTES + sum(map(len, (*program["argv"], *env, *env.values())))


def add(taken: dict[str, int], tenant: str, more: int) -> None:
    """Count so many bytes more, or less, for a tenant; of one that has none nothing is kept."""
    taken[tenant] = taken.get(tenant, 0) + more
    if not taken[tenant]:
        del taken[tenant]
