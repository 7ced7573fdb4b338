"""How near two float32 computations of the same thing must come, and how large noise that was drawn must be.

Two engines, processors or numbers of threads add the same numbers in another order, and every order rounds elsewhere.
So a tolerance is a number of float32 roundings at the scale of the values themselves, never a length of its own: an
entry near 0 in a vector of numbers near 1 was summed from numbers near 1.
"""

import numpy as np
from scipy.stats import chi2, norm

UNIT = 2.0**-23  # from 1 to the next float32


def assert_float32_close(found, expected, steps):
    """Every entry is within `steps` roundings of the expected one, at the scale of the largest of them all.

    `steps` leaves room for another BLAS, vector width and number of threads: several tens for a training of some
    hundred steps, of which a machine shows one to five.
    """
    found, expected = (np.asarray(each, dtype=np.float64) for each in (found, expected))
    assert found.shape == expected.shape
    scale = float(np.abs(expected).max(initial=0.0))
    apart = float(np.abs(found - expected).max(initial=0.0))
    assert apart <= steps * UNIT * scale, (
        f"{apart:.3g} apart is more than {steps} roundings of numbers up to {scale:.3g}"
    )


def assert_of_std(noise, std, false_alarm=1e-8):
    """Size and mean of the noise are those of independent Gaussians; of sound noise one in 1/`false_alarm` fails."""
    share = noise / std
    low, high = chi2.ppf([false_alarm / 4, 1 - false_alarm / 4], len(share))
    assert low <= share @ share <= high
    assert abs(share.mean()) <= norm.ppf(1 - false_alarm / 4) / np.sqrt(len(share))
