"""`.ci/in-memory`: what tests write is kept in memory where it can be, else on a disk."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.composed import ROOT

#: A machine with much memory.
_MUCH = {"df": "echo 16", "awk": "echo 16"}


@pytest.mark.parametrize(
    ("programs", "kept"),
    [
        ({"mktemp": 'mkdir "$MEMORY" && echo "$MEMORY"'}, True),
        ({"mktemp": "exit 1"}, False),
        ({"mktemp": 'mkdir "$MEMORY" && echo "$MEMORY"', "chmod": ""}, False),
        ({"mktemp": 'mkdir "$MEMORY" && echo "$MEMORY"', "df": "exit 1"}, False),
    ],
    ids=["may write and run programs", "may not write", "may not run programs", "is not there"],
)
def test_memory_is_used_where_it_can_be(
    tmp_path: Path, programs: dict[str, str], *, kept: bool
) -> None:
    for name, does in (_MUCH | programs).items():
        (program := tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    memory = tmp_path / "memory"
    # An empty TMPDIR counts as none; what a shell sets in it goes to the programs that it runs.
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MEMORY": str(memory)}
    ran = subprocess.run(
        [ROOT / ".ci/in-memory", "sh", "-c", 'printf "%s" "$TMPDIR"; exit 3'],
        env=env | {"TMPDIR": ""},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ran.stdout, ran.returncode) == (str(memory) if kept else "", 3)
    assert not memory.exists()
