"""Which release is installed."""

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """Give the installed release; `unknown` where none is installed."""
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "unknown"
