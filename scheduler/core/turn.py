"""One turn of the engine: the facts, commands and reasons that answer one stimulus.

Emitting a fact folds it into the state at once, so that what follows sees it.
"""

from collections.abc import Callable
from typing import Any, Literal

from scheduler.core import facts
from scheduler.core.changed_claims import ChangedClaims
from scheduler.core.evolve import apply
from scheduler.core.grace import grace_s
from scheduler.core.orders import recorded
from scheduler.core.settings import Settings
from scheduler.core.state import ClusterState, Job
from scheduler.core.stimuli import Command
from scheduler.policies.interface import OF_NODES, Figure, Policy, Reason
from scheduler.policies.registry import make_policy
from schemas.commands import CommandData, StopGang

WireReason = Literal["preempted", "migrated", "cancelled", "superseded"]
_WIRE_REASONS: dict[str, WireReason] = {
    "preempted": "preempted",
    "held": "preempted",
    "requeued": "preempted",
    "migrated": "migrated",
    "cancelled": "cancelled",
}


class Turn:
    """Collects the decision on one stimulus."""

    def __init__(
        self,
        state: ClusterState,
        settings: Settings,
        changed_claims: ChangedClaims,
        policies: Callable[[str], Policy] = make_policy,
    ) -> None:
        """Begin a turn on the state as it is.

        Args:
            state: Whose turn it is.
            settings: The limits in force.
            changed_claims: Kept from turn to turn.
            policies: Makes a policy of its line, or says why there is none.
        """
        self.state = state
        self.settings = settings
        self.facts: list[Any] = []
        self.commands: list[Command] = []
        self.reasons: list[Reason] = []
        self.starts = 0  #: Gangs started.
        self.changed_claims = changed_claims
        self.policies = policies

    def emit(self, fact: Any) -> None:
        """Record a fact and fold it into the state."""
        apply(self.state, fact)
        self.facts.append(fact)

    def command(self, agent: str, data: CommandData, subject: str) -> None:
        """Send a command and keep it open until it is acknowledged."""
        state = self.state
        name = f"{state.cell}-{state.leader.epoch}-{state.number}-{len(self.commands)}"
        settings, kind = self.settings, type(data).__name__
        starts = kind in ("StartGang", "ScaleGang")
        expires_s = state.now_s + (settings.start_ttl_s if starts else settings.command_ttl_s)
        self.emit(facts.CommandIssued(name, kind, agent, subject, recorded(data), expires_s))
        self.commands.append(Command(name, agent, data, expires_s))

    def explain(self, *reasons: Reason) -> None:
        """Record why; the latest reason of a job stays with it.

        A job may have the name of a node: what is said of the node is not said of the job.
        """
        self.reasons += reasons
        jobs, emit = self.state.jobs, self.emit
        for reason in reasons:
            if reason.subject in jobs and reason.verb not in OF_NODES:
                emit(facts.JobExplained(reason.subject, reason_to_dict(reason)))

    def because(self, subject: str, verb: str, rule: str, **figures: float) -> None:
        """Record a reason of the engine's own, with fresh figures."""
        named = tuple(Figure(name, float(value)) for name, value in figures.items())
        self.explain(Reason(subject, verb, rule, named))

    def stop_gang(self, job: Job, reason: str, *, checkpoint: bool) -> None:
        """Tell every agent that has a part of the gang to leave its GPUs."""
        agents = sorted({self.state.nodes[name].agent for name in (*job.allocation, *job.leaving)})
        given_s = grace_s(self.state, self.settings, job) if checkpoint else self.settings.grace_s
        wire: WireReason = _WIRE_REASONS.get(reason, "superseded")
        for agent in agents:
            order = StopGang.model_construct(
                job=job.id,
                epoch=job.epoch,
                reason=wire,
                checkpoint=checkpoint,
                grace_s=given_s,
            )
            self.command(agent, order, job.id)


def reason_to_dict(reason: Reason) -> dict[str, Any]:
    """Write a reason with JSON types only."""
    return {
        "subject": reason.subject,
        "verb": reason.verb,
        "rule": reason.rule,
        "figures": [[item.name, float(item.value), float(item.age_s)] for item in reason.figures],
        "lost_to": list(reason.lost_to),
        "needs": [[item.name, float(item.have), float(item.want)] for item in reason.needs],
    }
