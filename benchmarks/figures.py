"""What a benchmark is asked, and what it says in the end: its figures, as lines or as JSON."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.provenance import provenance


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's options: it knows `--json`, for `write`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="PATH", help="write the figures; - is standard output")
    return parser


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
