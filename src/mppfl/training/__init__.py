"""Learning under the plan: models, local training, release, aggregation, rounds."""

import os
from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from mppfl.spec import Aggregation, EngineName, Precision, TrainingConfig

    from .aggregate import (
        MOST_KINDS,
        WeightedMean,
        estimated_dispersion,
        noise_aware_weights,
        server_step,
        weights_of_updates,
    )
    from .audit import audit_sensitivity, audit_training
    from .client import (
        MARGIN,
        PURPOSES,
        SHIFTS,
        TESTED_AT_ONCE,
        VIEWS,
        ClientSlot,
        Descent,
        GradientNoise,
        Table,
        ViewTable,
        as_array,
        batches_of_round,
        batches_with_augmentation,
        clip_factors,
        clipped_sum,
        evaluate,
        local_update,
        local_work,
        plain_descent,
        stream,
        table_for,
        warn_of_overflow,
        with_views,
    )
    from .job import TrainingJob, budget_unit_for, delta_for_budgets, training_key, with_budget_unit
    from .models import (
        MODEL_NAMES,
        NORMS,
        VGG_LAYERS,
        FlatModel,
        Norm,
        Stack,
        computes_as,
        flat_model,
        flattened,
        gflop_per_example,
        is_plain_flatten,
        is_plain_row,
        load_weights,
        make_model,
        normalises_over_examples,
        trained_parameters,
    )
    from .records import (
        PER_CLIENT,
        PER_ROUND,
        Checkpoint,
        History,
        Log,
        RoundRecord,
        checkpoint_after,
        history_of,
        joined,
        load_checkpoint,
        save_checkpoint,
    )
    from .rounds import noise_in_update, require_trainable, times_counted, train_many, train_rounds

export_lazily(__name__)

# A product of MKL depends in its last bits on where in memory its matrices begin, and so on which clients are computed
# beside each other. In this mode it does not: a training is the same alone and in company. MKL reads it once.
os.environ.setdefault("MKL_CBWR", "AUTO")
