"""Lists in their order, kept for whoever goes on through their pages.

To choose and sort fifty thousand jobs anew for each page costs more than the page.
"""

from collections import OrderedDict
from collections.abc import Callable

#: Which list: the feed's name and generation, after how many entries, the question, who sees it.
Key = tuple[str, int, int, str, str]
#: So many lists are kept, of at most so many names each.
_LISTS, _NAMES = 8, 200_000


class Orders:
    """The names of lists of moments that are past or pinned, those used last."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: OrderedDict[Key, tuple[str, ...]] = OrderedDict()

    def names(self, key: Key, made: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Give a list: as it is kept, or made now."""
        found = self._kept.get(key)
        if found is None:
            found = made()
            if len(found) > _NAMES:
                return found
            self._kept[key] = found
        self._kept.move_to_end(key)
        if len(self._kept) > _LISTS:
            self._kept.popitem(last=False)
        return found
