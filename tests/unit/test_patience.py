"""How tests read what others still write."""

import subprocess
from pathlib import Path
from typing import cast

from tests.integration.processes import Service
from tests.patience import whole_lines


def test_a_line_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    assert whole_lines(file) == []
    file.write_bytes("1 n1\n2 n1\n3 Zü".encode()[:-1])  # in the middle of a letter
    assert whole_lines(file) == ["1 n1", "2 n1"]


def test_a_service_whose_last_line_is_half_written_has_said_those_before(tmp_path: Path) -> None:
    log = tmp_path / "scheduler-0.log"
    log.write_text('{"event": "started"}\n{"event": "fen')
    service = Service(cast("subprocess.Popen[bytes]", None), log)
    assert service.lines() == [{"event": "started"}]
