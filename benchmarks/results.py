"""Keeps docs/results true: `python -m benchmarks.results --check`, or `--write`.

The index's table is made of the claims in `benchmarks.claims` and of the raw files that these name;
tables of pages that name one, and that of the project's README, are made of raw files, too
(`benchmarks.page_tables`).
Below its title each page says at which commits its figures were measured, and how many commits of
the code that they measure are newer, by git's history. `--check` names what is missing or false,
`--write` puts it right. Where git has no history of the measured commits (an archive, a shallow
clone), the age of pages is not checked, and both say so.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.claim import NOT_RECORDED, Claim
from benchmarks.claims import CLAIMS, MEASURES, REBASED
from benchmarks.page_tables import with_tables

ROOT = Path(__file__).parents[1]
#: What every raw file, or each of its runs, says of itself: see `benchmarks.provenance`.
PROVENANCE = ("command", "commit", "date", "minutes", "machine")
COLUMNS = ("claim", "figure", "command", "minutes", "commit", "date", "caveat")
BEGIN, END = "<!-- claims: `python -m benchmarks.results --write` -->", "<!-- end of claims -->"
#: How many newer commits a page speaks of: "at least" the largest of these that is reached.
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
#: A count that is written stands until there are so many times as many.
STANDS = 5
_SAYS = re.compile(r"^\*Measured at .*\*$", re.MULTILINE)


class NoHistoryError(Exception):
    """Git cannot say what came after a commit; the message says why."""


def runs(name: str, data: Path) -> list[Mapping[str, Any]]:
    """Read the run of a raw file, of `file.json#part`, or all parts of a file that has parts."""
    file, _, part = name.partition("#")
    read = json.loads((data / file).read_text(encoding="utf-8"))
    if part:
        return [read[part]]
    return [read] if "command" in read else list(read.values())


# --- the index ---


def index(claims: Sequence[Claim], data: Path) -> str:
    """Write the index's table: a line for each claim."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for claim in claims:
        raws = [raw for name in claim.raw for raw in runs(name, data)]
        figure = claim.figure if isinstance(claim.figure, str) else claim.figure(*raws)
        commits = [raw["commit"] for raw in raws] or [claim.commit]
        commands = [one for raw in raws for one in _several(raw["command"])] or [claim.command]
        minutes = [raw["minutes"] for raw in raws]
        known = [float(one) for one in minutes if one != NOT_RECORDED]
        cells = (
            f"[{claim.page.removesuffix('.md')}]({claim.page}): {claim.says}",
            f"**{figure}**",
            _command(commands),
            f"{sum(known):.1f}" if known and len(known) == len(minutes) else NOT_RECORDED,
            ", ".join(_shown(one) for one in dict.fromkeys(commits)),
            ", ".join(dict.fromkeys(str(raw["date"]) for raw in raws)) or NOT_RECORDED,
            claim.caveat + "".join(_links(claim.raw)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _several(command: str | list[str]) -> list[str]:
    return [command] if isinstance(command, str) else command


def _command(commands: list[str]) -> str:
    """Show the first command; the raw files have the others, which differ in an option."""
    if commands[0] == NOT_RECORDED:
        return NOT_RECORDED
    others = len(set(commands)) - 1
    return f"`{commands[0]}`" + (f" and {others} more like it" if others else "")


def _links(names: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(dict.fromkeys(name.partition("#")[0] for name in names), 1):
        yield f"{'; raw:' if number == 1 else ','} [{number}](data/{name})"


def _shown(commit: str) -> str:
    """Show a commit: its name in this history, and + if what ran differed from it."""
    if commit == NOT_RECORDED:
        return commit
    plain = commit.removesuffix("+")
    return f"`{REBASED.get(plain, plain)[:7]}`" + ("+" if commit.endswith("+") else "")


def check_index(page: Path, claims: Sequence[Claim] = CLAIMS) -> list[str]:
    """Name what is wrong with the index and with what the raw files say of themselves."""
    data, wrong = page.parent / "data", []
    for file in sorted(data.glob("*.json")):
        for raw in runs(file.name, data):
            missing = [part for part in PROVENANCE if part not in raw]
            wrong += [f"{file.name}: says no {part}; or {NOT_RECORDED!r}" for part in missing]
    named = {name.partition("#")[0] for claim in claims for name in claim.raw}
    unused = sorted(file.name for file in data.glob("*.json") if file.name not in named)
    wrong += [
        f"{name}: no claim names it; add one to benchmarks/claims_policies.py or claims_system.py"
        for name in unused
    ]
    if not wrong and page.read_text(encoding="utf-8") != with_index(page, claims):
        wrong.append(f"{page.name}: the table is not what the raw files and claims say")
    return wrong


def with_index(page: Path, claims: Sequence[Claim] = CLAIMS) -> str:
    """Give the index's page with its table as it should be."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name}: lacks a line {BEGIN!r}, or {END!r} below it")
    return f"{before}{BEGIN}\n\n{index(claims, page.parent / 'data')}\n\n{END}{after}"


def pages_with_tables(folder: Path) -> list[Path]:
    """List the pages that may have such tables: all in docs/results, and the project's README."""
    return [*sorted(folder.glob("*.md")), ROOT / "README.md"]


def check_tables(pages: Iterable[Path], data: Path) -> list[str]:
    """Name the pages with a table that is not what the raw files say."""
    return [
        f"{page.name}: a table is not what its raw files say"
        for page in pages
        if page.read_text(encoding="utf-8") != with_tables(page, data)
    ]


# --- how old a page is ---


@dataclass(frozen=True)
class History:
    """What git knows of a folder."""

    root: Path

    def newer(self, commit: str, paths: Sequence[str]) -> int:
        """Count the commits after this one that touch these paths; what is not committed is one.

        Raises:
            NoHistoryError: this is no clone of the repository, or lacks its history.
            LookupError: the history does not have the commit.
        """
        if Path(self._git("rev-parse", "--show-toplevel").strip()).resolve() != self.root.resolve():
            raise NoHistoryError("this folder is no clone of its own")
        if self._git("rev-parse", "--is-shallow-repository").strip() != "false":
            raise NoHistoryError("this is a shallow clone; `git fetch --unshallow` gets the rest")
        try:
            self._git("merge-base", "--is-ancestor", commit, "HEAD")
        except NoHistoryError:
            raise LookupError(
                f"commit {commit} is not in this history; if it was rebased, say in"
                " benchmarks/claims.py (REBASED) what it is now"
            ) from None
        count = int(self._git("rev-list", "--count", f"{commit}..HEAD", "--", *paths))
        return count + bool(self._git("status", "--porcelain", "--", *paths).strip())

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoHistoryError(f"git {arguments[0]}: {done.stderr.strip() or 'no'}")
        return done.stdout


def measured_at(page: str, claims: Sequence[Claim], data: Path) -> list[str]:
    """Give the commits that the figures of a page were measured at, each once."""
    found = []
    for claim in (claim for claim in claims if claim.page == page):
        raws = [raw for name in claim.raw for raw in runs(name, data)]
        found += [str(raw["commit"]) for raw in raws] or [claim.commit]
    return list(dict.fromkeys(found))


def newer_by(commits: Sequence[str], paths: Sequence[str], history: History) -> dict[str, int]:
    """Count for each commit that was recorded, as `_shown` names it, what is newer."""
    counts = {}
    for commit in commits:
        plain = commit.removesuffix("+")
        plain = REBASED.get(plain, plain)
        if commit != NOT_RECORDED:
            counts[plain[:7]] = history.newer(plain, paths)
    return counts


def line(counts: Mapping[str, int], *, unrecorded: bool) -> str:
    """Write the line of a page."""
    if not counts:
        return (
            "*Measured at a commit that was not recorded, so that nobody knows how much of the code"
            " that it measures is newer.*"
        )
    least = [max((step for step in STEPS if step <= one), default=0) for one in counts.values()]
    newer = (
        f"at least {_listed(map(str, least))} commit{'s are' if max(least) > 1 else ' is'} newer"
    )
    told = newer if any(least) else "nothing is newer"
    end = " Part of it was measured at a commit that was not recorded." if unrecorded else ""
    at = _listed(f"`{commit}`" for commit in counts)
    return f"*Measured at {at}; of the code that it measures {told}.{end}*"


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def holds(said: str, counts: Mapping[str, int], *, unrecorded: bool) -> bool:
    """True if a line names these commits, and its counts are true and not far below what is."""
    told = re.search(r"at least ([\d, and]+) commit", said)
    least = [int(one) for one in re.findall(r"\d+", told[1])] if told else [0] * len(counts)
    stands = len(least) == len(counts) and all(
        stated <= count < max(1, STANDS * stated)
        for stated, count in zip(least, counts.values(), strict=True)
    )
    words = dict(zip(counts, least, strict=True)) if stands else {}
    return stands and said == line(words, unrecorded=unrecorded)


def ages(
    folder: Path, history: History, claims: Sequence[Claim] = CLAIMS
) -> Iterator[tuple[Path, str]]:
    """Give each page whose line is missing or false, with the line that is true.

    Raises:
        NoHistoryError: git cannot say what is newer.
        LookupError: the history does not have a commit that was measured.
    """
    for name, paths in MEASURES.items():
        commits = measured_at(name, claims, folder / "data")
        counts = newer_by(commits, paths, history)
        unrecorded = NOT_RECORDED in commits
        said = _SAYS.search((folder / name).read_text(encoding="utf-8"))
        if said is None or not holds(said[0], counts, unrecorded=unrecorded):
            yield folder / name, line(counts, unrecorded=unrecorded)


def with_line(page: Path, said: str) -> str:
    """Give a page with this line below its title, in place of the one it has."""
    text = page.read_text(encoding="utf-8")
    if _SAYS.search(text):
        return _SAYS.sub(lambda _: said, text, count=1)
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{said}\n\n{rest}"


def main(argv: list[str] | None = None) -> int:
    """Check or write; returns 1 if something is missing or false."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="name what is missing or false")
    what.add_argument("--write", action="store_true", help="put it right")
    given = parser.parse_args(argv)
    folder, history = ROOT / "docs" / "results", History(ROOT)
    page, pages, data = folder / "README.md", pages_with_tables(folder), folder / "data"
    if given.write:
        page.write_text(with_index(page), encoding="utf-8")
        for shown in pages:
            shown.write_text(with_tables(shown, data), encoding="utf-8")
    wrong = check_index(page) + check_tables(pages, data)
    try:
        for old, said in ages(folder, history):
            if given.write:
                old.write_text(with_line(old, said), encoding="utf-8")
                print(f"{old.name}: {said}")
            else:
                wrong.append(f"{old.name}: should say: {said}")
    except NoHistoryError as error:
        print(f"THE AGE OF PAGES WAS NOT CHECKED: {error}", file=sys.stderr)
    except LookupError as error:
        wrong.append(str(error))
    for one in wrong:
        print(one, file=sys.stderr)
    if wrong:
        print(
            "`python -m benchmarks.results --write` writes the table and the lines", file=sys.stderr
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
