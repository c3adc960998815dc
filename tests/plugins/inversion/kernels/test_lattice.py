"""Noisy sums of whole numbers against products written out in high precision."""

import mpmath as mp
import numpy as np
import pytest

from pymc_dp.plugins.inversion.kernels.lattice import lattice_line


def written_out(p, k, weights, z, b, sd):
    """Log density, all products written out; `weights` by number of records."""
    law, total = {0: mp.mpf(1)}, mp.mpf(0)
    for n in range(max(weights) + 1):
        for s, q in law.items():
            e = mp.mpf(z) - s
            noise = mp.exp(-abs(e) / b) / (2 * b) if b else mp.npdf(e, 0, sd)
            total += weights.get(n, 0) * q * noise
        following = {}
        for s, q in law.items():
            for own, value in zip(p, k, strict=True):
                following[s + value] = following.get(s + value, 0) + q * mp.mpf(own)
        law = following
    return float(mp.log(total))


@pytest.mark.parametrize("weights", [{0: 1.0}, {1: 1.0}, {2: 1.0}, {20: 1.0}, {0: 0.2, 3: 0.8}])
@pytest.mark.parametrize(
    ("b", "sd"), [(1e-3, 0.0), (2.0, 0.0), (1e4, 0.0), (0.0, 1e-3), (0.0, 3.0)]
)
def test_sums_are_right_wherever_the_release_is(weights, b, sd):
    p, k = np.array([0.5, 0.3, 0.0, 0.2]), [-1, 0, 1, 5]
    least = min(weights)
    lp = np.log(np.array([weights.get(n, 0.0) for n in range(least, max(weights) + 1)]) + 1e-300)
    with mp.workdps(40), np.errstate(divide="ignore"):
        for z in (2.5, 4.0, -40.0, 300.0):
            found = lattice_line(np.log(p), np.array(k) * 1.0, float(least), lp, z, b, sd)
            expected = written_out(p, k, weights, z, b, sd)
            np.testing.assert_allclose(found[0], expected, rtol=1e-11)
            np.testing.assert_allclose(found[3].sum(), 1.0)
