"""What a process that the gateway starts is to do, and the limits on it."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Is told something about the work under way: {"done": 0.5} and the like.
Report = Callable[[dict[str, Any]], None]
#: The length that goes before each frame between the gateway and the process.
LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What a process may use."""

    cpu_s: int | None = None  #: Seconds of a processor; None: any number.
    memory_bytes: int = 4 * 1024**3
    nice: int = 5  #: Below the gateway, which answers people.


@dataclass(frozen=True, slots=True)
class Assignment:
    """A function to call in another process, with arguments that can be pickled.

    The function is named by its module; after its arguments it is given a `Report`.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    limits: ProcessLimits
