"""Trainings: what `mppfl train` and `mppfl report` leave behind, and the same from Python.

Budgets, payments and accounts follow from the game and its seed, and are held to `ACCOUNTS`. Models, losses and what
is measured on updates were summed in float32, and are held to `FLOAT32`. An accuracy is a number of test examples: one
that lies on the border between two classes may fall on either side of it.
"""

from __future__ import annotations

import csv
import math
import re
from html import unescape

import numpy as np
import pytest

import mppfl
from tests.contract.doors import FLOAT32, Golden, command, json_of

ACCOUNTS = 1e-9  # ε is found by bisection and by sums over a grid
ON_THE_BORDER = 2  # test examples that another processor may decide otherwise

HEAD = """
seed = 5
mechanism = "mppfl"
[game]
num_clients = 5
num_rounds = 3
reward_rate = "common"
[output]
checkpoint_every = 2
"""
MLP = 'model = "mlp"\nhidden = [12]\nlearning_rate = 0.2\nlocal_epochs = 2\n'
SHAPES = '[data]\nname = "shapes-{side}.npz"\nsplit = "dirichlet"\nconcentration = 2.0\n'
SMALL, LARGE = SHAPES.format(side=8), SHAPES.format(side=16)
CNN = 'model = "cnn_fmnist"\nlearning_rate = 0.2\nbatch_size = 8\nlocal_epochs = 1\n'

# By protection: the tables of data, training and protection. Every aggregation and server optimiser is among them.
TRAININGS = {
    "update": (
        f'[training]\n{MLP}aggregation = "noise_aware"\n[protection]\nunit = "client"\nclip_norm = 0.5\n'
        "budget_unit = 10.0\n"
    ),
    "gradient": (
        f'{LARGE}features = "oriented_gradients"\n[training]\nmodel = "linear"\nlearning_rate = 1.0\n'
        'aggregation = "num_examples"\nserver_optimizer = "momentum"\nserver_momentum = 0.5\n'
        "[protection]\nclip_norm = 1.0\ntotal_epsilon = 60.0\n"
    ),
    "steps": (
        '[training]\nmodel = "softmax"\nlearning_rate = 0.5\nnum_steps = 3\naggregation = "noise_aware"\n'
        'server_optimizer = "adam"\nserver_learning_rate = 0.05\n'
        '[protection]\nrelease = "steps"\nclip_norm = 2.0\nbudget_unit = 0.05\n'
    ),
    "shuffled": (
        f'{SMALL}[training]\n{CNN}aggregation = "num_examples"\nserver_optimizer = "sgd"\nengine = "loop"\n'
        '[protection]\nrelease = "steps"\nbatches = "shuffled"\nclip_norm = 1.0\nbudget_unit = 1e4\n'
    ),
    "poisson": (
        f'[training]\n{MLP}momentum = 0.5\naggregation = "uniform"\n'
        '[protection]\nrelease = "steps"\nbatches = "poisson"\nclip_norm = 1.0\nbudget_unit = 0.5\n'
    ),
    "large_update": (
        f'{SMALL}[training]\n{CNN}aggregation = "noise_aware"\nserver_optimizer = "momentum"\naverage_rounds = 2\n'
        '[protection]\nunit = "client"\nclip_norm = 1.0\nbudget_unit = 1e7\n'
    ),
    "secure_sum": (
        '[training]\nmodel = "linear"\nlearning_rate = 1.0\n'
        '[protection]\ntrust = "secure_sum"\ntotal_epsilon = 3.0\ncolluding = 1\n'
    ),
    "server": (
        f'[training]\n{MLP}dispersion = 0.5\n[protection]\nunit = "client"\ntrust = "server"\nclip_norm = 0.5\n'
        'budget_unit = 1.0\nadjacency = "zero_out"\n'
    ),
}
ALL_MECHANISMS = 'mechanisms = ["mppfl", "social_agnostic", "random", "dp_fedavg", "sarda_like", "noiseless"]'


