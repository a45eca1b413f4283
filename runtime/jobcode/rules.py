"""What an archive of code may hold: plain files, folders, and links that stay inside.

Who packs a folder and who unpacks an archive go by the same rules. Imports little, because the
process that unpacks does.
"""

from collections.abc import Iterable

#: The most files, folders and links of an archive.
ENTRIES_MAX = 50_000
#: The longest path within one, and the deepest.
_PATH_MAX, _DEPTH_MAX = 1024, 64


class Unfit(Exception):
    """An archive, or a folder to pack, holds what it must not; the message names it."""


def parts_of(path: str) -> list[str]:
    """Give the names that lead to an entry; none for the top folder itself.

    Raises:
        Unfit: it leads elsewhere, or is no path that every machine can have.
    """
    if path.startswith("/"):
        raise Unfit(f"{shown(path)}: is an absolute path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Unfit(f"{shown(path)}: leads out of the folder")
    if len(path) > _PATH_MAX or len(parts) > _DEPTH_MAX:
        raise Unfit(f"{shown(path)}: is longer than {_PATH_MAX} characters, or too deep")
    if any(not character.isprintable() for character in path):
        raise Unfit(f"{shown(path)}: has characters that nobody can see")
    return parts


def check_link(parts: Iterable[str], target: str) -> None:
    """See that a link at this path, in a folder that is no link, leads to a place inside.

    Only at its begin may it go up. Then this holds whatever other links it passes on its way: each
    of them stays inside by the same rule, and after it nothing goes up any more.

    Raises:
        Unfit: it leads out, or might.
    """
    where = "/".join(parts)
    steps = [step for step in target.split("/") if step not in ("", ".")]
    above = next((n for n, step in enumerate(steps) if step != ".."), len(steps))
    if target.startswith("/") or above > where.count("/"):
        raise Unfit(f"{shown(where)}: is a link that leads out of the folder, to {shown(target)}")
    if ".." in steps[above:] or len(target) > _PATH_MAX or not target.isprintable():
        raise Unfit(f"{shown(where)}: is a link whose target goes up in its middle, or cannot be")
    if not target:
        raise Unfit(f"{shown(where)}: is a link to nothing")


def shown(name: str) -> str:
    """Write a name as a message can hold it, whatever is in it."""
    return ascii(name) if len(name) <= 100 else ascii(name[:100]) + "..."
