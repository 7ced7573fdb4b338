"""Provenance: which code ran on what kind of machine, when and for how long. No host, user or folder names."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

LIBRARIES = ("mppfl", "torch", "numpy", "scipy")
INSTALLED = {"site-packages", "dist-packages"}  # a package there belongs to no work tree, whatever folder is around it


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
        **{name: _version(name) for name in LIBRARIES},
        commit=commit_of(package),
        source=fingerprint(package),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=_memory_gib(),
        gpu=_gpu(device),
        device=device,
        started=started or datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
    )


def commit_of(package: Path) -> str:
    """The commit checked out in the work tree around `package`, read from .git itself; "" where there is none."""
    if INSTALLED & set(package.parts):
        return ""
    with suppress(OSError, ValueError, StopIteration, IndexError):
        root = next(folder for folder in package.parents if (folder / ".git").exists())
        git = root / ".git"
        if git.is_file():  # a connected work tree: "gitdir: <path>"
            git = (root / git.read_text("utf-8").partition(":")[2].strip()).resolve()
        head = (git / "HEAD").read_text("utf-8").strip()
        if head.startswith("ref: "):
            branch, common = head.removeprefix("ref: "), git
            if (git / "commondir").is_file():
                common = (git / (git / "commondir").read_text("utf-8").strip()).resolve()
            files = [folder / branch for folder in (git, common) if (folder / branch).is_file()]
            packed = [] if files else (common / "packed-refs").read_text("utf-8").splitlines()
            lines = [line for line in packed if line.endswith(f" {branch}")]
            head = files[0].read_text("utf-8").strip() if files else lines[0].split()[0]
        return head if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", head) else ""
    return ""


def fingerprint(package: Path) -> str:
    """12 hexadecimal digits over the names and contents of the package's source files."""
    digest = hashlib.sha256()
    with suppress(OSError):
        for path in sorted(package.rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:12]
    return ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, OSError):
        return ""


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.lower().startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    with suppress(OSError, ValueError, AttributeError):
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return 0.0


def _gpu(device: str) -> str:
    if not device.startswith("cuda"):
        return ""
    with suppress(Exception):  # drivers fail in ways of their own
        import torch

        return str(torch.cuda.get_device_name(device))
    return ""
