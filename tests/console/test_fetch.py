"""`tidegate fetch`: a job's newest checkpoint, as files, from a store that is reachable here."""

import shutil
from pathlib import Path

import pytest

from runtime.checkpoints.store import CheckpointStore
from schemas.events import CheckpointCommitted
from tests.console.conftest import Run
from tests.console.stories import job, running


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with a job that has stored two checkpoints, and one that has not begun."""
    told = running("fit")
    told.feed(job("new"))
    store = CheckpointStore(f"file://{tmp_path}/store", part_bytes=1000)
    epoch = told.state.jobs["fit"].epoch
    for step in (10, 20):
        saved = tmp_path / f"step-{step}"
        (saved / "shards").mkdir(parents=True)
        (saved / "shards" / "0.pt").write_bytes(bytes(range(256)) * step)
        (saved / "meta.json").write_text(f'{{"step": {step}}}')
        stored = store.commit("fit", epoch, step, saved, 1.0)
        said = CheckpointCommitted(
            job="fit", epoch=epoch, step=step, uri=stored.uri, size_mib=1, cost_s=1.0
        )
        told.feed(said)
    told.write(tmp_path / "run.db")
    return tmp_path / "run.db"


def test_the_newest_checkpoint_comes_as_the_job_wrote_it(
    tidegate: Run, log: Path, tmp_path: Path
) -> None:
    found = tidegate.tells("fetch", "fit", "--to", tmp_path / "here", "--log", log)
    assert found["step"] == 20
    assert found["uri"].startswith(f"file://{tmp_path}/store/fit/")
    path = Path(found["path"])
    assert path.is_relative_to(tmp_path / "here")
    assert (path / "shards" / "0.pt").read_bytes() == bytes(range(256)) * 20
    assert (path / "meta.json").read_text() == '{"step": 20}'
    # Again: what is there is verified, and what was changed since is mended.
    (path / "meta.json").write_text('{"step": 21}')
    said = tidegate("fetch", "fit", "--to", tmp_path / "here", "--log", log).out
    assert f"Step 20 of fit is in {path}" in " ".join(said.split())
    assert (path / "meta.json").read_text() == '{"step": 20}'


def test_what_cannot_be_fetched_is_said(tidegate: Run, log: Path, tmp_path: Path) -> None:
    def refused(name: str) -> str:
        ran = tidegate("fetch", name, "--to", tmp_path / "here", "--log", log)
        assert ran.code == 1
        return " ".join(ran.err.split())

    assert "new has no checkpoint in a store; tidegate why new says how far" in refused("new")
    (manifest,) = (tmp_path / "store" / "fit").glob("*-20/manifest.json")
    manifest.write_text("{}")
    assert "no whole checkpoint is there; a newer one may have taken its" in refused("fit")
    shutil.rmtree(tmp_path / "store")
    assert "or its store is a folder of another machine" in refused("fit")
    assert not (tmp_path / "here").exists()
