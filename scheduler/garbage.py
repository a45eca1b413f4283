"""When Python looks for cycles among objects: where nobody waits, not in the middle of a plan.

A look holds up the whole process, half a second for a million objects. A plan's records live for a
moment, and hardly a cycle is among them. A look through them while a large plan was made or adopted
took up to a third of its time. A gateway keeps past states, which looks at old objects go through.
"""

import gc

#: So many objects more than at the last look make the next one worth its time.
_WORTH = 50_000
#: So many more are looked through wherever that is: a tick makes fewer.
_AT_ONCE = 500_000
#: So many looks at the youngest objects, until older ones are looked through as well.
_LOOKS = 20
#: A scheduler looks through all once in so many looks, which is about a day where plans are made
#: every 5 s.
_RARELY = 20_000
_NEVER = 2**31 - 1


def put_off() -> None:
    """Have this process look for cycles where it says so; elsewhere only in so many new objects."""
    gc.set_threshold(_AT_ONCE, _NEVER, _NEVER)


def look() -> None:
    """Look for cycles, the more rarely the older objects are; call it where nobody waits."""
    young, middle, old = gc.get_count()
    if young >= _WORTH:
        gc.collect(0 if middle < _LOOKS else 1 if old < _LOOKS else 2)


def look_at_new(*, surely: bool = False) -> None:
    """Look for cycles among what was made since the last look, and only rarely at older objects.

    For a scheduler: the state of a large cell is a million objects and has no cycle. What lives
    longer than from one look to the next should be in none, or its memory is freed in a day.

    Args:
        surely: Much may have been made in the place of as much, which Python does not count.
    """
    young, _, old = gc.get_count()
    if surely or young >= _WORTH:
        gc.collect(2 if old >= _RARELY else 1)
