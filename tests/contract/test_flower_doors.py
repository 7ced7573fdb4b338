"""Deployments on Flower: the app that is written, and rounds run inside one process with Flower's own messages."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.contract.doors import FLOAT32, Golden, command, json_of
from tests.flower.conftest import _a_task, _no_calls_home  # noqa: F401  (fixtures)

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'mppfl[flower]'")


def lengths(weights):
    """A model as its length and that of each quarter of it."""
    quarters = np.array_split(np.asarray(weights, dtype=np.float64), 4)
    return [len(weights), *(float(np.linalg.norm(each)) for each in quarters)]


def booked(entries):
    """What a server's book holds of every client and round."""
    return [
        [
            each.round_index,
            each.client,
            each.state,
            each.price,
            float(each.game_budget),
            float(each.budget),
            each.amount,
        ]
        for each in sorted(entries, key=lambda entry: (entry.round_index, entry.client))
    ]


def standing(told):
    """Where a deployment stands, without the name of the run, which is drawn."""
    counts = ("paid", "refused", "rejected", "lost", "asked")
    return {
        "rounds": [told["rounds_done"], told["num_rounds"]],
        "clients": [
            [each["client"], each["spent"], each["owed"], *(each[name] for name in counts)] for each in told["clients"]
        ],
        "owed": told["owed"],
        "differences": told["differences"],
        "ledgers read": told["ledgers_read"],
        "sound": told["is_sound"],
        "running": told["running"],
    }


def releases(layout, count=4):
    """How many releases each node's own ledger holds, and what they cost."""
    from mppfl import PrivacyLedger

    found = []
    for at in range(count):
        with PrivacyLedger.open(layout.node(at) / "ledger.sqlite", read_only=True) as ledger:
            found.append([[event["round_index"], event["protection"], event["budget"]] for event in ledger.events()])
    return found


def test_init_writes_an_app_of_these_files_which_has_no_status_yet(tmp_path, golden):
    told = json_of("deploy", "init", "app", "--nodes", 3, "--rounds", 2, cwd=tmp_path)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(told["files"]) == files
    status = command("deploy", "status", "app", cwd=tmp_path, code=1)
    assert "nothing has been run there yet" in status.stderr
    again = command("deploy", "init", "app", cwd=tmp_path, code=1)
    assert "exists already" in again.stderr
    golden.check({"files": files, "experiment": (tmp_path / "app" / "experiment.toml").read_text(encoding="utf-8")})


@pytest.mark.parametrize("name", ["plain", "noise_aware"])
def test_with_noise_off_an_app_reaches_the_same_model(tmp_path, golden, name):
    from tests.flower.test_experiment_app import STEPS, app_with, served

    changes = {
        "plain": {"protection": STEPS, "model": "softmax", "optimizer": "momentum"},
        "noise_aware": {"aggregation": "noise_aware", "optimizer": "adam", "average": 2},
    }
    layout = app_with(tmp_path / "app", **changes[name])
    state = served(layout)
    golden.check({"rounds": state.rounds_done, "model": lengths(state.handed_out)}, relative=FLOAT32)
    told = json_of("deploy", "status", layout.app)
    assert told["is_sound"] is True
    infinite = [[cost for _, _, cost in events] for events in releases(layout)]
    assert infinite == [[math.inf] * 3] * 4


@pytest.mark.parametrize("unit", ["client", "record"])
def test_with_noise_everybody_spends_and_is_paid_what_the_plan_says(tmp_path, golden, unit):
    from mppfl.flower import Accounts, ServerFolder
    from tests.flower.test_experiment_app import app_with, served

    layout = app_with(
        tmp_path / "app",
        mechanism="mppfl",
        protection=f'unit = "{unit}"\ntotal_epsilon = 3.0',
        model="softmax",
        cap='cap = 5.0\ncaps = { "2" = 1e-9 }',
    )
    served(layout)
    with Accounts.open(ServerFolder(layout.server).accounts, read_only=True) as accounts:
        entries, owed = accounts.entries(), accounts.owed()
    told = json_of("deploy", "status", layout.app, "--payments", tmp_path / "payments.csv")
    rows = (tmp_path / "payments.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + len(entries)
    golden.check(
        {
            "book": booked(entries),
            "owed": owed,
            "status": standing(told),
            "releases": releases(layout),
            "columns of payments": rows[0],
        },
        relative=1e-9,
    )


def test_one_round_of_a_strategy_and_three_clients_by_hand(tmp_path, golden):
    from mppfl.flower import vector_of
    from tests.flower.federation import moved
    from tests.flower.test_priced_fedavg import CLIENTS, Federation

    steps = {"ann": 0.1, "bob": 0.2, "cat": 100.0}
    train = {name: (lambda record, by=by: moved(record, by)) for name, by in steps.items()}
    settings = {name: {"without_noise": True} for name in CLIENTS}
    (tmp_path / "off").mkdir()
    (tmp_path / "on").mkdir()
    noiseless = Federation(tmp_path / "off", budgets=(np.inf,) * 3, num_rounds=1, settings=settings, train=train)
    model = vector_of(noiseless.run().arrays)
    noisy = Federation(tmp_path / "on", budgets=(0.5, 0.0, 2.0), num_rounds=2, settings={"cat": {"cap": 3.0}})
    noisy.run()
    golden.check(
        {
            "book without noise": booked(noiseless.entries()),
            "owed without noise": noiseless.owed(),
            "book": booked(noisy.entries()),
            "reasons": noisy.reasons(),
            "owed": noisy.owed(),
            "differences": noisy.differences(),
        }
    )
    Golden(f"{golden.path.stem}-model").check(model.tolist(), relative=1e-5)
