"""What `tidegate submit` was asked for: words, a file or flags become one submission."""

import hashlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from console.output import fail
from console.packing import Packed, packed
from explain import job_file
from explain.rows import NodeRow
from explain.shares import counted
from schemas.events import JobSubmitted
from schemas.parse import Rejected, said_of

#: What the name of a job's file ends in.
ENDINGS = (".json", ".yaml", ".yml")
#: Which flag a field of the job comes from.
FLAGS = {
    "job": "--job",
    "tenant": "--tenant",
    "model": "--model",
    "gpus_min": "--gpus",
    "gpus_max": "--gpus",
    "total_steps": "--steps",
    "samples_per_step": "--samples-per-step",
    "rates": "--rate",
    "deadline_s": "--deadline",
    "memory_mib": "--memory-mib",
    "priority": "--priority",
    "edge_allowed": "--no-edge",
    "program": "the command",
}
#: Of what is wrong, so much is said at once.
_SAID_MOST = 20
#: Which flag a field of the program comes from.
PROGRAM_FLAGS = {
    "workdir": "--workdir",
    "code": "--code",
    "resize": "--in-place",
    "saves": "--saves-on-signal",
}


def file_or_command(words: list[str]) -> tuple[str | None, list[str]]:
    """Tell a job's file from a command."""
    if len(words) == 1 and (words[0] == "-" or words[0].endswith(ENDINGS)):
        return words[0], []
    if words and words[0].endswith(ENDINGS) and _is_file(words[0]):
        fail(
            f"{words[0]}: is a job's file, which {words[1]!r} cannot follow: it says itself what "
            f"runs. If it is a command, write: -- env {' '.join(words[:2])}"
        )
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        fail(
            "The job as JSON goes into a file whose name ends in .json, or to standard input: "
            "tidegate submit - < FILE"
        )
    if len(words) == 1 and any(map(str.isspace, words[0])) and not _is_file(words[0]):
        fail(f"{words[0]!r} is one word, and no shell reads it: write -- sh -c {words[0]!r}")
    if len(words) == 1 and _is_folder(words[0]):
        fail(
            f"{words[0]}: is a folder; name a job's file in it. If it is a command, write: "
            f"-- env {words[0]}"
        )
    if len(words) == 1 and _looks_like_json(Path(words[0])):
        fail(
            f"{words[0]}: looks like the file of a job, but those end in .json or .yaml; "
            f"name it so. If it is a command, write: -- env {words[0]}"
        )
    return None, words


def hints(submission: JobSubmitted, nodes: Sequence[NodeRow]) -> Iterator[str]:
    """Tell what is allowed, and rarely meant."""
    sites: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        sites[node.pool, node.agent] += node.gpu_count
    largest = max(sites.values(), default=0)
    if 0 < largest < submission.gpus_min:
        wanted = submission.gpus_min
        yield f"It waits until a site has {counted(wanted, 'GPU')}: now the largest has {largest}."
    elif 0 < largest < submission.gpus_max:
        most = counted(largest, "GPU")
        yield f"It grows to {most} at most: no site has {submission.gpus_max} now."
    memory = max((node.gpu_memory_mib for node in nodes), default=0)
    if 0 < memory < submission.memory_mib:
        wanted = submission.memory_mib
        yield f"It waits until a GPU has {wanted} MiB: now the largest has {memory} MiB."
    for less, more in pairwise(submission.rates):
        if more.samples_per_s < less.samples_per_s:
            yield f"By its rates it is slower on {more.gpus} GPUs than on {less.gpus}; is that so?"
        elif (gain := more.samples_per_s / less.samples_per_s) > 1.1 * more.gpus / less.gpus:
            how = f"{more.gpus} GPUs are {gain:.3g} times as fast as {less.gpus}"
            yield f"By its rates {how}; is that so?"
    program = submission.program
    if program is None or program.workdir is not None or program.code is not None:
        return
    for word in program.argv[1:]:
        if not word.startswith("/") and _is_file(word):
            yield f"{word} is a file here, but the command begins in a new folder of the agent's"
            yield 'machine, where it is not; if that machine has this folder: --workdir "$PWD"; if'
            yield "not, send a folder along: --code FOLDER."
            return


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False


def _is_folder(word: str) -> bool:
    try:
        return Path(word).is_dir()
    except (OSError, ValueError):
        return False


def with_code(
    fields: dict[str, Any], flag: str | None, file: str | None, store: str | None
) -> Packed | None:
    """Let a job's program have its code: an address, or that of a folder which is packed.

    Args:
        fields: The job's, whose program is changed.
        flag: What `--code` says, which counts before the file.
        file: The job's file; a folder that it names is looked for from where it is.
        store: Where archives of folders go.
    """
    program = fields.get("program")
    if not isinstance(program, dict):
        return None
    said = program.get("code") if flag is None else flag
    if not isinstance(said, str):
        return None  # nothing, or what the check will name
    if flag is not None:
        program.pop("code_sha256", None)
    if "://" in said:
        program["code"] = said
        return None
    if "code_sha256" in program:
        fail("code_sha256: goes with the address of an archive; leave it out for a folder.")
    from_here = flag is not None or file in (None, "-")
    made = packed(said if from_here else str(Path(str(file)).parent / said), store)
    program |= {"code": made.url, "code_sha256": made.sha256}
    return made


