"""What can go wrong with checkpoints, in words that say what to do."""

import errno


class CheckpointError(Exception):
    """A checkpoint could not be stored, found or fetched; the text says what to do."""


class Unstorable(CheckpointError):
    """What is to be stored is at fault itself, so that another try would end the same way."""


class OtherContent(Unstorable):
    """The store holds this checkpoint already, with other content, and keeps that."""


class Damaged(CheckpointError):
    """The store does not hold what was stored; an older checkpoint may still be good."""


def explained(error: Exception, doing: str, where: str) -> CheckpointError:
    """Turn any failure of a store or a disk into one sentence about `where`.

    Args:
        error: what the backend raised, of any backend.
        doing: what was tried, as in "could not ...".
        where: the address, without secrets.
    """
    reason = f"{where}: could not {doing}"
    code = _s3_code(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        advice = "no room is left; free some, or keep fewer checkpoints"
    elif number == errno.ENAMETOOLONG or code == "KeyTooLongError":
        return Unstorable(f"{reason}: its name is longer than a store takes; give it a shorter one")
    elif number == errno.EROFS:
        advice = "it can only be read; mount it writable, or name another place"
    elif isinstance(error, PermissionError) or code in ("AccessDenied", "403"):
        advice = "it is not permitted; give this account the right, or use other credentials"
    elif type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        advice = (
            "there are no credentials; set what the store's client reads "
            "(for s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
        )
    elif code == "NoSuchBucket":
        advice = "there is no such bucket; create it, or correct the URL"
    elif isinstance(error, NotADirectoryError | FileExistsError):
        advice = "there is a file where a folder should be; move it away, or correct the URL"
    elif isinstance(error, FileNotFoundError):
        advice = "it is not there; create it, or correct the URL"
    else:
        advice = (
            f"{type(error).__name__}: {error}; see that the store is up and can be reached, then "
            "try again: what has arrived is kept"
        )
    return CheckpointError(f"{reason}: {advice}")


def _s3_code(error: BaseException | None) -> str | None:
    """The code in S3's own answer, which its adapter keeps as the cause of a common error."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            code = response.get("Error", {}).get("Code")
            return None if code is None else str(code)
        error = error.__cause__
    return None
