"""What a job runs: any command, as one worker for each GPU or for each node.

The contract between a program and the agent that runs it (signals, files, environment) is in
`docs/jobs.md`.
"""

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from schemas.parse import shown
from schemas.values import SHA256_PATTERN, URL_PATTERN, VARIABLE_PATTERN, Name, Strict

#: The most bytes that command and environment may take together: they travel in every start
#: command, which has to stay below the largest message (`schemas.values.MAX_MESSAGE_BYTES`).
MAX_PROGRAM_BYTES = 64 * 1024
#: And all of a program, as it travels: some characters take six bytes there.
MAX_CARRIED_BYTES = 144 * 1024

#: No NUL: the kernel ends strings there.
_Text = Annotated[str, Field(max_length=32_768, pattern=r"^[^\x00]*$")]
_Path = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]


def _inner(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.rstrip("/").split("/")):
        raise ValueError("must be a path within the folder, without . and ..")
    return path


_Url = Annotated[str, Field(max_length=2048, pattern=URL_PATTERN)]
_Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
#: From where workers begin, and not out of there.
_Output = Annotated[
    str, Field(max_length=512, pattern=r"^[^\x00-\x1f/][^\x00-\x1f]*$"), AfterValidator(_inner)
]
#: What the name of an archive of code ends in.
ARCHIVES = (".tar.gz", ".tgz", ".zip")
_Variable = Annotated[str, Field(pattern=VARIABLE_PATTERN)]


class Program(Strict):
    """A command, and how it wants to be treated."""

    argv: Annotated[list[_Text], Field(min_length=1, max_length=256)] = Field(
        description="The command and its arguments; no shell reads it."
    )
    env: Annotated[dict[_Variable, _Text], Field(max_length=256)] = Field(
        default={}, description="Added to the environment; names that Tidegate sets are its own."
    )
    secrets: Annotated[dict[_Variable, Name], Field(max_length=64)] = Field(
        default={},
        description="Variables whose values the agent has, by the names that it keeps them under "
        "for the job's tenant. The values are in no message and no record.",
    )
    workdir: _Path | None = Field(
        default=None, description="Where it starts, on the agent's machine; null: a fresh folder."
    )
    workers: Literal["per_gpu", "per_node"] = Field(
        default="per_gpu", description="A process for each GPU, or one for all GPUs of a node."
    )
    saves: Literal["by_itself", "on_signal"] = Field(
        default="by_itself",
        description="When it writes checkpoints: whenever it wants, or also on SIGUSR1.",
    )
    resize: Literal["restart", "in_place"] = Field(
        default="restart",
        description="How its number of workers changes: it is stopped and started anew from its "
        "checkpoint, or `in_place`, as docs/jobs.md asks of it; where that cannot be, it is "
        "restarted too.",
    )
    image: _Text | None = Field(
        default=None, description="The container image, where workers are containers."
    )
    code: _Url | None = Field(
        default=None,
        description="An archive (.tar.gz, .tgz, .zip) that the agent fetches and unpacks into the "
        "fresh folder in which workers begin; it must lie where the agent may fetch from.",
    )
    outputs: Annotated[list[_Output], Field(max_length=16)] = Field(
        default=[],
        description="Files and folders, from where workers begin, that are copied to the store "
        "when they are gone; `*` stands for any part of a name, `**` for any folders.",
    )
    code_sha256: _Sha256 | None = Field(
        default=None, description="What the archive's SHA-256 must be; null: it may be any."
    )

    @model_validator(mode="after")
    def _can_be_run(self) -> "Program":
        if not self.argv[0]:
            raise ValueError("argv: the command is empty")
        self._check_code()
        said = sum(len(part.encode()) for part in self.argv)
        said += sum(len(name) + len(value.encode()) for name, value in self.env.items())
        if said > MAX_PROGRAM_BYTES:
            raise ValueError(
                f"argv: takes {said} bytes with env, at most {MAX_PROGRAM_BYTES} are carried"
            )
        return self

    def _check_code(self) -> None:
        if self.code is None:
            if self.code_sha256 is not None:
                raise ValueError("code_sha256: goes with code, which says where the archive is")
            return
        if not self.code.endswith(ARCHIVES):
            raise ValueError(f"code: must end in {', '.join(ARCHIVES)}")
        if "@" in self.code.partition("://")[2].partition("/")[0]:
            raise ValueError("code: holds a login, which would be read by all; leave it out")
        if ".." in self.code.split("/"):
            raise ValueError("code: must not hold ..; write where the archive is")
        if self.workdir is not None:
            raise ValueError("workdir: leave it out; with code, workers begin where that is")


#: The context of validation for what was taken already: it stands in the journal.
TAKEN = "taken"


def carried_unless_taken(program: Program, info: ValidationInfo) -> Program:
    """Refuse a program as `check_carried` does, but for one that stands in the journal.

    What was taken before, by a release without this limit, can be read: agents may hold it.

    Raises:
        ValueError: it is too large.
    """
    return program if info.context == TAKEN else check_carried(program)


def wrong_workdir(said: str) -> str:
    """Say what is wrong with where a program begins; empty: nothing.

    No machine has what is relative to nothing. It is not resolved: it is a folder of the agent's
    machine, which may not have one of whoever submits the job. Nor is it refused as the program is
    read: jobs that were taken before have such ones, in journals and signed requests.
    """
    if not said or said.startswith("/"):
        return ""
    where = "must be a whole path of the agent's machine, such as /opt/tidegate"
    return f"{shown(said)} is relative, and {where}"


def check_carried(program: Program) -> Program:
    """Refuse a program that no start command could carry, as it is submitted.

    Raises:
        ValueError: it is too large.
    """
    carried = len(json.dumps(program.__dict__, ensure_ascii=False).encode())
    if carried > MAX_CARRIED_BYTES:
        raise ValueError(
            f"argv: the whole program takes {carried} bytes as it is written for agents, with "
            f"each character that needs an escape; at most {MAX_CARRIED_BYTES} are carried"
        )
    return program
