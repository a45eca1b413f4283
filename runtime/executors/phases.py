"""The phases of a gang.

fetching         its checkpoint or its code is being fetched
launching        its workers run, none has reported a step
running          they train
resizing         it is being resized in place
leaving          the workers were asked to leave, for good or for a change of size
awaiting_scale   they left for a change of size, which the restarted agent must order again
uploading        they are gone; the last checkpoint is being uploaded
over             its end was reported
"""

from typing import Literal

Phase = Literal[
    "fetching", "launching", "running", "resizing", "leaving", "awaiting_scale", "uploading", "over"
]
#: Phases in which there may be workers.
WITH_WORKERS: tuple[Phase, ...] = ("launching", "running", "resizing", "leaving")
#: Workers that should have been gone for this long are killed without their supervisor. A change of
#: size that a restarted agent core does not order again within the second time has failed.
OVERDUE_S, BETWEEN_S = 10.0, 60.0
