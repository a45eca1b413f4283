"""`compose/brokers`, as a contributor types it: real brokers, in a folder of the test's own."""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import JARS, need_brokers
from tests.composed import ROOT
from tests.patience import PATIENCE_S, wait_until
from tests.ports import PATH, alive, answers, lacking

COMMAND = "compose/brokers"
#: Behaves as Java does to `fetch`, with a few lines for each run in `$JAVA_DID`.
JAVA = """
import os, pathlib, signal, socket, sys, time
said = sys.argv[1:]
if said == ["-version"]:
    sys.exit(os.environ["JAVA_VERSION"])
kept = [word.partition("=")[2] for word in said if word.startswith("-XX:ArchiveClassesAtExit=")]
if not kept:
    sys.exit()
with open(os.environ["JAVA_DID"], "a") as did:
    did.write("ran\\n")
if any(word.startswith("-XX:SharedArchiveFile=") for word in said):
    sys.exit("Java keeps no classes on top of kept ones")
if os.environ.get("JAVA_FAILS"):
    sys.exit(1)
def end(*_):
    pathlib.Path(kept[0]).write_text(os.environ["JAVA_VERSION"])
    os._exit(143)
signal.signal(signal.SIGTERM, end)
lines = pathlib.Path("kafka.properties").read_text().splitlines()
(listeners,) = [line for line in lines if line.startswith("listeners=")]
time.sleep(0.5)
with socket.create_server(("127.0.0.1", int(listeners.split(",")[0].rpartition(":")[2]))):
    time.sleep(60)
"""


