"""Accuracy under a sound guarantee: Fashion-MNIST, a linear model on fixed features, at a stated ε in all.

    MPPFL_DATA=<folder of the data sets> python benchmarks/private_accuracy.py
    python benchmarks/private_accuracy.py --data FOLDER --only "record, secure_sum"
    python benchmarks/private_accuracy.py --quick       digits, two rounds: whether everything runs

Every cell is what examples/fashion_mnist_private.toml learns with the values that the cell names, and its ε is what the
ledger says at the end. Values are chosen among the cell's candidates, which a wider search on the same pictures left:
by training on 50,000 of the training pictures and testing on the 10,000 others. Only then are the test pictures looked
at, by one training on all 60,000 for each seed. What the choice costs in privacy is in no account. Seeds differ in the
split, the network and the noise, which makes it a simulation.

A cell stands in benchmarks/records/<date>-private-accuracy.json as soon as it is made, and is not made again where
--record names a file that has it. Needs the official files of Fashion-MNIST.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

import mppfl
from mppfl.data import fixed_features, load_dataset
from mppfl.files import write_whole
from record import RECORDS, circumstances

RECIPE = Path(__file__).parents[1] / "examples" / "fashion_mnist_private.toml"
SEEDS = (0, 1, 2)
Values = Mapping[str, Any]  # by their names in the experiment file

# A whole update of ten passes over a client's pictures, all of which are shortened to the same length.
CLIENTS: Values = {
    "protection.unit": "client", "game.num_clients": 1000, "protection.clip_norm": 0.02,
    "training.learning_rate": 4, "training.local_epochs": 10,
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One protection at one ε: what differs from the recipe, what is chosen among, and the accuracy to be reached."""

    title: str
    dp_epsilon: float
    values: Values
    candidates: tuple[Values, ...]
    bar: float | None = None

    @property
    def name(self) -> str:
        return f"{self.title}, ε = {self.dp_epsilon:g}"


def gradients(*choices: tuple[int, float, float]) -> tuple[Values, ...]:
    """Rounds, clip norm and learning rate of one gradient a round."""
    names = ("game.num_rounds", "protection.clip_norm", "training.learning_rate")
    return tuple(dict(zip(names, choice, strict=True)) for choice in choices)


def updates(*choices: tuple[int, float, float]) -> tuple[Values, ...]:
    """Rounds, the server's learning rate and its momentum, of whole updates."""
    names = ("game.num_rounds", "training.server_learning_rate", "training.server_momentum")
    return tuple(dict(zip(names, choice, strict=True)) for choice in choices)


SUM: Values = {"protection.trust": "secure_sum"}
ZERO_OUT: Values = CLIENTS | SUM | {"protection.adjacency": "zero_out"}
SAMPLED: Values = CLIENTS | SUM | {"protection.client_rate": 0.1}  # whose adjacency is zero_out
CELLS = (
    Cell("record, secure_sum", 0.3, SUM, gradients((100, 0.1, 32), (100, 0.3, 8)), 0.865),
    Cell("record, secure_sum", 1, SUM, gradients((100, 0.3, 32), (100, 0.4, 20)), 0.883),
    Cell("record, secure_sum", 3, SUM, gradients((100, 0.3, 64), (100, 0.4, 60), (200, 0.4, 30)), 0.89),
    Cell("client, secure_sum, zero_out", 1, ZERO_OUT, updates((30, 50, 0.9), (60, 25, 0.9)), 0.865),
    Cell("client, secure_sum, zero_out", 8, ZERO_OUT, updates((60, 75, 0.9), (100, 50, 0.9)), 0.895),
    Cell("client, secure_sum, sampled", 1, SAMPLED, updates((60, 20, 0.9), (100, 12.5, 0.9)), 0.858),
    Cell("client, secure_sum, sampled", 8, SAMPLED, updates((60, 100, 0.9), (100, 50, 0.9)), 0.888),
    Cell("client, secure_sum", 1, CLIENTS | SUM, updates((30, 30, 0.9), (30, 100, 0.5), (60, 12.5, 0.9)), 0.865),
    Cell("client, secure_sum", 8, CLIENTS | SUM, updates((60, 50, 0.9), (60, 100, 0.9)), 0.895),
    Cell("record, local", 0.3, {}, gradients((60, 0.4, 2.5), (60, 1, 1))),
    Cell("record, local", 1, {}, gradients((60, 0.4, 10), (60, 1, 2))),
    Cell("record, local", 3, {}, gradients((60, 0.4, 20), (60, 1, 8))),
    Cell("client, local", 1, CLIENTS, updates((20, 0.5, 0.9), (20, 1, 0.9))),
    Cell("client, local", 8, CLIENTS, updates((20, 5, 0.9), (20, 10, 0.9))),
)
QUICK: Values = {"data.name": "digits", "data.features": "none", "game.num_clients": 10, "game.num_rounds": 2}


class Pictures(NamedTuple):
    """Values that say which data a training takes, and how many training examples these have."""

    values: Values
    num_examples: int


def runs_of(cell: Cell, chosen: Values, pictures: Pictures, seeds: Sequence[int]) -> tuple[mppfl.Run, ...]:
    """The recipe, trained with the values of a cell and those chosen for it."""
    values = {**cell.values, "protection.total_epsilon": cell.dp_epsilon, **chosen, **pictures.values}
    if values.get("protection.unit") == "client":
        values["training.batch_size"] = pictures.num_examples // values["game.num_clients"]
    settings = [f"{name}={value}" for name, value in values.items()]
    return mppfl.run_experiment(mppfl.read_experiment(RECIPE, [*settings, f"seeds={list(seeds)}"]))


