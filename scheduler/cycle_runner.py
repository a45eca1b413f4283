"""Runs scheduling cycles in a thread beside the event loop, each policy within a budget of time.

Meanwhile the loop sends heartbeats and answers probes. If a policy has no plan within the budget
(`scheduler.cycle_budget_s`), `fifo` plans this cycle in its place. The stimulus records that, so
that a replay decides the same however fast it is.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar, cast

from scheduler.core.engine import STAND_IN, Answer, Question
from scheduler.policies.interface import Policy

Made = TypeVar("Made")
Thing = TypeVar("Thing")
#: Of many things in a row, so many are done before others in the process have their turn.
_IN_A_ROW = 50


async def in_turns(things: Iterable[Thing]) -> AsyncIterator[Thing]:
    """Give one thing after the other; the loop goes on in between."""
    for count, thing in enumerate(things, 1):
        if count % _IN_A_ROW == 0:
            await asyncio.sleep(0)
        yield thing


class CycleRunner:
    """Asks policies for plans, in threads.

    A thread cannot be ended, so a policy that was late is not asked again before it is done.
    """

    def __init__(self, budget_s: float) -> None:
        """Ask within this many real seconds; infinite: at once, on the loop."""
        self._budget_s = budget_s
        #: The policy that was not waited for, and the thread that it is busy in.
        self._late: tuple[Policy, threading.Thread] | None = None
        self.cut = 0  #: Cycles in which the leader's policy was not heard.

    async def ask(self, question: Question) -> Answer:
        """Give the policy's answer, or the answer of the policy that stands in for it."""
        if math.isinf(self._budget_s):
            return question.answer()
        if not question.cut:
            why = "it is still busy with an earlier cycle"
            if not self._is_busy(question.policy):
                answer = await self._answer(question, self._budget_s)
                if answer is not None:
                    return answer
                why = f"its plan took longer than {self._budget_s:g} s"
            question = question.cut_short(f"{why}; {STAND_IN} stood in")
        self.cut += 1
        return await self.in_thread(question.answer)

    async def in_thread(self, work: Callable[[], Made]) -> Made:
        """Do some work in a thread while the loop goes on; without a budget, on the loop itself.

        Nothing else may touch what it works on until it is done.
        """
        return work() if math.isinf(self._budget_s) else await _begin(work, "scheduler")[1]

    async def _answer(self, question: Question, patience_s: float) -> Answer | None:
        """Have a thread of its own answer; None if that takes too long."""
        thread, found = _begin(question.answer, "policy")
        done, _ = await asyncio.wait({found}, timeout=patience_s)
        if done:
            return found.result()
        found.cancel()
        self._late = question.policy, thread
        return None

    def _is_busy(self, policy: Policy) -> bool:
        """Whether a policy is busy with an earlier cycle yet; one that was chosen since is not."""
        return self._late is not None and self._late[0] is policy and self._late[1].is_alive()


def _begin(work: Callable[[], Made], name: str) -> "tuple[threading.Thread, asyncio.Future[Made]]":
    """Have a thread of its own do some work; give it, and what will come of it."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Made] = loop.create_future()

    def done(made: Made | None, error: BaseException | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(cast(Made, made))

    def run() -> None:
        made, error = None, None
        try:
            made = work()
        except BaseException as raised:  # noqa: BLE001  it is raised where it is waited for
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done, made, error)

    # A daemon: nobody waits for it when the process ends.
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread, found
