"""manifest.json: what a checkpoint consists of. A folder without a valid one is no checkpoint.

The file has one form only, and its own digest in it: whatever differs in a single byte is refused.
"""

import hashlib
from collections import Counter
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from runtime.checkpoints.errors import CheckpointError, Damaged
from schemas.values import Epoch, MomentS, Name, Step

#: What a store calls it.
MANIFEST = "manifest.json"
#: A manifest of 100,000 files and 10 TiB is 100 MiB; nothing larger is read into memory.
MAX_MANIFEST_BYTES = 128 * 2**20
#: Parts are held in memory, a few at a time.
MAX_PART_BYTES = 64 * 2**20

_NAME = TypeAdapter[str](Name)
_EPOCH = TypeAdapter[int](Epoch)
_STEP = TypeAdapter[int](Step)


def _inside(path: str) -> str:
    """Refuse what would lead out of the folder that the checkpoint is fetched into."""
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
        raise ValueError("must be a relative path without '..', '.' and empty parts")
    return path


_Path = Annotated[str, Field(max_length=4096), AfterValidator(_inside)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Size = Annotated[int, Field(ge=0, le=2**60)]


class _Exact(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class StoredFile(_Exact):
    """A file, and the parts that it was cut into: objects named after their own SHA-256."""

    path: _Path
    size_bytes: _Size
    sha256: _Sha256
    parts: list[_Sha256]


class Manifest(_Exact):
    """A checkpoint. Its paths begin with the name that the job gave it."""

    version: Literal[1] = 1
    job: Name
    epoch: Epoch
    step: Step
    created_s: MomentS
    part_bytes: Annotated[int, Field(ge=1, le=MAX_PART_BYTES)]
    files: Annotated[list[StoredFile], Field(min_length=1)]
    empty_folders: list[_Path]
    size_bytes: _Size

    @property
    def name(self) -> str:
        """What the job called the checkpoint: a file or a folder."""
        return self.files[0].path.partition("/")[0]

    def part_sizes(self, file: StoredFile) -> list[int]:
        """Give the sizes of a file's parts, in order."""
        whole, rest = divmod(file.size_bytes, self.part_bytes)
        return [self.part_bytes] * whole + [rest] * (rest > 0)

    def objects(self) -> dict[str, int]:
        """Give the objects that make it up, with their sizes in bytes."""
        return {
            part: size
            for file in self.files
            for part, size in zip(file.parts, self.part_sizes(file), strict=True)
        }

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        paths = [file.path for file in self.files] + self.empty_folders
        if twice := [path for path, count in Counter(paths).items() if count > 1]:
            raise ValueError(f"names {twice[0]!r} twice")
        above = {path[:end] for path in paths for end, sign in enumerate(path) if sign == "/"}
        if both := above.intersection(paths):
            raise ValueError(f"has {min(both)!r} as a folder and as a file or an empty folder")
        if any(path.partition("/")[0] != self.name for path in paths):
            raise ValueError("holds paths that do not begin with the checkpoint's name")
        if sum(file.size_bytes for file in self.files) != self.size_bytes:
            raise ValueError("has a size that is not the sum of its files'")
        sizes: dict[str, int] = {}
        for file in self.files:
            if len(file.parts) != len(self.part_sizes(file)):
                raise ValueError(f"has too many or too few parts for {file.path!r}")
            for part, size in zip(file.parts, self.part_sizes(file), strict=True):
                if sizes.setdefault(part, size) != size:
                    raise ValueError(f"has two sizes for a part of {file.path!r}")
        return self


def encode(manifest: Manifest) -> bytes:
    """Write a manifest down in its one form."""
    body: dict[str, Any] = manifest.model_dump()
    digest = hashlib.sha256(orjson.dumps(body)).hexdigest()
    return orjson.dumps({**body, "digest": digest}, option=orjson.OPT_APPEND_NEWLINE)


def decode(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        Damaged: it is none, or differs from what was written.
    """
    try:
        body = orjson.loads(data)
        body.pop("digest")
        manifest = Manifest.model_validate(body)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(f"{where}: is no manifest: {_first(error)}") from error
    if encode(manifest) != data:
        raise Damaged(f"{where}: differs from what was written")
    return manifest


def checked(job: str, epoch: int, step: int) -> str:
    """Give the folder of a checkpoint under the store's URL.

    Raises:
        CheckpointError: a value is not what a message could carry.
    """
    for name, adapter, value in (
        ("job", _NAME, job),
        ("epoch", _EPOCH, epoch),
        ("step", _STEP, step),
    ):
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            raise CheckpointError(f"{name} is {value!r}: {_first(error)}") from error
    return f"{job}/{epoch}-{step}"


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    return f"{type(error).__name__}: {error}"
