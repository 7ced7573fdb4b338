"""The app that `deploy init` writes, run inside one process: the same file, the same model."""

import runpy
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from mppfl import flower
from mppfl.errors import BadInput, MppflError
from mppfl.experiment import read_experiment, run_experiment
from tests.flower.federation import FakeGrid, terms
from tests.tolerances import assert_float32_close

CLIENT = 'unit = "client"'
STEPS = 'release = "steps"'
SHUFFLED = f'{STEPS}\nbatches = "shuffled"'
EXPERIMENT = """
name = "small"
mechanism = "{mechanism}"
[game]
num_clients = 4
num_rounds = 3
[data]
name = "digits"
[training]
model = "{model}"
hidden = [8]
learning_rate = 0.2
momentum = 0.5
batch_size = 40
local_epochs = 1
num_steps = 2
aggregation = "{aggregation}"
server_optimizer = "{optimizer}"
average_rounds = {average}
precision = "{precision}"
[protection]
clip_norm = 0.5
noise = "gaussian"
{protection}
[ledger]
{cap}
"""


def app_with(folder, **changes):
    """The app of `deploy init` with another experiment in it."""
    base = {"mechanism": "noiseless", "model": "mlp", "protection": CLIENT, "aggregation": "num_examples",
            "optimizer": "sgd", "average": 0, "precision": "float32", "cap": ""}  # fmt: skip
    flower.write_app(folder, 4, 3)
    (folder / "experiment.toml").write_text(EXPERIMENT.format(**(base | changes)))
    return flower.Layout(folder)


def served(layout, alter=None):
    """Runs the app's server and clients in this process."""
    experiment = flower.deployed_experiment(layout.experiment)
    clients = flower.make_nodes(layout, experiment)
    configs = {200 + k: {"mppfl-node": str(layout.node(k) / "node.toml")} for k in range(len(clients))}
    grid = FakeGrid(dict.fromkeys(configs, flower.experiment_client()), node_config=configs, alter=alter or {})
    given = {"experiment": str(layout.experiment), "state": str(layout.server), "keys": "", "wait-seconds": 1}
    flower.experiment_server()(grid, Context(7, 1, {}, RecordDict(), given))
    return flower.ServerFolder(layout.server).state()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"protection": SHUFFLED, "model": "softmax", "optimizer": "momentum"},
        {"protection": "", "model": "softmax"},
        {"aggregation": "noise_aware", "optimizer": "adam", "average": 2},
        {"precision": "float64"},
    ],
)
def test_with_noise_off_the_same_file_gives_the_same_model_in_process_and_on_flower(tmp_path, changes):
    layout = app_with(tmp_path / "app", **changes)
    state = served(layout)
    (run,) = run_experiment(read_experiment(layout.experiment))
    assert state.rounds_done == run.num_rounds == 3
    assert_float32_close(state.handed_out, run.weights, 1 if "precision" in changes else 200)
    assert np.abs(run.weights).max() > 0.01


def test_the_apps_server_weighs_clients_by_the_split_and_not_by_what_they_declare(tmp_path):
    def boasting(reply):
        if flower.REPORT in reply.content:
            reply.content[flower.REPORT]["num_examples"] = 2**52
        return reply

    layout = app_with(tmp_path / "app", model="softmax")
    served(layout, {201: boasting})
    clients = flower.status_of(layout.app).clients
    assert [(client.paid, client.rejected) for client in clients] == [(3, 0), (0, 3), (3, 0), (3, 0)]


def asked_of(app, settings, experiment, **change):
    """What an app's client answers under the terms of this experiment, on a machine with these settings."""
    side = flower.client_side(flower.deployed_experiment(experiment), "0")
    base = {"client": "0", "budget": 1e-6, "clip_norm": 0.5, "num_steps": 2, "batch_size": 40}
    arrays = flower.to_arrays(side.model, flower.first_model(side.model, side.config))
    content = RecordDict({"arrays": arrays, "config": flower.with_terms({}, terms(**(base | change)))})
    on_the_server = {"experiment": "/srv/fed/experiment.toml", "state": "/srv/fed/server"}
    context = Context(7, 11, {"mppfl-node": str(settings)}, RecordDict(), on_the_server)
    return app(Message(content, 11, "train"), context)


