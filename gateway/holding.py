"""Answers that last: they hold what was allowed for them from the start to the end."""

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Holding(StreamingResponse):
    """A stream that lets go of what it holds when it is over, however it ends.

    Were its allowance asked for anew as it begins, another might have it by then: what was let in
    would break off.
    """

    def __init__(
        self,
        held: ExitStack,
        content: AsyncIterator[bytes],
        *,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        """Hold what was entered."""
        super().__init__(content, media_type=media_type, headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._held:
            await super().__call__(scope, receive, send)
