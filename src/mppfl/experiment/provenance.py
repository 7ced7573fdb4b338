"""Provenance: which code ran on what kind of machine, when and for how long. No host, user or folder names."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TypeVar

LIBRARIES = ("mppfl", "torch", "numpy", "scipy")
INSTALLED = {"site-packages", "dist-packages"}  # a package there belongs to no work tree, whatever folder is around it

Fact = TypeVar("Fact", str, float)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a result comes from.

    mppfl, python, torch, numpy, scipy   versions; "" where a library is not there
    commit    of the work tree the package lies in; "" outside one
    source    fingerprint of the package's own source as it ran, whether committed or not
    cpu, cores, memory_gib, gpu          the machine; gpu is "" where none was used
    device    that the training ran on: "cpu", "cuda", ...
    started   UTC, ISO 8601
    seconds   wall time of the training
    """

    mppfl: str
    python: str
    torch: str
    numpy: str
    scipy: str
    commit: str
    source: str
    cpu: str
    cores: int
    memory_gib: float
    gpu: str
    device: str
    started: str
    seconds: float


def provenance_here(device: str = "cpu", *, started: str | None = None, seconds: float = 0.0) -> Provenance:
    """This code on this machine. Call it when a training starts; `dataclasses.replace(..., seconds=...)` when it ends.

    What cannot be found out is left empty: provenance never stops a training.
    """
    package = Path(__file__).resolve().parents[1]
    return Provenance(
        python=platform.python_version(),
        **{name: _known(lambda name=name: metadata.version(name), "") for name in LIBRARIES},  # type: ignore[misc]
        commit=commit_of(package),
        source=fingerprint(package),
        cpu=_known(_cpu, "") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_known(lambda: round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1), 0.0),
        gpu=_known(lambda: _gpu(device), "") if device.startswith("cuda") else "",
        device=device,
        started=started or datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
    )


def _known(read: Callable[[], Fact], otherwise: Fact) -> Fact:
    """What can be read, or `otherwise`: systems, drivers and libraries fail in ways of their own."""
    try:
        return read()
    except Exception:
        return otherwise


def commit_of(package: Path) -> str:
    """The commit checked out in the work tree around `package`, as git tells it; "" where there is none."""
    if INSTALLED & set(package.parts):
        return ""
    line = ["git", "-c", "safe.directory=*", "-C", str(package), "rev-parse", "--verify", "HEAD"]
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return _known(lambda: subprocess.check_output(line, env=around, stderr=subprocess.DEVNULL, text=True).strip(), "")


def fingerprint(package: Path) -> str:
    """12 hexadecimal digits over the names and contents of the package's source files."""
    digest = hashlib.sha256()
    try:
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError:
        return ""
    return digest.hexdigest()[:12]


def _cpu() -> str:
    """The processor's name, where Linux tells it."""
    lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    return next(" ".join(line.partition(":")[2].split()) for line in lines if line.lower().startswith("model name"))


def _gpu(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_name(device))
