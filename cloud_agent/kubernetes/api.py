"""The Kubernetes API as far as gangs need it; the only module that uses kubernetes-asyncio.

The client runs in a thread with its own event loop. Requests block their caller, but not that loop;
watch events are delivered in it. Objects are plain JSON, of which we read a few fields.
"""

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import ClientError, ClientResponse, ClientTimeout
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from runtime.periodic import monotonic_s

Json = dict[str, Any]
_T = TypeVar("_T")
_log = logging.getLogger(__name__)

#: The server ends a watch after this long, and it is started again; a silent one is cancelled soon
#: after, because the server may have died.
_STREAM_S = 60
_SILENT_S = 75.0
#: The longest line: no object is larger in etcd.
_LINE_MAX = 8 * 1024 * 1024
_SAID_MAX = 500
#: Requests under way get this long when the client is closed.
_ANSWER_S = 1.0
#: Turns of the loop in which closed connections let go of their sockets.
_TURNS = 5
#: What reading an answer may end in; aiohttp's word for a connection that we closed is the last.
_BROKEN = (ClientError, OSError, TimeoutError, ValueError, RuntimeError)
#: HTTP status of a login that has expired or was replaced.
_UNAUTHORIZED = 401
#: HTTP statuses after which a request may be repeated.
_LATER = frozenset((_UNAUTHORIZED, 408, 429, 500, 502, 503, 504))


class Away(Exception):
    """The API did not answer; the request may or may not have taken effect."""


