"""What a benchmark says in the end: its figures, as lines or as JSON."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.provenance import provenance


def write(path: Path | str | None, **found: object) -> None:
    """Write what was found, and where it comes from, as JSON; to standard output if `-`."""
    if path is None:
        return
    document = json.dumps({**provenance(), **found}, indent=1) + "\n"
    if path == "-":
        sys.stdout.write(document)
    else:
        Path(path).write_text(document, encoding="utf-8")


def show(figures: Mapping[str, float], line: str, path: str | None, **settings: object) -> None:
    """Print each figure as a `line`, and write all to `path`; to standard output alone if `-`."""
    if path != "-":
        for name, value in figures.items():
            print(line.format(name, value))
    write(path, **settings, figures=figures)
