"""Chooses the calls of a class that are kept: a uniform sample of limited size. The same seed gives the same sample."""

from __future__ import annotations

import random


class Reservoir:
    """Keeps `size` calls out of any number, each with the same chance (algorithm R).

    >>> reservoir = Reservoir(size=2, seed="a class")
    >>> [reservoir.offer() for _ in range(3)][:2]
    [0, 1]
    >>> reservoir.calls
    3
    """

    def __init__(self, size: int, seed: str) -> None:
        self.size = size
        self.calls = 0
        self._random = random.Random(seed)

    def offer(self) -> int | None:
        """Returns the slot for the next call, which replaces the call in it. None if the call is not kept."""
        slot = self.calls if self.calls < self.size else self._random.randrange(self.calls + 1)
        self.calls += 1
        return slot if slot < self.size else None
