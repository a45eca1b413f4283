"""What a benchmark says in the end: its figures, as lines or as JSON."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def show(figures: Mapping[str, float], line: str, path: str | None, **machine: object) -> None:
    """Print each figure as a `line`, and write all to `path`; to standard output alone if `-`."""
    document = json.dumps({"machine": {"cpus": os.cpu_count(), **machine}, "figures": figures})
    if path == "-":
        sys.stdout.write(document + "\n")
        return
    for name, value in figures.items():
        print(line.format(name, value))
    if path:
        Path(path).write_text(document + "\n")
