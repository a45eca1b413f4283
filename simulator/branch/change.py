"""What a branch does otherwise than the control."""

import itertools
from dataclasses import dataclass, field

from scheduler.core.settings import Settings, settings_from
from scheduler.core.state import ClusterState
from scheduler.policies.registry import make_policy
from schemas.events import NodeBorn
from schemas.requests import VerbData
from simulator.branch.origin import BranchError, Part
from simulator.branch.places import Places

#: Nodes, and jobs, that may be added in all.
NODES_MAX = 1000
LIKE_MAX = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """What is changed at the entry; nothing by default."""

    policy: str | None = None  #: A policy with its options.
    settings: dict[str, float] = field(default_factory=dict)
    add: tuple[tuple[str, int], ...] = ()  #: (pool, nodes like its first).
    lose: tuple[str, ...] = ()  #: Nodes that are lost at the entry, for good.
    demand: float = 1.0  #: Times what owners need.
    requests: tuple[VerbData, ...] = ()  #: What operators ask for (`requests.verb_of`).
    jobs: tuple[tuple[str, int], ...] = ()  #: (a job, how many like it are submitted).

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed."""
        return self == Change()

    def check(self, state: ClusterState) -> None:
        """Refuse a change that the state cannot have.

        Raises:
            BranchError: which option, and why.
        """
        if self.policy is not None:
            try:
                make_policy(self.policy)
            except ValueError as error:
                raise BranchError("policy", f"{error}") from error
        known = Settings().to_dict() | {"edge_lease_s": 0.0}
        for name in self.settings:
            if name not in known:
                raise BranchError("settings", f"{name} is no setting; choose of {', '.join(known)}")
        try:
            settings_from({**state.leader.settings, **self.settings})
        except (ValueError, TypeError) as error:
            raise BranchError("settings", f"{error}".removeprefix("settings: ")) from error
        for pool, _ in self.add:
            if pool not in state.pools or not state.pools[pool].nodes:
                named = ", ".join(sorted(state.pools)) or "none yet"
                raise BranchError("add_nodes", f"there is no pool {pool}; there are {named}")
        _bounded("add_nodes", self.add, NODES_MAX)
        for node in self.lose:
            if node not in state.nodes:
                raise BranchError("lose", f"there is no node {node}; `tidegate nodes` lists them")
        for job, _ in self.jobs:
            if job not in state.jobs:
                raise BranchError(
                    "jobs", f"there is no job {job} at this entry; `tidegate jobs --all` lists them"
                )
        _bounded("jobs", self.jobs, LIKE_MAX)
        if not 0.0 <= self.demand <= 100.0:
            raise BranchError("demand", f"{self.demand} is not between 0 and 100")

    def born(self, places: Places) -> list[NodeBorn]:
        """Give the births of the nodes that are added, each like the first of its pool."""
        found: list[NodeBorn] = []
        taken = set(places.at)  # a log that is a branch itself may have added some
        for pool, count in self.add:
            first = places.in_pool(pool)[0]
            names = (f"{pool}-added-{number}" for number in itertools.count(1))
            for name in itertools.islice((one for one in names if one not in taken), count):
                taken.add(name)
                agent = name if first.pool_kind == "edge" else first.agent
                found.append(
                    first.model_copy(
                        update={"node": name, "agent": agent, "held": [], "loan": None}
                    )
                )
        return found


def _bounded(part: Part, added: tuple[tuple[str, int], ...], most: int) -> None:
    for _, count in added:
        if not 1 <= count <= most:
            raise BranchError(part, f"{count} is not between 1 and {most:,}")
    together = sum(count for _, count in added)
    if together > most:
        raise BranchError(part, f"{together:,} are added, and {most:,} may be in all; add fewer")
