"""What a real machine has come to is on its metrics page, and slots show the gangs on them."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from runtime.checkpoints.store import CheckpointError, CheckpointStore
from runtime.metering.demand import DemandSettings
from runtime.metering.host import HostSlots
from runtime.metering.load import ScrapedLoad
from runtime.metering.nvml import NvmlGpus
from runtime.metering.sampled import SampledMeter
from runtime.metering.scrape import Replica
from runtime.owners import ProtectTimes
from services.machine_metrics import of_executor, of_part, of_store
from services.metrics import METRICS, Sample
from tests.lending import Scene
from tests.metering.fake_nvml import Card, FakeNvml
from tests.patience import wait_until
from tests.workers import NODE, TRAINER, bench, python

BUSY = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "while True: pass"])
"""


def read(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    found = {}
    for sample in samples:
        assert isinstance(sample.value, int | float)
        assert len(sample.labels) == len(METRICS[sample.name].labels)
        found[sample.name.removeprefix("tidegate_"), *sample.labels] = float(sample.value)
    return found


def test_transfers_of_a_store_are_counted_also_those_that_fail(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store", part_bytes=1000)
    (tmp_path / "c").write_bytes(b"x" * 2500)
    left: list[float] = []

    def look(_: object) -> None:
        left.append(read(of_store(store))["transfer_left_bytes", "to_store"])

    stored = store.commit("j", 1, 1, tmp_path / "c", 0.0, look)
    assert left == [1500.0, 500.0, 0.0]
    store.fetch(stored, tmp_path / "into")
    with pytest.raises(CheckpointError):
        store.commit("j", 1, 2, tmp_path / "none", 0.0)
    found = read(of_store(store))
    assert found["transfers_total", "to_store", "done"] == 1
    assert found["transfers_total", "to_store", "failed"] == 1
    assert found["transfers_total", "from_store", "done"] == 1
    # Two parts are alike, and stored once.
    assert found["transfer_bytes_total", "to_store"] == 1500
    assert found["transfer_bytes_total", "from_store"] == 2500
    assert found["transfer_left_bytes", "from_store"] == 0


@pytest.mark.process
def test_a_stuck_gang_is_counted_until_it_moves_or_ends(tmp_path: Path) -> None:
    code = TRAINER.replace("time.sleep(0.02)", "time.sleep(0.02 if step < 3 else 1e6)")
    with bench(tmp_path, stuck_after_s=0.5) as made:
        made.start(python(code))

        def stuck() -> float:
            return read(of_executor(made.executor, time.time()))[("gangs_stuck",)]

        assert stuck() == 0
        made.until(lambda: stuck() == 1)
        made.stop(saves=False, grace_s=0.0)
        made.until(lambda: stuck() == 0)
    assert read(of_executor(made.executor, 0.0))[("orphans_killed_total",)] == 0


def test_a_meter_tells_of_lost_gpus_and_absurd_values() -> None:
    library = FakeNvml([Card("GPU-a", temperature_c=9999), Card("GPU-b")])
    meter = SampledMeter(NvmlGpus({"n": ["0", "1"]}, library), every_s=0.01)
    wait_until(lambda: read(of_part(meter))["gpu_samples_total", "absurd"] >= 1)
    library.cards[1].errors["all"] = 15
    wait_until(lambda: read(of_part(meter))["gpu_samples_total", "gpu_lost"] == 1)
    meter.close()
    assert read(of_part(meter))["gpu_samples_total", "samples"] > 1
    assert read(of_part(object())) == {}


@pytest.mark.process
def test_a_slot_shows_what_the_gang_on_it_uses(tmp_path: Path) -> None:
    with bench(tmp_path, gpu_ids={}) as made:
        made.start(python(BUSY), 1)
        made.until(lambda: len(made.executor.pids(NODE).get(1, ())) == 2, "worker and its child")
        assert made.executor.pids("elsewhere") == {}
        slots = HostSlots({NODE: 8}, made.executor.pids)
        slots.read()
        busiest: list[int] = []

        def look() -> bool:
            use = [one.utilisation or 0.0 for one in slots.read()[NODE]]
            busiest.append(use.index(max(use)))
            return use[1] > 0.5

        made.until(look, "the slot is not busy")
        assert busiest[-1] == 1


def test_an_owner_tells_of_drains_that_failed_and_gpus_that_are_kept(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ProtectTimes())
    scene.owner.drain("s1", 0.0)
    scene.at(0.0)
    assert scene.ends("drain", "it hangs") is None
    assert scene.ends("hand_back", now_s=1.0) is None
    scene.owner.hand_back("s1", 2.0)
    found = read(of_part(scene.owner))
    assert found["owner_moves_total", "drain_failures"] == 1
    assert found["owner_moves_total", "rollbacks"] == 1
    assert found[("gpus_protected",)] == 0
    scene.owner.drain("s1", 3.0)
    scene.at(3.0)
    scene.ends("drain", now_s=4.0)
    scene.owner.hand_back("s1", 5.0)
    scene.ends("hand_back", now_s=6.0)
    assert read(of_part(scene.owner))[("gpus_protected",)] == 2


def test_servers_without_metrics_are_counted() -> None:
    replica = Replica("llm", "http://127.0.0.1:9/metrics")
    load = ScrapedLoad("p", lambda: [replica], lambda: 1, 1, DemandSettings(latency_target_s=1.0))
    wait_until(lambda: read(of_part(load))["load_scrapes_total", "failures"] == 1)
    load.loads(time.time())
    assert read(of_part(load))[("inference_targets_down",)] == 1
    load.close()
