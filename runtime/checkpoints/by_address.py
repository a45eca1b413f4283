"""A checkpoint by its address alone: for people, who have no agent's configuration."""

from pathlib import Path

from runtime.checkpoints.catalogue import Catalogue, missing
from runtime.checkpoints.download import Download
from runtime.checkpoints.errors import Damaged, explained
from runtime.checkpoints.filesystem import Filesystem
from runtime.checkpoints.transfer import Progress, TokenBucket, TransferFlow


def fetch(uri: str, into: Path, progress: Progress | None = None) -> Path:
    """Bring a checkpoint to `into/<epoch>-<step>/<the job's name for it>`; give that path.

    It appears there at once, when every part is verified and on disk. The same call again goes on
    after an interruption.

    Args:
        uri: Where the store has it, as `tidegate why` says it.
        into: A local folder; it is made if there is none.
        progress: Called from this thread after each part.

    Raises:
        Damaged: no whole checkpoint is there.
        CheckpointError: the store or the local disk failed; the text says what to do.
    """
    above, _, name = uri.rstrip("/").rpartition("/")
    store, _, job = above.rpartition("/")
    filesystem, folder = Filesystem(store), f"{job}/{name}"
    manifest = Catalogue(filesystem).manifest(folder)
    if manifest is None or missing(filesystem, folder, manifest):
        raise Damaged(
            f"{filesystem.address(folder)}: no whole checkpoint is there; a newer one may have "
            "taken its place, or its store is a folder of another machine"
        )
    flow = TransferFlow(TokenBucket(None), progress)
    try:
        return Download(filesystem, folder, manifest, flow).fetch(into)
    except OSError as error:
        raise explained(error, "write the checkpoint", str(into)) from error
