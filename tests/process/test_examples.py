"""What `make demo-real` stands on: its inference servers, its load, and how it judges."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.public_data import DATA
from runtime.executors.progress import ProgressFile
from runtime.metering.exposition import parse
from runtime.metering.rates import CounterHistory
from runtime.metering.reading import NoLoadError, ServerReading, read_page
from runtime.metering.servers import recognise
from tests.patience import PATIENCE_S, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@contextmanager
def serving(kind: str, port: int) -> Iterator[None]:
    program = [sys.executable, str(EXAMPLES / "inference_server.py"), "--port", str(port)]
    with subprocess.Popen([*program, "--places", "2", "--format", kind]) as server:

        def is_up() -> bool:
            with suppress(OSError):
                return bool(ask(port, "/health") == "")
            return False

        try:
            wait_until(is_up, "it serves")
            yield
        finally:
            server.terminate()


def ask(port: int, path: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, PATIENCE_S) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("kind", ["vllm", "triton"])
def test_a_servers_page_says_what_it_does(kind: str, example: Callable[[str], Any]) -> None:
    (port,) = example("demo_real").ports(1)
    history = CounterHistory(60.0)

    def reading() -> ServerReading | None:
        page = ask(port, "/metrics")
        server = recognise(parse(page, ()).names)
        assert server is not None
        assert server.name == kind
        with suppress(NoLoadError):
            return read_page(server, parse(page, server.wanted), time.monotonic(), history)
        return None

    with serving(kind, port):
        reading()
        for _ in range(4):
            ask(port, "/generate", {"service_s": 0.05})
        found = reading()
        assert found is not None
        assert not found.doubts
        assert found.rate_per_s is not None
        assert found.rate_per_s > 0
        assert found.service_s is not None
        assert 0.05 <= found.service_s < PATIENCE_S
        assert found.latency_p99_s is not None
        assert found.latency_p99_s >= 0.05
        # Three for two places: one waits.
        three = [
            threading.Thread(target=ask, args=(port, "/generate", {"service_s": 1.0}))
            for _ in range(3)
        ]
        for thread in three:
            thread.start()
        wait_until(lambda: (now := reading()) is not None and now.waiting == 1, "one waits")
        for thread in three:
            thread.join()


def test_only_requests_under_way_in_a_late_reclaim_are_laid_to_it(
    example: Callable[[str], Any],
) -> None:
    verdict, served = example("verdict"), example("load").Served
    facts = [
        (10.0, "ReclaimStarted", {"node": "in-time", "due_s": 20.0}),
        (12.0, "ReclaimStarted", {"node": "late", "due_s": 20.0}),
        (19.0, "LoanReturned", {"node": "in-time"}),
        (25.0, "LoanReturned", {"node": "late"}),
        (30.0, "ReclaimStarted", {"node": "gone", "due_s": 40.0}),
        (31.0, "LoanReturned", {"node": "never-reclaimed"}),
        (35.0, "LoanLost", {"node": "gone"}),
    ]
    found = verdict.reclaims(facts)
    assert [(one.node, one.is_late) for one in found] == [
        ("in-time", False),
        ("late", True),
        ("gone", True),
    ]
    requests = [served(2.0, 11.0, 1), served(2.0, 13.0, 1), served(24.0, 29.0, 1)]
    assert verdict.late_in(requests, found) == 2
    assert verdict.late_in([*requests, served(90.0, 99.0, 1)], found) == 3
    assert verdict.late_in(requests, found[:1]) == 0


def test_the_run_that_nobody_disturbs_has_the_environment_of_workers(
    example: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    show = (
        "import numpy, os, sys; numpy.savez(sys.argv[-1], float('OPENBLAS_CORETYPE' in os.environ))"
    )
    np.savez(tmp_path / "weights.npz", 0.0)
    assert example("verdict").weights_apart(tmp_path, [sys.executable, "-c", show], 1) == 0.0


@pytest.mark.parametrize("name", ["train_numpy", "train_elastic"])
def test_a_job_says_its_loss(name: str, tmp_path: Path) -> None:
    said = tmp_path / "progress.jsonl"
    environment = {**os.environ, "TIDEGATE_PROGRESS": str(said)}
    environment["TIDEGATE_CHECKPOINT_DIR"] = str(tmp_path)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", "5"]
    subprocess.run([*command, "--loss", str(tmp_path / "loss")], env=environment, check=True)
    losses = [line.split()[-1] for line in (tmp_path / "loss").read_text().splitlines()]
    file = ProgressFile(said, tmp_path)
    file.read(1.0)
    assert (file.step, file.metrics, dict(file.faults)) == (5, {"loss": float(losses[-1])}, {})
    assert len(losses) == 5


@pytest.mark.data
@pytest.mark.skipif(
    not (DATA / "inference").is_dir(),
    reason="no public data: set TIDEGATE_DATA to a folder with inference/",
)
def test_azures_trace_is_read_whole(example: Callable[[str], Any]) -> None:
    requests = example("load").trace(DATA / "inference" / "AzureLLMInferenceTrace_code.csv")
    assert len(requests) == 8819
    assert requests[1].gap_s == pytest.approx(0.052)
    assert requests[0].service_s == pytest.approx(0.1 + 0.02 * 10)
    assert all(0 <= one.gap_s <= 1 and 0.1 <= one.service_s <= 2 for one in requests)


@pytest.mark.parametrize("text", [None, "no table", "TIMESTAMP,Tokens\n2023-11-16 18:17:03,4\n"])
def test_a_trace_that_is_none_is_refused_before_anything_is_started(
    tmp_path: Path, text: str | None
) -> None:
    trace, folder = tmp_path / "trace.csv", tmp_path / "demo"
    if text is not None:
        trace.write_text(text)
    demo = [sys.executable, str(EXAMPLES / "demo_real.py"), "--folder", str(folder)]
    done = subprocess.run([*demo, "--trace", str(trace)], capture_output=True, text=True)
    assert (done.returncode, folder.exists()) == (2, False)
    assert f"--trace {trace}: not Azure's CSV" in done.stdout
