"""NVIDIA GPUs through NVML: the only module that knows its Python binding, nvidia-ml-py.

Facts used, from NVML's reference (docs.nvidia.com/deploy/nvml-api): utilisation is the share of
the last sample period (1/6 to 1 s) in which a kernel ran; power is in mW; utilisation is not
supported where MIG is on; MIG devices are found below their GPU by index. Used memory is asked in
version 2, which leaves out what the driver reserves, as `nvidia-smi` does (reported so in
rust-nvml/nvml-wrapper issue 57); older drivers answer version 1 only.
"""

import contextlib
import importlib
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.metering.sampled import UNKNOWN, Reading, Unreadable
from runtime.periodic import monotonic_s

_MIB = 1024 * 1024
#: `nvmlReturn_t` values that say: the driver as a whole is gone.
_UNINITIALIZED, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _LIB_RM_VERSION_MISMATCH = 1, 9, 12, 18
_DRIVER = {_UNINITIALIZED, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _LIB_RM_VERSION_MISMATCH}
#: Those that say: this GPU is gone. Any other says that one value is not to be had.
_GPU_IS_LOST, _RESET_REQUIRED, _GPU_NOT_FOUND = 15, 16, 28
_GONE = {_GPU_IS_LOST, _RESET_REQUIRED, _GPU_NOT_FOUND}
#: Those of a driver that does not know version 2 of a call.
_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH = 2, 3, 13, 25
_NO_VERSION_2 = {_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH}
#: Of a place where no MIG device is.
_NOT_FOUND = 6
#: A driver that has not answered for so long hangs; nothing can end a call of it.
_HANGS_S = 15.0
_log = logging.getLogger(__name__)


class NvmlUnavailable(Exception):
    """NVML cannot be used on this machine; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG device, which counts as one."""

    uuid: str
    name: str
    #: None: the driver does not say, as where GPU and processor share their memory.
    memory_mib: int | None
    #: Its place in the driver's list, as CUDA_VISIBLE_DEVICES counts.
    index: int


@dataclass(slots=True)
class NvmlCounters:
    """What went wrong between us and the driver."""

    #: How often the whole driver did not answer.
    driver_lost: int = 0
    #: How often a GPU fell away while others answered.
    gpu_lost: int = 0


@dataclass(frozen=True, slots=True)
class _Device:
    uuid: str
    handle: Any
    #: The GPU that a MIG device is a part of.
    parent: Any | None = None


def nvml_library() -> Any:
    """Give the binding.

    Raises:
        NvmlUnavailable: it is not installed.
    """
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise NvmlUnavailable(
            "NVML: the package nvidia-ml-py is missing; install tidegate[edge] or tidegate[cloud],"
            " or let the machine be measured without GPUs"
        ) from None


