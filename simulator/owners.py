"""Those whom lent nodes belong to: what they serve with, what they need, what they miss."""

from dataclasses import dataclass

from scheduler.policies.interface import Ints, Kind
from simulator.room import Load


@dataclass(slots=True)
class Owner:
    """One lender: an inference pool, or one edge server. Moments are the run's."""

    id: str
    kind: Kind
    nodes: Ints  #: By id.
    load: Load
    gpus: int  #: It owns.
    held: int = 0  #: GPUs that it serves with.
    needed_gpu_s: float = 0.0
    short_gpu_s: float = 0.0
    since_s: float = 0.0

    def book(self, now_s: float) -> None:
        """Count what it needed and missed until now."""
        if now_s > self.since_s:
            have, most = float(self.held), float(self.gpus)
            needed, short = self.load.integrals(self.since_s, now_s, have, most)
            self.needed_gpu_s += needed
            self.short_gpu_s += short
            self.since_s = now_s

    def serve(self, gpus: int, now_s: float) -> None:
        """Let it serve with so many GPUs more, or less."""
        self.book(now_s)
        self.held += gpus
