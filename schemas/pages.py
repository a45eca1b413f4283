"""Files that the code makes, such as pages of the manual: written, or compared with what is."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def keep(
    module: str,
    pages: Mapping[Path, str],
    arguments: Sequence[str] | None = None,
    *,
    there: Iterable[Path] = (),
) -> int:
    """Write the pages that are not what they should be, or with `--check` name them.

    Args:
        module: What makes them, `python -m MODULE`.
        pages: By file, its text.
        arguments: Of the command; by default the process's own.
        there: Files of which those that are none of the pages are to go.

    Returns:
        The exit status: 1 if `--check` found a page that is out of date.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    check = parser.parse_args(arguments).check
    stale = [
        page
        for page, text in pages.items()
        if not page.is_file() or page.read_text(encoding="utf-8") != text
    ]
    stale += sorted(file for file in there if file not in pages)
    for page in stale:
        if check:
            shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
            sys.stderr.write(f"{shown} is out of date: run python -m {module}\n")
        elif page in pages:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(pages[page], encoding="utf-8")
        else:
            page.unlink()
    return int(check and bool(stale))
