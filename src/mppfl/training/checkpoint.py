"""Checkpoints: where a training stands between two rounds, in one file that is whole or not there.

Every random stream of a training starts anew for each round and client from the seed, so the model, the server
optimiser's memory and the clip norm are all that a resumed training needs to go on bit for bit.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mppfl.arrays import Array
from mppfl.errors import BadFile
from mppfl.files import write_whole
from mppfl.training.record import PER_CLIENT, PER_ROUND, History, RoundRecord

FORMAT = 1


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """A training after `rounds_done` rounds.

    weights   the model, flat
    server    the server optimiser's memory and the sum of averaged models, by name
    clip_norm 𝒮 as it was settled in the first round
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
        "diverged": checkpoint.history.diverged,
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
            tuple(tuple(names) for names in facts.get("diverged", [()] * len(facts["engine"]))),
        )
        server = {name.removeprefix("server."): arrays[name] for name in arrays if name.startswith("server.")}
        return Checkpoint(facts["rounds_done"], arrays["weights"], server, facts["clip_norm"], history, facts["key"])
    except FileNotFoundError as cause:
        raise BadFile(f"{path}: no checkpoint there. Train without --resume first.") from cause
    except BadFile:
        raise
    except Exception as cause:  # a damaged archive fails in as many ways as there are bytes in it
        raise BadFile(f"{path}: not a whole checkpoint ({cause}). Restore a copy, or start anew.") from cause
