"""The owner's state that must outlive a crash: which nodes it has left, and what is protected.

A small JSON file: `{"nodes": {"s1": {"phase": "left", "gpus": [["free", 0, 0.0], ...]}}}`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson

from runtime.durable import write_json
from runtime.owners.protect import Protection

#: The phase of a node as a restart needs it: `away` is draining or returning, or unconfirmed.
SavedPhase = Literal["served", "away", "left"]


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

    def load(self, protection: Protection) -> dict[str, SavedPhase]:
        """Give the saved phase of each node, and give `protection` its part.

        Nodes that are new, and all if the file is lost or damaged, count as left: that is safe.
        """
        kept: dict[str, SavedPhase] = dict.fromkeys(protection.nodes, "left")
        try:
            kept.update(_read(orjson.loads(self._path.read_bytes()), protection))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            self.read_error = (
                f"{self._path}: cannot be read ({error}); every node counts as lent until told"
            )
        return kept

    def save(self, protection: Protection, nodes: Mapping[str, SavedPhase]) -> bool:
        """Write it if it has changed; give whether the file is up to date."""
        value = {
            "nodes": {
                node: {"phase": kept, "gpus": protection.to_row(node)}
                for node, kept in nodes.items()
            }
        }
        if value == self._written:
            return True
        try:
            write_json(self._path, value)
        except OSError as error:
            self.error = (
                f"{self._path}: cannot be written, so no drain is reported: {error}; make room or "
                "give the agent the right to write there"
            )
            return False
        self._written, self.error = value, ""
        return True


def _read(value: Any, protection: Protection) -> dict[str, SavedPhase]:
    kept: dict[str, SavedPhase] = {}
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
