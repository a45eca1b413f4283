"""NVML: what is read, what is None, and what happens when a GPU or the driver goes."""

import inspect
import sys
import threading
from typing import Any

import pytest

from runtime.metering import nvml
from runtime.metering.nvml import Gpu, NvmlGpus, NvmlUnavailable, inventory
from runtime.metering.sampled import UNKNOWN, Reading, SampledMeter, Unreadable
from runtime.meters import GpuMeter
from tests.metering import fake_nvml
from tests.metering.fake_nvml import Card, FakeNvml
from tests.patience import PATIENCE_S, wait_until


def source(library: FakeNvml, *refs: int | str) -> NvmlGpus:
    return NvmlGpus({"node": list(refs)}, library, retry_s=1e-9)


def test_a_reading_has_units_and_leaves_out_what_the_driver_reserves() -> None:
    cards = [Card("GPU-a"), Card("GPU-b", per_cent=93, temperature_c=61, power_mw=352_500)]
    (reading,) = source(FakeNvml(cards), "GPU-b").read()["node"]
    assert reading == Reading(0.93, 1000.0, 61, 352.5)


def test_a_driver_without_version_2_still_says_how_much_memory_is_used() -> None:
    library = FakeNvml([Card("GPU-a")])
    library.version_2 = False
    assert source(library, 0).read()["node"][0].memory_used_mib == 1500.0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("utilisation", "utilisation"),
        ("memory", "memory_used_mib"),
        ("temperature", "temperature_c"),
        ("power", "power_w"),
    ],
)
def test_what_a_gpu_does_not_support_is_none_and_the_rest_is_read(call: str, name: str) -> None:
    card = Card("GPU-a", errors={call: fake_nvml.NOT_SUPPORTED})
    (reading,) = source(FakeNvml([card]), 0).read()["node"]
    values = {field: getattr(reading, field) for field in Reading.__slots__}
    assert values.pop(name) is None
    assert None not in values.values()


def test_a_value_that_fails_for_another_reason_costs_only_itself() -> None:
    gpus = source(FakeNvml([Card("GPU-a", errors={"power": fake_nvml.UNKNOWN})]), 0)
    assert gpus.read()["node"] == [Reading(0.5, 1000.0, 40, None)]
    assert gpus.counters.gpu_lost == 0


def test_used_memory_above_all_memory_is_not_a_reading() -> None:
    (reading,) = source(FakeNvml([Card("GPU-a", used_mib=100_000)]), 0).read()["node"]
    assert reading.memory_used_mib is None


