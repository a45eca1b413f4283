"""What was written down in a run, and which laws that breaks."""

from collections.abc import Iterator, Sequence

from scheduler.replay import verify
from schemas.topics import (
    ALL_TOPICS,
    COMMANDS,
    EVENTS,
    JOURNAL,
    REQUESTS,
    SNAPSHOTS,
    TELEMETRY,
    dead_letters,
)
from tests.whole.agents import Agent
from tests.whole.broker import Broker
from tests.whole.laws import SHOWN, Books, broken
from tests.whole.laws_requests import requests_broken
from tests.whole.mosquitto import Mosquitto
from tests.whole.operators import Operators
from tests.whole.policies import QUOTAS, RATIONING
from tests.whole.releases import NEWEST, RELEASE
from tests.whole.tenants import Tenants

ASKED_LETTERS = dead_letters(REQUESTS).name


class Written:
    """What the brokers of a run have, and what its parts remember of what they said and did."""

    def __init__(
        self,
        broker: Broker,
        mosquitto: Mosquitto,
        agents: Sequence[Agent],
        tenants: Tenants,
        operators: Operators,
    ) -> None:
        self._broker, self._mosquitto, self._agents = broker, mosquitto, agents
        self._tenants, self._operators = tenants, operators

    def books(self) -> Books:
        """Give it as it is now."""
        ever, lost, tenants = self._broker.ever, self._broker.lost, self._tenants
        letters = [name for name in ALL_TOPICS if name.endswith(".dlq") and name != ASKED_LETTERS]
        return Books(
            ever[EVENTS.name],
            ever[TELEMETRY.name],
            ever[JOURNAL.name],
            [*ever[COMMANDS.name], *lost[COMMANDS.name]],
            [record for name in letters for record in ever[name]],
            [effect for agent in self._agents for effect in agent.effects],
            {},  # workers outlive their agents
            tenants.accepted,
            tenants.cancelled,
            tenants.hostile,
            [value for agent in self._agents for value in agent.confirmed],
            {one.name: self._mosquitto.said[one.name] for one in self._agents if one.over_mqtt},
            [record for some in lost.values() for record in some],
            self._broker.losses,
            frozenset().union(
                *(one.supervisors.hopeless for one in self._agents if one.supervisors)
            ),
            tenants.deadlines,
            QUOTAS,
            RATIONING,
        )

    def broken(self) -> Iterator[str]:
        """Name the laws that it breaks, and by what."""
        books = self.books()
        yield from broken(books)
        yield from self._requests_broken(books)
        yield from self._replayed(books)

    def _requests_broken(self, books: Books) -> Iterator[str]:
        ever, confirmed = self._broker.ever, self._operators.confirmed
        said, letters = ever[REQUESTS.name], ever[ASKED_LETTERS]
        seen: dict[str, list[str]] = {}
        for law, what in requests_broken(books.journal, said, letters, confirmed, books.lost):
            seen.setdefault(law, []).append(what)
        yield from (f"{law}: {'; '.join(all_[:SHOWN])}" for law, all_ in seen.items())

    def _replayed(self, books: Books) -> Iterator[str]:
        RELEASE.set(NEWEST)
        try:
            result = verify(books.journal, snapshots=self._broker.ever[SNAPSHOTS.name])
        except Exception as error:  # noqa: BLE001  a law is broken, whatever it is
            yield f"the journal cannot be replayed: {type(error).__name__}: {error}"
            return
        if not result.identical:
            yield f"the journal replays otherwise: {result.first_difference}"
