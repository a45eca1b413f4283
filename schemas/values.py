"""The building blocks of every message: ranges, names and units, said once.

Units end the name (`duration_s`, `memory_mib`, `power_w`). A field that a machine may not be
able to measure is null, never zero. NaN and infinities are refused everywhere.
"""

import re
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

#: No event or command is larger. A node of 16 GPUs needs 3 KiB; the largest start command, of 1024
#: nodes with 64 GPUs and the longest names, 340 KiB; brokers commonly stop at 1 MiB.
MAX_MESSAGE_BYTES = 512 * 1024
#: The most GPUs one node may have. Larger machines are not built; it bounds every per-GPU list.
MAX_GPUS_PER_NODE = 64
GpusOfNode = Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE)]
#: The most nodes one gang may span. It keeps the largest start command under the message limit.
MAX_NODES_PER_GANG = 1024

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
#: Of archives. No blank and no escape: what an agent's list allows must be what is fetched.
URL_PATTERN = r"^[a-z][a-z0-9+.-]*://[A-Za-z0-9._~:/+=,@-]+$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,255}$"
#: What a value that does not match is told, which says more than the pattern.
PATTERNS_SAY = {
    NAME_PATTERN: "takes A to Z, a to z, digits and . _ : - alone, a letter or digit first, "
    "128 in all at most",
    URL_PATTERN: "must be the address of an archive, as s3://bucket/code.zip, of letters, digits "
    "and . _ ~ : / + = , @ - alone (a folder is packed by `tidegate submit` alone)",
    SHA256_PATTERN: "must be 64 digits from 0 to 9 and a to f",
    VARIABLE_PATTERN: "must be a variable's name: letters, digits and _, no digit first, 256 in "
    "all at most",
}
Name = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        description="An identifier safe in topics, file names and URLs.",
    ),
]
Note = Annotated[str, Field(max_length=1000, description="Text for people; never parsed.")]
GpuCount = Annotated[int, Field(ge=0, le=1_000_000, description="Count of GPUs, zero allowed.")]
GpuIndex = Annotated[
    int, Field(ge=0, lt=MAX_GPUS_PER_NODE, description="Index of a GPU on its node.")
]
Epoch = Annotated[
    int,
    Field(
        ge=0, le=2**53, description="Fencing token; every new allocation of a job has a higher one."
    ),
]
Step = Annotated[int, Field(ge=0, le=2**53, description="Optimiser steps done, or to do.")]
Rank = Annotated[int, Field(ge=0, lt=65_536, description="Which worker of a gang, from 0.")]
LogPosition = Annotated[
    int, Field(ge=-(2**53), le=2**53, description="Bytes from a log's begin; negative: its end.")
]
LogBytes = Annotated[int, Field(ge=0, le=2**53, description="Bytes of a log.")]
Ratio = Annotated[float, Field(ge=0.0, le=1.0, description="A share of a whole.")]
DurationS = Annotated[
    float,
    Field(ge=0.0, le=315_360_000.0, description="A length of time in seconds; at most ten years."),
]
MomentS = Annotated[
    float, Field(ge=0.0, le=1e11, description="A moment, in seconds since 1970-01-01T00:00:00Z.")
]
MemoryMib = Annotated[int, Field(ge=0, le=2**40, description="Memory in MiB.")]
PerSecond = Annotated[float, Field(ge=0.0, le=1e12, description="A non-negative rate per second.")]
Celsius = Annotated[float, Field(ge=-100.0, le=300.0, description="Degrees Celsius.")]
Watt = Annotated[float, Field(ge=0.0, le=100_000.0, description="Watt.")]
Positive = Annotated[
    float,
    Field(
        ge=0.0,
        le=1e15,
        description="Dimensionless and non-negative (the gradient noise scale, a speed factor).",
    ),
]

#: A job may report so many figures of its own.
MAX_METRICS = 8
METRIC_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 _./@%:=+()-]{0,38}[A-Za-z0-9_%)])?", re.ASCII)
MetricName = Annotated[
    str,
    Field(
        pattern=f"^{METRIC_NAME.pattern}$",
        description="What a job calls a figure of its own, such as loss or val/accuracy.",
    ),
]
METRIC_LIMIT = 1e300
MetricValue = Annotated[float, Field(ge=-METRIC_LIMIT, le=METRIC_LIMIT)]
#: What a job reports of itself; nothing is decided by it.
Metrics = Annotated[dict[MetricName, MetricValue], Field(min_length=1, max_length=MAX_METRICS)]


class Strict(BaseModel):
    """Base of every payload: exact types, no NaN, frozen; unknown fields are ignored.

    Unknown fields are let through so that an old reader survives a new optional field.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    #: Stable wire type; only payloads have one, the values within them do not.
    TYPE: ClassVar[str]
    #: Its fields in order, with their defaults; None where there is none.
    _blank: ClassVar[dict[str, Any]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Note the fields of a new kind."""
        super().__pydantic_init_subclass__(**kwargs)
        fields = cls.model_fields.items()
        cls._blank = {
            name: None if field.is_required() else field.get_default() for name, field in fields
        }

    @classmethod
    def model_construct(  # type: ignore[override]  # mypy's plugin writes one for each kind
        cls, _fields_set: set[str] | None = None, **values: Any
    ) -> Self:
        """Make one without a check, of values that were checked before.

        pydantic's own looks for aliases first, which are not used here: it takes as long as a
        check, and one plan may start hundreds of gangs.
        """
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", {**cls._blank, **values})
        object.__setattr__(made, "__pydantic_fields_set__", _fields_set or set(values))
        object.__setattr__(made, "__pydantic_extra__", None)
        object.__setattr__(made, "__pydantic_private__", None)
        return made


def _each_once(gpus: list[int]) -> list[int]:
    if len(set(gpus)) != len(gpus):
        raise ValueError("must name each GPU once")
    return gpus


#: GPUs of one node, each once: a GPU named twice would be counted twice.
Gpus = Annotated[
    list[GpuIndex],
    Field(min_length=1, max_length=MAX_GPUS_PER_NODE, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_each_once),
]


class NodeGpus(Strict):
    """Some GPUs of one node."""

    node: Name
    gpus: Gpus
