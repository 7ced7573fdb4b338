"""One federated round by mppfl's engine against other simulators, in turn on the same machine.

    python benchmarks/peers.py --setup      makes the peers' environments with pip, once
    python benchmarks/peers.py              the race; writes benchmarks/records/<date>-peers.json
    python benchmarks/peers.py --quick      small workloads, one turn: whether everything runs; writes no record

Every client passes once over its examples in their order by plain SGD, and the server takes the mean: FedAvg without
momentum or noise. All start from the same weights and must end at the same loss. A turn is mppfl, peer, mppfl, peer,
...; each time a new process runs one round to warm up, then the rounds that count. A ratio is a peer's time over that
of the mppfl run just before it. CPU seconds are of all processes of a simulator. The peers' programs are in
benchmarks/peers/; none of them shuffles, which spares them the gathering of examples that mppfl does all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from record import circumstances, write_record

sys.path.append(str(Path(__file__).parent / "peers"))
from lap import Workload, family_of, running

PROGRAMS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path.home() / ".cache" / "mppfl-peers"
REQUIREMENTS = {
    "pfl": ("pfl==0.6.0", "torch==2.13.0"),
    "flower": ("flwr[simulation]==1.41.0", "torch==2.13.0"),
    "fedjax": ("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2"),
}
LOSS_TOLERANCE = 1e-4  # of cross-entropy, to the plain loop's: all see the same batches, only rounding differs
LEAST_PROGRESS = 1e-2  # what the rounds must take off the loss: else agreement would say nothing
TEST_EXAMPLES = 1000
SECONDS_TO_WAIT = 900
QUIET = 0.5  # load above which somebody else is at work


@dataclass(frozen=True)
class Entrant:
    """Who runs: a program of benchmarks/peers/, in an environment (None: this one), on one core or all of them."""

    name: str
    program: str
    environment: str | None
    one_core: bool = False


@dataclass(frozen=True)
class Race:
    """A workload, who runs it, and what mppfl must reach.

    measure  what decides: "cpu" or "wall" seconds per round
    bar      how many times the plain loop's speed mppfl must reach by it; None where only agreement is asked
    """

    name: str
    model: str
    num_clients: int
    num_examples: int
    batch_size: int
    learning_rate: float
    measure: str
    bar: float | None
    turns: int
    rounds: int
    peers: tuple[Entrant, ...]


OURS = Entrant("mppfl", "with_mppfl", None)
PLAIN = Entrant("plain loop, 1 thread", "with_loop", None, one_core=True)
FLOWER = Entrant("Flower 1.41.0", "with_flower", "flower")
RACES = (
    # Small steps: overhead decides, and a second thread would only burn time.
    Race("MLP 784-64-10, 100 clients × 60, batch 20", "mlp", 100, 60, 20, 0.01, "cpu", 4.0, 5, 10, (
        PLAIN,
        Entrant("pfl 0.6.0", "with_pfl", "pfl", one_core=True),
        FLOWER,
        Entrant("fedjax 0.0.17, mended", "with_fedjax", "fedjax", one_core=True),
    )),
    # Arithmetic decides: everybody may have all cores. Threads are not always faster than one: both are tried.
    Race("CNN 1.66 M parameters, 20 clients × 300, batch 32", "cnn_fmnist", 20, 300, 32, 0.01, "wall", 1.7, 3, 2, (
        PLAIN,
        Entrant("plain loop, all cores", "with_loop", None),
        Entrant("pfl 0.6.0, 1 thread", "with_pfl", "pfl", one_core=True),
        Entrant("pfl 0.6.0, all cores", "with_pfl", "pfl"),
        FLOWER,
        Entrant("fedjax 0.0.17, mended", "with_fedjax", "fedjax"),
    )),
)  # fmt: skip


@dataclass
class TrainingState:
    """What is known of one peer so far: its runs and mppfl's just before each, or why there is none."""

    entrant: Entrant
    runs: list[dict[str, Any]] = field(default_factory=list)
    ours: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    def ratios(self, measure: str) -> list[float]:
        """How many times longer than mppfl, turn by turn."""
        return ratios(self.runs, self.ours, measure)


def ratios(runs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]], measure: str) -> list[float]:
    return [seconds(run, measure) / seconds(own, measure) for run, own in zip(runs, ours, strict=True)]


def seconds(run: dict[str, Any], measure: str) -> float:
    """Of one round in this run: CPU as the mean over rounds, wall as their median."""
    return float(run["cpu_seconds"] if measure == "cpu" else statistics.median(run["wall_seconds"]))


