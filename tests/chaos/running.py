"""What the matrix and the soak do alike: a folder of their own, figures, an exit status."""

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance


def hush() -> None:
    """Let the harness's own clients be silent: that Kafka does not answer is meant here."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """Give a parser with the options that all runs have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.chaos.{module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--folder", type=Path, help="where to run; default: a temporary folder")
    return parser


def run_in_folder(
    name: str,
    options: argparse.Namespace,
    work: Callable[[Path], Coroutine[Any, Any, dict[str, Any]]],
    show: Callable[[dict[str, Any]], str],
) -> int:
    """Do the work in a new folder and show its figures; give 1 and keep the folder on problems.

    Of the options, `folder` and `json` are used.
    """
    # As after Ctrl-C: unwind, so that no process is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    above = options.folder or Path(tempfile.gettempdir())
    above.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-", dir=above))
    kept = f"the folder of the run is kept: {folder}"
    try:
        figures = asyncio.run(work(folder))
    except BaseException:
        print(kept, file=sys.stderr)  # noqa: T201
        raise
    print(show(figures))  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps({**provenance(), **figures}, indent=2) + "\n")
    if figures["problems"]:
        print(kept)  # noqa: T201
        return 1
    shutil.rmtree(folder)
    return 0
