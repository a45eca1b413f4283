"""A machine is put together as the configuration says, or refused by the key that is wrong."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from cloud_agent.slurm.executor import SlurmExecutor
from edge_agent.agent import EdgeAgentConfig
from runtime.core import NodeSpec
from runtime.executor import Machine
from runtime.executors.process import ProcessExecutor
from runtime.metering.nvml import Gpu, NvmlUnavailable
from runtime.owners import ServedOwner
from runtime.simulated_owner import simulated_machine
from services import agents
from services.agents import machine_settings, of_driver
from services.config import Config, ConfigError, load
from services.machines import RealMachine, _names
from tests.patience import wait_until

SPECS = (NodeSpec("n1", "serve", "inference", 2, "cpu", 1000),)
WORKERS = """
[agent]
name = "a"
runs = "{runs}"
[agent.workers]
isolation = "none"
folder = "{folder}/runs"
checkpoints = "file://{folder}/store"
"""
OWNER = """
[agent.load]
demand = {{ latency_target_s = 2 }}
[[agent.load.server]]
name = "llm"
node = "{node}"
url = "http://127.0.0.1:9/metrics"
[agent.owner.hooks]
drain = ["true"]
hand_back = ["true"]
"""

MAPPING = """
[agent.load.mapping]
name = "ours"
waiting = [{{ names = ["queue_depth"], labels = {{ pool = "chat" }} }}]
running = [{{ names = ["active_requests"] }}]
"""


def config(folder: Path, text: str, **words: str) -> Config:
    file = folder / "tidegate.toml"
    file.write_text(text.format(folder=folder, **{"runs": "processes", "node": "n1"} | words))
    return load(file)


def made(config: Config) -> tuple[RealMachine, Machine]:
    real = RealMachine(config, lambda _specs, _now_s: None)
    return real, real.maker()(SPECS, 1000.0)


def test_processes_of_a_machine_without_gpus(tmp_path: Path) -> None:
    real, machine = made(config(tmp_path, WORKERS))
    assert isinstance(machine.executor, ProcessExecutor)
    assert machine.owner is None
    (measured,) = machine.meter.measure(1001.0, 1.0)
    assert (measured.node, len(measured.gpu_utilisation)) == ("n1", 2)
    assert (tmp_path / "runs").is_dir()
    assert real.problems(1001.0) == []


def test_an_agent_has_the_machine_that_it_is_configured_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "held_gangs", lambda _: {"j": 4})
    make, real = agents.machine_of(config(tmp_path, WORKERS), lendable=False)
    assert real is not None
    assert (real.lendable, real.remembered()) == (False, {"j": 4})
    executor = make(SPECS, 1000.0).executor
    assert isinstance(executor, ProcessExecutor)
    executor.close()
    with pytest.raises(ConfigError, match=r"agent\.owner is not set"):
        agents.machine_of(config(tmp_path, WORKERS), lendable=True)
    _, real = agents.machine_of(
        config(tmp_path, '[agent]\nname = "a"\nruns = "simulated"\n'), lendable=True
    )
    assert real is None


def test_agents_of_two_cells_keep_jobs_of_one_name_apart_in_their_store(tmp_path: Path) -> None:
    text = 'cell = "{cell}"\n' + WORKERS.replace("{folder}/runs", "{folder}/{cell}")
    (tmp_path / "weights").touch()
    for cell in ("west", "east"):
        store = made(config(tmp_path, text, cell=cell))[0]._store
        assert store is not None
        store.commit("train", 1, 10, tmp_path / "weights", 1.0)
    found = sorted(path.parent for path in (tmp_path / "store").rglob("manifest.json"))
    assert found == [tmp_path / "store" / name for name in ("@east/train/1-10", "train/1-10")]


def test_nodes_of_one_machine_share_its_gpus_out_and_none_is_given_twice(tmp_path: Path) -> None:
    two = [NodeSpec(name, "train", "training", 2, "a100", 1000) for name in ("n1", "n2")]
    four = config(tmp_path, WORKERS + '[agent.meter]\nsource = "host"\n').agent.workers
    assert four is not None
    assert _names(two, four) == {"n1": ("0", "1"), "n2": ("2", "3")}
    named = four.model_copy(update={"gpu_ids": ("A", "B", "C", "D")})
    assert _names(two, named) == {"n1": ("A", "B"), "n2": ("C", "D")}
    for wrong in (("A", "B"), ("A", "B", "C", "A")):
        with pytest.raises(ValueError, match=r"gpu_ids: [23] GPUs named, but n1, n2 have 4"):
            _names(two, four.model_copy(update={"gpu_ids": wrong}))
    assert _names(SPECS, four) == {}  # slots have no names


def test_what_the_owners_servers_write_is_not_for_jobs(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        made(config(tmp_path, WORKERS + OWNER))
        assert (tmp_path / "runs" / "owner").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


@pytest.mark.process
def test_an_owner_who_is_not_heard_needs_all_and_is_told_of(tmp_path: Path) -> None:
    real, machine = made(config(tmp_path, WORKERS + OWNER))
    assert isinstance(machine.owner, ServedOwner)
    owner, seconds = machine.owner, count(1001)
    # A new agent brings the owner back once.
    wait_until(lambda: [owner.advance(float(next(seconds))), owner.serving()][1] == ("n1",))
    (load,) = owner.loads(float(next(seconds)))
    assert (load.pool, load.gpus_needed, load.gpus_serving) == ("serve", 2, 2)
    wait_until(lambda: [owner.loads(float(next(seconds))), real.problems(1e9)][1])
    assert any("llm" in problem for problem in real.problems(1e9))


@pytest.mark.process
def test_a_server_without_a_node_is_heard_while_the_only_node_is_lent(
    tmp_path: Path, page: list[str]
) -> None:
    (url,) = page
    text = WORKERS + OWNER.replace('node = "{node}"\n', "").replace("http://127.0.0.1:9", url)
    text += MAPPING
    text = text.replace("= 2 }}", "= 2, gpus_min = 0, stabilization_window_s = 0 }}")
    text = text.replace("[agent.load]", "[agent.load]\nevery_s = 0.05")
    owner, seconds = made(config(tmp_path, text))[1].owner, count(1001)
    assert isinstance(owner, ServedOwner)

    def needs() -> int:
        (load,) = owner.loads(float(next(seconds)))
        return load.gpus_needed

    wait_until(lambda: [owner.advance(float(next(seconds))), owner.serving()][1] == ("n1",))
    wait_until(lambda: needs() == 0)
    owner.drain("n1", float(next(seconds)))
    wait_until(lambda: [owner.advance(float(next(seconds))), owner.serving()][1] == ())
    assert needs() == 0
    page.append("3")  # users wait at the front door
    wait_until(lambda: needs() == 1)
    two = [SPECS[0], NodeSpec("n2", "serve", "inference", 2, "cpu", 1000)]
    text = text.replace("/runs", "/more")
    with pytest.raises(ValueError, match="llm needs a node; only an agent of one"):
        RealMachine(config(tmp_path, text), lambda _specs, _now_s: None).maker()(two, 1000.0)


@pytest.fixture
def page() -> Iterator[list[str]]:
    """Serve metrics as `MAPPING` says: give the address, and take the requests that wait."""
    said: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            waiting = said[-1] if len(said) > 1 else "0"
            text = f'active_requests 0\nqueue_depth{{pool="chat"}} {waiting}\n'
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    said.append(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield said
    server.shutdown()
    server.server_close()


def test_gangs_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, machine = made(config(tmp_path, WORKERS + "[agent.slurm]\ngres = ''\n", runs="slurm"))
    assert isinstance(machine.executor, SlurmExecutor)
    (measured,) = machine.meter.measure(1001.0, 1.0)
    assert measured.gpu_utilisation == [None, None]  # other machines are not measured from here
    assert real.problems(1001.0) == []
    monkeypatch.setattr(machine.executor, "stuck", lambda now_s: [("j", now_s - 900.0)])
    assert real.problems(1001.0) == ["j: alive, but no step for 900 s"]
    machine.executor.close()


@pytest.mark.parametrize("source", ["nvml", "dcgm"])
def test_the_gpus_of_one_machine_are_not_said_of_each_node_of_a_cluster(
    tmp_path: Path, source: str
) -> None:
    where = 'dcgm_url = "http://127.0.0.1:9/metrics"' if source == "dcgm" else ""
    meter = f'[agent.meter]\nsource = "{source}"\n{where}\n'
    text = WORKERS + "[agent.slurm]\ngres = ''\n" + meter
    real = RealMachine(config(tmp_path, text, runs="slurm"), lambda _specs, _now_s: None)
    specs = [replace(SPECS[0], node=node) for node in ("n1", "n2", "n3")]
    with pytest.raises(ConfigError, match=rf"{source} sees the GPUs of one machine.* 3 nodes"):
        real.maker()(specs, 1000.0)


def test_gangs_of_kubernetes(tmp_path: Path) -> None:
    kubernetes = pytest.importorskip("cloud_agent.kubernetes.executor")
    text = (
        WORKERS
        + """
        [agent.kubernetes]
        volume = {{ hostPath = {{ path = "{folder}/runs" }} }}
        kubeconfig = "{folder}/none"
        gpu_resource = ""
    """
    )
    _, machine = made(config(tmp_path, text, runs="kubernetes"))
    assert isinstance(machine.executor, kubernetes.KubernetesExecutor)
    machine.executor.close()


def test_real_workers_on_gpus_that_may_serve_need_an_owner_or_a_word(tmp_path: Path) -> None:
    begun: list[ProcessExecutor] = []

    def begin(text: str) -> Machine:
        real = RealMachine(
            config(tmp_path, text),
            lambda *_: simulated_machine(SPECS, 1000.0, demand=lambda _: 0.0).owner,
            lendable=True,
        )
        machine = real.maker()(SPECS, 1000.0)
        assert isinstance(machine.executor, ProcessExecutor)
        begun.append(machine.executor)
        return machine

    with pytest.raises(ConfigError, match=r'agent\.owner is not set; .* or owner = "none" if'):
        begin(WORKERS)
    served = begin(WORKERS + OWNER)
    assert isinstance(served.owner, ServedOwner)
    begun.pop().close()
    unserved = begin(WORKERS.replace('name = "a"', 'name = "a"\nowner = "none"'))
    assert unserved.first_load_s < served.first_load_s, "no server is to be measured first"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '[agent]\nname = "a"\nruns = "processes"\n',
            r"workers: .agent.workers. is missing: runs = .processes. needs",
        ),
        (WORKERS.replace('"{runs}"', '"simulated"'), "workers: set agent.runs to"),
        (WORKERS.replace("{folder}/runs", "runs"), "not an absolute path"),
        (WORKERS + OWNER.partition("[agent.owner")[0], "agent.load"),
        (WORKERS.replace('"a"', '"a"\nowner = "none"') + OWNER.partition("[agent.ow")[0], "load"),
        (WORKERS.replace('"a"', '"a"\nowner = "me"'), "agent.owner"),
        (WORKERS.replace('runs = "{runs}"', ""), "workers: set agent.runs"),
        (WORKERS + OWNER + '[agent.owner.webhook]\nurl = "http://h/"\n', "give one of hooks"),
        (WORKERS + OWNER.replace("{node}", "n9"), "llm is on n9"),
        (WORKERS + OWNER + MAPPING.replace("waiting", "wating"), "load: .*mapping: waiting: "),
        (
            WORKERS + OWNER.replace("[agent.load]", '[agent.load]\nkind = "tgi"') + MAPPING,
            "kind: a mapping says what the servers are",
        ),
        (WORKERS + '[agent.meter]\nsource = "dcgm"\n', "dcgm_url"),
        (WORKERS + "[agent.meter]\nevery_s = 0\n", "every_s"),
        (WORKERS + "[agent.workers.more]\n", "more"),
        (WORKERS.replace('"{runs}"', '"kubernetes"'), "agent.kubernetes"),
        (WORKERS + "[agent.kubernetes]\nvolume = {{}}\n", "agent.kubernetes"),
        (WORKERS + '[agent.slurm]\nsbatch = ["-p x"]\n', "agent.slurm.sbatch: at most 64"),
        (
            WORKERS.replace('"{runs}"', '"kubernetes"')
            + '[agent.kubernetes]\nvolume = {{}}\npod = {{ nodeName = "n1" }}\n',
            "agent.kubernetes.pod: nodeName cannot be set",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=complaint):
        made(config(tmp_path, text))


def test_gpus_that_cannot_be_seen_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.machines.NvmlGpus", _no_driver)
    specs = [NodeSpec("n1", "train", "training", 2, "H100", 1000)]
    real = RealMachine(config(tmp_path, WORKERS), lambda _specs, _now_s: None)
    with pytest.raises(ConfigError, match=r'H100 is offered, and no GPU .* gpu_type = "cpu"'):
        real.maker()(specs, 1000.0)


def _no_driver(*_: object) -> None:
    raise NvmlUnavailable("NVML: no driver")


@pytest.mark.parametrize(
    ("said", "type_and_memory"),
    [
        ("", ("H100-80GB-HBM3", 81_559)),
        ('gpu_type = "mine"', ("mine", 81_559)),
        ("gpu_memory_mib = 7", ("H100-80GB-HBM3", 7)),
        ("gpus = 3", ("H100-80GB-HBM3", 15_360)),
        ('gpu_type = "cpu"', ("cpu", 24_576)),
    ],
)
def test_what_is_not_said_of_gpus_is_asked_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, type_and_memory: tuple[str, int]
) -> None:
    two = [Gpu("A", "NVIDIA H100 80GB HBM3", 81_559, 0), Gpu("C", "NVIDIA T4", 15_360, 2)]
    monkeypatch.setattr("services.agents.inventory", lambda: two)

    def told(text: str) -> tuple[str, int]:
        read = config(tmp_path, text)
        settings = machine_settings(read, needed=("name",), foreign=())
        about = EdgeAgentConfig(**of_driver(read.agent) | settings)
        return about.gpu_type, about.gpu_memory_mib

    text = WORKERS.replace('name = "a"', f'name = "a"\n{said}')
    assert told(text) == type_and_memory
    if not said:
        assert told(text + 'gpu_ids = ["2"]\n') == ("T4", 15_360)  # GPU 1 does not answer
        assert told(text + 'gpu_ids = ["A"]\n')[1] == 81_559
        monkeypatch.setattr("services.agents.inventory", _no_driver)
        assert told(text) == ("L4", 24_576)


def test_where_the_driver_does_not_say_the_memory_of_gpus_it_has_to_be_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.agents.inventory", lambda: [Gpu("A", "NVIDIA GB10", None, 0)])
    with pytest.raises(ConfigError, match=r"agent\.gpu_memory_mib is not set, and the dr"):
        of_driver(config(tmp_path, WORKERS).agent)
    said = WORKERS.replace('name = "a"', 'name = "a"\ngpu_memory_mib = 100_000')
    told = of_driver(config(tmp_path, said).agent)
    assert told == {"gpu_type": "GB10", "gpu_memory_mib": 100_000}