class NvmlGpus:
    """A `GpuSource`: GPUs of this machine, by their index in `inventory` or by UUID.

    An index names the GPU that had it when the source was made, also after MIG devices changed.
    A GPU that is lost, or a driver that is, reads as unknown, is counted, and is looked for again
    every `retry_s`.
    """

    def __init__(
        self,
        nodes: Mapping[str, Sequence[int | str]],
        library: Any | None = None,
        *,
        retry_s: float = 30.0,
    ) -> None:
        """Open NVML and find the GPUs.

        Args:
            nodes: The GPUs of each node, in the order in which the agent numbers them.
            library: The binding; the installed one.
            retry_s: Seconds until a lost driver or GPU is looked for again.

        Raises:
            NvmlUnavailable: there is no binding or no driver.
            ValueError: a GPU is not there.
        """
        self._library = nvml_library() if library is None else library
        self._retry_s = retry_s
        self._retry_at_s: float | None = None
        self._open = False
        self.counters = NvmlCounters()
        devices = self._begin()
        self._nodes = {node: [_uuid(ref, devices) for ref in refs] for node, refs in nodes.items()}
        self._devices = _by_uuid(devices)

    @property
    def gpus(self) -> Mapping[str, int]:
        return {node: len(uuids) for node, uuids in self._nodes.items()}

    def read(self) -> Mapping[str, Sequence[Reading]]:
        if self._retry_at_s is not None and monotonic_s() >= self._retry_at_s:
            self._find_again()
        if not self._open:
            raise Unreadable(
                "NVML: the driver does not answer; see `nvidia-smi` and `dmesg` (looked for again"
                f" every {self._retry_s:g} s)"
            )
        try:
            return {
                node: [self._reading(uuid) for uuid in uuids] for node, uuids in self._nodes.items()
            }
        except _DriverLostError as error:
            self.counters.driver_lost += 1
            self._end()
            self._retry_at_s = monotonic_s() + self._retry_s
            raise Unreadable(f"NVML: lost the driver: {error}; see `dmesg`") from None

    def close(self) -> None:
        """Let go of NVML."""
        self._end()

    # --- one GPU ---

    def _reading(self, uuid: str) -> Reading:
        device = self._devices.get(uuid)
        if device is None:
            return UNKNOWN
        library, own = self._library, device.handle
        whole = own if device.parent is None else device.parent
        try:
            reading = Reading(
                utilisation=self._value(
                    lambda: library.nvmlDeviceGetUtilizationRates(own).gpu / 100
                ),
                memory_used_mib=self._value(lambda: self._memory_mib(own)),
                temperature_c=self._value(
                    lambda: library.nvmlDeviceGetTemperature(whole, library.NVML_TEMPERATURE_GPU)
                ),
                # The power of a GPU is not that of any one of its MIG devices.
                power_w=None
                if device.parent is not None
                else self._value(lambda: library.nvmlDeviceGetPowerUsage(own) / 1000),
            )
        except _GpuLostError:
            reading = UNKNOWN
        own_values = (reading.utilisation, reading.memory_used_mib, reading.power_w)
        of_parent = device.parent is not None and own_values == (None, None, None)
        if reading == UNKNOWN or of_parent:  # also a handle whose MIG device was taken apart
            reading = UNKNOWN
            self.counters.gpu_lost += 1
            del self._devices[uuid]
            self._retry_at_s = monotonic_s() + self._retry_s
        return reading

    def _memory_mib(self, handle: Any) -> float | None:
        library = self._library
        try:
            memory = library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)
        except library.NVMLError as error:
            if error.value not in _NO_VERSION_2:
                raise
            memory = library.nvmlDeviceGetMemoryInfo(handle)
        return float(memory.used / _MIB) if memory.used <= memory.total else None

    def _value(self, ask: Callable[[], float | None]) -> float | None:
        try:
            return ask()
        except self._library.NVMLError as error:
            if error.value in _DRIVER:
                raise _DriverLostError(str(error)) from None
            if error.value in _GONE:
                raise _GpuLostError(str(error)) from None
            return None

    # --- the driver ---

    def _begin(self) -> list[_Device | None]:
        """Open NVML and list its devices; nothing stays open if that fails."""
        library = self._library
        try:
            with _said_if_it_hangs():
                library.nvmlInit()
                self._open = True
                return list(_devices(library))
        except library.NVMLError as error:
            self._end()
            raise NvmlUnavailable(
                f"NVML: {error}; install the NVIDIA driver and see that `nvidia-smi` works for this"
                " user (in a container: pass the GPUs in), or let the machine be measured without"
                " GPUs"
            ) from None

    def _find_again(self) -> None:
        """Open NVML anew: handles from before a GPU or the driver was lost are worth nothing."""
        self._end()
        try:
            self._devices = _by_uuid(self._begin())
        except NvmlUnavailable:
            self._retry_at_s = monotonic_s() + self._retry_s
            return
        missing = any(u not in self._devices for uuids in self._nodes.values() for u in uuids)
        self._retry_at_s = monotonic_s() + self._retry_s if missing else None

    def _end(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(self._library.NVMLError):
                self._library.nvmlShutdown()


@contextlib.contextmanager
def _said_if_it_hangs() -> Iterator[None]:
    """Warn of a driver that hangs: an agent that starts waits for it, and would say nothing."""
    words = "NVML: the driver has not answered for %g s; see `nvidia-smi` and `dmesg`"
    timer = threading.Timer(_HANGS_S, lambda: _log.warning(words, _HANGS_S))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _DriverLostError(Exception):
    """No GPU can be read."""


class _GpuLostError(Exception):
    """One GPU cannot be read, not even in part."""


def inventory(library: Any | None = None) -> list[Gpu]:
    """List the GPUs that workers can be given: a GPU's MIG devices in its place where MIG is on.

    Raises:
        NvmlUnavailable: there is no binding or no driver.
    """
    opened = NvmlGpus({}, library)
    library = opened._library
    try:
        return [
            Gpu(
                device.uuid,
                str(library.nvmlDeviceGetName(device.handle)),
                _total_mib(library, device.handle),
                index,
            )
            for index, device in enumerate(_devices(library))
            if device is not None
        ]
    except library.NVMLError as error:
        raise NvmlUnavailable(f"NVML: {error} while listing the GPUs; see `nvidia-smi`") from None
    finally:
        opened.close()


def _total_mib(library: Any, handle: Any) -> int | None:
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).total // _MIB) or None
    except library.NVMLError as error:
        if error.value in _DRIVER | _GONE:
            raise
        return None


