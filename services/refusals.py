"""Logs refused messages: a few a minute one by one, then only how many more there were."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from services.logs import Log

#: Refusals told of one by one in a minute, however many there are.
TOLD_MAX = 5
MINUTE_S = 60.0
_SHOWN_MAX = 200


class Refusals:
    """Logs refusals without flooding the log; the same one at most once a minute."""

    def __init__(self, log: Log, event: str) -> None:
        """`event` says on each line what was refused, such as `event refused`."""
        self._log, self._event = log, event
        self._from_s = 0.0
        self._told: list[dict[str, str]] = []
        self._total = self._untold = 0

    def tell(self, refused: Iterable[Mapping[str, str]], total: int) -> None:
        """Tell of what was refused since the last call; `total` counts from the beginning."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._from_s + MINUTE_S:
            if self._untold:
                self._log.warning(
                    f"{self._event}: more than told one by one",
                    more=self._untold,
                    refused_so_far=self._total,
                )
            self._from_s, self._untold = now_s, 0
            self._told.clear()
        # By the count: of very many at once, only the newest are handed to us.
        self._untold += total - self._total
        self._total = total
        for one in refused:
            about: dict[str, Any] = {key: text[:_SHOWN_MAX] for key, text in one.items() if text}
            if len(self._told) < TOLD_MAX and about not in self._told:
                self._told.append(about)
                self._untold -= 1
                self._log.warning(self._event, **about, refused_so_far=total)
