"""Asking a policy beside the event loop, and not waiting for it longer than a cycle may take.

While a plan is made the loop goes on: heartbeats are sent, probes are answered. A policy that is
not done in time is not heard in this cycle, and another stands in; what happened is recorded in
the stimulus, so that a replay decides the same however fast it is.
"""

import asyncio
import contextlib
import math
import threading

from scheduler.core.engine import STAND_IN, Answer, Question


class Asker:
    """Asks; a thread cannot be ended, so a policy is not asked again before it is done."""

    def __init__(self, budget_s: float) -> None:
        """Ask within this many real seconds; infinite: at once, on the loop."""
        self._budget_s = budget_s
        self._late: threading.Thread | None = None  # what was not waited for
        self.cut = 0  #: Cycles in which the leader's policy was not heard.

    async def ask(self, question: Question) -> Answer:
        """Give what the policy answers, or who stands in for it."""
        if math.isinf(self._budget_s):
            return question.answer()
        if not question.cut:
            why = "it is still busy with an earlier cycle"
            if self._late is None or not self._late.is_alive():
                answer = await self._answer(question, self._budget_s)
                if answer is not None:
                    return answer
                why = f"its plan took longer than {self._budget_s:g} s"
            question = question.cut_short(f"{why}; {STAND_IN} stood in")
        self.cut += 1
        answer = await self._answer(question, None)
        assert answer is not None
        return answer

    async def _answer(self, question: Question, patience_s: float | None) -> Answer | None:
        """Have a thread of its own answer; None if that takes too long."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Answer] = loop.create_future()

        def hear(answer: Answer) -> None:
            if not found.done():
                found.set_result(answer)

        def work() -> None:
            answer = question.answer()
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(hear, answer)

        # A daemon: nobody waits for it when the process ends.
        thread = threading.Thread(target=work, name="policy", daemon=True)
        thread.start()
        done, _ = await asyncio.wait({found}, timeout=patience_s)
        if done:
            return found.result()
        found.cancel()
        self._late = thread
        return None
