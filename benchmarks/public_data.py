"""Where the public traces and profiles are: `TIDEGATE_DATA`, or beside the repository."""

import os
from pathlib import Path

DATA = Path(
    os.environ.get("TIDEGATE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
