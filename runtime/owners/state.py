"""What an owner must not forget in a crash: which nodes it has left, and what is protected.

A small JSON file: `{"nodes": {"s1": {"phase": "left", "gpus": [["free", 0, 0.0], ...]}}}`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

from runtime.owners.processes import write
from runtime.owners.protect import Protection

#: Where a node is, as far as a restart has to know: `away` is left, or on the way there or back.
Kept = Literal["served", "away", "left"]


class OwnerFile:
    """The file, written when something has changed."""

    def __init__(self, path: Path) -> None:
        """Use this file.

        Raises:
            OSError: its folder cannot be made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._written: dict[str, Any] | None = None
        #: Why it could not be read, or cannot be written; empty if all is well.
        self.read_error = self.error = ""

    def load(self, protection: Protection) -> dict[str, Kept]:
        """Give what was kept of each node, and to `protection` its own.

        Of nodes and files that are new, lost or damaged the worst is assumed: that they are left.
        """
        kept: dict[str, Kept] = dict.fromkeys(protection.nodes, "left")
        try:
            kept.update(_read(orjson.loads(self._path.read_bytes()), protection))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            self.read_error = (
                f"{self._path}: cannot be read ({error}); every node counts as lent until told"
            )
        return kept

    def save(self, protection: Protection, nodes: Mapping[str, Kept]) -> bool:
        """Write it if it has changed; give whether the file says what is so."""
        value = {
            "nodes": {
                node: {"phase": kept, "gpus": protection.to_row(node)}
                for node, kept in nodes.items()
            }
        }
        if value == self._written:
            return True
        try:
            write(self._path, value)
        except OSError as error:
            self.error = (
                f"{self._path}: cannot be written, so no drain is reported: {error}; make room or "
                "give the agent the right to write there"
            )
            return False
        self._written, self.error = value, ""
        return True


def _read(value: Any, protection: Protection) -> dict[str, Kept]:
    kept: dict[str, Kept] = {}
    for node in protection.nodes:
        match value["nodes"].get(node):
            case {"phase": "served" | "away" | "left" as phase, "gpus": list(rows)}:
                kept[node] = phase
                protection.from_row(node, rows)
            case None:
                continue
            case other:
                raise ValueError(f"node {node}: {other!r}")
    return kept
