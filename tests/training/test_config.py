"""TrainingConfig: what is wrong is refused by its name, what is right is kept."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.fields import choices, hints
from mppfl.training import TrainingConfig, TrainingJob, make_model, training_key
from tests.training.trainings import pictures, plan_with

NOT_ALONE = ("clip_norm", "adjacency", "norm", "model")
CHOICES = {
    name: known for name, hint in hints(TrainingConfig).items() if (known := choices(hint)) and name not in NOT_ALONE
}
COUNTS = ("batch_size", "local_epochs", "num_steps", "evaluate_every", "clients_at_once", "processes")
ABOVE_ZERO = ("learning_rate", "server_learning_rate", "budget_unit", "clip_norm")
SHARES = ("momentum", "server_momentum")
SAMPLED = {**WAYS["poisson"], "clip_norm": 1.0, "augmentation": "crop_and_flip"}

not_numbers = st.sampled_from([math.nan, "x", "", "0.5", 10**400, [], [0.1], {}, (1.0, 2.0), 1j, object(), np.zeros(2)])
not_counts = st.one_of(
    st.integers(max_value=0), st.floats(), st.booleans(), st.sampled_from(["1", "x", [], {}, 1j, object()])
)
bad_values = st.one_of(
    st.tuples(st.sampled_from(COUNTS), not_counts),
    st.tuples(
        st.sampled_from(ABOVE_ZERO),
        st.one_of(st.floats(max_value=0.0), st.just(math.inf), not_numbers),
    ),
    st.tuples(
        st.sampled_from(SHARES),
        st.one_of(st.floats(max_value=0.0, exclude_max=True), st.floats(min_value=1.0, exclude_min=True), not_numbers),
    ),
    st.tuples(
        st.just("dp_delta"),
        st.one_of(st.floats(max_value=0.0), st.floats(min_value=1.0), not_numbers),
    ),
    st.tuples(
        st.sampled_from(["seed", "average_rounds"]),
        st.one_of(st.integers(max_value=-1), st.floats(), st.booleans(), st.sampled_from(["1", None, [], {}, 1j])),
    ).filter(lambda bad: bad != ("seed", None)),  # which is drawn from the experiment's
    st.sampled_from(sorted(CHOICES)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.one_of(
                st.text(max_size=12).filter(lambda word: word not in CHOICES[name]),
                st.sampled_from([None, 0, 1.5, True, [], {}, ("nominal",)]),
            ),
        )
    ),
)

good_values = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.integers(1, 10**9) for name in COUNTS},
        **{name: st.floats(0.0, 1e300, exclude_min=True) for name in ABOVE_ZERO},
        **{name: st.floats(0.0, 1.0) for name in SHARES},
        "dp_delta": st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
        "seed": st.integers(0, 2**63 - 1),
        "average_rounds": st.integers(0, 10**6),
        **{name: st.sampled_from(known) for name, known in CHOICES.items() if name != "privacy"},
    },
)


@settings(deadline=None)
@given(bad_values)
def test_a_bad_value_is_refused_by_the_name_of_its_field(bad):
    name, value = bad
    with pytest.raises(BadInput, match=rf"\b{name}\b") as refused:
        TrainingConfig(**{name: value})
    assert "\n" not in str(refused.value)


@settings(deadline=None)
@given(good_values, st.sampled_from(CHOICES["privacy"]))
def test_a_good_value_is_kept_as_it_came(good, privacy):
    if privacy == "poisson" and good.get("noise", "simulated") != "simulated":
        good["augmentation"] = "none"  # with real noise it takes no other
    config = TrainingConfig(**{"clip_norm": 1.0, **good, **WAYS[way]})
    for name, value in good.items():
        assert getattr(config, name) == value
    assert config.mechanism.name == privacy


def test_the_papers_values_are_the_defaults():
    config = TrainingConfig()
    assert (config.learning_rate, config.batch_size, config.local_epochs, config.momentum) == (0.01, 32, 5, 0.0)
    assert (config.privacy, config.clip_norm) == ("nominal", "first_round_median")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        *(({"clip_norm": word}, r'clip_norm=.*"first_round_median"') for word in ("first_round_mean", "1.0", "")),
        *(({"device": device}, "device") for device in (None, 3, 1.5, "quantum", "")),
        ({**WAYS["nominal"], "adjacency": "zero_out"}, "adjacency"),
        *(
            ({"privacy": name}, f"{name} clips every example's gradient. Give clip_norm a number")
            for name in ("gradient", "steps", "shuffled", "poisson")
        ),
        (  # a view goes by place in the sample: one record more changes the views of all after it
            {**SAMPLED, "noise": "gaussian"},
            "augmentation='crop_and_flip' breaks privacy='dpsgd_poisson'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would_do(asked, says):
    with pytest.raises(BadInput, match=says):
        TrainingConfig(**asked)


def test_what_is_next_to_it_goes_together():
    assert TrainingConfig(**CLIENT, adjacency="zero_out").mechanism.adjacency == "zero_out"
    assert TrainingConfig(**SAMPLED).noise == "simulated"  # a simulation, which protects no one


@pytest.mark.parametrize("change", [{"batch_size": np.int64(4)}, {"learning_rate": np.float32(0.1)}])
def test_a_configuration_with_numpy_numbers_can_be_checkpointed(change):
    data = pictures()
    arm = TrainingJob("training", plan_with([1.0] * 3), data, TrainingConfig(**{"batch_size": 4, **change}))
    assert len(training_key(make_model("softmax", data.input_shape, 4), arm)) == 64
