"""Log: what one training has done so far, from which it can be kept and taken up again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from mppfl.errors import BadInput
from mppfl.training.checkpoint import Checkpoint, checkpoint_after
from mppfl.training.record import History, RoundRecord, history_of, joined

NO_WEIGHTS = np.empty(0)


@dataclass(slots=True)
class Log:
    """A training's history, without the models of rounds gone by.

    key       training_key of the arm
    resumed   where it was taken up; None from the start
    """

    key: str
    num_clients: int
    resumed: Checkpoint | None
    records: list[RoundRecord] = field(default_factory=list)
    last: RoundRecord | None = None

    def add(self, record: RoundRecord) -> None:
        self.records.append(replace(record, weights=NO_WEIGHTS, server={}))
        self.last = record

    @property
    def rounds_done(self) -> int:
        return len(self.records) + (0 if self.resumed is None else self.resumed.rounds_done)

    def history(self) -> History:
        """All rounds, those before it was taken up included."""
        since = history_of(self.records, self.num_clients)
        return since if self.resumed is None else joined(self.resumed.history, since)

    def checkpoint(self) -> Checkpoint:
        """Where the training stands; there must have been a round."""
        if self.last is not None:
            return checkpoint_after(self.last, self.history(), self.key)
        if self.resumed is None:
            raise BadInput("the training has no rounds. Set game.num_rounds to at least 1.")
        return self.resumed
