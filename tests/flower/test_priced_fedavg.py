"""The server's strategy: own terms for each client, checks, payments, and a state that survives."""

import io
import math
from collections import OrderedDict

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from mppfl.errors import BadFile, BadInput, MppflError
from mppfl.flower import (
    REPORT,
    WHO,
    Accounts,
    NodeSettings,
    PricedFedAvg,
    Registry,
    differences_from_ledgers,
    make_node_key,
    pem_of,
    terms_in,
    vector_of,
)
from mppfl.privacy.ledger import PrivacyLedger
from tests.flower.federation import FakeGrid, arrays, config_of, moved, plan_of, private_app
from tests.homes import home

CLIENTS = ("ann", "bob", "cat")
MODEL = arrays(0.0, 0.0, 0.0, 0.0)


class Federation:
    """Three clients at nodes 101, 102, 103, in a folder."""

    def __init__(self, folder, budgets=(0.5, 1.0, 2.0), num_rounds=3, settings=None, train=None, **changes):
        self.folder, self.plan, self.config = folder, plan_of(budgets, num_rounds), config_of(**changes)
        self.nodes = {
            name: NodeSettings(name, folder / f"{name}.sqlite", **(settings or {}).get(name, {})) for name in CLIENTS
        }
        apps = {101 + at: private_app(self.nodes[name], (train or {}).get(name)) for at, name in enumerate(CLIENTS)}
        self.grid = FakeGrid(apps)

    def strategy(self, **more):
        return PricedFedAvg(self.plan, CLIENTS, self.config, folder=self.folder / "server", wait_seconds=0.1, **more)

    def run(self, num_rounds=0, **more):
        return self.strategy(**more).start(self.grid, MODEL, num_rounds, timeout=1)

    def entries(self):
        with Accounts.open(self.folder / "server" / "accounts.sqlite", read_only=True) as accounts:
            return accounts.entries()

    def states(self, round_index):
        return {entry.client: entry.state for entry in self.entries() if entry.round_index == round_index}

    def reasons(self):
        return {entry.client: entry.reason for entry in self.entries() if entry.reason}

    def owed(self):
        with Accounts.open(self.folder / "server" / "accounts.sqlite", read_only=True) as accounts:
            return accounts.owed()

    def differences(self):
        run = self.entries()[0].run
        return differences_from_ledgers(self.entries(), {name: node.ledger for name, node in self.nodes.items()}, run)


def test_every_client_gets_its_own_terms_in_a_record_of_its_own(tmp_path):
    federation = Federation(tmp_path)
    federation.run(1)
    asked = [message for message in federation.grid.sent if WHO not in message.content]
    terms = {message.metadata.dst_node_id: terms_in(message.content) for message in asked}
    assert {node: (each.client, each.budget, each.pays) for node, each in terms.items()} == {
        101: ("ann", 0.5, 1.0),
        102: ("bob", 1.0, 2.0),
        103: ("cat", 2.0, 4.0),
    }


def test_identity_follows_the_declared_name_whatever_the_node_ids_and_their_order(tmp_path):
    federation = Federation(tmp_path)
    federation.run(1)
    federation.grid.apps = {900 - at: app for at, app in enumerate(federation.grid.apps.values())}
    federation.run(1)
    assert federation.states(2) == dict.fromkeys(CLIENTS, "paid")
    assert federation.differences() == []


def test_a_whole_run_ends_with_accounts_that_agree_to_the_last_bit(tmp_path):
    federation = Federation(tmp_path, budgets=(0.1, 0.7, 1.3), num_rounds=5)
    federation.run()
    with Accounts.open(tmp_path / "server" / "accounts.sqlite", read_only=True) as accounts:
        booked = accounts.spent()
    for name, node in federation.nodes.items():
        with PrivacyLedger.open(node.ledger) as ledger:
            assert booked[name] == ledger.spent(name)
            ledger.verify()
    assert federation.differences() == []
    assert federation.owed() == pytest.approx({"ann": 1.0, "bob": 7.0, "cat": 13.0})