def workload_of(race: Race, seed: int = 0) -> tuple[Workload, np.ndarray, np.ndarray]:
    """The race's examples and starting weights, and a test batch: ten coarse patterns, one a class, under noise."""
    from mppfl.training import make_model

    rng = np.random.default_rng(seed)
    shape = (1, 28, 28)
    patterns = np.kron(rng.standard_normal((10, 1, 7, 7), dtype=np.float32), np.ones((4, 4), dtype=np.float32))
    labels = rng.integers(0, 10, race.num_clients * race.num_examples + TEST_EXAMPLES)
    features = patterns[labels] + 0.5 * rng.standard_normal((len(labels), *shape), dtype=np.float32)
    weights = make_model(race.model, shape, 10, seed=seed).state_dict()
    train, by_client = slice(TEST_EXAMPLES, None), (race.num_clients, race.num_examples)
    workload = Workload(
        race.model, race.batch_size, race.learning_rate, features[train].reshape(*by_client, *shape),
        labels[train].reshape(by_client), {name: value.numpy() for name, value in weights.items()},
    )  # fmt: skip
    return workload, features[:TEST_EXAMPLES], labels[:TEST_EXAMPLES]


def test_loss(model: str, weights: dict[str, np.ndarray], features: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy of the test batch, by one and the same code for all."""
    import torch
    from torch_models import layers_of, put

    module = torch.nn.Sequential(*layers_of(model))
    put(weights, module)
    with torch.no_grad():
        logits = module(torch.from_numpy(features)).double()
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)))


def python_of(entrant: Entrant, environments: Path) -> Path:
    return Path(sys.executable) if entrant.environment is None else environments / entrant.environment / "bin/python"


def missing(environment: str, environments: Path) -> str | None:
    """Why a peer cannot run, or None."""
    folder, wanted = environments / environment, list(REQUIREMENTS[environment])
    ready = folder / "ready.json"
    if not ready.exists():
        return f"no environment in {folder}: run with --setup"
    if json.loads(ready.read_text()) != wanted:
        return f"the environment in {folder} is not of {', '.join(wanted)}: run with --setup"
    return None


def set_up(environments: Path) -> None:
    """Makes the environments that are missing. One that fails is told, and does not stop the others."""
    for name, wanted in REQUIREMENTS.items():
        if missing(name, environments) is None:
            continue
        folder = environments / name
        tell(f"{name}: installing {', '.join(wanted)} into {folder}")
        made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True, check=False)
        if made.returncode == 0:
            made = subprocess.run(
                [folder / "bin/python", "-m", "pip", "install", "--quiet", *wanted],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        if made.returncode == 0:
            (folder / "ready.json").write_text(json.dumps(wanted))
        else:
            tell(f"{name}: could not be installed: {last_words(made.stderr or made.stdout)}")


def run_once(entrant: Entrant, race: Race, workload: Path, environments: Path, cores: int) -> dict[str, Any]:
    """One process of one entrant: its times, and its weights under "weights". Raises RuntimeError where it fails."""
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        answer, said = Path(scratch, "answer"), Path(scratch, "said")
        command = [
            python_of(entrant, environments), PROGRAMS / f"{entrant.program}.py", workload, answer,
            "--rounds", str(race.rounds + 1), "--cores", str(1 if entrant.one_core else cores),
        ]  # fmt: skip
        load, started = os.getloadavg()[0], time.perf_counter()
        with said.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=scratch)
            try:
                code = process.wait(SECONDS_TO_WAIT)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"stopped after {SECONDS_TO_WAIT} s") from None
            finally:
                end_family(process)
        if code or not answer.with_suffix(".json").exists():
            raise RuntimeError(f"exit code {code}: {last_words(said.read_text(errors='replace'))}")
        found = json.loads(answer.with_suffix(".json").read_text())
        in_rounds = found["warm_up_seconds"] + sum(found["wall_seconds"])
        found["other_seconds"] = time.perf_counter() - started - in_rounds  # imports, starting and ending workers
        found["load_before"] = load
        with np.load(answer.with_suffix(".npz")) as weights:
            return found | {"weights": {name: weights[name] for name in weights.files}}


def end_family(process: subprocess.Popen) -> None:
    """Ends a program that still runs, with all processes that it started."""
    if process.poll() is not None:
        return
    for pid in family_of({pid: int(fields[1]) for pid, fields in running().items()}, process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def turns_of(race: Race, environments: Path, cores: int) -> Iterator[dict[str, Any]]:
    """The race as it goes into the record, after every turn."""
    workload, features, labels = workload_of(race)
    standings = [TrainingState(entrant) for entrant in race.peers]
    for standing in standings:
        if standing.entrant.environment is not None:
            standing.failure = missing(standing.entrant.environment, environments)
    last: dict[str, dict[str, np.ndarray]] = {}
    loss_before = test_loss(race.model, dict(workload.weights), features, labels)

    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        path = Path(scratch, "workload.npz")
        workload.save(path)

        def run(entrant: Entrant) -> dict[str, Any]:
            found = run_once(entrant, race, path, environments, cores)
            last[entrant.name] = found.pop("weights")
            return found | {"loss": test_loss(race.model, last[entrant.name], features, labels)}

        for turn in range(race.turns):
            for standing in standings:
                if standing.failure is not None:
                    continue
                own = run(OURS)  # a failure of ours is an error of this script's
                try:
                    theirs = run(standing.entrant)
                except RuntimeError as failure:
                    standing.failure = str(failure)
                    tell(f"{standing.entrant.name}: {failure}")
                    continue
                standing.ours.append(own)
                standing.runs.append(theirs)
                tell(
                    f"turn {turn + 1}  {standing.entrant.name:<24} CPU {theirs['cpu_seconds']:7.3f} against "
                    f"{own['cpu_seconds']:6.3f}  wall {seconds(theirs, 'wall'):7.3f} against "
                    f"{seconds(own, 'wall'):6.3f}  load {theirs['load_before']:.1f}"
                )
            yield summary(replace(race, turns=turn + 1), standings, last, loss_before)


def summary(
    race: Race, standings: Sequence[TrainingState], last: dict[str, dict[str, np.ndarray]], loss_before: float
) -> dict[str, Any]:
    """The race as it goes into the record: rows, turns, and which bars were reached."""
    ours = [run for standing in standings for run in standing.ours]
    rows = [row_of(OURS.name, ours, [], last)] if ours else []
    for standing in standings:
        if standing.failure is not None:  # turns that went well before it do not count
            rows.append({"name": standing.entrant.name, "failure": standing.failure, "runs": standing.runs})
        else:
            rows.append(row_of(standing.entrant.name, standing.runs, standing.ours, last))
    reference = next((row["loss"] for row in rows if row["name"] == PLAIN.name and "loss" in row), None)
    for row in rows:
        if "loss" in row:
            row["agrees"] = reference is not None and agrees(row["runs"], reference, loss_before)
    return {
        "workload": race.name,
        "model": race.model,
        "learning_rate": race.learning_rate,
        "turns": race.turns,
        "warm_up_rounds": 1,
        "rounds_per_turn": race.rounds,
        "decided_by": race.measure,
        "loss_before": loss_before,
        "loss_tolerance": LOSS_TOLERANCE,
        "rows": rows,
        "bars": bars(race, rows),
    }


def row_of(
    name: str, runs: list[dict[str, Any]], ours: list[dict[str, Any]], last: dict[str, dict[str, np.ndarray]]
) -> dict[str, Any]:
    """One entrant's figures: medians over turns, ratios to mppfl turn by turn, and all runs."""
    row: dict[str, Any] = {"name": name, "note": runs[0]["note"], "versions": runs[0]["versions"]}
    for measure in ("cpu", "wall"):
        row[f"{measure}_seconds"] = statistics.median(seconds(run, measure) for run in runs)
        if ours:
            row[f"{measure}_ratios"] = ratios(runs, ours, measure)
    row["warm_up_seconds"] = statistics.median(run["warm_up_seconds"] for run in runs)
    row["other_seconds"] = statistics.median(run["other_seconds"] for run in runs)
    row["loss"] = runs[-1]["loss"]
    if PLAIN.name in last:
        row["weight_difference"] = max(
            float(np.abs(last[name][part] - value).max()) for part, value in last[PLAIN.name].items()
        )
    return row | {"runs": runs}


def agrees(runs: Sequence[dict[str, Any]], reference: float, before: float) -> bool:
    """Whether all runs ended at the plain loop's loss, and that is somewhere else than the start."""
    return all(
        abs(run["loss"] - reference) <= LOSS_TOLERANCE and before - run["loss"] >= LEAST_PROGRESS for run in runs
    )


def bars(race: Race, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What mppfl had to reach, and whether it did: `bar` times the plain loop, and more than every other peer."""
    found: list[dict[str, Any]] = []
    for row in rows:
        if row["name"] == OURS.name or race.bar is None:
            continue
        bar = race.bar if row["name"] == PLAIN.name else 1.0
        against = row.get(f"{race.measure}_ratios")
        ratio = statistics.median(against) if against else None
        reached = None if ratio is None else ratio >= bar if row["name"] == PLAIN.name else ratio > bar
        found.append({"against": row["name"], "measure": race.measure, "bar": bar, "ratio": ratio, "reached": reached})
    return found


def table(result: dict[str, Any]) -> str:
    """The race in lines of text."""
    lines = [
        result["workload"],
        f"  {'':<24}{'CPU s':>9}{'wall s':>9}   {'CPU / mppfl':<20}{'wall / mppfl':<20}{'warm-up s':>9}{'other s':>9}"
        f"  loss      same  as run",
    ]
    for row in result["rows"]:
        if "failure" in row:
            lines.append(f"  {row['name']:<24}NOT MEASURED  {row['failure']}")
            continue
        lines.append(
            f"  {row['name']:<24}{row['cpu_seconds']:>9.3f}{row['wall_seconds']:>9.3f}   "
            f"{spread(row.get('cpu_ratios')):<20}{spread(row.get('wall_ratios')):<20}{row['warm_up_seconds']:>9.1f}"
            f"{row['other_seconds']:>9.1f}  {row['loss']:.5f}   {'yes' if row['agrees'] else 'NO':<4}  {row['note']}"
        )
    for bar in result["bars"]:
        told = "not measured" if bar["ratio"] is None else f"{bar['ratio']:.2f} times as fast"
        verdict = {True: "reached", False: "MISSED", None: "OPEN"}[bar["reached"]]
        sign = "≥" if bar["bar"] > 1 else ">"
        lines.append(f"  {verdict:<8} {bar['measure']:<5}{sign} {bar['bar']:.1f} × {bar['against']:<24} {told}")
    return "\n".join(lines)


def spread(values: Sequence[float] | None) -> str:
    """Median, and least to most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})" if values else ""


