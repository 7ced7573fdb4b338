"""The folder of a deployment: what is changed or moved is noticed before anybody spends anything."""

import shutil

import pytest

from mppfl.apps.flower.experiment_case import deployed_experiment
from mppfl.apps.flower.layout import Layout, make_nodes, write_app
from mppfl.apps.flower.node import read_node
from mppfl.errors import BadFile, BadInput


def made(folder):
    write_app(folder, 2, 2)
    layout = Layout(folder)
    make_nodes(layout, deployed_experiment(layout.experiment))
    return layout


def made_again(layout):
    return make_nodes(layout, deployed_experiment(layout.experiment))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("cap = 1.0", "cap = 2.0", "cap=1.0, .*cap=2.0"),
        ("cap = 1.0", "", "cap=1.0, .*cap=none"),
        ("cap = 1.0", 'caps = { "1" = 0.5 }\ncap = 1.0', "nodes/1/node.toml has cap=1.0, .*cap=0.5"),
        ('privacy = "full_batch"', 'privacy = "client"', r"accept=\['full_batch'\], .*accept=\['client'\]"),
        ('mechanism = "mppfl"', 'mechanism = "noiseless"', "without_noise=False, .*without_noise=True"),
    ],
)
def test_an_experiment_that_was_changed_is_not_run_with_nodes_that_go_by_the_old_one(tmp_path, before, after, said):
    layout = made(tmp_path / "app")
    text = layout.experiment.read_text()
    assert before in text
    layout.experiment.write_text(text.replace(before, after))
    with pytest.raises(BadInput, match=said) as found:
        made_again(layout)
    assert str(tmp_path / "app") in str(found.value)
    assert "\n" not in str(found.value)


def test_what_a_client_adds_of_its_own_is_left_to_it(tmp_path):
    layout = made(tmp_path / "app")
    settings = layout.node(0) / "node.toml"
    settings.write_text(settings.read_text() + "cap_per_round = 0.1\nquadratic_cost = 2.0\n")
    assert made_again(layout) == ["0", "1"]


def test_a_deployment_that_is_moved_takes_its_ledgers_and_its_experiment_with_it(tmp_path):
    layout = made(tmp_path / "app")
    assert str(tmp_path) not in (layout.node(1) / "node.toml").read_text()
    shutil.move(tmp_path / "app", tmp_path / "elsewhere")
    moved = Layout(tmp_path / "elsewhere")
    assert made_again(moved) == ["0", "1"]
    node = read_node(moved.node(1) / "node.toml")
    assert node.ledger == moved.node(1) / "ledger.sqlite"
    assert node.experiment.resolve() == moved.experiment.resolve()


@pytest.mark.parametrize("name", ["ledger", "experiment"])
def test_settings_that_lead_into_another_folder_are_refused(tmp_path, name):
    layout = made(tmp_path / "app")
    settings = layout.node(1) / "node.toml"
    other = tmp_path / "other" / {"ledger": "ledger.sqlite", "experiment": "experiment.toml"}[name]
    kept = [line for line in settings.read_text().splitlines() if not line.startswith(f"{name} =")]
    settings.write_text("\n".join([*kept, f'{name} = "{other}"']))
    with pytest.raises(BadInput, match=f"nodes/1/node.toml has {name}={other}, which is not in this deployment"):
        made_again(layout)


def test_absolute_paths_into_this_very_folder_are_fine(tmp_path):
    layout = made(tmp_path / "app")
    settings = layout.node(1) / "node.toml"
    settings.write_text(settings.read_text().replace('"ledger.sqlite"', f'"{layout.node(1) / "ledger.sqlite"}"'))
    assert made_again(layout) == ["0", "1"]


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"0": 1}', b'{"0": "\xff"}'])
def test_damaged_keys_are_told_with_their_file(tmp_path, content):
    layout = made(tmp_path / "app")
    layout.keys.write_bytes(content)
    with pytest.raises(BadFile, match=r"keys\.json: .*Restore a copy"):
        made_again(layout)
