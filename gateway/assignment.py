"""What a process of the gateway is to do, and what it may take for that."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Tells something of the work: {"done": 0.5} and the like.
Tell = Callable[[dict[str, Any]], None]
#: Goes before each frame between the two.
LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a process may take."""

    cpu_s: int | None = None  #: Seconds of a processor; None: any number.
    memory_bytes: int = 4 * 1024**3
    nice: int = 5  #: Below the gateway, which answers people.


@dataclass(frozen=True, slots=True)
class Task:
    """What is done. The function is named by its module, its arguments are plain."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    bounds: Bounds