def least_mib(gpus: Sequence[Gpu]) -> int | None:
    """Give the least memory that any of some GPUs has; None if of one that is not known."""
    memory = [gpu.memory_mib for gpu in gpus]
    known = [one for one in memory if one is not None]
    return min(known, default=None) if len(known) == len(memory) else None


def offered(found: Sequence[Gpu], ids: Collection[str], count: int) -> list[Gpu]:
    """Give those GPUs that workers are given: the named ones, else the first `count`."""
    if ids:
        return [gpu for gpu in found if gpu.uuid in ids or str(gpu.index) in ids]
    return [gpu for gpu in found if gpu.index < count]


def type_name(product: str) -> str:
    """Make a name of a product's: `NVIDIA A100-SXM4-80GB` is A100-SXM4-80GB."""
    text = product.removeprefix("NVIDIA ").replace(" ", "-")
    kept = "".join(c for c in text if c.isascii() and (c.isalnum() or c in "._:-"))
    return kept.lstrip("._:-")[:128] or "gpu"


def _devices(library: Any) -> Iterator[_Device | None]:
    """List what workers can use; None holds the place of a GPU that does not answer."""
    for index in range(library.nvmlDeviceGetCount()):
        try:
            whole = library.nvmlDeviceGetHandleByIndex(index)
            parts = list(_parts(library, whole))
            if parts:
                yield from parts
            elif not _in_parts(library, whole):  # with MIG on and nothing cut, nothing can run
                yield _Device(str(library.nvmlDeviceGetUUID(whole)), whole)
        except library.NVMLError as error:
            if error.value in _DRIVER:
                raise
            yield None  # or the indices of those behind it would change


def _in_parts(library: Any, whole: Any) -> bool:
    try:
        return bool(library.nvmlDeviceGetMigMode(whole)[0] == library.NVML_DEVICE_MIG_ENABLE)
    except library.NVMLError as error:
        if error.value in _DRIVER | _GONE:
            raise
        return False  # a GPU that cannot be cut says so in more ways than one


def _parts(library: Any, whole: Any) -> Iterator[_Device]:
    if not _in_parts(library, whole):
        return
    for index in range(library.nvmlDeviceGetMaxMigDeviceCount(whole)):
        try:
            part = library.nvmlDeviceGetMigDeviceHandleByIndex(whole, index)
        except library.NVMLError as error:
            if error.value in (_NOT_FOUND, _INVALID_ARGUMENT):
                continue  # places are numbered, and not all of them are taken
            raise
        yield _Device(str(library.nvmlDeviceGetUUID(part)), part, whole)


def _by_uuid(devices: Sequence[_Device | None]) -> dict[str, _Device]:
    return {device.uuid: device for device in devices if device is not None}


def _uuid(ref: int | str, devices: Sequence[_Device | None]) -> str:
    uuids = [None if device is None else device.uuid for device in devices]
    if isinstance(ref, str) and ref.isdecimal():
        ref = int(ref)  # an index, as CUDA_VISIBLE_DEVICES writes it
    if isinstance(ref, str):
        if ref in uuids:
            return ref
    elif 0 <= ref < len(uuids) and (uuid := uuids[ref]) is not None:
        return uuid
    listed = ", ".join(uuid or "one that does not answer" for uuid in uuids) or "none"
    raise ValueError(f"gpus: cannot use GPU {ref!r}; NVML lists {listed}")
