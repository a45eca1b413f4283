"""Faults of a network, drawn from a seed: loss, duplication, delay, reordering, slow storage."""

from dataclasses import dataclass, field
from hashlib import blake2b

from schemas.topics import COMMANDS, EVENTS, TELEMETRY

_CHANCES = ("loss", "duplication", "delay", "reordering")


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one message: one delay for each copy that arrives; none if it is lost."""

    delays_s: tuple[float, ...]
    #: The first copy is held until a later message has overtaken it, or for `Faults.delay_s`.
    held: bool = False


_UNHARMED = Fate((0.0,))


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances, each between 0 and 1, of what may befall a message between publish and storage.

    The fate of the n-th message of a key depends on the seed, the topic, the key and n alone, so
    it is the same however the publishers interleave.
    """

    seed: int = 0
    loss: float = 0.0
    #: A second copy is stored.
    duplication: float = 0.0
    #: A copy arrives up to `delay_s` later.
    delay: float = 0.0
    delay_s: float = 5.0
    #: A message is overtaken by the next one of the topic.
    reordering: float = 0.0
    #: Let messages of one key overtake each other. Breaks what the contract promises of order.
    within_keys: bool = False
    #: Every publish takes this long to be stored.
    storage_s: float = 0.0
    #: The topics in question; by default those that cross a network.
    topics: tuple[str, ...] = (TELEMETRY.name, EVENTS.name, COMMANDS.name)
    #: Whether any message may be harmed: who harms none need not draw.
    _harms: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _CHANCES:
            if not 0.0 <= (chance := getattr(self, name)) <= 1.0:
                raise ValueError(f"{name} is {chance}; a chance lies between 0 and 1")
        for name in ("delay_s", "storage_s"):
            if (seconds := getattr(self, name)) < 0.0:
                raise ValueError(f"{name} is {seconds}; give 0 or more seconds")
        object.__setattr__(self, "_harms", any(getattr(self, name) for name in _CHANCES))

    def fate(self, topic: str, key: str, nth: int) -> Fate:
        """Draw what happens to the `nth` message (from 0) of a key."""
        if not self._harms or topic not in self.topics:
            return _UNHARMED
        identity = f"{self.seed}\0{topic}\0{key}\0{nth}".encode()
        drawn = blake2b(identity, digest_size=48).digest()
        loss, twice, late, late_twin, held, share = (
            int.from_bytes(drawn[i : i + 8], "big") / 2.0**64 for i in range(0, 48, 8)
        )
        if loss < self.loss:
            return Fate(())
        delays_s = [self.delay_s * share if late < self.delay else 0.0]
        if twice < self.duplication:
            # The twin's share is the other end of the first one's: one draw serves both.
            delays_s.append(self.delay_s * (1.0 - share) if late_twin < self.delay else 0.0)
        return Fate(tuple(delays_s), held < self.reordering)