def write_experiment(folder, name):
    """The experiment of that name, and the data it names, in a folder."""
    path = folder / f"{name}.toml"
    head = HEAD.replace("num_rounds = 3", "num_rounds = 2") if name == "poisson" else HEAD  # its ε takes long
    if name in ("secure_sum", "server"):  # whose numbers are of the game in which every upload has noise of its own
        head = head.replace("[game]", '[game]\ntrust = "local"')
    path.write_text(head + TRAININGS[name], encoding="utf-8")
    for side in (8, 16):
        write_shapes(folder / f"shapes-{side}.npz", side)
    return path


def write_shapes(path, side):
    """Bars that stand or lie, thick or thin, at random places under some noise: four classes of pictures."""
    rng = np.random.RandomState(1)
    parts = {}
    for part, number in (("train", 80), ("test", 120)):
        labels = rng.randint(0, 4, number)
        pictures = rng.randint(0, 60, (number, side, side))
        for picture, label in zip(pictures, labels, strict=True):
            start, width = rng.randint(1, side - 4), 3 if label >= 2 else 1
            bar = picture if label % 2 else picture.T
            bar[start : start + width] += 180
        parts |= {f"x_{part}": pictures.astype(np.uint8)[..., None], f"y_{part}": labels}
    np.savez(path, **parts)


def plain(values):
    """Numbers as lists; what is infinite or not known as its word, which JSON has no number for."""
    if isinstance(values, dict):
        return {key: plain(each) for key, each in values.items()}
    if isinstance(values, (list, tuple, np.ndarray)):
        return [plain(each) for each in values]
    if isinstance(values, np.generic):
        return plain(values.item())
    return str(values) if isinstance(values, float) and not math.isfinite(values) else values


def lengths(weights):
    """A model as its length, that of each quarter of it, and its farthest number."""
    quarters = np.array_split(np.asarray(weights, dtype=np.float64), 4)
    return {
        "numbers": len(weights),
        "length": np.linalg.norm(weights.astype(np.float64)),
        "quarters": [np.linalg.norm(each) for each in quarters],
        "farthest": np.abs(weights).max(),
    }


def of_the_game(run):
    """What of a run follows from the game and its seed."""
    clients, rounds = run.history.clients, run.history.rounds
    return plain(
        {
            "mechanism": run.mechanism,
            "clients": run.names,
            "examples": run.num_examples,
            "rounds": rounds["round_index"],
            "reward rates": rounds["reward_rate"],
            "budgets": clients["budgets"],
            "payments": clients["payments"],
            "spent": clients["spent"],
            "participating": clients["participating"],
            "epsilon after each round": rounds["dp_epsilon"],
            "paid": run.paid,
            "protected": [run.accounts.unit, run.accounts.adjacency, run.accounts.protection, run.accounts.noise],
            "delta": run.accounts.dp_delta,
            "account": run.accounts.spent,
            "epsilon": run.accounts.dp_epsilon,
            "exposure": run.exposure,
            "server cost": run.server_cost,
            "welfare": run.welfare,
            "refused": run.rounds_refused,
            "edges": run.graph.num_edges,
        }
    )


def of_the_training(run):
    """What of a run was summed in float32."""
    clients, rounds = run.history.clients, run.history.rounds
    return plain(
        {
            "loss": rounds["loss"],
            "length of updates": rounds["update_norm"],
            "clipped to": rounds["clip_norm"],
            "share clipped": rounds["share_clipped"],
            "dispersion": rounds["dispersion"],
            "noise": clients["noise_std"],
            "weights of clients": clients["theta"],
            "model": lengths(run.weights),
        }
    )


