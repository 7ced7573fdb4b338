"""On a GPU: kernels in Triton's language, and steps recorded as CUDA graphs. Importing this folder loads neither.

Every kernel computes what plain PyTorch computes in engines/layered.py. A kernel's `lane` is one client slot.
"""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .captured import FEW_PARTS, MANY_SLOTS, PARTS, CapturedDescent, stages
    from .convolution import back_to_taps, convolve
    from .descent import descend, descend_with_noise
    from .normalisation import batch_norm_backward, batch_norm_forward, group_norm_backward, group_norm_forward
    from .pooling import relu_pool, relu_pool_back

export_lazily(__name__)
