"""Plays the nodes of a Kubernetes cluster: runs the commands of Pods as processes of this machine.

As `python -m tests.kubelet KUBECONFIG FOLDER GPUS NODE...`. It promises what a kubelet does: a
Pod's process gets its command, environment and working folder, SIGTERM when the Pod is deleted and
SIGKILL after the grace; the Pod is gone from the API only when its processes are; a device of a
node has one Pod at a time, or the Pod fails. Images are ignored; there are no containers.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
_BEAT_S = 5.0
_AGAIN_S = 0.3
_MESSAGE_BYTES = 2048
_LIMIT = aiohttp.ClientTimeout(sock_connect=5, sock_read=90)
#: Conditions are merged by their type: those that others have set stay.
_MERGE = {"Content-Type": "application/strategic-merge-patch+json"}
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError)
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class Server:
    """The API server, by its kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        said = yaml.safe_load(kubeconfig.read_text())
        cluster = said["clusters"][0]["cluster"]
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._session = aiohttp.ClientSession(
            cluster["server"],
            headers={"Authorization": f"Bearer {said['users'][0]['user']['token']}"},
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=_LIMIT,
            read_bufsize=2**21,
        )

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Json]:
        """Ask until there is an answer; give its status and body."""
        headers = _MERGE if method == "PATCH" else {"Content-Type": "application/json"}
        while True:
            with contextlib.suppress(*_FAILURES, ValueError):
                async with self._session.request(
                    method, path, data=json.dumps(body), headers=headers
                ) as answer:
                    if answer.status not in (429, 500, 503, 504):
                        return answer.status, await answer.json()
            await asyncio.sleep(_AGAIN_S)

    async def pods_of(self, node: str) -> AsyncIterator[tuple[str, Json]]:
        """Give each Pod bound to a node, whenever it changes; `("LISTED", all)` begins anew."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={node}"
        while True:
            _, said = await self.ask("GET", path)
            yield "LISTED", said
            version = said["metadata"]["resourceVersion"]
            with contextlib.suppress(*_FAILURES, ValueError):
                async with self._session.get(f"{path}&watch=1&resourceVersion={version}") as stream:
                    while line := await stream.content.readline():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        yield event["type"], event["object"]
            await asyncio.sleep(_AGAIN_S)


class Pod:
    """One Pod and its process, from being bound until it is gone."""

    def __init__(self, node: "Node", said: Json) -> None:
        self.said = said
        self._node = node
        self._path = (
            f"/api/v1/namespaces/{said['metadata']['namespace']}/pods/" + (said["metadata"]["name"])
        )
        self._log = node.folder / f"{said['metadata']['name']}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._deleted = asyncio.Event()
        self._forgotten = False
        self._devices: list[int] = []
        self.work = asyncio.create_task(self._live())

    def changed(self, said: Json) -> None:
        """Hear what the API has now."""
        self.said = said
        if "deletionTimestamp" in said["metadata"]:
            self._deleted.set()

    def forget(self) -> None:
        """End at once: the API does not have it any more."""
        self._forgotten = True
        self._deleted.set()
        self._kill()

    async def _live(self) -> None:
        if self.said["status"].get("phase") not in ("Succeeded", "Failed"):
            await self._run()
        await self._deleted.wait()
        if not self._forgotten:
            uid = self.said["metadata"]["uid"]
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            await self._node.server.ask("DELETE", self._path, options)

    async def _run(self) -> None:
        container = self.said["spec"]["containers"][0]
        wanted = int(container["resources"].get("limits", {}).get(GPU, 0))
        free = sorted(set(range(self._node.gpus)) - self._node.taken)
        if wanted > len(free):
            await self._say("Failed", reason="UnexpectedAdmissionError", message="no device left")
            return
        self._devices = free[:wanted]
        self._node.taken |= set(self._devices)
        try:
            ended = await self._container(container)
        finally:
            self._node.taken -= set(self._devices)
        phase = "Failed" if ended["exitCode"] else "Succeeded"
        await self._say(phase, {"terminated": ended})

    async def _container(self, container: Json) -> Json:
        """Run the process to its end; say how it ended."""
        environ = self._environment(container)
        command = [expanded(part, environ) for part in container["command"]]
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    env=environ,
                    cwd=container.get("workingDir"),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            return {"exitCode": 128, "reason": "StartError", "message": str(error)}
        if self._forgotten:
            self._kill()
        ending = asyncio.create_task(self._end_when_deleted(self._process))
        # Said while it runs, for it may end before the API hears of it.
        telling = asyncio.create_task(self._say("Running", {"running": {"startedAt": moment()}}))
        code = await self._process.wait()
        self._kill()  # what else is in the container ends with its first process
        ending.cancel()
        await telling
        if code == 0:
            return {"exitCode": 0, "reason": "Completed"}
        tail = self._log.read_bytes()[-_MESSAGE_BYTES:].decode(errors="replace")
        return {"exitCode": code if code > 0 else 128 - code, "reason": "Error", "message": tail}

    async def _end_when_deleted(self, process: asyncio.subprocess.Process) -> None:
        await self._deleted.wait()
        begun_s = asyncio.get_running_loop().time()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        # The grace may be made shorter meanwhile.
        while asyncio.get_running_loop().time() < begun_s + self._grace_s():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self._kill()

    def _grace_s(self) -> float:
        return float(self.said["metadata"].get("deletionGracePeriodSeconds", 30))

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _environment(self, container: Json) -> dict[str, str]:
        names = ",".join(f"GPU-{self._node.name}-{index}" for index in self._devices)
        environ = {"PATH": os.environ["PATH"], "NVIDIA_VISIBLE_DEVICES": names}
        for one in container.get("env", ()):
            if "value" in one or "valueFrom" not in one:
                environ[one["name"]] = expanded(one.get("value", ""), environ)
            else:
                environ[one["name"]] = self._field(one["valueFrom"]["fieldRef"]["fieldPath"])
        return environ

    def _field(self, path: str) -> str:
        found = re.fullmatch(r"metadata\.annotations\['(.+)'\]", path)
        if found is not None:
            return str(self.said["metadata"]["annotations"][found[1]])
        section, _, name = path.partition(".")
        return str(self.said[section][name])

    async def _say(self, phase: str, state: Json | None = None, **more: str) -> None:
        status: Json = {"phase": phase, "startTime": moment(), "podIP": "127.0.0.1", **more}
        if state is not None:
            running = phase == "Running"
            worker = {"name": "worker", "image": "-", "imageID": "-", "restartCount": 0}
            worker |= {"ready": running, "started": running, "state": state}
            status["containerStatuses"] = [worker]
            status["conditions"] = [{"type": "Ready", "status": str(running)}]
        if not self._forgotten:
            await self._node.server.ask("PATCH", self._path + "/status", {"status": status})


class Node:
    """One node."""

    def __init__(self, server: Server, folder: Path, name: str, gpus: int) -> None:
        self.server, self.folder, self.name, self.gpus = server, folder, name, gpus
        #: Devices that a process has.
        self.taken: set[int] = set()
        self._pods: dict[str, Pod] = {}

    async def play(self) -> None:
        """Be a node, for ever."""
        await asyncio.gather(self._beat(), self._follow())

    async def _beat(self) -> None:
        """Be there and ready, as the node controller wants to hear again and again."""
        meta = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}}
        room = {"cpu": "64", "memory": "64Gi", "pods": "110", GPU: str(self.gpus)}
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        await self.server.ask("POST", "/api/v1/nodes", {"metadata": meta})
        await self.server.ask("POST", leases, {"metadata": {"name": self.name}})
        while True:
            ready = {"type": "Ready", "status": "True", "reason": "Played"}
            ready["lastHeartbeatTime"] = moment()
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            await self.server.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status})
            said = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": said}
            await self.server.ask("PATCH", f"{leases}/{self.name}", {"spec": spec})
            await asyncio.sleep(_BEAT_S)

    async def _follow(self) -> None:
        async for kind, said in self.server.pods_of(self.name):
            if kind == "LISTED":
                there = {one["metadata"]["uid"]: one for one in said["items"]}
                for uid in [uid for uid in self._pods if uid not in there]:
                    self._pods.pop(uid).forget()
                for one in there.values():
                    self._hear(one)
            elif kind == "DELETED":
                pod = self._pods.pop(said["metadata"]["uid"], None)
                if pod is not None:
                    pod.forget()
            else:
                self._hear(said)

    def _hear(self, said: Json) -> None:
        uid = said["metadata"]["uid"]
        if uid not in self._pods:
            self._pods[uid] = Pod(self, said)
        self._pods[uid].changed(said)


def expanded(text: str, environ: dict[str, str]) -> str:
    """Put variables into `$(NAME)`, as Kubernetes does: `$$` is a dollar."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[1] is None else environ.get(found[1], found[0])

    return _REFERENCE.sub(one, text)


def moment() -> str:
    """Give the present moment as the API writes moments."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def play(kubeconfig: Path, folder: Path, gpus: int, names: list[str]) -> None:
    """Play these nodes, for ever."""
    server = Server(kubeconfig)
    await asyncio.gather(*(Node(server, folder, name, gpus).play() for name in names))


if __name__ == "__main__":
    asyncio.run(play(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
