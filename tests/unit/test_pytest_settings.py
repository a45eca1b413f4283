"""What pyproject.toml has pytest take for a failure."""

import errno
import os
from pathlib import Path

import pytest
from _pytest.pathlib import rm_rf


def test_remains_of_another_run_that_is_still_busy_fail_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pytest removes the folders of earlier runs when all tests have ended, and warns of these."""

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    (tmp_path / "garbage").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        rm_rf(tmp_path / "garbage")
    assert (tmp_path / "garbage").exists()
