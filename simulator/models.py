"""What is known about common models, for when a workload's file does not say it.

`serial` is the one parameter of the built-in speed-up curve, `speedup`. It was fitted at 8 GPUs
(4 for yolov3) to the iteration rates that pkusys/ElasticFlow publishes: A100 for resnet50@256,
vgg16@256, inception3@128, bert@128, gpt2@256, deepspeech2@64, and T4 for the rest; `samples_per_s`
is the same tables' rate at 1 GPU. The curve is within 10 % of those A100 tables up to 8 GPUs and
flatters most beyond, so give the tables themselves where figures matter.

Memory and checkpoint sizes are typical orders of magnitude, from memory and not from a source: a
checkpoint is 12 bytes per parameter (weights and two Adam moments, all fp32).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Typical, as for a model that is not listed; ResNet-50's curve at batch 128 has the same slope.
DEFAULT_SERIAL = 0.1


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model: its batch (samples), its curve, and what it takes on a GPU."""

    batch: int
    samples_per_s: float  #: On one GPU.
    serial: float
    gpus_max: int  #: The largest size that still gained in the published table.
    memory_mib: int
    checkpoint_mib: int


MODELS: Mapping[str, ModelFacts] = MappingProxyType(
    {
        "resnet50": ModelFacts(256, 471.9, 0.060, 64, 11_000, 293),
        "vgg16": ModelFacts(256, 336.3, 0.045, 64, 14_000, 1_580),
        "inception3": ModelFacts(128, 328.0, 0.127, 32, 10_000, 275),
        "bert": ModelFacts(128, 457.6, 0.266, 16, 20_000, 1_260),
        "gpt2": ModelFacts(256, 1048.9, 0.156, 32, 30_000, 1_420),
        "deepspeech2": ModelFacts(64, 102.4, 0.104, 64, 9_000, 400),
        "cifar10": ModelFacts(4096, 1459.4, 0.040, 16, 4_000, 128),
        "imagenet": ModelFacts(3200, 216.8, 0.014, 64, 11_000, 293),
        "ncf": ModelFacts(32768, 1_537_282.0, 1.0, 1, 3_000, 360),
        "yolov3": ModelFacts(64, 28.0, 0.111, 4, 12_000, 710),
    }
)


def speedup(gpus: int, serial: float) -> float:
    """Amdahl's law: how many times faster `gpus` GPUs are than one."""
    return gpus / (1.0 + serial * (gpus - 1))
