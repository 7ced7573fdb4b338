"""What every benchmark writes down beside its figures: machine, versions, commit."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

RECORDS = Path(__file__).parent / "records"


def circumstances(*packages: str) -> dict:
    """Machine, versions and commit of this run."""
    listed = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in listed if "model name" in line), platform.processor())
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": model,
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpu": _gpu(),
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "commit": os.environ.get("MPPFL_COMMIT") or _commit(),  # said by whoever copied the source without its history
    }


def _commit() -> str:
    head, changed = (
        subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()
        for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "src"))
    )
    return head + ("+changes" if changed else "")


def _gpu() -> str | None:
    """The first GPU's name, without loading PyTorch for it."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return found.stdout.strip().splitlines()[0] if found.stdout.strip() else None


def write_record(name: str, content: dict, folder: Path | None = None) -> Path:
    """<folder>/<date>-<name>.json, by default in benchmarks/records; a second run on one day replaces the first."""
    folder = folder or RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y-%m-%d}-{name}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def home(exported: Any) -> ModuleType:
    """The module in which a name of a folder's interface is defined, to change a constant beside it."""
    return sys.modules[exported.__module__]
