"""Learning under the plan: models, local training, release, aggregation, rounds."""

import os
from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .aggregate import estimated_dispersion, noise_aware_weights, server_step, weights_of_updates
    from .arms import Arm, training_key
    from .batch_norm import batch_norm_relu, batch_normal
    from .batches import PURPOSES, batches_of_round, local_work, stream
    from .budget_unit import (
        LEAST_EPSILON,
        MOST_EPSILON,
        budget_unit_for,
        delta_for_budgets,
        epsilon_method,
        largest_budget,
    )
    from .captured import FEW_PARTS, MANY_LANES, PARTS, stages
    from .checkpoint import Checkpoint, checkpoint_after, load_checkpoint, save_checkpoint
    from .cohort import Cohort, choose_engine
    from .config import CHOICES, FIRST_ROUND_MEDIAN, Aggregation, Precision, TrainingConfig
    from .convolution import lane_convolution, squared_norms_of_taps
    from .convolution_kernels import back_to_taps
    from .dense import DenseGradients, is_dense
    from .descent_kernels import descend, descend_with_noise
    from .flat import FlatModel, flat_model, flattened, trained_parameters
    from .flops import gflop_per_example
    from .layered import ROUNDED, LayeredGradients, is_layered
    from .local import (
        TESTED_AT_ONCE,
        Descent,
        GradientNoise,
        Lane,
        Table,
        clip_factors,
        clipped_sum,
        evaluate,
        local_update,
        plain_descent,
    )
    from .lockstep import VmappedGradients
    from .log import Log
    from .models import MODEL_NAMES, NORMS, VGG_LAYERS, Norm, Stack, make_model
    from .normalisation import group_norm_relu
    from .poisson import poisson_multiplier
    from .pooling import relu_pool
    from .processes import Workers, can_travel
    from .record import PER_CLIENT, PER_ROUND, History, RoundRecord, history_of, joined
    from .rounds import require_trainable, rounds_together, training_rounds
    from .schedule import padded_steps, schedule_of, steps_of
    from .spanned import is_less_work, own_examples
    from .uploads import noise_in_update, times_counted
    from .views import MARGIN, SHIFTS, VIEWS, ViewTable, looks_of_round, table_for, with_views

export_lazily(__name__)

# A product of MKL depends in its last bits on where in memory its matrices begin, and so on which clients are computed
# beside each other. In this mode it does not: a training is the same alone and in company. MKL reads it once.
os.environ.setdefault("MKL_CBWR", "AUTO")
