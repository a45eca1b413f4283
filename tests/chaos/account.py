"""The final account of a run: reads everything back from Kafka and the agents, and checks it."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bus.clock import SystemClock
from bus.kafka import KafkaBus
from bus.options import KAFKA_VARIABLE, KafkaOptions
from schemas.topics import ALL_TOPICS, COMMANDS, EVENTS, JOURNAL, TELEMETRY
from tests.chaos.fleet import Fleet
from tests.chaos.ledger import (
    Cause,
    Entry,
    Said,
    acks_untold,
    delivery,
    gaps,
    jobs,
    read_entry,
    read_said,
)
from tests.chaos.owners import (
    double_owners,
    double_places,
    read_effects,
    read_orders,
    repeated_effects,
    tenures,
)
from tests.chaos.processes import NAMESPACE

#: So many of each finding are shown; all are counted.
SHOWN = 5


@dataclass(slots=True)
class Account:
    """The figures of a run, and everything that is wrong with it."""

    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def expect_none(self, what: str, found: Sequence[str]) -> int:
        """Count findings; if there are any, they are a problem."""
        if found:
            shown = "".join(f"\n    {one}" for one in found[:SHOWN])
            rest = "" if len(found) <= SHOWN else f"\n    ... {len(found)} in all"
            self.problems.append(f"{what}:{shown}{rest}")
        return len(found)


@dataclass(slots=True)
class Books:
    """All that was written down."""

    said: list[Said]
    journal: list[Entry]
    commands: list[bytes]
    dead: list[tuple[str, Mapping[str, str], bytes]]  #: Topic, headers and bytes.


async def read_books(kafka: KafkaOptions) -> Books:
    """Read every topic from its beginning."""
    bus = KafkaBus.open(kafka, SystemClock())
    try:
        values: dict[str, list[bytes]] = {}
        dead = []
        for topic in ALL_TOPICS:
            values[topic] = []
            async for record in bus.read(topic):
                if record.value is None:
                    continue
                if topic.endswith(".dlq"):
                    dead.append((topic, record.headers, record.value))
                elif topic in (EVENTS.name, TELEMETRY.name, JOURNAL.name, COMMANDS.name):
                    values[topic].append(record.value)
    finally:
        await bus.close()
    said = [read_said(value) for topic in (EVENTS, TELEMETRY) for value in values[topic.name]]
    journal = [read_entry(value) for value in values[JOURNAL.name]]
    return Books(said, journal, values[COMMANDS.name], dead)


async def settle_accounts(
    fleet: Fleet, confirmed: Sequence[Cause], accepted: Sequence[str]
) -> Account:
    """Check a run whose agents have ended and whose brokers still run."""
    account = Account()
    books = await read_books(fleet.kafka)
    check_delivery(account, books, confirmed)
    _check_effects(account, books, fleet)
    check_jobs(account, books, accepted)
    await asyncio.to_thread(check_replay, account, fleet.folder, fleet.kafka)
    return account


def check_delivery(account: Account, books: Books, confirmed: Sequence[Cause]) -> None:
    """Check that what was accepted reached the engine, once."""
    reasons: Counter[str] = Counter()
    buried: set[Cause] = set()
    for topic, headers, value in books.dead:
        reasons[f"{topic}: {headers.get('dlq_field')}: {headers.get('dlq_error')}"] += 1
        if topic != f"{COMMANDS.name}.dlq":
            buried.add(_cause(value))
    found = delivery(books.said, books.journal, confirmed=confirmed, buried=buried)
    figures = account.figures
    figures["events_accepted"] = found.accepted
    figures["events_journalled"] = found.journalled
    figures["duplicates_removed"] = found.duplicates_removed
    figures["births_overtaken"] = found.births_overtaken
    figures["dead_letters"] = len(books.dead)
    figures["lost"] = found.lost
    account.expect_none("confirmed to their sender and not in Kafka", found.vanished)
    account.expect_none("in Kafka and never told to the engine", found.untold)
    account.expect_none("told to the engine more than once", found.retold)
    account.expect_none("told to the engine and never in Kafka", found.invented)
    account.expect_none(
        "acknowledged, and the engine never learnt", acks_untold(books.said, books.journal)
    )
    # A link's numbers are moments, not places.
    agents = [event for event in books.said if not event.cause[0].startswith("/links/")]
    figures["gaps"] = account.expect_none("said and not in Kafka", gaps(agents))
    account.expect_none(
        "dead letters, though everybody is honest",
        [f"{count} of {reason[:300]}" for reason, count in reasons.most_common()],
    )


def _check_effects(account: Account, books: Books, fleet: Fleet) -> None:
    effects = [
        effect for name in fleet.agents for effect in read_effects(name, fleet.effects_file(name))
    ]
    orders = read_orders(books.commands)
    held = tenures(effects, fleet.deaths())
    figures = account.figures
    figures["commands"] = len({orjson.loads(value)["id"] for value in books.commands})
    figures["effects"] = len(effects)
    figures["double_effects"] = account.expect_none(
        "commands that took effect more than once", repeated_effects(effects, orders)
    )
    figures["double_owners"] = account.expect_none(
        "GPUs with two owners at one moment", double_owners(held)
    ) + account.expect_none("jobs at two agents at one moment", double_places(held))
    if not effects:
        account.problems.append("no agent ever did anything")


def check_jobs(account: Account, books: Books, accepted: Sequence[str]) -> None:
    """Check that every accepted job has completed, once."""
    found = jobs(accepted, books.journal)
    figures = account.figures
    figures["jobs_accepted"] = len(accepted)
    figures["jobs_completed"] = len(found.completed)
    figures["jobs_ended_otherwise"] = len(found.ended)
    account.expect_none("jobs accepted that nobody knows of", found.lost)
    account.expect_none("jobs that are not finished", found.unfinished)
    account.expect_none("jobs completed more than once", found.twice)
    account.expect_none(
        "jobs that did not complete", [f"{job}: {why}" for job, why in found.ended.items()]
    )


def _cause(value: bytes) -> Cause:
    try:
        return read_said(value).cause
    except (ValueError, KeyError, TypeError):
        return "unreadable", 0, 0


def check_replay(account: Account, folder: Path, kafka: KafkaOptions) -> None:
    """Replay by the command, as an operator would; `folder` is for what it says."""
    file = folder / "replay.json"
    code = "from console.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "replay", f"kafka:/{NAMESPACE}", "--json", str(file)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, KAFKA_VARIABLE: kafka.bootstrap},
        capture_output=True,
        text=True,
        check=False,
    )
    said = file.read_text() if file.exists() else json.dumps(done.stderr + done.stdout)
    is_identical = said[:1] == "{" and json.loads(said).get("identical") is True
    account.figures["replay_identical"] = is_identical
    if not is_identical:
        account.problems.append(f"replay differs: {said[-1500:]}")
