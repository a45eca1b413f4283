"""A stand-in for NVML's binding: same names, same errors, GPUs that a test makes up."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1024 * 1024


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, GPU_IS_LOST = 3, 6, 9, 15
FUNCTION_NOT_FOUND, UNKNOWN = 13, 999


@dataclass
class Card:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total_mib: int = 81_559
    used_mib: int = 1000
    reserved_mib: int = 500
    per_cent: int = 50
    temperature_c: int = 40
    power_mw: int = 100_000
    parts: "list[Card | None] | None" = None
    #: The error that a call gives, by its name.
    errors: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """Counts references as the library does; handles are the cards."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 0x02000028  # noqa: N815 - the binding's name

    def __init__(self, cards: list[Card]) -> None:
        self.cards = cards
        self.driver_error: int | None = None
        self.references = 0
        self.version_2 = True

    def _check(self, call: str, card: Card | None = None) -> None:
        if self.driver_error is not None:
            raise NVMLError(self.driver_error)
        if self.references < 1:
            raise NVMLError(1)
        if card is not None and call in card.errors:
            raise NVMLError(card.errors[call])
        if card is not None and "all" in card.errors:
            raise NVMLError(card.errors["all"])

    def nvmlInit(self) -> None:  # noqa: N802
        if self.driver_error is not None:
            raise NVMLError(self.driver_error)
        self.references += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check("shutdown")
        self.references -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check("count")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        self._check("handle", self.cards[index])
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        self._check("uuid", card)
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:  # noqa: N802
        self._check("name", card)
        return card.name

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        self._check("mig", card)
        return [0 if card.parts is None else 1] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        self._check("mig", card)
        return len(card.parts or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:  # noqa: N802
        part = (card.parts or [])[index]
        if part is None:
            raise NVMLError(NOT_FOUND)
        return part

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:  # noqa: N802
        self._check("utilisation", card)
        return SimpleNamespace(gpu=card.per_cent, memory=0)

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> Any:  # noqa: N802
        self._check("memory", card)
        if version is not None and not self.version_2:
            raise NVMLError(FUNCTION_NOT_FOUND)
        used_mib = card.used_mib + (0 if version is not None else card.reserved_mib)
        return SimpleNamespace(total=card.total_mib * MIB, used=used_mib * MIB)

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:  # noqa: N802
        self._check("temperature", card)
        return card.temperature_c

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:  # noqa: N802
        self._check("power", card)
        return card.power_mw