def check_workdir(flag: str | None) -> None:
    """Refuse a relative folder: it would be one of wherever an agent happens to run."""
    if flag and not flag.startswith("/"):
        # A shell leaves `~` as it is in --workdir=~/src; pathlib fails where it is nobody's.
        meant = Path(os.path.expandvars(os.path.expanduser(flag))).resolve()  # noqa: PTH111
        fail(
            f"--workdir: {flag} is relative, and it is a folder of the agent's machine; if that "
            f"machine has this one: --workdir {shlex.quote(str(meant))}"
        )


def without_command(field: str, *, has_file: bool) -> NoReturn:
    """Refuse what only a command can have; a job's file says it itself."""
    instead = "put it after --" if not has_file else f"in a job's file it is program.{field}"
    fail(f"{PROGRAM_FLAGS[field]}: goes with a command; {instead}.")


def _looks_like_json(path: Path) -> bool:
    """Whether a word is more likely a mistyped or badly named file than a command."""
    if path.suffix.lower().startswith(".js"):
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False


def from_file(name: str) -> dict[str, Any]:
    """Read the fields that a file, or standard input (`-`), says; `deadline` as it is written."""
    try:
        value = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        fields = job_file.read(value, is_yaml=name.endswith(ENDINGS[1:]))
    except OSError as error:
        fail(f"{name}: {error.strerror or error}; name a JSON or YAML file, or - for JSON.")
    except job_file.WrongFile as error:
        _pass_over_folder(error.fields.get("program"))
        fail_all(f"{name}: {one}" for one in job_file.all_wrong(error))
    program = fields.get("program")
    if isinstance(program, dict) and "argv" not in program:
        fail(f"{name}: command: is missing; it is what the workers run.")
    return fields


def _pass_over_folder(program: object) -> None:
    """Take a folder of code out of a program: it becomes an address once it is packed."""
    if isinstance(program, dict):
        code = program.get("code")
        if isinstance(code, str) and "://" not in code:
            del program["code"]


def sizes_of(text: str) -> tuple[int, int]:
    """Read a size, or the smallest and the largest: `4`, `1..8`."""
    try:
        sizes = job_file.sizes_of(text)
    except ValueError as error:
        fail(f"--gpus: {error}")
    for size in sizes:
        if not 1 <= size <= job_file.GPUS_MAX:
            fail(f"--gpus: {size} is out of range; sizes go from 1 to {job_file.GPUS_MAX}.")
    return sizes


def rates_of(text: str) -> list[dict[str, float]]:
    """Read how fast it is at some sizes: `1=120,2=220`."""
    try:
        return job_file.rates_of(text)
    except ValueError as error:
        fail(f"--rate: {error}")


def fail_all(sentences: Iterable[str]) -> NoReturn:
    """Say all that is wrong, a line for each thing, and exit."""
    found = list(dict.fromkeys(sentences))
    more = len(found) - _SAID_MOST
    fail("\n".join([*found[:_SAID_MOST], *([f"And {more} more like these."] if more > 0 else [])]))


def complete(fields: dict[str, Any], key: str | None = None) -> None:
    """Add what need not be said; with a key, the same each time."""
    if key is not None:
        fields.setdefault("job", f"job-{hashlib.sha256(key.encode()).hexdigest()[:8]}")
    fields.setdefault("tenant", "operator")
    job_file.complete(fields)


def checked(
    fields: dict[str, Any], deadline: tuple[str, str] | None, *, has_file: bool
) -> tuple[JobSubmitted, float | None]:
    """Make the submission, or say which flags and fields are wrong: all of them.

    Args:
        fields: What was said, and what need not be.
        deadline: In which time from now it must be done, as it was written, and what says so.
        has_file: Whether a file is among what says it.

    Returns:
        The submission, whose deadline is the moment 0, and the time until it in seconds.
    """
    if "rates" not in fields and fields.get("program") is None:
        fail(
            "Nothing says what runs: give a command after --, or a job's file; of a job that is "
            "only simulated, --rate says how fast it is."
        )
    late = [] if deadline is None else job_file.no_time(*deadline)
    if deadline is not None:
        fields = {**fields, "deadline_s": 0.0}
    try:
        submission = JobSubmitted.model_validate(fields)
    except ValidationError as error:
        # Where rates are missing, they could not be guessed, for a size that is wrong is named too.
        every = [said_of(one) for one in error.errors(include_url=False)]
        found = [one for one in every if (one.field, one.reason) != ("rates", "is missing")]
        fail_all([*(_wrong(one, has_file=has_file) for one in found), *late])
    if late or (late := job_file.no_workdir(fields)):
        fail_all(late)
    return submission, None if deadline is None else job_file.after_s(*deadline)


def _wrong(wrong: Rejected, *, has_file: bool) -> str:
    first, _, inner = wrong.field.partition(".")
    flag = PROGRAM_FLAGS.get(inner) if first == "program" else None
    flag = flag or FLAGS.get(first.split("[")[0])
    where = f"{flag} ({wrong.field})" if flag and not has_file else wrong.field
    return f"{where}: {wrong.reason}."