RECORD = {"unit": "record", "release": "gradient"}


@pytest.mark.parametrize(("own", "offered"), [(CLIENT, {}), ("", RECORD)])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"unit": "record", "release": "steps"}, "protection not accepted"),
        ({"unit": "record", "release": "steps", "batches": "shuffled"}, "protection not accepted"),
        ({"unit": "record", "release": "update"}, "unknown protection"),
        ({"adjacency": "zero_out"}, "terms of another training"),
        ({"clip_norm": 0.6}, "terms of another training"),
        ({"noise": "discrete"}, "terms of another training"),
        ({"local_epochs": 2}, "terms of another training"),
        ({"num_steps": 3}, "terms of another training"),
        ({"batch_size": 41}, "terms of another training"),
    ],
)
def test_the_apps_client_trains_for_no_other_terms_than_its_own_experiments(tmp_path, own, offered, change, reason):
    layout = app_with(tmp_path / "app", mechanism="mppfl", protection=own, model="softmax")
    flower.make_nodes(layout, flower.deployed_experiment(layout.experiment))
    settings = layout.node(0) / "node.toml"
    settings.write_text(replace(flower.read_node(settings), accept=flower.RELEASES).to_toml())
    reply = asked_of(flower.experiment_client(), settings, layout.experiment, **(offered | change))
    report = flower.report_in(reply.content)
    assert (report.reason, report.budget) == (reason, 0.0 if reason else 1e-6)
    assert ("arrays" in reply.content) == (not reason)


def test_a_client_on_a_machine_of_its_own_trains_by_the_experiment_that_the_app_brings_along(tmp_path):
    layout = app_with(tmp_path / "app", mechanism="mppfl", model="softmax")
    names = runpy.run_path(str(layout.app / "federation" / "client_app.py"))
    settings = tmp_path / "node.toml"
    settings.write_text('client = "0"\nledger = "ledger.sqlite"\naccept = ["update"]\n')
    reply = asked_of(names["app"], settings, layout.experiment)
    assert flower.report_in(reply.content).outcome == "released"


@pytest.mark.parametrize(
    ("own", "said"),
    [("", "has no experiment file"), ('experiment = "mine.toml"', r"cannot train: .*mine\.toml: cannot")],
)
def test_a_client_without_its_experiment_is_told_what_to_set(tmp_path, own, said):
    settings = tmp_path / "node.toml"
    settings.write_text(f'client = "0"\nledger = "ledger.sqlite"\n{own}\n')
    context = Context(7, 11, {"mppfl-node": str(settings)}, RecordDict(), {"experiment": "/srv/fed/experiment.toml"})
    with pytest.raises(BadInput, match=rf"client '0' {said}.* write into node\.toml: experiment = "):
        flower.side_of(context)


def test_a_run_goes_on_with_the_same_data_and_one_mechanism_only(tmp_path):
    layout = app_with(tmp_path / "app", model="softmax")
    served(layout)
    assert served(layout).rounds_done == 3  # unchanged, it is the same run
    text = layout.experiment.read_text()
    for changed in ('split = "dirichlet"', "seed = 7", "uneven = 0.5"):
        layout.experiment.write_text(text.replace('name = "digits"', f'name = "digits"\n{changed}'))
        with pytest.raises(BadInput, match=r"holds run .* other data"):
            served(layout)
    layout.experiment.write_text(text.replace('mechanism = "noiseless"', 'mechanisms = ["mppfl", "random"]'))
    with pytest.raises(MppflError, match="in each of 2 trainings"):
        served(layout)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("local {folder}/none", "mppfl deploy init"),
        ("status {folder}/none", "mppfl deploy init"),
        ("resume {folder}/app", "nothing has been run there yet"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(mppfl, tmp_path, line, said):
    app_with(tmp_path / "app")
    assert said in mppfl("deploy", *line.format(folder=tmp_path).split()).error
