"""Who speaks for nodes, and who led: what the state and the journal tell of them, and no more."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from explain.measured import Heard
from explain.refusals import (
    RECENT_S,
    WANTED,
    Refusal,
    ended_badly,
    in_words,
    refusals,
    unanswered,
)
from gateway.about import COMMANDS, LEADERS, Kind
from gateway.feed import Feed
from gateway.past import Moment, guarded, mentioning, picked, reachable, too_far
from gateway.sight import HIDDEN
from gateway.subjects import Sight
from scheduler.core.state import ClusterState, Node, command_order
from scheduler.core.transitions import NodeState
from schemas.journal import JournalEntry

#: Entries that mention a node in which its silence is looked for, newest first.
_LOOKED_MOST = 50
#: Entries with refused commands that are looked at, the newest: in a storm there are thousands.
_REFUSED_MOST = 500
_Document = dict[str, Any]


def agents_of(state: ClusterState, text: str | None) -> list[tuple[str, list[Node]]]:
    """Give agents, by name, each with its nodes; only those whose names hold a text."""
    found: dict[str, list[Node]] = {}
    for node in state.nodes.values():
        found.setdefault(node.agent, []).append(node)
    wanted = None if text is None else text.casefold()
    return [
        (agent, sorted(nodes, key=lambda node: node.id))
        for agent, nodes in sorted(found.items())
        if wanted is None or wanted in agent.casefold()
    ]


async def agent_rows(
    moment: Moment,
    agents: Sequence[tuple[str, list[Node]]],
    heard: Mapping[str, Heard],
    sight: Sight,
) -> list[_Document]:
    """Give agents as rows; of one that is silent, since when, as far as the journal tells.

    What agents said as they refused is only for who sees all names: it may hold a tenant's words.
    """
    open_ = Counter(command.agent for command in moment.state.commands.values())
    known, disobeyed = await _refusals(moment), dict[str, list[_Document]]()
    for one in known or ():
        seen = replace(one, reason=HIDDEN) if one.reason and sight is Sight.OWN_NAMES else one
        said = {**asdict(seen), "text": in_words(seen, moment.feed.origin_s)}
        disobeyed.setdefault(one.agent, []).append(said)
    return [
        {**await _row(moment, agent, nodes, heard, open_[agent]), "refusals": refused}
        for agent, nodes in agents
        for refused in [None if known is None else disobeyed.get(agent, [])]
    ]


async def _refusals(moment: Moment) -> list[Refusal] | None:
    """Give which commands agents refused or left unanswered in the last hour before a moment.

    None while the index is far behind: all else of an agent is known without it.
    """
    state, index = moment.state, moment.feed.index
    if too_far(moment.feed, moment.entries - index.entries):
        return None
    begin_s = state.now_s - RECENT_S

    async def begin() -> int:
        return index.place_at(begin_s).number

    after = await guarded(moment.feed, begin) - 1
    wanted = [((Kind.REFUSED,), COMMANDS)]
    bad = await mentioning(moment.feed, wanted, moment.entries, WANTED, after, _REFUSED_MOST)
    ended = ended_badly(entry for entry in bad if entry.at_s >= begin_s)
    issued: list[JournalEntry] = []
    if ended:
        first = min(command_order(name)[0] for name in ended)
        of_ended = [((Kind.ISSUED,), name) for name in ended]
        after = max(first, index.first) - 1  # of what is older than the log, nobody knows whose
        issued = await mentioning(moment.feed, of_ended, moment.entries, after=after)
    return [*refusals(ended, issued), *unanswered(state)]


async def _row(
    moment: Moment, agent: str, nodes: list[Node], heard: Mapping[str, Heard], commands: int
) -> _Document:
    silent = [node for node in nodes if node.state is NodeState.UNKNOWN]
    known = (heard[one.id] for one in nodes if one.id in heard)
    newest = max(known, key=lambda one: one.at_s, default=None)
    born = max(nodes, key=lambda node: (node.bootid, node.said_s))
    ends = [node.lease_end_s for node in silent if node.lease_end_s is not None]
    since = await _silent_since(moment, silent[0].id) if silent else None
    dead = all(node.state is NodeState.DEAD for node in nodes)
    return {
        "agent": agent,
        "nodes": [node.id for node in nodes],
        "pools": sorted({node.pool for node in nodes}),
        "state": "unknown" if silent else "dead" if dead else "alive",
        "boot": born.bootid,
        "born_s": born.said_s,
        "silent_since_s": since,
        "lease_end_s": max(ends, default=None),
        "heard_s": None if newest is None else newest.at_s,
        "delay_s": None if newest is None else newest.at_s - newest.said_s,
        "commands": commands,
    }


async def _silent_since(moment: Moment, node: str) -> float | None:
    feed = moment.feed

    async def find() -> float | None:
        before = min(moment.entries, feed.index.entries)
        rows = feed.index.mentioned((Kind.NODE,), node, before=before, newest=_LOOKED_MOST)
        since_s: float | None = None
        async with contextlib.aclosing(picked(feed, [offset for _, offset in rows])) as entries:
            async for entry in entries:
                for kind, fields in entry.decision.get("facts", ()):
                    if kind == "NodeSilenced" and fields["node"] == node:
                        since_s = entry.at_s
        return since_s

    return await guarded(feed, find)


async def leaders(feed: Feed, before: int, limit: int) -> tuple[list[_Document], int | None]:
    """Give who led before an entry, newest first, and before which the next page is."""

    async def find() -> list[_Document]:
        reachable(feed, before - feed.index.entries)
        # One more than is shown: each is told apart from the one before it.
        rows = feed.index.mentioned((Kind.LEADER,), LEADERS, before=before, newest=limit + 1)
        entries = picked(feed, [offset for _, offset in rows])
        return [_leader(entry) async for entry in entries][::-1]

    found = await guarded(feed, find)
    for newer, older in pairwise(found):
        newer["another"] = newer["leader"] != older["leader"]
    return found[:limit], found[limit - 1]["entry"] if len(found) > limit else None


def _leader(entry: JournalEntry) -> _Document:
    data = entry.stimulus["data"]
    return {
        "entry": entry.number,
        "at_s": entry.at_s,
        "leader": data["leader"],
        "leader_epoch": data["leader_epoch"],
        "policy": data["policy"],
        "another": True,
    }