def test_without_noise_the_mean_of_the_clipped_updates_is_added_to_the_model(tmp_path):
    settings = {name: {"without_noise": True} for name in CLIENTS}
    steps = {"ann": 0.1, "bob": 0.2, "cat": 100.0}  # the last is clipped to length 1: ½ in each of four entries
    train = {name: (lambda record, by=by: moved(record, by)) for name, by in steps.items()}
    federation = Federation(tmp_path, budgets=(np.inf,) * 3, num_rounds=2, settings=settings, train=train)
    found = federation.run()
    assert vector_of(found.arrays) == pytest.approx(np.full(4, 2 * (0.1 + 0.2 + 0.5) / 3), rel=1e-6)
    assert federation.owed() == dict.fromkeys(CLIENTS, 0.0)


@pytest.mark.parametrize(
    ("trouble", "timeout", "reason"),
    [
        ("dead", 1, "Node Unavailable"),  # the error comes from the SuperLink, not from the node
        ("silent", 1, "no answer in time"),
        ("restarted", math.inf, "no answer in time"),  # the node came back between two looks, the message did not
    ],
)
def test_a_node_that_fails_in_a_round_is_lost_and_named_and_the_others_go_on(
    tmp_path, monkeypatch, trouble, timeout, reason
):
    monkeypatch.setattr(PricedFedAvg, "poll_seconds", 0.01)
    monkeypatch.setattr(PricedFedAvg, "look_seconds", 0.02)
    federation = Federation(tmp_path)
    strategy = federation.strategy()
    strategy.attendance.here(federation.grid, 1)  # every node has given its name when one fails
    federation.grid.trouble[102] = trouble
    strategy.start(federation.grid, MODEL, 1, timeout=timeout)
    assert federation.states(1) == {"ann": "paid", "bob": "lost", "cat": "paid"}
    assert reason in federation.reasons()["bob"]
    (difference,) = federation.differences()  # the server presumes what the client did not spend
    assert (difference.client, difference.is_harmless) == ("bob", True)


def test_a_refusal_is_booked_as_nothing_spent_and_nothing_paid(tmp_path):
    federation = Federation(tmp_path, settings={"cat": {"cap": 3.0}})  # 2 in the first round, 4 would be too much
    federation.run(2)
    assert [federation.states(at)["cat"] for at in (1, 2)] == ["paid", "refused"]
    assert federation.reasons() == {"cat": "over the cap"}
    assert federation.differences() == []


def altered(**changes):
    def alter(reply):
        if REPORT in reply.content:
            for name, value in changes.items():
                reply.content[REPORT][name] = value
        return reply

    return alter


def with_arrays(record):
    def alter(reply):
        if REPORT in reply.content:
            reply.content["arrays"] = record if isinstance(record, ArrayRecord) else record(reply.content["arrays"])
        return reply

    return alter


def without(name):
    def alter(reply):
        if REPORT in reply.content:
            del reply.content[name]
        return reply

    return alter


def saved(values, save=np.save):
    file = io.BytesIO()
    save(file, values)
    return file.getvalue()


def holding(data, stype="numpy.ndarray"):
    """An upload whose first array declares what it should, two numbers of float32, and holds these bytes."""
    return with_arrays(
        lambda record: ArrayRecord(OrderedDict(first=Array("float32", (2,), stype, data), rest=record["rest"]))
    )