def is_well(result: dict[str, Any]) -> bool:
    """Whether every peer was measured, all computed the same, and every bar was reached."""
    return all(row.get("agrees") for row in result["rows"]) and all(bar["reached"] for bar in result["bars"])


def small(race: Race) -> Race:
    """The same race in a minute: six clients, one turn of two rounds, and no bars, which mean nothing at this size."""
    return replace(
        race, name=f"QUICK, 6 CLIENTS: {race.name}", num_clients=6, turns=1, rounds=2, bar=None,
        num_examples=min(race.num_examples, 76),
    )  # fmt: skip


def race_with(race: Race, turns: int | None) -> Race:
    return race if turns is None else replace(race, turns=turns)


def last_words(said: str) -> str:
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:] or "it said nothing"


def tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="make the environments that are missing, and stop")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, help="folder of the peers' environments")
    parser.add_argument("--quick", action="store_true", help="small and once; a record only with --output")
    parser.add_argument("--only", choices=sorted({race.model for race in RACES}), help="one of the two workloads")
    parser.add_argument("--turns", type=int, help="turns of each race, instead of its own number")
    parser.add_argument("--output", type=Path, help="folder of the record")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that programs under way end with this one
    environments = chosen.environments.resolve()
    if chosen.setup:
        set_up(environments)
        told = {name: missing(name, environments) for name in REQUIREMENTS}
        print("\n".join(f"{name:<8} {why or 'ready'}" for name, why in told.items()))
        return int(any(told.values()))
    cores = len(os.sched_getaffinity(0))
    content = circumstances("torch", "numpy") | {"cores_used": cores, "requirements": REQUIREMENTS}
    if content["machine"]["load_before"] > QUIET:
        tell(f"load {content['machine']['load_before']:.1f} before the start: others work here, so wall seconds, and")
        tell("CPU seconds of whoever runs several threads that wait for each other, will be too high")
    races: dict[str, dict[str, Any]] = {}
    for race in RACES:
        if chosen.only not in (None, race.model):
            continue
        for result in turns_of(small(race) if chosen.quick else race_with(race, chosen.turns), environments, cores):
            races[race.model] = result
            if chosen.output or not chosen.quick:  # after every turn, so that an interrupted race is not lost
                path = write_record("peers", content | {"races": list(races.values())}, chosen.output)
                tell(f"turn {result['turns']} written to {path}")
        print(table(races[race.model]), flush=True)
    return 0 if all(is_well(result) for result in races.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
