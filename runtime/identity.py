"""Doing things as another user: workers for good, the agent for the moment of one look.

An agent that is root touches what a job wrote only as that job's user: whatever a job puts in a
path, a link to another's folder too, leads the agent no further than the job itself could go.

Source: setfsuid(2), capabilities(7): a thread whose filesystem user is not root has no right to
pass over permissions. Imports little, because the supervisor does.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def as_user(uid: int | None) -> Iterator[None]:
    """Look at files as this user, in this thread alone; None, or who we are: as we are.

    Raises:
        PermissionError: we may not.
    """
    if uid is None or uid == os.geteuid():
        yield
        return
    _libc.setfsgid(ctypes.c_uint(uid))
    _libc.setfsuid(ctypes.c_uint(uid))
    try:
        if _libc.setfsuid(ctypes.c_uint(-1)) != uid:  # it says who it was, and no error
            raise PermissionError(f"files cannot be looked at as user {uid}")
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(os.geteuid()))
        _libc.setfsgid(ctypes.c_uint(os.getegid()))


def become(uid: int, groups: Sequence[int]) -> None:
    """Be this user from now on, in these groups besides its own.

    Raises:
        OSError: we may not.
    """
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
