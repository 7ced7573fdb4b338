"""Where GPU kernels come from: modules in Triton's language, loaded on first use, absent where Triton is."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor


@cache
def gpu_kernels(name: str) -> ModuleType | None:
    """mppfl.training.<name>; None where there is no Triton, and the plain way computes the same."""
    try:
        return import_module(f"mppfl.training.{name}")
    except ImportError:
        return None


def kernels_over_channels(name: str, x: Tensor) -> ModuleType | None:
    """The kernels, where they apply to pictures [..., channels]: CUDA, and channels that fill a block."""
    channels = x.shape[-1]
    fits = channels & (channels - 1) == 0 and 16 <= channels <= 2048 and x.dtype in (torch.bfloat16, torch.float32)
    return gpu_kernels(name) if x.is_cuda and fits else None
