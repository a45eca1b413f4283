"""Jobs of a tenant run as a user of their own, and reach their own folders alone."""

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoints.errors import CheckpointError
from runtime.checkpoints.source import look
from runtime.checkpoints.store import CheckpointStore
from runtime.core import CheckpointDone, GangCompleted, GangFailed, GangStarted, StartWorkers
from runtime.executors.fetching import fetched
from runtime.executors.folder import WORK
from runtime.executors.removing import remove_as
from runtime.executors.tenants import Tenants, give
from runtime.identity import as_user
from schemas.programs import Program
from tests.driven import spec
from tests.patience import wait_until
from tests.workers import Bench, abyss, bench, deepen, placed

FIRST = 1_900_000_000

need_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED here: takes root")


def sh(text: str, **more: Any) -> Program:
    return Program(argv=["sh", "-c", text], **more)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that others may go through; those of pytest are closed to all but their owner."""
    with tempfile.TemporaryDirectory(prefix="tidegate-isolation-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def site(place: Path) -> Iterator[Bench]:
    secrets = place / "secrets"
    for tenant, value in (("red", "crimson\n"), ("blue", "azure\n")):
        (secrets / tenant).mkdir(parents=True)
        (secrets / tenant / "token").write_text(value)
    secrets.chmod(0o700)
    tenants = Tenants(place / "agent", FIRST)
    with bench(place, tenants=tenants, secrets=secrets) as made:
        yield made


def start(
    site: Bench, tenant: str, program: Program, *, job: str = "j", epoch: int = 1, step: int = 0
) -> None:
    said = spec(program, None).model_copy(update={"tenant": tenant})
    gpu = 0 if tenant == "red" else 1
    site.executor.start(StartWorkers(job, epoch, placed(gpu), said, step, 0.0), 0.0)


def output(site: Bench, job: str = "j", epoch: int = 1) -> str:
    return (site.run(epoch, job) / "logs" / "rank-0.log").read_text()


@need_root
def test_a_job_is_its_tenants_user_and_has_its_own_folders_alone(site: Bench) -> None:
    start(site, "blue", sh("echo hush > $TIDEGATE_CHECKPOINT_DIR/of-blue; sleep 1000"), job="other")
    site.hears(GangStarted)
    other = site.run(1, "other")
    wait_until(lambda: (other / "checkpoints" / "of-blue").exists())
    key = site.root / "agent.key"
    key.write_text("the agent's")
    key.chmod(0o600)
    worker, *_ = [w for w in site.pids() if Path(f"/proc/{w}").stat().st_uid == FIRST]
    text = f"""
    id -u; id -g; id -G; echo $HOME; echo $USER $LOGNAME; umask
    cd ~ && echo mine > file && cat file
    echo mine > $TIDEGATE_CHECKPOINT_DIR/a && echo saved
    for closed in {key} {other}/checkpoints/of-blue {other}/order.json ../order.json ../shim.json \\
        {site.root}/secrets/red/token {site.root}/agent/tenants.json; do
        cat $closed && echo READ
    done
    for folder in {site.root}/agent/runs {other} {other}/{WORK} ..; do
        ls $folder && echo LISTED
    done
    rm -f ../order.json ../shim.json ../progress.jsonl && echo REMOVED
    echo x > ../shim.json && echo WRITTEN
    kill -9 {worker} && echo KILLED
    kill -9 $PPID && echo KILLED
    exit 0
    """
    start(site, "red", sh(text))
    site.hears(GangCompleted)
    said = output(site)
    uid = str(FIRST + 1)
    home = str(site.run() / "work")
    name = f"tidegate-{uid}"  # PyTorch asks for one, and ends where there is none
    assert said.splitlines()[:5] == [uid, uid, uid, home, f"{name} {name}"]
    assert "mine" in said
    assert "saved" in said
    for word in ("READ", "LISTED", "REMOVED", "WRITTEN", "KILLED", "hush", "the agent's"):
        assert word not in said.replace("Permission", ""), said
    assert site.all(GangFailed) == []


@need_root
def test_a_job_cannot_keep_others_from_a_gpu(site: Bench) -> None:
    """Who may read a lock file may lock it, and its owner would not have the GPU back."""
    before = os.umask(0o022)
    try:
        start(site, "blue", sh("true"))
        site.hears(GangCompleted)
        (lock,) = site.options.lock_folder.glob("gpu-*1.lock")
        start(site, "red", sh(f"flock -n {lock} echo TAKEN; exit 0"), epoch=2)
        site.hears(GangCompleted, 2)
        assert "Permission denied" in output(site, epoch=2)
        assert "TAKEN" not in output(site, epoch=2)
    finally:
        os.umask(before)


@need_root
def test_checkpoints_are_stored_and_fetched_for_their_tenant(site: Bench) -> None:
    save = 'echo 7 > $TIDEGATE_CHECKPOINT_DIR/seven; echo \'{"step": 7, "checkpoint": "seven"}\' '
    start(site, "red", sh(save + ">> $TIDEGATE_PROGRESS; sleep 1"))
    assert site.hears(CheckpointDone).step == 7
    site.hears(GangCompleted)
    site.look()
    assert not (site.run() / "checkpoints").exists(), "what is durable is not kept here"
    start(site, "red", sh("cat $TIDEGATE_RESUME; echo more >> $TIDEGATE_RESUME"), epoch=2, step=7)
    site.hears(GangCompleted, 2)
    assert output(site, epoch=2).strip() == "7"


@need_root
def test_logs_and_fetched_checkpoints_are_for_their_tenant_alone(site: Bench) -> None:
    before = os.umask(0o022)  # an agent that no unit of ours started
    try:
        (site.root / "c").write_text("weights")
        site.store.commit("other", 1, 7, site.root / "c", 1.0)
        (site.root / "store").chmod(0o700)
        said = "cat $TIDEGATE_RESUME; echo hush; sleep 1000"
        start(site, "blue", sh(said), job="other", epoch=2, step=7)
        site.hears(GangStarted)
        other = site.run(2, "other")
        wait_until(lambda: "hush" in output(site, "other", 2))
        assert output(site, "other", 2) == "weightshush\n"
        paths = f"{other}/logs/rank-0.log {other}/shim.log {other.parent}/fetched/1-7/c"
        # As a stranger comes to know the path: from the command line of the other's supervisor.
        start(site, "red", sh(f"for file in {paths}; do cat $file && echo READ; done; exit 0"))
        site.hears(GangCompleted)
        assert output(site).count("Permission denied") == 3, output(site)
    finally:
        os.umask(before)


@need_root
def test_a_fetched_checkpoint_is_closed_from_the_begin(place: Path) -> None:
    before = os.umask(0o022)
    try:
        (place / "c").write_text("weights")
        store = CheckpointStore(f"file://{place}/store")
        store.commit("j", 1, 7, place / "c", 1.0)
        fetched(store, place, "j", 7, threading.Event(), closed=True)
        assert stat.S_IMODE((place / "runs" / "j" / "fetched").stat().st_mode) == 0o700
    finally:
        os.umask(before)


@need_root
def test_a_checkpoint_of_any_depth_is_given_to_its_tenant() -> None:
    with abyss() as place, bench(place, tenants=Tenants(place / "agent", FIRST)) as site:
        (place / "c").mkdir()
        deepen(place / "c", 1200)
        site.store.commit("j", 1, 7, place / "c", 1.0)
        start(site, "red", sh("find $TIDEGATE_RESUME -user $(id -u) -name end"), epoch=2, step=7)
        site.hears(GangCompleted)
        assert output(site, epoch=2).strip().endswith("/d/end")


@need_root
def test_secrets_reach_the_job_that_names_them_and_no_file(site: Bench) -> None:
    start(site, "red", sh("[ ${#TOKEN} = 7 ] && echo told", secrets={"TOKEN": "token"}))
    site.hears(GangCompleted)
    assert output(site).strip() == "told"
    for path in site.run().rglob("*"):
        assert not path.is_file() or b"crimson" not in path.read_bytes(), path


@need_root
def test_a_secret_that_there_is_not_is_named_and_never_anothers(site: Bench) -> None:
    start(site, "green", sh("true", secrets={"TOKEN": "token"}))
    failed = site.fails("secrets: green/token: No such file", retriable=False)
    assert "crimson" not in failed.error


@need_root
def test_a_workdir_that_is_closed_to_the_job_is_refused(site: Bench, tmp_path: Path) -> None:
    start(site, "red", sh("true", workdir=str(tmp_path)))
    site.fails("no folder on this machine that the job's user may enter", retriable=False)


@need_root
def test_a_tenant_keeps_its_user(place: Path) -> None:
    tenants = Tenants(place / "agent", FIRST)
    assert [tenants.uid(name) for name in ("a", "b", "a")] == [FIRST, FIRST + 1, FIRST]
    again = Tenants(place / "agent", FIRST)
    assert [again.uid(name) for name in ("c", "b")] == [FIRST + 2, FIRST + 1]


@need_root
def test_the_agent_follows_a_jobs_links_no_further_than_the_job_could(place: Path) -> None:
    folder, secret = place / "checkpoints", place / "agent"
    for made in (folder, secret):
        made.mkdir()
    secret.chmod(0o700)
    (secret / "key").write_text("the agent's")
    (folder / "step").symlink_to(secret)
    give(folder, FIRST)
    with pytest.raises(CheckpointError):
        look(folder / "step" / "key", FIRST)
    remove_as(FIRST, folder / "step" / "key")
    assert (secret / "key").exists()
    os.lchown(folder / "step", 0, 0)
    give(folder, FIRST)  # what is given is not given again: links may be in it by now
    assert (folder / "step").lstat().st_uid == 0
    assert secret.stat().st_uid == 0


@need_root
def test_looking_as_another_is_for_one_thread_and_one_moment(place: Path) -> None:
    (place / "mine").write_text("x")
    (place / "mine").chmod(0o600)
    seen: list[str] = []
    now = threading.Event()

    def beside() -> None:
        now.wait()
        seen.append((place / "mine").read_text())

    (thread := threading.Thread(target=beside)).start()
    with as_user(FIRST):
        with pytest.raises(PermissionError):
            (place / "mine").read_text()
        now.set()
        thread.join()
    assert seen == ["x"]
    assert (place / "mine").read_text() == "x"


def test_without_root_no_tenant_can_be_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        PermissionError, match=r'takes an agent that is root; .* isolation = "none"'
    ):
        Tenants(tmp_path / "agent", FIRST)


@need_root
def test_a_closed_way_is_named(place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    with pytest.raises(PermissionError, match=r"closed is closed to the users of jobs; chmod o\+x"):
        Tenants(place / "closed" / "agent", FIRST)
    assert stat.S_IMODE((place / "closed").stat().st_mode) == 0o700


@need_root
def test_a_way_that_the_agent_makes_is_not_closed(place: Path) -> None:
    """It was, by the umask of the installed service, and no agent started."""
    before = os.umask(0o027)
    try:
        Tenants(place / "srv/tidegate/agent", FIRST)
    finally:
        os.umask(before)
    assert stat.S_IMODE((place / "srv/tidegate").stat().st_mode) == 0o711


@need_root
def test_a_closed_way_behind_a_link_is_named(place: Path) -> None:
    """The agent started, and no job could enter its folder."""
    (place / "closed/open").mkdir(parents=True)
    (place / "closed").chmod(0o700)
    (place / "link").symlink_to(place / "closed/open")
    for folder in ("link", "link/agent"):
        with pytest.raises(PermissionError, match="closed is closed to the users of jobs"):
            Tenants(place / folder, FIRST)
