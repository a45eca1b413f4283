"""An agent's Jobs and Pods as they were a moment ago: listed once, then watched.

An object that is missing here may still exist. Whoever must know asks the API itself. A Pod may
change, end and be gone between two looks; how it was in between is kept until the next.
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
#: Seconds from one try to the next while the API does not answer.
_WAIT_S, _WAIT_MAX_S = 0.2, 10.0
#: The server's status for a resource version that it no longer has.
_GONE = 410


@dataclass(frozen=True, slots=True)
class View:
    """All Jobs and Pods at one moment."""

    jobs: tuple[JobSeen, ...]
    pods: tuple[PodSeen, ...]
    #: All that was shown of Pods since the view before this, the earliest first.
    heard: tuple[PodSeen, ...] = ()


@dataclass(slots=True)
class _ObjectCache(Generic[_T]):
    """The objects of one kind, by uid."""

    kind: str
    read: Callable[[Json], _T | None]
    known: dict[str, _T] = field(default_factory=dict)
    #: What was shown anew or changed since it was last asked for; None: nobody asks.
    heard: list[_T] | None = None
    version: str | None = None
    away: str | None = "nothing was asked yet"
    wait_s: float = _WAIT_S


class Informer:
    """Keeps the view up to date, in the client's loop."""

    def __init__(self, api: Api, selector: str) -> None:
        self._api, self._selector = api, selector
        self._jobs: _ObjectCache[JobSeen] = _ObjectCache("jobs", job_seen)
        self._pods: _ObjectCache[PodSeen] = _ObjectCache("pods", pod_seen, heard=[])
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
            heard, self._pods.heard = self._pods.heard or [], []
            jobs, pods = self._jobs.known.values(), self._pods.known.values()
            return View(tuple(jobs), tuple(pods), tuple(heard))

    async def _keep(self, cache: _ObjectCache[_T]) -> None:
        while True:
            try:
                await self._follow(cache)
                await asyncio.sleep(_WAIT_S)  # a proxy in between may end each stream at once
            except Refused as refused:
                if refused.status == _GONE:
                    cache.version = None  # list again; nothing is concluded from the gap
                    await asyncio.sleep(_WAIT_S)
                    continue
                await self._lose(cache, f"it refuses to show {cache.kind}: {refused}")
            except Away as away:
                await self._lose(cache, str(away))
            except Exception as error:  # noqa: BLE001 - what is not followed is not believed
                _log.exception("watching Kubernetes failed, and is started again")
                cache.version = None
                await self._lose(cache, f"what it shows of {cache.kind} makes no sense: {error!r}")

    async def _follow(self, cache: _ObjectCache[_T]) -> None:
        if cache.version is None:
            found, version = await self._api.list(cache.kind, self._selector)
            read = {said["metadata"]["uid"]: cache.read(said) for said in found}
            with self._lock:
                before, cache.known = cache.known, {}
                for uid, one in read.items():
                    self._take(cache, "ADDED", uid, one, before.get(uid))
            cache.version = version

        def connected() -> None:
            cache.away, cache.wait_s = None, _WAIT_S
            self._wake()

        events = self._api.follow(cache.kind, self._selector, cache.version, connected)
        async for kind, said in events:
            cache.version = said["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                one, uid = cache.read(said), said["metadata"]["uid"]
                with self._lock:
                    self._take(cache, kind, uid, one, cache.known.get(uid))
                self._wake()

    def _take(
        self, cache: _ObjectCache[_T], kind: str, uid: str, one: _T | None, before: _T | None
    ) -> None:
        if one is not None and one != before and cache.heard is not None:
            cache.heard.append(one)
        if one is None or kind == "DELETED":
            cache.known.pop(uid, None)
        else:
            cache.known[uid] = one

    async def _lose(self, cache: _ObjectCache[_T], why: str) -> None:
        if cache.away is None:
            _log.warning("Kubernetes does not answer: %s", why)
        cache.away = why
        await asyncio.sleep(cache.wait_s)
        cache.wait_s = min(2 * cache.wait_s, _WAIT_MAX_S)