def test_a_driver_that_hangs_is_said_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that starts waits for it: nobody would know for what."""
    said = threading.Event()
    monkeypatch.setattr(nvml, "_HANGS_S", 0.0)
    monkeypatch.setattr(nvml._log, "warning", lambda *_: said.set())

    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
            assert said.wait(PATIENCE_S)
            super().nvmlInit()

    assert len(inventory(Hanging([Card("GPU-a")]))) == 1


def mig_card() -> Card:
    errors = dict.fromkeys(("utilisation", "power", "temperature"), fake_nvml.NOT_SUPPORTED)
    parts = [
        Card("MIG-1", "A100 3g.40gb", 40_192, used_mib=30_000, errors=errors),
        None,
        Card("MIG-2", "A100 3g.40gb", 40_192, used_mib=12, errors=errors),
    ]
    return Card("GPU-mig", temperature_c=45, parts=parts)


def test_mig_devices_stand_in_their_gpus_place() -> None:
    library = FakeNvml([mig_card(), Card("GPU-b")])
    assert inventory(library) == [
        Gpu("MIG-1", "A100 3g.40gb", 40_192, 0),
        Gpu("MIG-2", "A100 3g.40gb", 40_192, 1),
        Gpu("GPU-b", "NVIDIA H100 80GB HBM3", 81_559, 2),
    ]
    assert library.references == 0
    readings = source(library, 0, 1, 2).read()["node"]
    # The temperature is that of the silicon; utilisation and power of a part nobody knows.
    assert readings[0] == Reading(None, 30_000.0, 45, None)
    assert readings[1] == Reading(None, 12.0, 45, None)
    assert readings[2].power_w == 100.0


def test_a_gpu_whose_memory_the_driver_does_not_say_is_listed_without() -> None:
    shared = Card("GPU-a", "NVIDIA GB10", errors={"memory": fake_nvml.NOT_SUPPORTED})
    listed = inventory(FakeNvml([shared, Card("GPU-b")]))
    assert [(gpu.uuid, gpu.memory_mib) for gpu in listed] == [("GPU-a", None), ("GPU-b", 81_559)]
    assert (nvml.least_mib(listed), nvml.least_mib(listed[1:])) == (None, 81_559)
    reading = source(FakeNvml([shared]), 0).read()["node"][0]
    assert (reading.utilisation, reading.memory_used_mib) == (0.5, None)
    shared.errors["memory"] = fake_nvml.GPU_IS_LOST
    with pytest.raises(NvmlUnavailable, match="while listing the GPUs"):
        inventory(FakeNvml([shared]))


def test_a_lost_gpu_is_unknown_and_counted_while_the_others_are_read() -> None:
    cards = [Card("GPU-a"), Card("GPU-b")]
    gpus = source(FakeNvml(cards), 0, 1)
    cards[0].errors["all"] = fake_nvml.GPU_IS_LOST
    first, second = gpus.read()["node"]
    assert (first, second.utilisation) == (UNKNOWN, 0.5)
    assert gpus.counters.gpu_lost == 1
    first, second = gpus.read()["node"]
    assert (first, second.utilisation) == (UNKNOWN, 0.5)
    cards[0].errors.clear()
    first, second = gpus.read()["node"]
    assert (first.utilisation, second.utilisation) == (0.5, 0.5)


def test_a_mig_device_that_is_taken_apart_is_looked_for_again() -> None:
    card = mig_card()
    library = FakeNvml([card])
    gpus = source(library, "MIG-1")
    assert card.parts is not None
    old, card.parts = card.parts, []
    # The old handle is worth nothing, though the GPU still has a temperature.
    old[0].errors = {"all": 2}  # type: ignore[union-attr]
    assert gpus.read()["node"] == [UNKNOWN]
    assert gpus.read()["node"] == [UNKNOWN]
    assert gpus.counters.gpu_lost == 1
    card.parts, old[0].errors = old, {}  # type: ignore[union-attr]
    assert gpus.read()["node"][0].memory_used_mib == 30_000.0


def test_an_index_keeps_naming_its_gpu_when_one_before_it_is_lost() -> None:
    cards = [Card("GPU-a", per_cent=10), Card("GPU-b", per_cent=20)]
    library = FakeNvml(cards)
    gpus = source(library, 1)
    cards.pop(0)
    library.driver_error = fake_nvml.DRIVER_NOT_LOADED
    with pytest.raises(Unreadable, match="lost the driver"):
        gpus.read()
    library.driver_error = None
    assert gpus.read()["node"][0].utilisation == 0.2


def test_a_gpu_that_is_lost_from_the_start_holds_its_place_and_cannot_be_used() -> None:
    cards = [Card("GPU-a", errors={"handle": fake_nvml.GPU_IS_LOST}), Card("GPU-b", per_cent=20)]
    assert source(FakeNvml(cards), 1).read()["node"][0].utilisation == 0.2
    with pytest.raises(ValueError, match="GPU 0; NVML lists one that does not answer, GPU-b"):
        source(FakeNvml(cards), 0)


def test_a_driver_that_goes_and_comes_back_is_reported_and_used_again() -> None:
    library = FakeNvml([Card("GPU-a")])
    gpus = source(library, 0)
    library.driver_error = fake_nvml.DRIVER_NOT_LOADED
    for _ in range(3):
        with pytest.raises(Unreadable, match="NVML"):
            gpus.read()
    assert gpus.counters.driver_lost == 1
    library.driver_error = None
    assert gpus.read()["node"][0].utilisation == 0.5
    gpus.close()
    assert library.references <= 1  # the one that could not be given back to a dead driver


def test_without_a_driver_the_error_says_what_to_do() -> None:
    library = FakeNvml([])
    library.driver_error = fake_nvml.DRIVER_NOT_LOADED
    with pytest.raises(NvmlUnavailable, match="install the NVIDIA driver"):
        NvmlGpus({}, library)


def test_without_the_binding_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlUnavailable, match=r"nvidia-ml-py is missing; install tidegate\[edge\]"):
        inventory()


def test_an_index_may_be_written_as_cuda_does() -> None:
    gpus = source(FakeNvml([Card("GPU-a"), Card("GPU-b", used_mib=7)]), "1")
    assert gpus.read()["node"][0].memory_used_mib == 7


def test_an_unknown_gpu_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="gpus: cannot use GPU 'GPU-x'; NVML lists GPU-a"):
        source(FakeNvml([Card("GPU-a")]), "GPU-x")


def test_the_stand_in_has_only_what_the_binding_has() -> None:
    binding = pytest.importorskip("pynvml")
    ours = FakeNvml([])
    for name in (name for name in dir(ours) if name.startswith(("nvml", "NVML"))):
        real = getattr(binding, name)
        if inspect.isfunction(real):
            assert len(inspect.signature(real).parameters) == len(
                inspect.signature(getattr(ours, name)).parameters
            )
        elif not inspect.isclass(real):
            assert real == getattr(ours, name)
    codes = {
        name.removeprefix("_"): value
        for name, value in vars(nvml).items()
        if name.isupper() and isinstance(value, int) and name != "_MIB"
    }
    assert len(codes) == 12
    for name, value in codes.items():
        assert getattr(binding, f"NVML_ERROR_{name}") == value


def test_this_machine_has_gpus_or_says_why_not() -> None:
    pytest.importorskip("pynvml")
    try:
        gpus = inventory()
    except NvmlUnavailable as error:
        assert "install the NVIDIA driver" in str(error)  # noqa: PT017 - either is fine here
    else:
        assert all(gpu.memory_mib is None or gpu.memory_mib > 0 for gpu in gpus)
        assert len(NvmlGpus({"here": [gpu.uuid for gpu in gpus]}).read()["here"]) == len(gpus)


# --- the meter over it ---


def test_a_measure_is_the_mean_over_the_window() -> None:
    card = Card("GPU-a", per_cent=20)
    clock = [1000.0]
    meter = SampledMeter(source(FakeNvml([card]), 0), every_s=0.005, steady=lambda: clock[0])
    wait_until(lambda: meter.counters.samples >= 1)
    assert meter.measure(5.0, 60.0)[0].gpu_utilisation == [pytest.approx(0.2)]
    card.per_cent = 80
    clock[0] += 3600.0
    before = meter.counters.samples
    wait_until(lambda: meter.counters.samples >= before + 2)
    # What is older than the window counts no more.
    assert meter.measure(5.0, 60.0)[0].gpu_utilisation[0] == pytest.approx(0.8)
    meter.close()
    clock[0] += 3600.0
    wait_until(lambda: meter.measure(5.0, 60.0)[0].gpu_utilisation == [None])


def test_absurd_values_are_none_and_counted() -> None:
    card = Card("GPU-a", per_cent=250, temperature_c=4_294_967_295, power_mw=4_294_967_295)
    meter = SampledMeter(source(FakeNvml([card]), 0), every_s=60.0)
    wait_until(lambda: meter.counters.samples == 1)
    (measured,) = meter.measure(0.0, 60.0)
    assert measured.gpu_utilisation == measured.gpu_temperature_c == measured.gpu_power_w == [None]
    assert measured.gpu_memory_used_mib == [1000]
    assert meter.counters.absurd == 3
    meter.close()


def test_a_driver_that_hangs_does_not_hang_the_measure() -> None:
    hung, release = threading.Event(), threading.Event()

    class Hanging(FakeNvml):
        def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:  # noqa: N802
            hung.set()
            release.wait()
            return super().nvmlDeviceGetUtilizationRates(card)

    clock = [0.0]
    gpus = source(Hanging([Card("GPU-a")]), 0)
    meter = SampledMeter(gpus, every_s=0.005, steady=lambda: clock[0])
    wait_until(hung.is_set)
    assert meter.measure(0.0, 60.0)[0].gpu_utilisation == [None]
    assert meter.problems() == []
    clock[0] = 61.0
    (problem,) = meter.problems()
    assert "were not read for 61 s: the driver hangs" in problem
    meter.close()
    release.set()


def test_a_gpu_that_is_lost_is_named_until_it_is_back() -> None:
    """Its node went on with null for it, and nobody was told why."""
    card = Card("GPU-a")
    gpus = NvmlGpus({"node": (0, 1)}, FakeNvml([card, Card("GPU-b")]), retry_s=0.0)
    meter = SampledMeter(gpus, every_s=0.005)
    wait_until(lambda: meter.counters.samples)
    assert meter.problems() == []
    card.errors["all"] = fake_nvml.GPU_IS_LOST
    wait_until(lambda: "nothing is known of GPU 0 of node:" in "".join(meter.problems()))
    card.errors.clear()
    wait_until(lambda: not meter.problems())
    meter.close()


def test_a_source_that_fails_as_nobody_thought_of_is_read_again() -> None:
    """For a moment the agent may have no file left to open; GPUs were unknown until its end."""

    class Failing(FakeNvml):
        fails = 3

        def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:  # noqa: N802
            self.fails -= 1
            if self.fails >= 0:
                raise OSError("Too many open files")
            return super().nvmlDeviceGetUtilizationRates(card)

    meter = SampledMeter(source(Failing([Card("GPU-a")]), 0), every_s=0.005)
    wait_until(lambda: meter.measure(0.0, 60.0)[0].gpu_utilisation != [None])
    meter.close()


def test_what_keeps_gpus_from_being_measured_is_said() -> None:
    library = FakeNvml([Card("GPU-a")])
    gpus = source(library, 0)
    library.driver_error = fake_nvml.DRIVER_NOT_LOADED
    meter = SampledMeter(gpus, every_s=0.005)
    as_the_agent_sees_it: GpuMeter = meter
    assert as_the_agent_sees_it.measure(0.0, 60.0)[0].node == "node"
    wait_until(lambda: any("NVML" in problem for problem in meter.problems()))
    library.driver_error = None
    wait_until(lambda: not meter.problems())
    meter.close()
