"""The documentation's site: built without a complaint, and asking no other host for anything."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-E", "-a", "-W", "--keep-going", docs, out],
        text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.slow
def test_the_site_is_whole_and_needs_no_other_host(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    pages = {
        path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.html")
    }
    assert {
        path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")
    } <= pages
    fetched = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//[^>]*"
    )
    styled = re.compile(r"(?:url\(|@import )[\"']?(?:https?:)?//[^;]*")
    for path in tmp_path.rglob("*.html"):
        assert fetched.findall(path.read_text(encoding="utf-8")) == [], path
    for path in tmp_path.rglob("*.css"):
        assert styled.findall(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.slow
def test_links_that_lead_nowhere_fail_the_build(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(DOCS / "conf.py", docs)
    links = ["#nowhere", "other.md#nowhere", "nowhere.md", "nowhere.json", "nowhere/"]
    (docs / "index.md").write_text(
        "".join(["# Start\n\n", *(f"[to]({link})\n\n" for link in links)])
    )
    (docs / "other.md").write_text("---\norphan: true\n---\n# Other\n")
    done = build(docs, tmp_path / "out")
    assert done.returncode == 1
    lines = re.findall(r"index\.md:(\d+): WARNING: .*nowhere", done.stdout)
    assert sorted(map(int, lines)) == [3, 5, 7, 9, 11], done.stdout
