"""The phases of a gang.

fetching    its checkpoint is brought here
launching   its workers live, none has said that it took a step
running     they train
resizing    they are to become more or fewer as they run
leaving     they were asked to leave, for good or for a change of size
awaiting_scale   they left for a change of size, which the restarted agent must order again
uploading   they are gone; the last checkpoint gets the time it may have
over        all is said
"""

from typing import Literal

Phase = Literal[
    "fetching", "launching", "running", "resizing", "leaving", "awaiting_scale", "uploading", "over"
]
#: Phases in which there may be workers.
WITH_WORKERS: tuple[Phase, ...] = ("launching", "running", "resizing", "leaving")
