"""Acting as another user: workers for good, the agent for one access to files.

An agent that is root accesses what a job wrote only as that job's user: no path that a job makes,
also no link to another tenant's folder, leads the agent further than the job itself could go.

Source: setfsuid(2), capabilities(7): a thread whose filesystem user is not root cannot override
permissions. Imports little, because the supervisor does.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def as_user(uid: int | None) -> Iterator[None]:
    """Access files as this user, in this thread alone; None, or our own user: no change.

    Raises:
        PermissionError: we may not.
    """
    if uid is None or uid == os.geteuid():
        yield
        return
    _libc.setfsgid(ctypes.c_uint(uid))
    _libc.setfsuid(ctypes.c_uint(uid))
    try:
        if _libc.setfsuid(ctypes.c_uint(-1)) != uid:  # it returns the previous user, and no error
            raise PermissionError(f"files cannot be looked at as user {uid}")
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(os.geteuid()))
        _libc.setfsgid(ctypes.c_uint(os.getegid()))


def become(uid: int, groups: Sequence[int]) -> None:
    """Become this user for good, in these groups besides its own.

    Raises:
        OSError: we may not.
    """
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
