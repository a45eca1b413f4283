"""A real Kubernetes control plane for tests: two played nodes with two GPUs each.

One for a file of tests. `TIDEGATE_KUBERNETES=1` builds it where it is not built, as CI does, and
makes its absence a failure; `TIDEGATE_KUBERNETES=0` leaves it out. Otherwise it is used where it is
built.
"""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runtime.checkpoints.store import CheckpointStore
from runtime.executors.processes import workers_of
from tests.composed import ROOT, compose, lacks
from tests.driven import ClusterBench, Watch
from tests.patience import wait_until
from tests.ports import send

if TYPE_CHECKING:  # its client takes seconds to import, and every run of tests imports this
    from cloud_agent.kubernetes.executor import KubernetesExecutor
    from cloud_agent.options import KubernetesOptions

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
#: Where `compose/kubernetes` keeps what it has built.
BIN = Path(os.environ.get("TIDEGATE_KUBERNETES_BIN") or _CACHE / "tidegate" / "kubernetes" / "bin")
NODES = ("n1", "n2")
GPUS = 2
_QUICK: dict[str, Any] = {
    "poll_s": 0.2,
    "quiet_start_s": 0.3,
    "grace_s": 30.0,
    "final_upload_timeout_s": 30.0,
}
_GPU = "nvidia.com/gpu"
_SWITCH = "TIDEGATE_KUBERNETES"
_JOBS = "/apis/batch/v1/namespaces/default/jobs"
_PODS = "/api/v1/namespaces/default/pods"
Json = dict[str, Any]


class ControlPlane:
    """A control plane of our own, and its nodes, which a test may do anything to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "tidegate-agent.kubeconfig"
        self._kubelet: subprocess.Popen[bytes] | None = None

    def compose(self, *arguments: str) -> str:
        """Run `compose/kubernetes` for this cluster; give what it says."""
        folders = {
            "TIDEGATE_KUBERNETES_DIR": str(self.folder),
            "TIDEGATE_KUBERNETES_BIN": str(BIN),
        }
        return compose("kubernetes", *arguments, **folders)

    def play_nodes(self) -> None:
        """Have the nodes played, and wait until Pods may go there."""
        folder = self.folder / "kubelet"
        folder.mkdir(exist_ok=True)
        with (self.folder / "kubelet.log").open("ab") as log:
            self._kubelet = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.kubelet"),
                    *(str(self.folder / "admin.kubeconfig"), str(folder), str(GPUS), *NODES),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: all(map(self._is_ready, NODES)), "the nodes do not get ready")

    def down(self) -> None:
        """End all of it, and forget what it stored."""
        if self._kubelet is not None:
            self._kubelet.terminate()
            self._kubelet.wait()
        self.compose("down", "--wipe")

    def signal(self, daemon: str, number: signal.Signals) -> None:
        pid = int((self.folder / f"{daemon}.pid").read_text().split()[0])
        send(pid, number)

    def ask(self, path: str, method: str = "GET", body: object = None) -> Json:
        """Ask the API as its administrator, outside of any executor; `{}` for what is not there."""
        said = json.loads((self.folder / "admin.kubeconfig").read_text())
        cluster, user = said["clusters"][0]["cluster"], said["users"][0]["user"]
        kind = "application/" + ("merge-patch+json" if method == "PATCH" else "json")
        request = urllib.request.Request(
            cluster["server"] + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {user['token']}", "Content-Type": kind},
        )
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        try:
            with urllib.request.urlopen(request, timeout=30, context=tls) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise AssertionError(f"{method} {path}: {error.read()!r}") from error
        except HTTPException as error:  # the server was killed while it answered
            raise ConnectionError(f"{method} {path}: {error!r}") from error

    def forget_history(self) -> None:
        """Have etcd forget all versions but the newest: none can be followed from."""
        ports = json.loads((self.folder / "ports.json").read_text())
        url = f"http://127.0.0.1:{ports['etcd']}/v3/kv/"

        def post(verb: str, body: Json) -> Json:
            data = json.dumps(body).encode()
            with urllib.request.urlopen(url + verb, data=data, timeout=30) as answer:
                return dict(json.loads(answer.read()))

        revision = post("range", {"key": "AA=="})["header"]["revision"]
        post("compaction", {"revision": revision, "physical": True})

    def jobs(self) -> list[Json]:
        """Give the Jobs that there are."""
        return list(self.ask(_JOBS)["items"])

    def pods(self) -> list[Json]:
        """Give the Pods that there are."""
        return list(self.ask(_PODS)["items"])

    def delete_job(self, name: str, policy: str = "Background") -> None:
        self.ask(f"{_JOBS}/{name}", "DELETE", {"propagationPolicy": policy})

    def delete_pod(self, name: str) -> None:
        self.ask(f"{_PODS}/{name}", "DELETE")

    def evict(self, name: str) -> None:
        """Have a Pod leave as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.ask(f"{_PODS}/{name}/eviction", "POST", body)

    def create_job(self, body: Json) -> Json:
        return self.ask(_JOBS, "POST", body)

    def change_job(self, name: str, changes: Json) -> None:
        self.ask(f"{_JOBS}/{name}", "PATCH", changes)

    def empty(self) -> None:
        """Delete what is left, and wait until nothing is."""

        def is_empty() -> bool:
            for job in self.jobs():
                self.delete_job(job["metadata"]["name"])
            for pod in self.pods():
                options = {"gracePeriodSeconds": 1}
                self.ask(f"{_PODS}/{pod['metadata']['name']}", "DELETE", options)
            return not self.jobs() and not self.pods()

        wait_until(is_empty, "Jobs and Pods do not end")

    def _is_ready(self, node: str) -> bool:
        said = self.ask(f"/api/v1/nodes/{node}")
        return (
            bool(said)
            and not said["spec"].get("taints")
            and _GPU in said["status"].get("allocatable", {})
        )


