"""An agent's Jobs and Pods as they were a moment ago: listed once, then followed.

Never the ground for calling something gone: what is missing here may only not have been told yet.
Whoever must know asks the API itself.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cloud_agent.kubernetes.api import Api, Away, Json, Refused
from cloud_agent.kubernetes.objects import JobSeen, PodSeen, job_seen, pod_seen

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: From one try to the next, while the API is away.
_WAIT_S, _WAIT_MAX_S = 0.2, 10.0
#: What a server says that has forgotten the version to go on from.
_GONE = 410


@dataclass(frozen=True, slots=True)
class View:
    """All at one moment."""

    jobs: tuple[JobSeen, ...]
    pods: tuple[PodSeen, ...]


@dataclass(slots=True)
class _Shelf(Generic[_T]):
    """What is known of one kind of object, by uid."""

    kind: str
    read: Callable[[Json], _T | None]
    known: dict[str, _T] = field(default_factory=dict)
    version: str | None = None
    away: str | None = "nothing was asked yet"
    wait_s: float = _WAIT_S


class Mirror:
    """Keeps the view up to date, in the client's loop."""

    def __init__(self, api: Api, selector: str) -> None:
        self._api, self._selector = api, selector
        self._jobs: _Shelf[JobSeen] = _Shelf("jobs", job_seen)
        self._pods: _Shelf[PodSeen] = _Shelf("pods", pod_seen)
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = lambda: None

    def begin(self, wake: Callable[[], None]) -> None:
        """Follow from now on; `wake` is called, in the client's thread, when something changed."""
        self._wake = wake
        self._api.run(self._keep(self._jobs))
        self._api.run(self._keep(self._pods))

    @property
    def away(self) -> str | None:
        """Why the API does not answer; None: it does."""
        return self._jobs.away or self._pods.away

    def view(self) -> View | None:
        """Give what is known; None while the API is away."""
        if self.away is not None:
            return None
        with self._lock:
            return View(tuple(self._jobs.known.values()), tuple(self._pods.known.values()))

    async def _keep(self, shelf: _Shelf[_T]) -> None:
        while True:
            try:
                await self._follow(shelf)
            except Refused as refused:
                if refused.status == _GONE:
                    shelf.version = None  # list again; nothing is concluded from the gap
                    continue
                await self._lose(shelf, f"it refuses to show {shelf.kind}: {refused}")
            except Away as away:
                await self._lose(shelf, str(away))
            except Exception as error:  # noqa: BLE001 - what is not followed is not believed
                _log.exception("what follows Kubernetes has failed, and begins anew")
                shelf.version = None
                await self._lose(shelf, f"what it shows of {shelf.kind} makes no sense: {error!r}")

    async def _follow(self, shelf: _Shelf[_T]) -> None:
        if shelf.version is None:
            found, version = await self._api.list(shelf.kind, self._selector)
            with self._lock:
                shelf.known = {}
                for one in found:
                    self._take(shelf, "ADDED", one)
            shelf.version = version

        def connected() -> None:
            shelf.away, shelf.wait_s = None, _WAIT_S
            self._wake()

        events = self._api.follow(shelf.kind, self._selector, shelf.version, connected)
        async for kind, said in events:
            shelf.version = said["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                with self._lock:
                    self._take(shelf, kind, said)
                self._wake()

    def _take(self, shelf: _Shelf[_T], kind: str, said: Json) -> None:
        one = None if kind == "DELETED" else shelf.read(said)
        if one is None:
            shelf.known.pop(said["metadata"]["uid"], None)
        else:
            shelf.known[said["metadata"]["uid"]] = one

    async def _lose(self, shelf: _Shelf[_T], why: str) -> None:
        if shelf.away is None:
            _log.warning("Kubernetes does not answer: %s", why)
        shelf.away = why
        await asyncio.sleep(shelf.wait_s)
        shelf.wait_s = min(2 * shelf.wait_s, _WAIT_MAX_S)