class Refused(Exception):
    """The API refused a request."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        #: The HTTP status.
        self.status = status


class Api:
    """One namespace of a cluster."""

    def __init__(self, namespace: str, kubeconfig: Path | None, request_s: float) -> None:
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._kubeconfig, self._request_s = kubeconfig, request_s
        self._client: ApiClient | None = None
        #: Reads the kubeconfig, which may name a command for a login.
        self._login: asyncio.Task[ApiClient] | None = None
        self._loop = asyncio.new_event_loop()
        self._unanswered: set[asyncio.Future[None]] = set()
        #: The server's time, as it said last, and our steady clock then; None: it never said.
        self._said_s: tuple[float, float] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="api", daemon=True)
        self._closed = False
        #: What is submitted before `close` is ended by it; nothing is after.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start the client; nothing is sent yet."""
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something in the client's loop, until `close`."""

        def ended(done: Future[object]) -> None:
            if not done.cancelled() and done.exception() is not None:
                _log.error("what follows Kubernetes has ended", exc_info=done.exception())

        self._submit(work).add_done_callback(ended)

    def close(self) -> None:
        """Cancel everything under way, from any thread; may be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def server_s(self) -> float | None:
        """Give the time by the server's clock, within two seconds; None while it is not known."""
        said_s = self._said_s
        return None if said_s is None else said_s[0] + monotonic_s() - said_s[1]

    # --- requests ---

    def create_job(self, body: Json) -> Json:
        """Create a Job; give it as the server has it.

        Raises:
            Away: it may have been created.
            Refused: it was not; status 409 if one of this name exists.
        """
        return self._wait(self._ask("POST", self._jobs, body=body))

    def job(self, name: str) -> Json | None:
        """Give the Job as it is now; None if there is none.

        Raises:
            Away: the API does not answer.
            Refused: it says no.
        """
        try:
            return self._wait(self._ask("GET", f"{self._jobs}/{name}"))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def now(self, kind: str, selector: str) -> list[Json]:
        """Give all `jobs` or `pods` with these labels as they are now.

        Raises:
            Away: the API does not answer.
            Refused: it says no.
        """
        return self._wait(self.list(kind, selector))[0]

    def change(self, kind: str, name: str, changes: Json) -> None:
        """Merge changes into one of the `jobs` or `pods`.

        Raises:
            Away: it may have happened.
            Refused: it has not; status 404 if there is no such one.
        """
        self._wait(self._ask("PATCH", f"{self._path(kind)}/{name}", body=changes))

    def delete_job(self, name: str, uid: str) -> None:
        """Have a Job and then its Pods deleted; the Job is there until its Pods are gone.

        Raises:
            Away: it may have happened.
            Refused: it has not.
        """
        self._delete(f"{self._jobs}/{name}", uid, {"propagationPolicy": "Foreground"})

    def delete_pod(self, name: str, uid: str, grace_s: int | None) -> None:
        """Delete a Pod: SIGTERM to its processes, SIGKILL after the grace; None: its own grace.

        Raises:
            Away: it may have happened.
            Refused: it has not.
        """
        self._delete(
            f"{self._pods}/{name}", uid, {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        )

    def _delete(self, path: str, uid: str, options: Json) -> None:
        try:
            self._wait(self._ask("DELETE", path, body={**options, "preconditions": {"uid": uid}}))
        except Refused as refused:
            # It is gone, or another one of its name is there.
            if refused.status not in (404, 409):
                raise

    # --- watching ---

    async def list(self, kind: str, selector: str) -> tuple[list[Json], str]:
        """Give all `jobs` or `pods` with these labels, and their resource version.

        Raises:
            Away: the API does not answer.
            Refused: it says no.
        """
        said = await self._ask("GET", self._path(kind), {"labelSelector": selector})
        items, version = said.get("items"), said["metadata"].get("resourceVersion")
        if not isinstance(items, list) or version is None:
            raise Away(f"GET {self._path(kind)}: the answer is no list of {kind}")
        return items, str(version)

    async def follow(
        self, kind: str, selector: str, version: str, connected: Callable[[], None]
    ) -> AsyncIterator[tuple[str, Json]]:
        """Watch changes after this version, as (type, object), until the server ends the stream.

        Raises:
            Away: the API does not answer any more.
            Refused: it says no; status 410 if it does not remember that version.
        """
        query = {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_STREAM_S),
        }
        response = await self._send("GET", self._path(kind), query, None, _SILENT_S)
        connected()
        rest = b""
        try:
            async for data in response.content.iter_any():
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _LINE_MAX:
                    raise Away("the API server sends what is no event")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(int(event["object"].get("code", 500)), event["object"])
                    yield event["type"], event["object"]
        except _BROKEN as error:
            raise Away(f"the API server's stream ended: {error!r}") from error
        finally:
            response.close()

    # --- the client ---

    def _path(self, kind: str) -> str:
        return self._jobs if kind == "jobs" else self._pods

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        with self._lock:
            if self._closed:
                work.close()
                raise Away("the executor is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, asked: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._submit(asked).result()
        except CancelledError:
            raise Away("the executor was closed") from None

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Json:
        response = await self._send(method, path, query, body, self._request_s)
        try:
            said = json.loads(await response.read())
        except _BROKEN as error:
            raise Away(f"{method} {path}: the answer broke off: {error!r}") from error
        finally:
            response.release()
        if not (isinstance(said, dict) and isinstance(said.get("metadata"), dict)):
            raise Away(f"{method} {path}: the answer is no object of Kubernetes")
        return said

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        limit_s: float,
    ) -> ClientResponse:
        merge = method == "PATCH"
        answered = self._loop.create_future()
        self._unanswered.add(answered)
        try:
            client = await self._connected()
            response: ClientResponse = await client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={
                    "Accept": "application/json",
                    "Content-Type": f"application/{'merge-patch+' if merge else ''}json",
                },
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=ClientTimeout(sock_connect=self._request_s, sock_read=limit_s),
            )
            if (date := response.headers.get("Date")) is not None:
                with contextlib.suppress(ValueError):  # a proxy's own
                    self._said_s = parsedate_to_datetime(date).timestamp(), monotonic_s()
            if response.status < 300:
                return response
            # A proxy in between may answer in any encoding.
            text = (await response.read()).decode(errors="replace")
            if response.status == _UNAUTHORIZED:
                await self._forget(client)
        except _BROKEN as error:
            raise Away(f"{method} {path}: {error!r}") from error
        except ConfigException as error:
            raise Away(f"kubeconfig: {error}; see that it names a cluster and a user") from error
        finally:
            self._unanswered.remove(answered)
            answered.set_result(None)
        raise _refusal(response.status, text)

    async def _connected(self) -> ApiClient:
        if self._client is not None:
            return self._client
        if self._login is None:
            self._login = asyncio.create_task(self._log_in())
        try:
            async with asyncio.timeout(self._request_s):
                # Shielded: a command that hangs is not run a second time beside itself.
                return await asyncio.shield(self._login)
        except TimeoutError:
            raise ConfigException(
                f"the command that it has for a login takes longer than {self._request_s:g} s"
            ) from None

    async def _log_in(self) -> ApiClient:
        try:
            said = Configuration()
            path = os.environ.get("KUBECONFIG") if self._kubeconfig is None else self._kubeconfig
            if path is None:
                load_incluster_config(said)  # type: ignore[no-untyped-call]
            else:
                await load_kube_config(str(path), client_configuration=said, persist_config=False)
            self._client = ApiClient(said)
            return self._client
        finally:
            self._login = None

    async def _forget(self, client: ApiClient) -> None:
        """Have the next request read the kubeconfig again: what it logs in with lasts for a time.

        What is under way breaks off, and is asked again.
        """
        if self._client is client:
            self._client = None
            await client.close()

    async def _end(self) -> None:
        if self._unanswered:
            # One that is cancelled while it connects would leave its socket open.
            await asyncio.wait(self._unanswered, timeout=_ANSWER_S)
        others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in others:
            one.cancel()
        if self._client is not None and self._client.rest_client.pool_manager.connector is not None:
            # Without a TLS shutdown, which a server that hangs would not answer.
            await self._client.rest_client.pool_manager.connector.close(abort_ssl=True)
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def _refusal(status: int, said: Json | str) -> Away | Refused:
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            said = {"message": said}
    message = said.get("message", "") if isinstance(said, dict) else ""
    text = f"{str(message)[:_SAID_MAX]} (HTTP {status})"
    return Away(text) if status in _LATER else Refused(status, text)
