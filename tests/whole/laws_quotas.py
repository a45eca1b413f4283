"""That no tenant comes to more than its quota says, whoever said so, by the journal alone.

A quota that was set holds under every policy, in place of the configured one, which holds under
the policy that keeps it. What ran when it became less, or was claimed, goes on; nothing grows
beyond it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from bus.contract import Record

#: What a job comes to when its gang has left, and it claims nothing.
_LEFT = ("JobQueued", "JobCompleted", "JobCancelled", "JobFailed")
_ANY = 1 << 30


@dataclass(frozen=True, slots=True)
class Bound:
    """The most GPUs that a tenant's jobs may hold at once, and the most jobs that may hold some."""

    gpus: int = _ANY
    jobs: int = _ANY

    def or_more(self, other: "Bound") -> "Bound":
        """Give what either allows."""
        return Bound(max(self.gpus, other.gpus), max(self.jobs, other.jobs))


@dataclass(slots=True)
class _Tenant:
    own: Bound | None = None  #: As it was set.
    gpus: dict[str, int] = field(default_factory=dict)  #: By job.
    #: By job, those that it was told to have, and has not left since: node and number.
    placed: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    #: By job, the GPUs that it claims, and what was allowed since it has claimed as many.
    claims: dict[str, tuple[int, Bound]] = field(default_factory=dict)

    def claim(self, job: str, size: int, bound: Bound) -> None:
        """Take note of GPUs that are held for a job."""
        before, allowed = self.claims.get(job, (0, bound))
        self.claims[job] = size, bound.or_more(allowed) if size <= before else bound

    def hold(self, job: str, allocation: Mapping[str, list[int]], bound: Bound) -> str | None:
        """Take note of GPUs that a job has; say what is wrong with that."""
        placed = {(node, gpu) for node, gpus in allocation.items() for gpu in gpus}
        self.placed[job], size = placed, len(placed)
        _, allowed = self.claims.pop(job, (0, bound))
        before, bound = self.gpus.get(job, 0), bound.or_more(allowed)
        self.gpus[job] = size
        gpus, jobs = sum(self.gpus.values()), sum(map(bool, self.gpus.values()))
        if size > before and gpus > bound.gpus:
            return f"has {gpus} of {bound.gpus} GPUs"
        if not before and jobs > bound.jobs:
            return f"has {jobs} of {bound.jobs} jobs"
        return None

    def release(self, job: str, gpus: set[tuple[str, int]]) -> None:
        """Take note of GPUs that a job has left; what it is to have next counts until then."""
        placed = self.placed.get(job, set())
        left = len(placed & gpus)
        placed -= gpus
        if job not in self.claims and job in self.gpus:
            self.gpus[job] -= left


def beyond_quotas(
    journal: Sequence[Record], configured: Mapping[str, int], rationing: str
) -> Iterator[str]:
    """Find tenants that came to more GPUs, or jobs, than they might have.

    A gang that is to leave has each of its GPUs until it has left that; one that shrinks, what it
    shrinks to.

    Args:
        journal: The record of decisions.
        configured: By tenant, the most GPUs under the policy `rationing`.
        rationing: The line of that policy.
    """
    tenants: dict[str, _Tenant] = {}
    owner: dict[str, _Tenant] = {}
    names: dict[str, str] = {}
    for record in journal:
        entry = orjson.loads(record.value or b"{}")["data"]
        least = configured if entry["policy"] == rationing else {}
        for name, fields in entry["decision"]["facts"]:
            if name == "JobAccepted":
                job, who = fields["job"], fields["spec"]["tenant"]
                owner[job], names[job] = tenants.setdefault(who, _Tenant()), who
            elif name == "QuotaSet":
                jobs = _ANY if fields["jobs"] is None else fields["jobs"]
                tenants.setdefault(fields["tenant"], _Tenant()).own = Bound(fields["gpus"], jobs)
            elif name == "QuotaCleared":
                tenants[fields["tenant"]].own = None
            elif name in ("TargetSet", "GangStarting", "GangScaling"):
                job, size = fields["job"], sum(map(len, fields["allocation"].values()))
                tenant, who = owner[job], names[job]
                bound = tenant.own or Bound(least.get(who, _ANY))
                if name == "TargetSet":
                    tenant.claim(job, size, bound)
                elif (wrong := tenant.hold(job, fields["allocation"], bound)) is not None:
                    yield f"{who} {wrong} at {entry['at_s']:.1f} s, by entry {entry['number']}"
                    return
            elif name == "JobMigrating":  # it counts with what it is to have
                tenant, job = owner[fields["job"]], fields["job"]
                tenant.gpus[job], _ = tenant.claims.get(job, (0, Bound()))
            elif name == "GpusReleased" and fields["job"] in owner:
                released = {(fields["node"], gpu) for gpu in fields["gpus"]}
                owner[fields["job"]].release(fields["job"], released)
            elif name == "TargetDropped":
                owner[fields["job"]].claims.pop(fields["job"], None)
            elif name in _LEFT:
                owner[fields["job"]].gpus.pop(fields["job"], None)
                owner[fields["job"]].claims.pop(fields["job"], None)
