"""The main module of a process that a gateway starts: it carries out one assignment, and ends.

    python -m gateway.process_main

is not for people. The assignment comes on standard input, pickled, and the gateway keeps that open
as long as it lives: when it closes, the process ends. Reports of the work, and at last its result,
go to standard output, each a frame of JSON.
"""

import contextlib
import gc
import os
import pickle
import resource
import sys
import threading
from typing import Any, BinaryIO

import orjson

from gateway.assignment import LENGTH, Assignment, ProcessLimits

#: Exit status where the gateway is gone.
_GATEWAY_GONE = 3


def main() -> int:
    """Carry out the assignment; its result is the last frame."""
    # Whatever else prints must not come between frames.
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    (length,) = LENGTH.unpack(_read_exactly(source, LENGTH.size))
    gc.disable()  # what is imported is no garbage; to look for that takes a fifth of the time
    from bus.contract import BusError
    from gateway.branch_runs import field_of
    from simulator.branch.origin import BranchError

    assignment = pickle.loads(_read_exactly(source, length))  # noqa: S301 - by who started us, through a pipe
    assert isinstance(assignment, Assignment)
    gc.freeze()
    gc.enable()
    threading.Thread(target=_end_with_gateway, args=(source,), daemon=True).start()
    _limit_process(assignment.limits)
    lock = threading.Lock()

    def report(said: dict[str, Any]) -> None:
        text = orjson.dumps(said)
        with lock:
            frames.write(LENGTH.pack(len(text)) + text)
            frames.flush()

    try:
        found = assignment.function(*assignment.arguments, report)
    except BranchError as error:
        report({"problem": f"{field_of(error)}: {error.reason}"})
    except BusError as error:
        report({"problem": str(error)})
    except MemoryError:
        report({"problem": "it took more memory than it may; ask for fewer hours"})
    else:
        report({"result": found})
    return 0


def _read_exactly(source: BinaryIO, length: int) -> bytes:
    found = source.read(length)
    if len(found) != length:
        sys.exit(_GATEWAY_GONE)
    return found


def _end_with_gateway(source: BinaryIO) -> None:
    """Wait until the gateway no longer holds the other end, and end at once."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(source.fileno(), 4096):
            pass
    os._exit(_GATEWAY_GONE)


def _limit_process(limits: ProcessLimits) -> None:
    os.nice(limits.nice)
    if limits.cpu_s is not None:
        _lower(resource.RLIMIT_CPU, limits.cpu_s)
    # Not the address space: libraries reserve much of that which they never use.
    _lower(resource.RLIMIT_DATA, limits.memory_bytes)


def _lower(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(which, (most, hard))


if __name__ == "__main__":
    sys.exit(main())