ENDLESS = saved(np.zeros(2, np.float32)).replace(b"(2,), }" + b" " * 12, b"(10000000000000,), }")[:-8]


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (holding(b"garbage"), "'first' cannot be read"),
        (holding(b""), "'first' cannot be read"),
        (holding(saved(np.zeros(2, np.float32)), stype="torch"), "'first' cannot be read"),
        (holding(saved(np.array([None, 1], dtype=object))), "'first' cannot be read"),
        (holding(ENDLESS), "'first' cannot be read"),
        (holding(saved(np.zeros(2, np.float32), np.savez)), "'first' holds no array"),
        (holding(saved(np.zeros(100_000, np.float32))), "'first' holds float32 (100000,), not float32 (2,)"),
        (holding(saved(np.zeros(1, np.float32))), "'first' holds float32 (1,)"),
        (holding(saved(np.zeros(2, np.float64))), "'first' holds float64 (2,)"),
        (holding(saved(np.zeros(2, ">f4"))), "'first' holds >f4 (2,)"),
        (with_arrays(lambda record: moved(record, np.nan)), "NaN or infinite"),
        (with_arrays(arrays(1.0, 2.0, 3.0)), "wrong form"),
        (with_arrays(arrays(1.0, 2.0, 3.0, 4.0, dtype=np.float64)), "wrong form"),
        (with_arrays(lambda record: moved(record, 1000.0)), "an honest one exceeds"),
        (altered(budget=0.9), "says it cost 0.9, and 1 was asked for"),
        (altered(round_index=2), "is for round 2"),
        (altered(run="another"), "is for round 1 of 'another'"),
        (altered(num_examples=0), "declares 0 examples"),
        (altered(num_examples=-(2**60)), "declares"),
        (altered(client="ann"), "declares to be 'ann', and its key is that of 'bob'"),
        (altered(model="0" * 64), "another model"),
        (altered(outcome="perhaps"), "neither 'released' nor 'refused'"),
        (altered(budget="0.5"), "must be float"),
        (altered(run_spent=float("nan")), "must be float"),
        (without("arrays"), "has no arrays in it"),
        (without(REPORT), "has no report"),
    ],
)
def test_an_upload_that_cannot_be_honest_is_rejected_and_named_and_not_paid_and_the_round_goes_on(
    tmp_path, alter, said
):
    federation = Federation(tmp_path)
    federation.grid.alter[102] = alter
    found = federation.run(1)
    assert federation.states(1) == {"ann": "paid", "bob": "rejected", "cat": "paid"}
    assert said in federation.reasons()["bob"]
    assert federation.owed()["bob"] == 0.0
    assert np.isfinite(vector_of(found.arrays)).all()


def test_a_client_weighs_what_the_server_knows_it_has_and_not_what_it_declares(tmp_path):
    federation = Federation(tmp_path, aggregation="num_examples")
    federation.grid.alter[102] = altered(num_examples=2**52)
    federation.run(1, num_examples=dict.fromkeys(CLIENTS, 10))
    assert federation.states(1) == {"ann": "paid", "bob": "rejected", "cat": "paid"}
    assert federation.reasons() == {"bob": f"declares {2**52} examples, and the server knows of 10"}


def test_a_client_that_declares_another_size_than_before_is_rejected_also_after_a_restart(tmp_path):
    federation = Federation(tmp_path, aggregation="num_examples")
    federation.run(1)
    federation.grid.alter[102] = altered(num_examples=2**52)
    federation.run(1)
    federation.grid.alter[102] = altered(num_examples=10)
    federation.run(1)
    assert [federation.states(at)["bob"] for at in (1, 2, 3)] == ["paid", "rejected", "paid"]
    assert federation.reasons() == {"bob": f"declares {2**52} examples, and declared 10 before"}


@pytest.mark.parametrize(
    ("sizes", "said"), [({"ann": 1, "bob": 1}, "no number for client 'cat'"), (dict.fromkeys(CLIENTS, 0), "'ann'")]
)
def test_sizes_that_the_server_cannot_know_are_refused_in_one_line(tmp_path, sizes, said):
    with pytest.raises(BadInput, match=said):
        Federation(tmp_path).strategy(num_examples=sizes)


def test_a_reason_that_no_book_could_hold_is_written_as_far_as_it_can_be(tmp_path):
    federation = Federation(tmp_path)
    federation.grid.alter[102] = altered(outcome="refused", reason="no\ud800", budget=0.0)
    federation.run(1)
    assert federation.states(1)["bob"] == "refused"
    assert federation.reasons() == {"bob": "no?"}


def test_a_node_that_declares_a_name_that_is_no_text_is_left_out(tmp_path):
    federation = Federation(tmp_path)

    def nameless(reply):
        if WHO in reply.content:
            reply.content[WHO] = ConfigRecord({"client": ["bob"]})
        return reply

    federation.grid.alter[102] = nameless
    federation.run(1)
    assert set(federation.states(1)) == {"ann", "cat"}