def beside(golden, word):
    """The golden file of another part of the same case."""
    return Golden(f"{golden.path.stem}-{word}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains an experiment by its name on the command line, once, and gives the folder and what was printed."""
    kept = {}

    def call(name):
        if name not in kept:
            folder = tmp_path_factory.mktemp(name)
            experiment = write_experiment(folder, name)
            kept[name] = folder, json_of("train", experiment, "--output", folder / "out", "--quiet")
        return kept[name]

    return call


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---- mppfl train ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_under_each_protection_gives_the_same_run(trained, golden, name):
    folder, _ = trained(name)
    run = mppfl.load_run(folder / "out" / "mppfl")
    golden.check(of_the_game(run), relative=ACCOUNTS)
    beside(golden, "trained").check(of_the_training(run), relative=FLOAT32)


def test_every_training_gets_as_many_test_examples_right(trained, golden):
    right = {}
    for name, text in TRAININGS.items():
        folder, _ = trained(name)
        num_test = 120 if "shapes" in text else 364
        counts = num_test * mppfl.load_run(folder / "out" / "mppfl").history.rounds["accuracy"]
        assert counts == pytest.approx(np.rint(counts), abs=1e-6)
        right[name] = [round(each) for each in counts]
    golden.check(right, relative=ON_THE_BORDER / min(min(each) for each in right.values()))


def test_the_command_prints_the_end_of_the_run_it_keeps(trained, golden):
    folder, told = trained("update")
    run = mppfl.load_run(folder / "out" / "mppfl")
    assert told["name"] == "update"
    assert told["folder"] == str(folder / "out")
    (row,) = told["runs"]
    assert row["final_accuracy"] == run.final_accuracy
    assert row["best_accuracy"] == run.best_accuracy
    assert row["final_loss"] == run.final_loss
    golden.check(
        {
            "run": [row["name"], row["mechanism"], row["aggregation"]],
            "clients": row["num_clients"],
            "rounds": row["num_rounds"],
            "payments": row["payments"],
            "server cost": row["server_cost"],
            "welfare": row["welfare"],
            "epsilon": row["dp_epsilon"],
            "median spent": row["median_spent"],
            "exposure": [row["least_exposed"], row["most_exposed"]],
            "simulation": row["simulation"],
            "notes": row["notes"],
        },
        relative=ACCOUNTS,
    )


def test_a_run_is_a_folder_of_these_files_whose_tables_say_what_the_run_says(trained, golden):
    folder, _ = trained("update")
    run, place = mppfl.load_run(folder / "out" / "mppfl"), folder / "out" / "mppfl"

    def table(name):
        with (place / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    rounds, clients, edges = table("rounds.csv"), table("clients.csv"), table("edges.csv")
    assert [float(row["loss"]) for row in rounds] == run.history.rounds["loss"].tolist()
    assert [float(row["accuracy"]) for row in rounds] == run.history.rounds["accuracy"].tolist()
    assert [float(row["spent"]) for row in clients] == run.accounts.spent.tolist()
    for name in ("budgets", "payments"):
        rows = [[float(row[client]) for client in run.names] for row in table(f"{name}.csv")]
        assert rows == run.history.clients[name].tolist()
    with np.load(place / "weights.npz") as file:
        assert file["weights"].tobytes() == run.weights.tobytes()
    golden.check(
        {
            "files": files_in(folder / "out"),
            "of a round": list(rounds[0]),
            "of a client": list(clients[0]),
            "edges": [[row["source"], row["target"], float(row["weight"])] for row in edges],
        }
    )


def test_six_mechanisms_of_the_game_train_side_by_side_and_are_told_in_words(tmp_path, golden):
    experiment = write_experiment(tmp_path, "update")
    text = experiment.read_text(encoding="utf-8").replace('mechanism = "mppfl"', ALL_MECHANISMS)
    experiment.write_text(text, encoding="utf-8")
    small = ("--set", "training.model=softmax", "--set", "protection.clip_norm=0.5", "--set", "game.num_rounds=2")
    told = command("train", experiment, "--output", "out", *small, cwd=tmp_path)
    runs = [mppfl.load_run(folder) for folder in sorted((tmp_path / "out").iterdir()) if folder.is_dir()]
    assert len(runs) == 6
    shown = re.compile(r"(round.*)accuracy.*(reward rate.*largest ε +\S+)")
    progress = [shown.search(line).groups() for line in told.stderr.splitlines()]
    golden.check(
        {
            "runs": {run.mechanism: of_the_game(run) for run in runs},
            "words beside the table": [line for line in told.stdout.splitlines() if re.match(r"[\w ]+: ", line)],
            "progress": [[re.sub(r" +", " ", part) for part in parts] for parts in progress],
        },
        relative=ACCOUNTS,
    )
    beside(golden, "trained").check({run.mechanism: of_the_training(run) for run in runs}, relative=FLOAT32)


def test_values_given_on_the_command_line_replace_those_of_the_file(tmp_path, golden):
    experiment = write_experiment(tmp_path, "update")
    changes = {
        "seed": "8",
        "mechanism": "social_agnostic",
        "game.num_clients": "4",
        "game.family": "watts_strogatz",
        "game.neighbours": "2",
        "game.num_rounds": "2",
        "data.split": "dirichlet",
        "protection.clip_norm": "0.75",
        "training.aggregation": "uniform",
        "training.evaluate_every": "2",
        "training.precision": "float64",
    }
    options = [word for place, value in changes.items() for word in ("--set", f"{place}={value}")]
    command("train", experiment, "--output", tmp_path / "out", "--quiet", *options)
    run = mppfl.load_run(tmp_path / "out" / "social_agnostic")
    golden.check({"game": of_the_game(run), "training": of_the_training(run)}, relative=1e-6)
    with pytest.raises(mppfl.MppflError, match=r"'protection\.clip_nrom' is not known\. Did you mean 'clip_norm'\?"):
        mppfl.read_experiment(experiment, ["protection.clip_nrom=1"])


def test_a_stopped_training_goes_on_to_the_same_end_bit_for_bit(trained, tmp_path, golden):
    folder, _ = trained("update")
    experiment = write_experiment(tmp_path, "update")

    def stop_after_the_second_round(records):
        if records["mppfl"].round_index == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mppfl.run_experiment(
            mppfl.read_experiment(experiment), folder=tmp_path / "out", on_round=stop_after_the_second_round
        )
    stopped = files_in(tmp_path / "out")
    command("train", experiment, "--output", tmp_path / "out", "--resume", "--quiet")
    whole, resumed = (mppfl.load_run(each / "out" / "mppfl") for each in (folder, tmp_path))
    assert resumed.weights.tobytes() == whole.weights.tobytes()
    assert of_the_game(resumed) == of_the_game(whole)
    assert of_the_training(resumed) == of_the_training(whole)
    golden.check({"files when stopped": stopped, "rounds": resumed.num_rounds})


def test_what_a_folder_holds_is_replaced_or_resumed_only_as_it_may_be(trained, golden):
    folder, _ = trained("steps")
    line = ("train", folder / "steps.toml", "--output", folder / "out", "--quiet")
    before = {path: (folder / "out" / path).read_bytes() for path in files_in(folder / "out")}
    told = command(*line, code=1).stderr
    changed = mppfl.read_experiment(line[1], ["training.learning_rate=0.4"])
    with pytest.raises(mppfl.MppflError, match="holds another experiment") as refused:
        mppfl.run_experiment(changed, folder=folder / "out", resume=True)
    with pytest.raises(mppfl.MppflError, match="holds no training to resume"):
        mppfl.run_experiment(mppfl.read_experiment(line[1]), folder=folder / "nothing", resume=True)
    assert "Choose one of them" in command(*line, "--resume", "--overwrite", code=2).stderr
    assert {path: (folder / "out" / path).read_bytes() for path in files_in(folder / "out")} == before
    command(*line, "--overwrite", "--set", "game.num_rounds=1")
    assert mppfl.load_run(folder / "out" / "mppfl").num_rounds == 1
    golden.check([each.replace(str(folder), "FOLDER") for each in (told, str(refused.value))])


def parts(kind, text):
    """What stands between the tags of that kind."""
    return re.findall(rf"(?s)<{kind}\b[^>]*>(.*?)</{kind}>", text)


def words(text):
    return unescape(re.sub(r"<[^>]+>", "", text))


def tables_in(page):
    """The tables of a page as rows of texts."""
    tables = [parts("tr", table) for table in parts("table", page)]
    return [[[words(cell) for cell in parts("t[hd]", row)] for row in rows] for rows in tables]


def test_the_report_is_one_page_with_the_figures_of_the_runs(trained, tmp_path, golden):
    folders = [trained(name)[0] / "out" for name in ("update", "gradient")]
    told = json_of("report", *folders, "--output", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert told["path"] == str(tmp_path / "page.html")
    assert told["bytes"] == len(page.encode())
    assert "http://" not in page.replace("http://www.w3.org", "")
    glance, *others = tables_in(page)
    kept = [at for at, heading in enumerate(glance[0]) if "accuracy" not in heading and heading != "seconds"]
    for folder, row in zip(folders, glance[1:], strict=True):
        accuracy = dict(zip(glance[0], row, strict=True))["final accuracy"]
        assert accuracy == f"{100 * mppfl.load_run(folder / 'mppfl').final_accuracy:.1f} %"
    golden.check(
        {
            "runs": told["runs"],
            "title": re.search(r"<title>(.*?)</title>", page)[1],
            "headings": [words(heading).strip() for heading in parts("h[1-4]", page)],
            "charts": sorted(set(re.findall(r'data-chart="([^"]+)"', page))),
            "at a glance": [[row[at] for at in kept] for row in glance],
            "tables": others,
        }
    )


def test_the_ten_lines_solve_split_and_train(golden):
    rng = np.random.default_rng(0)
    graph = mppfl.random_graph("erdos_renyi", 6, rng=rng)
    game = mppfl.make_game(graph, mppfl.draw_clients("paper-like", 6, rng))
    found = mppfl.solve(game, "mppfl", num_rounds=3)
    data = mppfl.split_dataset(mppfl.load_dataset("digits"), "iid", 6, rng=rng)
    config = mppfl.TrainingConfig(learning_rate=0.5, protection={"total_epsilon": 8.0})
    model = mppfl.make_model("mlp", data.input_shape, 10, hidden=(12,))
    records = list(mppfl.train_rounds(model, data, found.plan, config))
    golden.check(
        plain(
            {
                "examples": data.num_examples,
                "rounds": [record.round_index for record in records],
                "reward rates": [record.reward_rate for record in records],
                "budgets": [record.budgets for record in records],
                "payments": [record.payments for record in records],
                "spent": [record.spent for record in records],
                "epsilon": [record.dp_epsilon for record in records],
            }
        ),
        relative=ACCOUNTS,
    )
    beside(golden, "trained").check(
        plain(
            {
                "loss": [record.loss for record in records],
                "length of updates": [record.update_norm for record in records],
                "noise": [record.noise_std for record in records],
                "weights of clients": [record.theta for record in records],
                "model": lengths(records[-1].weights),
            }
        ),
        relative=FLOAT32,
    )
    right = [round(364 * record.accuracy) for record in records]
    beside(golden, "right").check(right, relative=ON_THE_BORDER / min(right))


def test_a_run_is_read_and_reported_from_python_as_from_the_command_line(trained, tmp_path):
    folder, _ = trained("update")
    mppfl.write_report([mppfl.load_run(folder / "out" / "mppfl")], tmp_path / "python.html")
    command("report", folder / "out", "--output", tmp_path / "command.html")
    assert (tmp_path / "python.html").read_bytes() == (tmp_path / "command.html").read_bytes()
