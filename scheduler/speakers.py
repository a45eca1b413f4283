"""Who may say what: decided by the kind of the source, and by whose the things are that it names.

    /agents/NAME            what agents report, of their own nodes and of gangs that they hold
    /links/NAME             of that agent's connection alone
    /tenants/NAME[/TOOL]    submissions and cancellations, for this tenant alone
    /operators/NAME         the same, for any tenant
    /gateways/NAME          people's requests, signed, on a topic of their own; no event

A source is what a message says of itself: brokers and bridges vouch for it (docs/security.md).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from scheduler.core.state import ClusterState, Job
from scheduler.core.transitions import HOLDING, NodeState
from schemas.codec import EventEnvelope
from schemas.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CommandAcknowledged,
    InferenceLoad,
    JobCancelled,
    JobProgressed,
    JobSubmitted,
    LinkLost,
    LinkOpened,
    NodeBorn,
    NodeDied,
    NodeMeasured,
    OutputsKept,
    WorkerFailed,
    WorkerStarted,
    WorkerStopped,
)
from schemas.values import Strict

AGENT_PREFIX = "/agents/"

_OF_GANGS = (
    JobProgressed,
    CheckpointCommitted,
    CheckpointFailed,
    OutputsKept,
    WorkerStarted,
    WorkerStopped,
    WorkerFailed,
)
_OF_TENANTS = (JobSubmitted, JobCancelled)
#: By kind of source, all that it may say.
SAYS: Mapping[str, tuple[type[Strict], ...]] = {
    "agents": (
        NodeBorn,
        NodeDied,
        NodeMeasured,
        InferenceLoad,
        CommandAcknowledged,
        *_OF_GANGS,
    ),
    "links": (LinkOpened, LinkLost),
    "tenants": _OF_TENANTS,
    "operators": _OF_TENANTS,
    "gateways": (),
}
_NAME = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
_source = re.compile(
    rf"/(agents|links|operators|gateways)/({_NAME})|/(tenants)/({_NAME})(?:/{_NAME})?"
)

#: The field that is wrong, and why.
Wrong = tuple[str, str]


class Speaker(NamedTuple):
    """Who a source says that it is."""

    kind: str
    name: str


def speaker_of(source: str) -> Speaker | None:
    """Read a source; None if it is nobody who may speak."""
    found = _source.fullmatch(source)
    if found is None:
        return None
    return Speaker(found[1] or found[3], found[2] or found[4])


def account_of(source: str) -> str:
    """Name who messages are counted for: a tenant's tools are one, and so are all operators'."""
    speaker = speaker_of(source)
    if speaker is None:
        return ""
    return speaker.kind if speaker.kind == "operators" else f"{speaker.kind}/{speaker.name}"


def out_of_turn(envelope: EventEnvelope) -> Wrong | None:
    """Find what in a message is not its source's to say, whatever the state is."""
    speaker, data = speaker_of(envelope.source), envelope.data
    if speaker is None:
        return "source", (
            "names nobody who may speak: /agents/NAME, /tenants/NAME or /operators/NAME, "
            "and NAME of letters, digits and ._:-"
        )
    if not isinstance(data, SAYS[speaker.kind]):
        return "type", f"{envelope.type} is not for {envelope.source} to say"
    if isinstance(data, NodeBorn | LinkOpened | LinkLost) and data.agent != speaker.name:
        return "data.agent", f"is {data.agent}, but {envelope.source} says it"
    if isinstance(data, JobSubmitted) and speaker.kind == "tenants":
        if data.tenant != speaker.name:
            return "data.tenant", f"is {data.tenant}, but {envelope.source} submits it"
    return None


def foreign(state: ClusterState, envelope: EventEnvelope) -> Wrong | None:
    """Find what a message names that is known to be another's: a node, owner, gang, order, job."""
    source, data = envelope.source, envelope.data
    if isinstance(data, JobCancelled):
        return _foreign_job(state, data.job, source)
    name = getattr(data, "node", None)
    node = state.nodes.get(name) if isinstance(name, str) else None
    if node is not None and source != AGENT_PREFIX + node.agent:
        if not isinstance(data, NodeBorn):
            return "data.node", f"{name} is {node.agent}'s, but {source} speaks for it"
        # As of an agent with a new name. One that was given up is anybody's who may join.
        if node.state is not NodeState.DEAD:
            return "data.node", (
                f"{name} is {node.agent}'s, but {source} says that it has it: end {node.agent}; "
                f"{source} is asked again once {name} was silent until its lease ended"
            )
    if isinstance(data, InferenceLoad):
        return _foreign_load(state, data, source)
    if isinstance(data, CommandAcknowledged):
        command = state.commands.get(data.command)
        if command is not None and source != AGENT_PREFIX + command.agent:
            return "data.command", f"{data.command} is {command.agent}'s to acknowledge"
    if isinstance(data, _OF_GANGS):
        job = state.jobs.get(data.job)
        # Of epochs before, what is late may still come; it says nothing any more.
        if job is not None and job.start_epoch <= data.epoch <= job.epoch:
            # An agent may say in a birth that it holds any job: of one that has a gang elsewhere,
            # that makes no part of the gang its own. Of one that waits, the log may have lost it.
            held = node is not None and job.id in node.holder and job.state not in HOLDING
            if not held and source.removeprefix(AGENT_PREFIX) not in _agents_of(state, job):
                return "data.job", f"{source} holds no part of {job.id}"
    return None


def _agents_of(state: ClusterState, job: Job) -> set[str]:
    """Give who has or had a part of the job's newest gang."""
    here = (state.nodes[name].agent for name in (*job.allocation, *job.leaving))
    return {*job.agents, *here}


def _foreign_job(state: ClusterState, name: str, source: str) -> Wrong | None:
    speaker, job = speaker_of(source), state.jobs.get(name)
    if job is None or speaker is None or speaker.kind != "tenants" or job.tenant == speaker.name:
        return None
    return "data.job", f"{name} is {job.tenant}'s, but {source} cancels it"


def _foreign_load(state: ClusterState, load: InferenceLoad, source: str) -> Wrong | None:
    """Find whether somebody speaks for an owner whose nodes are not its own."""
    pool = state.pools.get(load.pool)
    if pool is None:
        return "data.pool", f"no node of a pool {load.pool} is known"
    if load.node is not None and getattr(state.nodes.get(load.node), "pool", None) != load.pool:
        return "data.node", f"{load.node} is not in pool {load.pool}"
    if load.node is None and pool.kind == "edge":
        return "data.node", f"{load.pool} is an edge pool: each of its nodes has its own load"
    names = pool.nodes if load.node is None else (load.node,)
    if not any(source == AGENT_PREFIX + state.nodes[name].agent for name in names):
        return "data.pool", f"{source} looks after no node of {load.pool}"
    return None
