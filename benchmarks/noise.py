"""Seconds to add noise to one update, by kind, beside numpy's own normals: python benchmarks/noise.py"""

import os
import resource
import time

import numpy as np

from mppfl.privacy import NOISE_KINDS, add_noise
from record import circumstances, write_record

REPEATS = 5


def seconds(work) -> list[float]:
    """Wall-clock seconds of each of a few repeats."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)


def peak_mb() -> float:
    """Largest memory this process has had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Times every kind at 1.6 million parameters, then the memory of the safe kinds at 100 million in place."""
    around = circumstances("numpy", "scipy")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    rng = np.random.default_rng(1)
    size = 1_600_000
    rows = {}
    print(f"{'1.6 million parameters':<26}{'float64: best, median s':>26}{'float32: best, median s':>26}")
    for name in ("numpy standard_normal", *NOISE_KINDS):
        row = {}
        for dtype in ("float64", "float32"):
            values = np.zeros(size, dtype=dtype)
            if name in NOISE_KINDS:
                taken = seconds(lambda name=name, values=values: add_noise(values, 1.0, name, rng))
            else:
                taken = seconds(lambda dtype=dtype: rng.standard_normal(size, dtype=dtype))
            row[dtype] = {"best_s": round(taken[0], 4), "median_s": round(taken[REPEATS // 2], 4)}
        rows[name] = row
        columns = "".join(f"{row[d]['best_s']:>16.3f}{row[d]['median_s']:>10.3f}" for d in ("float64", "float32"))
        print(f"{name:<26}{columns}")

    large = {}
    values = np.zeros(100_000_000, dtype=np.float32)
    values[:] = 0.001  # touched, so that its pages count before the noise is added
    for kind in ("gaussian", "discrete"):
        before, start = peak_mb(), time.perf_counter()
        add_noise(values, 1.0, kind, out=values)
        large[kind] = {
            "seconds": round(time.perf_counter() - start, 2),
            "extra_peak_mb": round(peak_mb() - before, 1),
        }
        print(
            f"{kind:<14}100 million float32 in place: {large[kind]['seconds']:.1f} s, "
            f"{large[kind]['extra_peak_mb']:.0f} MB extra at the peak"
        )
    path = write_record("noise", around | {"cores_used": 1, "at_1.6_million": rows, "at_100_million_in_place": large})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
