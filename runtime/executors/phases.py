"""The phases of a gang.

fetching    its checkpoint is brought here
launching   its workers live, none has said that it took a step
running     they train
resizing    they are to become more or fewer as they run
leaving     they were asked to leave, for good or for a change of size
between     they have left for a change of size that the agent, restarted, must be told again
uploading   they are gone; the last checkpoint gets the time it may have
over        all is said
"""

from typing import Literal

Phase = Literal[
    "fetching", "launching", "running", "resizing", "leaving", "between", "uploading", "over"
]
#: Phases in which there may be workers.
STAFFED: tuple[Phase, ...] = ("launching", "running", "resizing", "leaving")
