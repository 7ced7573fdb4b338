"""The public names, listed so that a change is a decision."""

import doctest
import inspect

import pytest

import mppfl

PUBLIC = [
    *("BadFile", "BadInput", "BudgetExceeded", "ClientData", "Clients", "Experiment", "Game", "GameSpec"),
    *("Horizon", "Mechanism", "MppflError", "NoEquilibrium", "NotConverged", "Outcome", "Plan", "PrivacyLedger"),
    *("Protection", "ReleaseCost", "RoundRecord", "RoundTerms", "Run", "SocialGraph", "Solution"),
    *("TrainingConfig", "TrainingJob", "client_data", "compare", "draw_clients", "exposure_sources"),
    *("graph_from_edges", "graph_from_matrix", "load_dataset", "load_plan", "load_run", "load_solution"),
    *("load_weights", "make_game", "make_model", "plan_from_rounds", "random_graph", "read_clients"),
    *("read_experiment", "read_graph", "release_updates", "respond", "run_experiment", "run_from_records"),
    *("solve", "split_dataset", "sweep", "train_many", "train_rounds", "write_report"),
]


def test_the_public_names_are_these_and_an_unknown_one_is_an_attribute_error():
    assert mppfl.__all__ == PUBLIC
    assert dir(mppfl) == PUBLIC
    with pytest.raises(AttributeError, match="module 'mppfl' has no attribute 'solv'"):
        mppfl.solv  # noqa: B018


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_had_says_what_it_is_and_has_types_throughout(name):
    thing = getattr(mppfl, name)
    text = inspect.cleandoc(thing.__doc__ or "")
    assert thing.__name__ == name
    assert thing.__module__.startswith("mppfl.")
    assert text
    assert not text.startswith(f"{name}(")  # what dataclass writes where there is no docstring
    if inspect.isfunction(thing):
        signature = inspect.signature(thing)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())


def test_errors_can_be_caught_as_ours_and_as_value_errors():
    assert set(mppfl.BadInput.__mro__) >= {mppfl.MppflError, ValueError}
    assert issubclass(mppfl.NoEquilibrium, mppfl.MppflError)
    lost = mppfl.NotConverged("stopped", last_iterate=[1.0], residual=0.5)
    assert (lost.last_iterate, lost.residual, str(lost)) == ([1.0], 0.5, "stopped")


def is_error(name):
    thing = getattr(mppfl, name)
    return inspect.isclass(thing) and issubclass(thing, Exception)


@pytest.mark.parametrize("name", [name for name in PUBLIC if not is_error(name)])
def test_every_public_name_has_an_example_that_runs(name):
    thing = getattr(mppfl, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs=dict(vars(inspect.getmodule(thing))))
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    output = []
    assert runner.run(test, out=output.append).failed == 0, "".join(output)


def test_public_values_print_in_a_few_lines():
    pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
    game = mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5))
    solution = mppfl.solve(game, num_rounds=3)
    values = [pair, game, game.clients, solution, solution.plan, solution.outcome, mppfl.TrainingConfig()]
    for value in [*values, mppfl.compare(game, ["mppfl"], num_rounds=2), mppfl.Experiment()]:
        assert len(repr(value).splitlines()) <= 12
        assert len(repr(value)) < 1500
