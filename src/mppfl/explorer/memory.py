"""Memory: values that are dear to make, kept until others are asked for more often; for many threads at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Memory(Generic[Value]):
    """Values by key, at most so many; each is made once, however many ask for it at the same time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._guard = Lock()
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key, made now if it is not there; what `make` raises is raised, and not remembered."""
        with self._guard:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self._most:
                self._places.popitem(last=False)
        with place.lock:
            if not place.is_made:
                try:
                    place.value, place.is_made = make(), True
                except BaseException:
                    with self._guard:
                        if self._places.get(key) is place:
                            del self._places[key]
                    raise
            found: Value = place.value
            return found


@dataclass
class _Place:
    lock: Any = field(default_factory=Lock)
    is_made: bool = False
    value: Any = None
