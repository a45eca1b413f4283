"""A field of ideal agents: jobs as a physics has them, and the nodes and owners of a layout."""

import math
from collections.abc import Sequence

from scheduler.core.stimuli import Command
from schemas.commands import LendNode, Rebirth, ReturnNode, ScaleGang, StartGang, StopGang
from schemas.events import CommandAcknowledged
from simulator.account import Account
from simulator.driver import Driver
from simulator.fleet import Fleet
from simulator.gangs import Gangs
from simulator.layout import Layout
from simulator.options import Options
from simulator.physics.base import Entry
from simulator.pools import Owner


class Ideal:
    """Agents that never fail, forget or refuse."""

    def __init__(
        self,
        entries: Sequence[Entry],
        layout: Layout,
        account: Account,
        options: Options,
    ) -> None:
        """Begin with all jobs to come, by submission.

        Raises:
            ValueError: Two jobs have one id, or a failure is of no node.
        """
        if len({one.id for one in entries}) < len(entries):
            raise ValueError("two jobs have the same id")
        self._gangs = Gangs(entries, layout, account, options)
        self._fleet = Fleet(layout, options.failures, self._gangs.held_on, self._gangs.kill)

    @property
    def owners(self) -> list[Owner]:
        """Those whom lent nodes belong to, by id."""
        return list({owner.id: owner for owner in self._fleet.owners.values()}.values())

    @property
    def failures(self) -> int:
        """Nodes that failed so far."""
        return self._fleet.failures

    @property
    def goes_on(self) -> bool:
        """Whether a job is to come, or makes progress."""
        return self._gangs.next_s < math.inf

    def begin(self, driver: Driver) -> None:
        """Let nodes be born; jobs come later."""
        self._say = driver.say
        self._gangs.begin(self._say)
        self._fleet.begin(self._say)

    @property
    def next_s(self) -> float:
        """When something happens next."""
        return min(self._gangs.next_s, self._fleet.next_s)

    def happen(self, now_s: float) -> None:
        """Let jobs go on, then nodes and owners."""
        self._gangs.happen(now_s)
        self._fleet.happen(now_s)

    def obey(self, command: Command, now_s: float) -> None:
        """Take a command: it is done at once, or begun."""
        data = command.data
        if isinstance(data, LendNode | ReturnNode):
            self._fleet.obey(command, now_s)
            return
        done = CommandAcknowledged.model_construct(command=command.id, outcome="done")
        self._say(done, f"/agents/{command.agent}")
        match data:
            case StartGang():
                self._gangs.start(data, now_s)
            case ScaleGang():
                self._gangs.scale(data, now_s)
            case StopGang():
                self._gangs.stop(data, now_s)
            case Rebirth():
                self._fleet.say_again(command.agent)
            case _:
                pass

    def report(self, now_s: float) -> None:
        """Say what a policy shall know."""
        self._gangs.report(now_s)
