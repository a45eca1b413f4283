"""What a benchmark says in the end: its figures, as lines or as JSON."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.provenance import provenance


def show(figures: Mapping[str, float], line: str, path: str | None, **settings: object) -> None:
    """Print each figure as a `line`, and write all to `path`; to standard output alone if `-`."""
    document = json.dumps({**provenance(), **settings, "figures": figures})
    if path == "-":
        sys.stdout.write(document + "\n")
        return
    for name, value in figures.items():
        print(line.format(name, value))
    if path:
        Path(path).write_text(document + "\n")
