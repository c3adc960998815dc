"""Mechanisms that say they are log-concave in the statistic are."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import pymc_dp as dp
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism, mechanism_examples

PLAIN = Mode(linker="py", optimizer=None)
EXAMPLES = list(mechanism_examples())
COUNTED = [dp.RandomizedResponse(t).counted(30) for t in (0.05, 0.5, 0.8)]


@pytest.mark.parametrize(
    ("mechanism", "middle"),
    [(e.mechanism, e.statistic) for e in EXAMPLES if e.mechanism.log_concave]
    + [(m, 15.0) for m in COUNTED],
    ids=lambda v: repr(v) if isinstance(v, Mechanism) else "",
)
def test_releases_and_intervals(mechanism, middle):
    s, z = pt.dvector("s"), pt.dscalar("z")
    functions = [
        pytensor.function([z, s], mechanism.logp(z, s), mode=PLAIN),
        pytensor.function([z, s], mechanism.log_interval(z, z + 3.0, s), mode=PLAIN),
    ]
    statistic = np.floor(middle) + np.arange(-40.0, 41.0)
    for value in np.unique(np.round(np.linspace(middle - 20, middle + 20, 17))):
        for function in functions:
            with np.errstate(all="ignore"):
                found = function(value, statistic)
            finite = np.flatnonzero(found > -np.inf)
            if finite.size < 3:
                continue
            assert finite[-1] - finite[0] == finite.size - 1, "possible statistics have a gap"
            found = found[finite]
            excess = found[:-2] + found[2:] - 2 * found[1:-1]
            assert np.all(excess <= 1e-9 * (1 + abs(found[1:-1])))


def test_it_is_not_taken_for_granted():
    class Cauchy(Mechanism):
        def noise_sample(self, rng, statistic):
            raise NotImplementedError

        def logp(self, value, statistic=0.0):
            return -pt.log1p((as_float(value) - statistic) ** 2)

        log_interval = logp

    assert not Cauchy().log_concave
    assert not Cauchy().clipped(0, 1).log_concave
    assert not dp.RandomizedResponse(0.8, 3).log_concave
    assert dp.LaplaceMechanism(1.0).clipped(lower=0).rounded(1).log_concave
