"""When Python looks for cycles among objects: where nobody waits, not in the middle of a plan.

A plan's records live for a moment, and hardly a cycle is among them. A look through them while a
large plan was made or adopted took up to a third of its time. A gateway keeps past states, which
each look would go through.
"""

import gc

#: So many objects more than at the last look make the next one worth its time.
_WORTH = 50_000
#: So many more are looked through wherever that is: a tick makes fewer.
_AT_ONCE = 1_000_000
#: So many looks at the youngest objects, until older ones are looked through as well.
_LOOKS = 20


def put_off() -> None:
    """Have this process look for cycles in `look` alone."""
    gc.set_threshold(_AT_ONCE, _LOOKS, _LOOKS)


def look() -> None:
    """Look for cycles if there is something to look through; call it where nobody waits."""
    young, middle, old = gc.get_count()
    if young >= _WORTH:
        gc.collect(0 if middle < _LOOKS else 1 if old < _LOOKS else 2)