def test_what_cannot_be_averaged_is_not_paid(tmp_path, monkeypatch):
    federation = Federation(tmp_path)

    def fails(*given):
        raise RuntimeError("no mean")

    monkeypatch.setattr(home(PricedFedAvg), "weights_of_updates", fails)
    with pytest.raises(RuntimeError, match="no mean"):
        federation.run(1)
    assert set(federation.states(1).values()) == {"asked"}


def test_a_round_in_which_nobody_releases_leaves_the_model_and_counts_as_done(tmp_path):
    federation = Federation(tmp_path, settings={name: {"cap": 0.0} for name in CLIENTS})
    federation.run(1)
    state = federation.strategy().folder.state()
    assert state.rounds_done == 1
    assert not state.weights.any()


def test_clients_with_budget_zero_are_not_asked(tmp_path):
    federation = Federation(tmp_path, budgets=(0.5, 0.0, 1.0))
    federation.run(1)
    assert set(federation.states(1)) == {"ann", "cat"}


# ---- stopping and going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "average"), [("sgd", 0), ("momentum", 0), ("adam", 0), ("sgd", 2)])
def test_stopped_after_a_round_it_goes_on_with_the_next_and_ends_where_it_would_have(tmp_path, optimizer, average):
    settings = {name: {"without_noise": True} for name in CLIENTS}
    more = {"server_optimizer": optimizer, "average_rounds": average}
    models, evaluated = [], []
    for name, stops in (("whole", (0, 0)), ("parts", (1, 1, 1))):
        (tmp_path / name).mkdir()
        federation = Federation(tmp_path / name, budgets=(np.inf,) * 3, settings=settings, **more)
        for rounds in stops:  # where nothing is left to do, the model is the same
            result = federation.strategy().start(
                federation.grid, MODEL, rounds, timeout=1, evaluate_fn=lambda at, _: evaluated.append(at)
            )
        models.append(vector_of(result.arrays).tobytes())
    assert models[0] == models[1]
    assert evaluated == [0, 1, 2, 3, 3, 0, 1, 1, 2, 2, 3]  # the evaluation gets the true numbers of rounds


class Killed(BaseException):
    """As by SIGKILL: nothing is tidied up."""


@pytest.mark.parametrize("where", ["before the answers are booked", "before the checkpoint"])
def test_killed_in_a_round_it_repeats_that_round_and_nobody_spends_or_is_paid_twice(tmp_path, where, monkeypatch):
    federation = Federation(tmp_path)
    federation.run(1)
    strategy = federation.strategy()
    broken = Accounts if where == "before the answers are booked" else type(strategy.folder)
    name = "settle" if where == "before the answers are booked" else "keep"

    def killed(self, *given):
        raise Killed

    with monkeypatch.context() as change:
        change.setattr(broken, name, killed)
        with pytest.raises(Killed):
            strategy.start(federation.grid, MODEL, timeout=1)
    sent = {node.client: ledger_events(node) for node in federation.nodes.values()}
    assert {name: len(events) for name, events in sent.items()} == dict.fromkeys(CLIENTS, 2)
    federation.run()
    for node in federation.nodes.values():
        assert [event["round_index"] for event in ledger_events(node)] == [1, 2, 3]
    assert federation.differences() == []
    assert federation.owed() == {"ann": 3.0, "bob": 6.0, "cat": 12.0}


def test_who_was_asked_before_an_interruption_and_is_gone_when_the_round_is_repeated_is_lost(tmp_path, monkeypatch):
    federation = Federation(tmp_path)

    def killed(self, *given):
        raise Killed

    with monkeypatch.context() as change:
        change.setattr(Accounts, "settle", killed)
        with pytest.raises(Killed):
            federation.run(1)
    assert set(federation.states(1).values()) == {"asked"}
    del federation.grid.apps[103]
    federation.run(1)
    assert federation.states(1) == {"ann": "paid", "bob": "paid", "cat": "lost"}
    assert "absent when the round was repeated" in federation.reasons()["cat"]


def ledger_events(node):
    with PrivacyLedger.open(node.ledger) as ledger:
        return list(ledger.events())


