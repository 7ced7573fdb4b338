"""The server's state between two rounds, in a folder that survives a crash at any moment.

    checkpoint.npz    plan, model, the optimiser's memory, rounds done, the run's name
    accounts.sqlite   what was asked, spent and paid (accounts.py)
    rounds.jsonl      what happened, one line per round, for people and progress bars

The checkpoint is written after the accounts of its round. Killed between the two, the server repeats the round: it asks
with the same terms, clients answer with the uploads they stored, and paid clients stay paid.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mppfl.arrays import Array
from mppfl.errors import BadFile
from mppfl.files import locked, write_whole
from mppfl.flower.wire import Vector
from mppfl.game import Plan
from mppfl.training import TrainingConfig, server_step

CHECKPOINT, ACCOUNTS, ROUNDS = "checkpoint.npz", "accounts.sqlite", "rounds.jsonl"
ENDED = "ended.json"  # how the server app ended, for whoever started it
FORMAT = 1
FACTS = ("run", "key", "rounds_done", "clients", "num_examples")  # of a checkpoint, beside its arrays
ARRAYS = ("weights", "handed_out", "budgets", "reward_rates")
NOTED: dict[str, Any] = {  # types of what the log holds of a round
    "round_index": int,
    **dict.fromkeys(("accuracy", "loss", "reward_rate", "payments", "participating", "seconds"), (int, float)),
    **dict.fromkeys(("refused", "rejected", "lost", "absent"), list),
}


@dataclass(frozen=True, eq=False, slots=True)
class ServerState:
    """The server after `rounds_done` rounds of one run.

    run           unique name of the run, under which clients' ledgers record its rounds
    key           fingerprint of plan, clients, configuration, first model and, where the server knows them, data
    weights       the model that is trained
    handed_out    the model that is returned: the mean of the last rounds, where the configuration says so
    memory        the server optimiser's
    budgets       of the plan [rounds, clients]
    num_examples  that each client declared with its first accepted upload
    """

    run: str
    key: str
    rounds_done: int
    weights: Vector
    handed_out: Vector
    memory: dict[str, Vector]
    budgets: Array
    reward_rates: Array
    clients: tuple[str, ...]
    num_examples: Mapping[str, int] = field(default_factory=dict)


def first_state(name: str, key: str, plan: Plan, clients: Sequence[str], weights: Vector) -> ServerState:
    """The state before the first round, with a new name for the run."""
    run = f"{name}-{secrets.token_hex(6)}"
    return ServerState(run, key, 0, weights, weights, {}, plan.to_matrix(), np.array(plan.reward_rates), tuple(clients))


def run_key(plan: Plan, clients: Sequence[str], config: TrainingConfig, weights: Vector, data: str = "") -> str:
    """Fingerprint of what determines a training; `data` is that of the clients' data, empty where unknown."""
    digest = hashlib.sha256(json.dumps([list(clients), asdict(config)], sort_keys=True, default=str).encode())
    for terms in plan:
        prices = np.broadcast_to(terms.prices, len(terms.budgets))
        for values in ([terms.round_index, terms.reward_rate], terms.budgets, prices):
            digest.update(np.ascontiguousarray(values, dtype=np.float64).tobytes())
    digest.update(str(weights.dtype).encode() + np.ascontiguousarray(weights).tobytes())
    digest.update(data.encode())
    return digest.hexdigest()


def after_round(
    state: ServerState, mean_update: Vector | None, config: TrainingConfig, declared: Mapping[str, int]
) -> ServerState:
    """The state after one more round with this mean update; None where no upload was accepted.

    declared  number of examples that each client with an accepted upload declared; the first number is kept
    """
    weights, memory = torch.from_numpy(state.weights), {k: torch.from_numpy(v) for k, v in state.memory.items()}
    average = memory.pop("average", None)
    if mean_update is not None:
        weights, memory = server_step(weights, torch.from_numpy(mean_update), memory, config)
    done, shown = state.rounds_done + 1, weights
    averaged = done - (len(state.budgets) - config.average_rounds)
    if config.average_rounds > 1 and averaged > 0:
        before = torch.zeros_like(weights) if average is None else average
        average = shown = before + (weights - before) / averaged
    if average is not None:
        memory["average"] = average
    return replace(
        state,
        rounds_done=done,
        weights=weights.numpy(),
        handed_out=shown.numpy(),
        memory={name: value.numpy() for name, value in memory.items()},
        num_examples={**declared, **state.num_examples},
    )


class ServerFolder:
    """The files of one server, locked against a second one."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).absolute()

    @property
    def accounts(self) -> Path:
        return self.path / ACCOUNTS

    @contextmanager
    def locked(self, wait_seconds: float = 30.0) -> Iterator[None]:
        """No other server uses this folder meanwhile. A server that was just killed may hold it a little longer."""
        with locked(self.path, "another server is at work there. Stop it", wait_seconds):
            yield

    def keep(self, state: ServerState) -> None:
        """Writes the checkpoint: durable and whole, or the one before stays."""
        facts = {"format": FORMAT} | {name: getattr(state, name) for name in FACTS}
        arrays: dict[str, Any] = {f"memory.{name}": value for name, value in state.memory.items()}
        arrays |= {name: getattr(state, name) for name in ARRAYS}
        content = io.BytesIO()
        np.savez(content, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **arrays)
        write_whole(self.path / CHECKPOINT, content.getbuffer())

    def state(self) -> ServerState | None:
        """The checkpoint; None where there is none. Raises BadFile where it is damaged."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(arrays.pop("facts").tobytes())
            if facts.pop("format") == FORMAT:
                memory = {name.removeprefix("memory."): arrays[name] for name in arrays if name.startswith("memory.")}
                known = {name: arrays[name] for name in ARRAYS}
                return ServerState(**facts | known | {"memory": memory, "clients": tuple(facts["clients"])})
        except Exception as cause:  # a damaged archive raises many kinds of errors
            raise BadFile(f"{path}: not a whole checkpoint ({cause}). Restore a copy.") from cause
        raise BadFile(f"{path}: a checkpoint of another format than {FORMAT}, which this version reads.")

    def note(self, round_index: int, facts: Mapping[str, Any]) -> None:
        """Appends what happened in a round to the log."""
        line = json.dumps({"round_index": round_index, **facts}, ensure_ascii=False, default=float)
        with (self.path / ROUNDS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def notes(self) -> list[dict[str, Any]]:
        """The log, one record per round: later lines of a round add to, or replace, earlier ones."""
        path = self.path / ROUNDS
        rounds: dict[int, dict[str, Any]] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                facts = json.loads(line)
            except ValueError:
                continue  # a killed server may leave a line cut short, even within a letter
            names = NOTED.keys() & facts if isinstance(facts, dict) else ()
            if "round_index" not in names or not all(isinstance(facts[name], NOTED[name]) for name in names):
                raise BadFile(f"{path}: line {number} is no record of a round. Restore a copy, or remove the line.")
            rounds[facts["round_index"]] = rounds.get(facts["round_index"], {}) | facts
        return [rounds[round_index] for round_index in sorted(rounds)]
