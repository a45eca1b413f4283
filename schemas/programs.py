"""What a job runs: any command, as one worker for each GPU or for each node.

The contract between a program and the agent that runs it (signals, files, environment) is in
`docs/jobs.md`.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.values import Name, Strict

#: The most bytes that command and environment may take together: they travel in every start
#: command, which has to stay below the largest message (`schemas.values.MAX_MESSAGE_BYTES`).
MAX_PROGRAM_BYTES = 64 * 1024

#: No NUL: the kernel ends strings there.
_Text = Annotated[str, Field(max_length=32_768, pattern=r"^[^\x00]*$")]
_Path = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]


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

    @model_validator(mode="after")
    def _can_be_run(self) -> "Program":
        if not self.argv[0]:
            raise ValueError("argv: the command is empty")
        said = sum(len(part.encode()) for part in self.argv)
        said += sum(len(name) + len(value.encode()) for name, value in self.env.items())
        if said > MAX_PROGRAM_BYTES:
            raise ValueError(
                f"argv: takes {said} bytes with env, at most {MAX_PROGRAM_BYTES} are carried"
            )
        return self