def test_a_second_training_with_the_same_name_is_another_run_to_every_ledger(tmp_path):
    federation = Federation(tmp_path, num_rounds=1)
    federation.run()
    first = federation.entries()[0].run
    again = PricedFedAvg(federation.plan, CLIENTS, federation.config, folder=tmp_path / "other", wait_seconds=0.1)
    again.start(federation.grid, MODEL, timeout=1)
    runs = [event["run"] for event in ledger_events(federation.nodes["ann"])]
    assert len(runs) == len(set(runs)) == 2
    assert runs[0] == first


def test_another_plan_does_not_go_on_in_the_same_folder(tmp_path):
    Federation(tmp_path).run(1)
    with pytest.raises(BadInput, match="another plan"):
        Federation(tmp_path, budgets=(9.0, 9.0, 9.0)).run()


def test_a_damaged_checkpoint_is_refused_and_nothing_is_asked(tmp_path):
    federation = Federation(tmp_path)
    federation.run(1)
    path = tmp_path / "server" / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-200])
    asked = len(federation.grid.sent)
    with pytest.raises(BadFile, match="not a whole checkpoint"):
        federation.run()
    assert len(federation.grid.sent) == asked


def test_two_servers_do_not_serve_from_one_folder(tmp_path):
    federation = Federation(tmp_path)
    with (
        federation.strategy().folder.locked(),
        pytest.raises(MppflError, match="another server"),
        federation.strategy().folder.locked(wait_seconds=0.1),
    ):
        pass


# ---- who is who -------------------------------------------------------------------------------------------------


def registered(federation, *strangers):
    """A registry of the clients' keys, which their nodes hold; and the keys of all in PEM."""
    public = {name: make_node_key(federation.folder / f"{name}.key") for name in (*CLIENTS, *strangers)}
    pem = {name: pem_of(key, name) for name, key in public.items()}
    federation.grid.keys = {101 + position: pem[name] for position, name in enumerate(CLIENTS)}
    return Registry.of_keys({name: public[name] for name in CLIENTS}), pem


def test_with_a_registry_the_key_decides_and_strangers_are_not_asked(tmp_path):
    federation = Federation(tmp_path)
    registry, pem = registered(federation, "mallory")
    federation.grid.apps[104] = federation.grid.apps[101]  # another node with ann's settings and a key of its own
    federation.grid.keys[104] = pem["mallory"]
    federation.grid.apps[105] = federation.grid.apps[101]  # and one without any key
    federation.run(1, registry=registry)
    assert {message.metadata.dst_node_id for message in federation.grid.sent} == {101, 102, 103}
    assert federation.states(1) == dict.fromkeys(CLIENTS, "paid")


def test_a_node_whose_declared_name_is_not_that_of_its_key_releases_nothing(tmp_path):
    federation = Federation(tmp_path)
    registry, _ = registered(federation)
    federation.grid.apps[102] = federation.grid.apps[101]  # bob's key, ann's settings
    federation.run(1, registry=registry)
    assert federation.states(1) == {"ann": "paid", "bob": "rejected", "cat": "paid"}
    assert federation.reasons() == {"bob": "declares to be 'ann', and its key is that of 'bob'"}
    assert len(ledger_events(federation.nodes["ann"])) == 1


def test_two_nodes_that_declare_the_same_name_are_both_left_out(tmp_path):
    federation = Federation(tmp_path)
    federation.grid.apps[104] = federation.grid.apps[101]
    federation.run(1)
    assert set(federation.states(1)) == {"bob", "cat"}


def test_a_registry_with_one_key_for_two_clients_is_refused(tmp_path):
    key = make_node_key(tmp_path / "key")
    with pytest.raises(BadInput, match="have the same key"):
        Registry.of_keys({"ann": key, "bob": key})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": "seeded"}, "seeded"),
        ({"clip_norm": "first_round_median"}, "clip_norm"),
        ({"privacy": "dpsgd_poisson"}, "dpsgd_poisson"),
    ],
)
def test_what_makes_sense_on_one_machine_only_is_refused_in_one_line(tmp_path, changes, said):
    with pytest.raises(BadInput, match=said):
        Federation(tmp_path, **changes).strategy()
