"""How all clients of a round are computed: one plain loop, and engines that are held equal to it."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .choose import Engine, can_travel, choose_engine
    from .dense import DenseGradients, is_dense, is_less_work
    from .layered import (
        ROUNDED,
        LayeredGradients,
        batch_norm_relu,
        gradient_of_taps,
        group_norm_relu,
        is_layered,
        relu_pool,
        slot_convolution,
        squared_norms_of_taps,
    )
    from .stacked import (
        NUM_LONG,
        Parts,
        SlotGradients,
        VmappedGradients,
        gpu_kernel,
        padded_steps,
        schedule_of,
        starts_of,
        steps_of,
        write_updates,
    )

export_lazily(__name__)
