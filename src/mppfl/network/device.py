"""A device of PyTorch's by name, whether there is room on it, and arrays brought there."""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mppfl.errors import BadInput

log = logging.getLogger(__name__)
GIB = 2**30


def find_device(name: str) -> torch.device:
    """The device called "cuda", "cuda:1" or "cpu"; refused where it is not there, never replaced by another."""
    if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadInput(f"device={name!r} is not known. Use 'cuda', 'cuda:1' or 'cpu'.")
    if name == "cpu":
        return torch.device(name)
    if not torch.cuda.is_available():
        raise BadInput(f"device={name!r}, but PyTorch finds no GPU here. Use 'cpu', or leave it out.")
    number = int(name.partition(":")[2] or 0)
    if number >= torch.cuda.device_count():
        raise BadInput(f"device={name!r}, but there are {torch.cuda.device_count()} GPUs, from cuda:0 on.")
    return torch.device("cuda", number)


def free_bytes(device: torch.device) -> float:
    """Memory that can still be had on a device, in bytes; infinite where nobody can tell."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    listed = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", listed.read_text()) if listed.exists() else None
    return 1024.0 * int(found[1]) if found else float("inf")


def require_room(device: torch.device, needed: float, what: str) -> None:
    """States the memory that `what` needs, and refuses where it is not free; asked before anything is allocated."""
    free = free_bytes(device)
    log.info("%s: %.2f GiB on %s, of %.2f free", what, needed / GIB, device, free / GIB)
    if needed > free:
        raise BadInput(
            f"{what} need {needed / GIB:.3g} GiB on {device}, where {free / GIB:.3g} GiB are free. "
            "Choose a device with more memory, or leave it out, and NumPy solves."
        )


def to_device(values: Any, device: torch.device) -> Tensor:
    """A NumPy array as a tensor on the device; read-only arrays are fine, since nobody writes into what this gives."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values).to(device)
