"""Two calls of the Linux kernel that Python lacks. Source: prctl(2)."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Loaded before any fork: a child between fork and exec should not have to load it.
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent has gone.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which must be its parent, ends.

    Raises:
        OSError: the kernel refuses, or the parent is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ProcessLookupError("the supervisor is gone")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
