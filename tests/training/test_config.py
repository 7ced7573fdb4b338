"""TrainingConfig and Protection: what is wrong is refused by its name, what is right is kept."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mppfl.errors import BadInput
from mppfl.fields import choices, hints
from mppfl.privacy import Protection
from mppfl.training import TrainingConfig, TrainingJob, make_model, training_key
from tests.training.trainings import POISSON, SHUFFLED, STEPS, configured, pictures, plan_with

OF_PROTECTION = {name: known for name, hint in hints(Protection).items() if (known := choices(hint))}
OF_TRAINING = {name: known for name, hint in hints(TrainingConfig).items() if (known := choices(hint))}
CHOICES = {**OF_PROTECTION, **OF_TRAINING}
NOT_ALONE = ("norm", "model")  # and whatever is of the protection
COUNTS = ("batch_size", "local_epochs", "num_steps", "evaluate_every", "clients_at_once", "processes", "cohorts")
ABOVE_ZERO = ("learning_rate", "server_learning_rate", "budget_unit", "clip_norm")
SHARES = ("momentum", "server_momentum")
FROM_ZERO = ("seed", "average_rounds", "dropouts", "colluding")

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
    st.tuples(st.just("total_epsilon"), st.one_of(st.floats(max_value=1e-7), st.floats(min_value=1001), not_numbers)),
    st.tuples(st.just("dispersion"), st.one_of(st.floats(max_value=0.0, exclude_max=True), not_numbers)),
    st.tuples(
        st.sampled_from(FROM_ZERO),
        st.one_of(st.integers(max_value=-1), st.floats(), st.booleans(), st.sampled_from(["1", None, [], {}, 1j])),
    ).filter(lambda bad: bad != ("seed", None)),  # which is drawn from the experiment's
    st.sampled_from(sorted(CHOICES)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.one_of(
                st.text(max_size=12).filter(lambda word: word not in CHOICES[name]),
                st.sampled_from([None, 0, 1.5, True, [], {}, ("paper",)]),
            ),
        )
    ).filter(lambda bad: bad not in (("release", None), ("adjacency", None))),  # which the unit and batches decide
)  # fmt: skip


@given(bad_values)
def test_a_bad_value_is_refused_by_the_name_of_its_field(bad):
    name, value = bad
    with pytest.raises(BadInput, match=rf"\b{name}\b") as refused:
        configured(**{name: value})
    assert "\n" not in str(refused.value)


def test_a_training_protects_unless_it_is_told_otherwise():
    config = TrainingConfig()
    assert (config.learning_rate, config.batch_size, config.local_epochs, config.momentum) == (0.01, 32, 5, 0.0)
    protection = config.protection
    assert (protection.unit, protection.trust, protection.release) == ("record", "local", "gradient")
    assert (protection.adjacency, protection.clip_norm, protection.is_zcdp) == ("replace_one", 1.0, True)
    assert protection.guarantee == "ρ-zCDP for each record of a client, against everybody who sees its gradient"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        *(({"device": device}, "device") for device in (None, 3, 1.5, "quantum", "")),
        ({"release": "update"}, "release='update' does not hide a record"),
        ({"batches": "shuffled"}, "batches='shuffled' is for release='steps'"),
        ({**POISSON, "adjacency": "replace_one"}, "adjacency='zero_out'"),
        ({"trust": "secure_sum", "noise": "gaussian"}, "Use noise='discrete'"),
        *(
            ({**way, "trust": trust}, f"trust='{trust}' opens one sum a round.*Use release='gradient'")
            for way in (STEPS, SHUFFLED, POISSON)
            for trust in ("secure_sum", "server")
        ),
        *(
            ({"trust": trust, name: 1}, "dropouts and colluding are for trust='secure_sum'")
            for trust in ("local", "server")
            for name in ("dropouts", "colluding")
        ),
        ({"norm": "batch"}, "norm='batch' breaks the protection of records.*unit='client'"),
        *(  # a view goes by place in the sample: one record more changes the views of all after it
            ({**POISSON, "noise": noise, "augmentation": "crop_and_flip"}, "'crop_and_flip' breaks batches='poisson'")
            for noise in ("simulated", "gaussian")
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would_do(asked, says):
    with pytest.raises(BadInput, match=says) as refused:
        configured(**asked)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("change", [{"batch_size": np.int64(4)}, {"learning_rate": np.float32(0.1)}])
def test_a_configuration_with_numpy_numbers_can_be_checkpointed(change):
    data = pictures()
    job = TrainingJob("training", plan_with([1.0] * 3), data, TrainingConfig(**{"batch_size": 4, **change}))
    assert len(training_key(make_model("softmax", data.input_shape, 4), job)) == 64
