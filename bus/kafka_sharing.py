"""Who of a group gets which cell: evenly, and everybody keeps what he has as far as that allows."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

#: What a member says instead of since when it holds a cell, if it cannot serve that cell.
UNABLE_S = -1.0


class Sharing:
    """What aiokafka calls an assignor: each member says what it holds, the leader shares out.

    aiokafka's own sticky assignor remembers in the class, so two members in one process would
    mix up theirs; and it would hand out partitions of cells that are not in the configuration.
    """

    name = "tidegate"

    def __init__(self, cells: int, held: Callable[[], Mapping[int, float]]) -> None:
        """Share so many cells; `held` gives the partitions held, and since when."""
        self._cells = cells
        self._held = held

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
        """Say what this member holds."""
        held = orjson.dumps({str(cell): since_s for cell, since_s in self._held().items()})
        return ConsumerProtocolMemberMetadata(0, list(topics), held)

    def assign(
        self, cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        """Share out, as the group's leader."""
        (topic,) = next(iter(members.values())).subscription
        there = cluster.partitions_for_topic(topic) or ()
        claims = {
            member: {int(cell): since_s for cell, since_s in orjson.loads(said.user_data).items()}
            for member, said in members.items()
        }
        shares = share(sorted(cell for cell in there if cell < self._cells), claims)
        return {
            member: ConsumerProtocolMemberAssignment(0, [(topic, cells)], b"")
            for member, cells in shares.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolMemberAssignment) -> None:
        """Do nothing: what is held is known from what runs."""


def share(cells: Iterable[int], claims: Mapping[str, Mapping[int, float]]) -> dict[str, list[int]]:
    """Give each member as many cells as the others, or one more; claims are met up to that.

    Of two who claim the same cell, the one who got it later has it: the other slept. Who cannot
    serve a cell has it only if nobody can.
    """
    left = list(cells)
    least, more = divmod(len(left), len(claims))
    shares: dict[str, list[int]] = {}
    for member in sorted(claims):
        own = [
            cell
            for cell in left
            if cell in claims[member]
            and all(claims[member][cell] >= other.get(cell, 0.0) for other in claims.values())
        ]
        kept = own[: least + (1 if more else 0)]
        more -= len(kept) > least
        shares[member] = kept
        left = [cell for cell in left if cell not in kept]
    for cell in left:
        able = [member for member in shares if claims[member].get(cell, 0.0) != UNABLE_S]
        fewest = min(able or shares, key=lambda member: (len(shares[member]), member))
        shares[fewest].append(cell)
    return shares