class Folder:
    """One folder of brokers, and the command for it."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.path = path
        self.environment = {
            **os.environ,
            "TIDEGATE_BROKERS_DIR": str(path),
            "TIDEGATE_KAFKA_JARS": str(JARS),
            **environment,
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [COMMAND, *arguments],
            cwd=ROOT,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=3 * PATIENCE_S)  # it starts Java
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def up(self, *arguments: str) -> str:
        done = self.run("up", "--native", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pid(self, name: str) -> int:
        return int((self.path / f"{name}.pid").read_text().split()[0])

    def port(self, name: str) -> int:
        return int(json.loads((self.path / "ports.json").read_text())[name])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    need_brokers()
    # Java, the shell and both brokers' settings files each dislike some of these signs.
    made = Folder(tmp_path / "it's an odd, ünusual $HOME \\ folder")
    yield made
    made.run("down")


@pytest.mark.broker
@pytest.mark.slow
def test_up_status_env_down_with_both_brokers(folder: Folder) -> None:
    said = folder.up().splitlines()
    assert [line.split()[:2] for line in said[:2]] == [["kafka", "runs,"], ["mosquitto", "runs,"]]
    pids = [folder.pid("kafka"), folder.pid("mosquitto")]
    assert all(map(alive, pids))

    # The line that `up` ends with is one that a shell can run, and that sets both addresses.
    assert said[-1].startswith("Next: eval ")
    shell = said[-1].removeprefix("Next: ")
    show = '; echo "$TIDEGATE_KAFKA_BOOTSTRAP $TIDEGATE_MQTT_URL"'
    plain = {"PATH": PATH}
    done = subprocess.run(
        ["sh", "-euc", shell + show], cwd=ROOT, env=plain, capture_output=True, check=True
    )
    kafka, mqtt = folder.port("kafka"), folder.port("mqtt")
    assert done.stdout.decode().split() == [f"127.0.0.1:{kafka}", f"mqtt://127.0.0.1:{mqtt}"]
    assert answers(kafka)
    assert answers(mqtt)

    # A second `up` changes nothing.
    folder.up()
    assert [folder.pid("kafka"), folder.pid("mosquitto")] == pids

    # `down` ends even processes that are stopped, and what they stored stays.
    assert folder.run("status").returncode == 0
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert folder.run("down").returncode == 0
    assert not any(map(alive, pids))
    status = folder.run("status")
    assert status.returncode == 1
    assert status.stdout.count("does not run") == 2
    assert (folder.path / "kafka-data" / "meta.properties").exists()
    assert folder.run("down").returncode == 0
    assert folder.run("down", "--wipe").returncode == 0
    assert not (folder.path / "kafka-data").exists()


@pytest.mark.broker
@pytest.mark.slow
def test_kafka_that_was_killed_comes_back_with_its_data(folder: Folder) -> None:
    folder.up("--only", "kafka")
    first, port = folder.pid("kafka"), folder.port("kafka")
    cluster = (folder.path / "kafka-data" / "meta.properties").read_text()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first))
    assert "does not run" in folder.run("status", "--only", "kafka").stdout
    folder.up("--only", "kafka")
    assert folder.pid("kafka") != first
    assert folder.port("kafka") == port
    assert answers(port)
    assert (folder.path / "kafka-data" / "meta.properties").read_text() == cluster


@pytest.mark.broker
def test_two_ups_at_once_start_one_broker(folder: Folder) -> None:
    both = [folder.start("up", "--native", "--only", "mosquitto") for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert len((folder.path / "mosquitto.log").read_text().split("run as root")) <= 2
    assert alive(folder.pid("mosquitto"))


@pytest.mark.broker
def test_a_second_command_says_that_it_waits(folder: Folder) -> None:
    folder.path.mkdir()
    with (folder.path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = folder.start("up", "--native", "--only", "mosquitto")
        assert waiting.stderr is not None
        assert "Waiting for another compose/brokers" in waiting.stderr.readline()
        assert not (folder.path / "mosquitto.pid").exists()
    waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0


@pytest.mark.broker
def test_a_stale_process_file_is_not_believed(folder: Folder) -> None:
    folder.up("--only", "mosquitto")
    folder.run("down")
    # The id now belongs to another process, which must neither count as ours nor be stopped.
    (folder.path / "mosquitto.pid").write_text(f"{os.getpid()} 1")
    assert "does not run" in folder.run("status", "--only", "mosquitto").stdout
    assert folder.run("down").returncode == 0
    for text in ("", "no number"):
        (folder.path / "mosquitto.pid").write_text(text)
        folder.up("--only", "mosquitto")
        assert alive(folder.pid("mosquitto"))
        folder.run("down")


@pytest.mark.broker
def test_a_port_that_another_program_has_taken_is_named(folder: Folder) -> None:
    assert folder.run("env").returncode == 0  # chooses the ports
    port = folder.port("mqtt")
    with socket.create_server(("127.0.0.1", port)):
        done = folder.run("up", "--native", "--only", "mosquitto")
    assert done.returncode == 2
    assert f"port {port}, chosen for mosquitto, is taken by another program" in done.stderr
    assert not (folder.path / "mosquitto.pid").exists()
    folder.up("--only", "mosquitto")


@pytest.mark.broker
def test_a_broker_that_ends_while_starting_shows_why(folder: Folder) -> None:
    folder.path.mkdir()
    # A file where the folder of its data should be.
    (folder.path / "kafka-data").write_text("")
    done = folder.run("up", "--native", "--only", "kafka")
    assert done.returncode == 2
    assert done.stderr.startswith("compose/brokers: Kafka could not make ")
    assert "Traceback" not in done.stderr


@pytest.fixture
def pretended(tmp_path: Path) -> Folder:
    """A folder with jars and a Java that only pretend."""
    programs, jars = tmp_path / "bin", tmp_path / "kept" / "jars"
    programs.mkdir()
    (programs / "java").write_text(f"#!{sys.executable} -S\n{JAVA}")
    (programs / "java").chmod(0o755)
    jars.mkdir(parents=True)
    shutil.copy(ROOT / "compose" / "kafka" / "pom.xml", jars / ".complete")
    return Folder(
        tmp_path / "brokers",
        PATH=f"{programs}:{os.environ['PATH']}",
        TIDEGATE_KAFKA_JARS=str(jars),
        JAVA_DID=str(tmp_path / "did"),
        JAVA_VERSION="17",
    )


def _kept(folder: Folder) -> tuple[str, int]:
    """Give the classes that are kept, and how often Java ran for them."""
    classes = Path(folder.environment["TIDEGATE_KAFKA_JARS"]) / "classes.jsa"
    text = classes.read_text() if classes.exists() else ""
    return text, Path(folder.environment["JAVA_DID"]).read_text().count("ran")


def test_two_fetches_at_once_keep_the_classes_once(pretended: Folder) -> None:
    both = [pretended.start("fetch") for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert _kept(pretended) == ("17", 1)
    assert pretended.run("fetch").stderr == ""
    assert _kept(pretended) == ("17", 1)


def test_the_classes_of_another_java_are_kept_anew(pretended: Folder) -> None:
    pretended.run("fetch")
    pretended.environment["JAVA_VERSION"] = "21"
    assert pretended.run("fetch").stderr == ""
    assert _kept(pretended) == ("21", 2)


def test_a_fetch_that_keeps_no_classes_says_so_in_a_line(pretended: Folder) -> None:
    pretended.environment["JAVA_FAILS"] = "yes"
    done = pretended.run("fetch")
    assert done.returncode == 0, "it is only slower"
    (line,) = done.stderr.splitlines()
    assert line.startswith("Java did not keep Kafka's classes, so brokers start slowly")
    assert _kept(pretended) == ("", 1)
    with socket.create_server(("127.0.0.1", pretended.port("kafka"))):
        (line,) = pretended.run("fetch").stderr.splitlines()
    assert "compose/brokers down" in line
    assert _kept(pretended) == ("", 1)


def test_what_is_missing_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to(Path(sys.executable).resolve())
    if not lacking("mosquitto"):
        wanted, sentence = "kafka", "java is not installed: sudo apt-get install"
    else:
        wanted, sentence = "mosquitto", "mosquitto is not installed: sudo apt-get install mosquitto"
    done = Folder(tmp_path / "brokers", PATH=str(bare)).run("up", "--native", "--only", wanted)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_env_is_eval_safe_and_stable(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a 'b' $(c)")
    both = [folder.start("env") for _ in range(2)]
    heard = [process.communicate(timeout=PATIENCE_S) for process in both]
    said = {out for out, _ in heard}
    assert all("kafka and mosquitto do not answer" in err for _, err in heard)
    assert [process.returncode for process in both] == [0, 0]
    assert len(said) == 1, "two at once agree on the ports"
    (text,) = said
    assert text == folder.run("env").stdout
    for line in text.splitlines():
        assert line.startswith("export TIDEGATE_")
        subprocess.run(["sh", "-euc", line], check=True)


def test_status_of_nothing_makes_nothing(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "none")
    done = folder.run("status")
    assert (done.returncode, done.stdout) == (1, "no brokers yet: compose/brokers up\n")
    assert folder.run("down").returncode == 0
    assert not folder.path.exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = Folder(tmp_path / "file" / "brokers").run("up", "--native")
    assert done.returncode == 2
    assert "TIDEGATE_BROKERS_DIR" in done.stderr
    assert "Traceback" not in done.stderr
