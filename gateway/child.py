"""Be a process that works for a gateway: one task, within bounds, ended with who started it.

    python -m gateway.child

is not for people. The task comes on standard input, pickled, which stays open as long as the one
who started it lives; what is told of it goes out on standard output, each a frame of JSON.
"""

import contextlib
import os
import pickle
import resource
import sys
import threading
from typing import Any, BinaryIO

import orjson

from bus.contract import BusError
from gateway.assignment import LENGTH, Bounds, Task
from gateway.work import field_of
from simulator.branch.origin import BranchError

#: Exit status where who started it is gone.
_ALONE = 3


def main() -> int:
    """Do the task; its result is the last frame."""
    # Whatever else prints must not come between frames.
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    (length,) = LENGTH.unpack(_exactly(source, LENGTH.size))
    task = pickle.loads(_exactly(source, length))  # noqa: S301 - by who started us, through a pipe
    assert isinstance(task, Task)
    threading.Thread(target=_end_with_parent, args=(source,), daemon=True).start()
    _bound(task.bounds)
    lock = threading.Lock()

    def tell(said: dict[str, Any]) -> None:
        text = orjson.dumps(said)
        with lock:
            frames.write(LENGTH.pack(len(text)) + text)
            frames.flush()

    try:
        found = task.work(*task.arguments, tell)
    except BranchError as error:
        tell({"problem": f"{field_of(error)}: {error.reason}"})
    except BusError as error:
        tell({"problem": str(error)})
    except MemoryError:
        tell({"problem": "it took more memory than it may; ask for fewer hours"})
    else:
        tell({"result": found})
    return 0


def _exactly(source: BinaryIO, length: int) -> bytes:
    found = source.read(length)
    if len(found) != length:
        sys.exit(_ALONE)
    return found


def _end_with_parent(source: BinaryIO) -> None:
    """Wait until nobody holds the other end, and end at once."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(source.fileno(), 4096):
            pass
    os._exit(_ALONE)


def _bound(bounds: Bounds) -> None:
    os.nice(bounds.nice)
    if bounds.cpu_s is not None:
        _limit(resource.RLIMIT_CPU, bounds.cpu_s)
    # Not the address space: libraries reserve much of that which they never use.
    _limit(resource.RLIMIT_DATA, bounds.memory_bytes)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(which, (most, hard))


if __name__ == "__main__":
    sys.exit(main())
