"""Runs one request in a thread of its own, so that it delays nobody and can be abandoned."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from runtime.http_client import HttpError

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A request under way. Read `answer` and `error` only when it is done."""

    def __init__(
        self, question: Callable[[], T], give_up: Callable[[], None] | None = None
    ) -> None:
        """Begin; `give_up` ends the wait early."""
        self.answer: T | None = None
        #: Why there is no answer; empty if there is one.
        self.error = ""
        self._question, self._give_up = question, give_up
        self._done = threading.Event()
        # A daemon: the agent's end does not wait for a server that hangs.
        threading.Thread(target=self._ask, name="question", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether there is an answer or an error."""
        return self._done.is_set()

    def abandon(self) -> None:
        """Let the thread end soon; its answer is ignored."""
        if self._give_up is not None:
            self._give_up()

    def _ask(self) -> None:
        try:
            self.answer = self._question()
        except (OSError, HttpError) as error:
            self.error = str(error)
        finally:
            self._done.set()