class _KubernetesWatch(Watch):
    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        super().__init__()

    def look(self) -> set[str]:
        taken: Counter[str] = Counter()
        epochs: dict[str, set[str]] = {}
        for pod in filter(_holds, self._plane.pods()):
            limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
            taken[pod["spec"]["nodeName"]] += int(limits.get(_GPU, 0))
            notes = pod["metadata"].get("annotations", {})
            epochs.setdefault(notes.get("tidegate.io/job", ""), set()).add(
                notes.get("tidegate.io/epoch", "")
            )
        given = {f"{node} gives {n} GPUs" for node, n in taken.items() if n > GPUS}
        twice = {job: sorted(found) for job, found in epochs.items() if len(found) > 1}
        return given | {f"{job} runs at {found}" for job, found in twice.items()}


def _holds(pod: Json) -> bool:
    """Whether the Pod has its GPUs."""
    return "nodeName" in pod["spec"] and pod["status"]["phase"] not in ("Succeeded", "Failed")


def need_kubernetes() -> None:
    """Skip where the control plane is not built, saying so; see the module. CI must have it."""
    wanted = os.environ.get(_SWITCH, "")
    if wanted == "0":
        lacks("Kubernetes", f"{_SWITCH}=0")
    elif wanted:
        compose("kubernetes", "fetch")
    elif not (BIN / ".complete").exists() or shutil.which("etcd") is None:
        lacks("Kubernetes", "no control plane is built (compose/kubernetes fetch builds it)")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A cluster for one file of tests."""
    need_kubernetes()
    with tempfile.TemporaryDirectory(prefix="tidegate-kubernetes-") as folder:
        made = ControlPlane(Path(folder))
        try:
            made.compose("up")
            made.play_nodes()
            yield made
        finally:
            made.down()


class KubernetesBench(ClusterBench):
    """An executor on a cluster, driven by the test, and watched from outside of it."""

    options: "KubernetesOptions"
    daemon = "kube-apiserver"

    def __init__(self, plane: ControlPlane, root: Path, **options: Any) -> None:
        from cloud_agent.options import KubernetesOptions

        self.plane = plane
        self._since_s = time.time()
        terms = KubernetesOptions(
            root=root / "shared",
            store=CheckpointStore(f"file://{root}/store"),
            volume={"hostPath": {"path": str(root / "shared")}},
            kubeconfig=plane.kubeconfig,
            service="",
            **{"agent": f"{plane.folder.name}-{root.name}", **_QUICK, **options},
        )
        super().__init__(plane, root, terms)

    def make(self) -> "KubernetesExecutor":
        from cloud_agent.kubernetes.executor import KubernetesExecutor

        return KubernetesExecutor(self.options)

    def jobs(self) -> list[str]:
        return [one["metadata"]["uid"] for one in self.plane.jobs()]

    def logs(self, epoch: int = 1, job: str = "j") -> str:
        return self._printed(job, epoch, "*")

    def log(self, epoch: int = 1, job: str = "j", rank: int = 0) -> str:
        """Give what a worker has printed."""
        return self._printed(job, epoch, str(rank))

    def _printed(self, job: str, epoch: int, rank: str) -> str:
        found = (self.plane.folder / "kubelet").glob(f"tidegate-{job}-{epoch}-*-{rank}-*.log")
        mine = [path.read_text() for path in found if path.stat().st_mtime > self._since_s]
        return "".join(mine)


@pytest.fixture
def kube(plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesBench]:
    """Lend a bench; leave nothing in Kubernetes, and see that no GPU was given twice."""
    plane.compose("up")  # the test before may have stopped some of it
    made = KubernetesBench(plane, tmp_path)
    watch = _KubernetesWatch(plane)
    try:
        yield made
    finally:
        made.executor.close()
        watch.end()
        plane.compose("up")
        plane.empty()
    assert watch.wrong == set()
    assert watch.looks > 0
    assert not list(workers_of(made.options.agent)), "processes that outlive their Pods"