def pictures_in(folder: Path, values: Values) -> tuple[Pictures, Pictures]:
    """All pictures, and the training pictures alone: every sixth, drawn once, is what the others are tested on.

    Both as features by the rules that the recipe names, which are computed once for all cells.
    """
    dataset = load_dataset(values["data.name"], values.get("data.folder"))
    dataset = fixed_features(dataset, values["data.features"])
    count = len(dataset.train.labels)
    test, train = np.split(np.random.default_rng(0).permutation(count), [count // 6])
    whole = (dataset.train.features, dataset.train.labels, dataset.test.features, dataset.test.labels)
    held = tuple(array[rows] for rows in (train, test) for array in whole[:2])
    made = []
    for name, arrays in (("whole", whole), ("held-out", held)):
        path = folder / f"{name}.npz"
        np.savez(path, **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))
        made.append(Pictures({**values, "data.name": path, "data.features": "none"}, len(arrays[1])))
    return made[0], made[1]


def measured(cell: Cell, pictures: Pictures, held: Pictures, seeds: Sequence[int]) -> dict:
    """The row of one cell: chosen on `held`, then trained on all pictures and tested."""
    started = time.perf_counter()
    tried: list[Values] = []
    for candidate in cell.candidates:
        (run,) = runs_of(cell, candidate, held, seeds[:1])
        tried.append({**candidate, "accuracy": run.final_accuracy})
    chosen = cell.candidates[int(np.argmax([trial["accuracy"] for trial in tried]))]
    runs = runs_of(cell, chosen, pictures, seeds)
    accounts, accuracy = runs[0].accounts, [run.final_accuracy for run in runs]
    return {
        "cell": cell.name,
        "title": cell.title,
        "dp_epsilon": cell.dp_epsilon,
        "dp_epsilon_of_ledger": max(float(run.accounts.dp_epsilon.max()) for run in runs),
        "dp_delta": accounts.dp_delta,
        "spent": float(accounts.spent.max()) or None,  # samples have no ρ
        "unit": accounts.unit,
        "adjacency": accounts.adjacency,
        "protection": accounts.protection,
        "guarantee": accounts.guarantee,
        "noise": accounts.noise,
        "num_clients": runs[0].num_clients,
        "num_rounds": runs[0].num_rounds,
        "chosen": {**cell.values, **chosen},
        "held_out": tried,
        "accuracy": {str(seed): value for seed, value in zip(seeds, accuracy, strict=True)},
        "mean_accuracy": float(np.mean(accuracy)),
        "bar": cell.bar,
        "reached": None if cell.bar is None else bool(np.mean(accuracy) >= cell.bar),
        "notes": sorted({note for run in runs for note in run.notes}),
        "engine": runs[0].history.engine[0],
        "seconds": time.perf_counter() - started,
        **{key: value for key, value in circumstances().items() if key in ("when", "commit")},
    }


def line_of(row: Mapping[str, Any]) -> str:
    least, most = min(row["accuracy"].values()), max(row["accuracy"].values())
    bar = "" if row["bar"] is None else f"{100 * row['bar']:.1f} {'reached' if row['reached'] else 'MISSED'}"
    return (
        f"{row['cell']:<40}{row['dp_epsilon_of_ledger']:9.5f}{100 * row['mean_accuracy']:9.2f}{100 * least:8.2f}"
        f"{100 * most:8.2f}  {bar:<13}{row['num_rounds']:>7}{row['seconds']:9.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; left out, MPPFL_DATA")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--record", type=Path, help="file of the record, which is gone on with where it is there")
    parser.add_argument("--quick", action="store_true", help="small and once; a record only with --record")
    asked = parser.parse_args(arguments)
    path = asked.record or (None if asked.quick else RECORDS / f"{datetime.now(UTC):%Y-%m-%d}-private-accuracy.json")
    rows = json.loads(path.read_text())["results"] if path is not None and path.exists() else []
    recipe, seeds = mppfl.read_experiment(RECIPE), SEEDS[:1] if asked.quick else SEEDS
    values: dict[str, Any] = {"data.name": recipe.data.name, "data.features": recipe.data.features}
    if asked.data is not None:
        values["data.folder"] = asked.data.absolute()
    cells = [cell for cell in CELLS if asked.only in cell.name]
    if asked.quick:
        values |= QUICK
        cells = [replace(cell, bar=None) for cell in cells]
    about = circumstances("torch", "numpy", "scipy") | {
        "recipe": RECIPE.name,
        "seeds": list(seeds),
        "tuning": "on held-out training pictures, every sixth, whose privacy cost is not part of the account",
        "adjacency": "replace_one is the product's default, and doubles what a client may change against zero_out, "
        "which is that of samples: ε of the two are not the same promise",
    }
    print(f"{'':<40}{'ε':>9}{'accuracy':>9}{'least':>8}{'most':>8}  {'bar':<13}{'rounds':>7}{'seconds':>9}")
    with TemporaryDirectory() as folder:
        pictures, held = pictures_in(Path(folder), values)
        for cell in cells:
            row = next((row for row in rows if row["cell"] == cell.name), None)
            if row is None:
                row = measured(cell, pictures, held, seeds)
                rows.append(row)
                if path is not None:
                    text = json.dumps(about | {"results": rows}, indent=1, ensure_ascii=False)
                    write_whole(path, f"{text}\n".encode())
            print(line_of(row), flush=True)
    print(path or "no record")


if __name__ == "__main__":
    main()
