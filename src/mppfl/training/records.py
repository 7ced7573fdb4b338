"""What a training leaves behind: RoundRecord of a round, History of many, Checkpoint to resume from, Log of it all.

Every random stream of a training starts anew for each round and client from the seed, so the model, the server
optimiser's memory, noise that later rounds take back and the clip norm are all that a resumed training needs to go on
bit for bit.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import BadFile, BadInput
from mppfl.files import write_whole
from mppfl.text import between, epsilon, number, percent


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class RoundRecord:
    """One round as the server saw it. Arrays have one entry per client. `load_weights` puts its model into a module.

    reward_rate     announced for this round
    budgets         ρ of the game that the plan asked of each client
    payments        money each client got: its price times what was used of its budget of the game. Sampled clients use
                    all of it by being in the lottery, drawn or not; who was drawn stays secret
    spent           ρ of each client as the ledger has it: budget_unit · budget, what a protection of its own charges
                    for that, or what of it a sum really used; 0 for those who opted out.
                    Under Poisson batches the ρ whose ε the noise was calibrated to; the ledger holds the noise itself
    participating   who uploaded
    noise_std       standard deviation of the noise on each client's update, per parameter
    theta           weight of each client's update in the mean; sums to 1
    dispersion      estimated squared distance of clients' updates from their mean (noise_aware), else NaN
    clip_norm       𝒮 in this round
    share_clipped   share of participants whose update was shortened, in simulations: it is computed from raw updates,
                    so under noise that protects it is NaN, and where gradients are clipped instead
    update_norm     length of the mean update
    accuracy, loss  on the test data; NaN in rounds without evaluation
    dp_epsilon      ε of the client who has spent most so far, at the configured δ; infinite without noise. Under
                    Poisson batches it is known after the last round, NaN before
    seconds         wall time of the round
    weights         the model after the round, as one flat vector
    server          what a resumed training needs beside weights, by name: the optimiser's memory, a 𝒮 that moves;
                    with cohorts also the noise of the last rounds, which is as secret as the data
    engine          what computed the clients
    refused         clients whose cap forbade the round, whose upload of it is stored in the ledger already, or whose
                    budget is too small for a part in a sum

    Example:
        >>> import mppfl, numpy as np
        >>> x, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
        >>> data = mppfl.client_data(x, y, [range(10), range(10, 20)], x, y)
        >>> plan = mppfl.plan_from_rounds("by hand", [mppfl.RoundTerms(1, 2.0, 2.0, np.array([0.5, 1.0]))])
        >>> model, config = mppfl.make_model("softmax", (3,), 2), mppfl.TrainingConfig(batch_size=5)
        >>> next(iter(mppfl.train_rounds(model, data, plan, config))).payments.tolist()
        [1.0, 2.0]
    """

    round_index: int
    reward_rate: float
    budgets: Array
    payments: Array
    spent: Array
    participating: BoolArray
    noise_std: Array
    theta: Array
    dispersion: float
    clip_norm: float
    share_clipped: float
    update_norm: float
    accuracy: float
    loss: float
    dp_epsilon: float
    seconds: float
    weights: Array
    server: dict[str, Array]
    engine: str
    refused: tuple[str, ...] = ()

    def __repr__(self) -> str:
        active = self.participating.astype(bool)
        lines = [
            f"RoundRecord: round {self.round_index}, {active.sum()} of {len(active)} clients participating, "
            f"reward rate {number(self.reward_rate)}",
            f"  accuracy {percent(self.accuracy)}, loss {number(self.loss)}, ε {epsilon(self.dp_epsilon)}",
        ]
        for name in ("budgets", "payments", "spent", "noise_std", "theta"):
            values = getattr(self, name)[active]
            if len(values):
                lines.append(f"  {name:<10} {between(values.min(), values.max())}")
        lines.append(f"  clip norm {number(self.clip_norm)}, mean update {number(self.update_norm)}")
        lines.append(f"  {len(self.weights):,} weights, {number(self.seconds)} s by {self.engine}")
        return "\n".join(lines + [f"  left out: {len(self.refused)} refused"] * bool(self.refused))


PER_CLIENT = ("budgets", "payments", "spent", "participating", "noise_std", "theta")
PER_ROUND = tuple(
    field.name
    for field in fields(RoundRecord)
    if field.name not in (*PER_CLIENT, "weights", "server", "engine", "refused")
)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class History:
    """Records of many rounds as arrays: one entry per round in `rounds`, rounds × clients in `clients`."""

    rounds: dict[str, Array]
    clients: dict[str, Array]
    engine: tuple[str, ...]
    refused: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.engine)

    def __repr__(self) -> str:
        accuracy = self.rounds["accuracy"][np.isfinite(self.rounds["accuracy"])]
        course = f": accuracy {percent(accuracy[0])} at first, {percent(accuracy[-1])} at last" if len(accuracy) else ""
        return f"History of {len(self)} rounds, {self.clients['budgets'].shape[-1]} clients{course}"


def history_of(records: Sequence[RoundRecord], num_clients: int) -> History:
    """The records as one table. Models are left out: they are large, and the last one is kept elsewhere."""
    return History(
        {name: np.array([getattr(record, name) for record in records]) for name in PER_ROUND},
        {
            name: np.array([getattr(record, name) for record in records]).reshape(len(records), num_clients)
            for name in PER_CLIENT
        },
        tuple(record.engine for record in records),
        tuple(record.refused for record in records),
    )


def joined(first: History, then: History) -> History:
    """One history after the other."""
    return History(
        {name: np.concatenate([first.rounds[name], then.rounds[name]]) for name in PER_ROUND},
        {name: np.concatenate([first.clients[name], then.clients[name]]) for name in PER_CLIENT},
        first.engine + then.engine,
        first.refused + then.refused,
    )


FORMAT = 1


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """A training after `rounds_done` rounds.

    weights   the model, flat
    server    the server optimiser's memory and the sum of averaged models, by name
    clip_norm 𝒮 of the last round; where it moves, that of the next one is in `server`
    history   what happened so far
    key       fingerprint of configuration, plan and data: a checkpoint fits only the training it came from
    """

    rounds_done: int
    weights: Array
    server: dict[str, Array]
    clip_norm: float
    history: History
    key: str


def checkpoint_after(record: RoundRecord, history: History, key: str) -> Checkpoint:
    """The checkpoint after the round of `record`, which is the last of `history`."""
    return Checkpoint(len(history), record.weights, record.server, record.clip_norm, history, key)


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes the checkpoint beside `path`, makes it durable, then puts it in place of the old one.

    Where the disk is full or the process dies, the old checkpoint stays as it was.
    """
    facts = {
        "format": FORMAT,
        "rounds_done": checkpoint.rounds_done,
        "clip_norm": checkpoint.clip_norm,
        "key": checkpoint.key,
        "engine": checkpoint.history.engine,
        "refused": checkpoint.history.refused,
    }
    arrays = {"weights": checkpoint.weights, "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}
    arrays |= {f"server.{name}": value for name, value in checkpoint.server.items()}
    arrays |= {f"rounds.{name}": value for name, value in checkpoint.history.rounds.items()}
    arrays |= {f"clients.{name}": value for name, value in checkpoint.history.clients.items()}
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_whole(Path(path), content.getbuffer())


def load_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`. Refuses what is not one, or not whole."""
    path = Path(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(arrays.pop("facts").tobytes())
        if facts["format"] != FORMAT:
            raise BadFile(f"{path}: checkpoint of format {facts['format']}, this version reads {FORMAT}. Start anew.")
        history = History(
            {name: arrays[f"rounds.{name}"] for name in PER_ROUND},
            {name: arrays[f"clients.{name}"] for name in PER_CLIENT},
            tuple(facts["engine"]),
            tuple(tuple(names) for names in facts["refused"]),
        )
        server = {name.removeprefix("server."): arrays[name] for name in arrays if name.startswith("server.")}
        return Checkpoint(facts["rounds_done"], arrays["weights"], server, facts["clip_norm"], history, facts["key"])
    except FileNotFoundError as cause:
        raise BadFile(f"{path}: no checkpoint there. Train without --resume first.") from cause
    except BadFile:
        raise
    except Exception as cause:  # a damaged archive fails in as many ways as there are bytes in it
        raise BadFile(f"{path}: not a whole checkpoint ({cause}). Restore a copy, or start anew.") from cause


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
