"""What a job no longer needs on the disk: it goes, whatever happened before."""

import threading
from pathlib import Path

import pytest

from runtime.executors.removing import Removals
from tests.patience import wait_until


def test_a_removal_for_which_no_thread_could_be_started_comes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.touch()
    removals = Removals()
    with monkeypatch.context() as at_the_limit:
        at_the_limit.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            removals.remove({old: None})
    removals.remove({new: None})
    wait_until(lambda: not old.exists() and not new.exists())


def test_what_a_killed_agent_was_to_remove_goes_with_the_next_removal(tmp_path: Path) -> None:
    (tmp_path / ".removed-0123").mkdir()
    (tmp_path / ".removed-0123" / "shard").touch()
    (tmp_path / "old").touch()
    Removals().remove({tmp_path / "old": None})
    wait_until(lambda: not any(tmp_path.iterdir()))
