"""Conformance of every registered pair of a law and a mechanism."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.basic import GammaRV, NormalRV, PoissonRV
from scipy import special, stats

from pymc_dp.kernels import njit
from pymc_dp.laws import PAIRS, find_pair
from pymc_dp.mechanisms import GaussianMechanism, GeometricMechanism, LaplaceMechanism
from tests.agreement import counts_follow, follows

NOISES = (0.02, 1.0, 50.0)
LOGP = {
    "NormalRV": lambda s, p: stats.norm.logpdf(s, *p),
    "GammaRV": lambda s, p: stats.gamma.logpdf(s, p[0], scale=p[1]),
    "ExponentialRV": lambda s, p: stats.expon.logpdf(s, scale=p[0]),
    "PoissonRV": lambda s, p: stats.poisson.logpmf(s, p[0]),
}
DISCRETE = (PoissonRV,)
MOMENTS = {
    "NormalRV": lambda p: p,
    "GammaRV": lambda p: (p[0] * p[1], p[0] ** 0.5 * p[1]),
    "ExponentialRV": lambda p: (p[0], p[0]),
    "PoissonRV": lambda p: (p[0], p[0] ** 0.5),
}

PANELS = 16  # of each piece between kinks
NODES, WEIGHTS = (np.polynomial.legendre.leggauss(32) + np.array([[1.0], [0.0]])) / 2


def noise_logp(mechanism, z, s, noise):
    if mechanism is GeometricMechanism:
        return np.log(np.tanh(0.5 / noise)) - np.abs(z - s) / noise
    law = stats.laplace if mechanism is LaplaceMechanism else stats.norm
    return law.logpdf(z, s, noise)


def integrate_joint(pair, parameters, noise, z):
    """Integral of the joint density of (s, z) over s, split where it has kinks or peaks."""
    mean, sd = MOMENTS[pair.law.__name__](parameters)
    if pair.law in DISCRETE:
        s = np.arange(mean + 50 * sd + 60 + max(z, 0))
        joint = LOGP[pair.law.__name__](s, parameters) + noise_logp(pair.mechanism, z, s, noise)
        return np.exp(joint - joint.max()).sum(), joint.max()
    low = -np.inf if pair.law is NormalRV else 0.0
    width = 40 * max(min(noise, sd), 1e-3 * sd)
    points = [mean + k * sd for k in (-40, -8, -3, 0, 3, 8, 40)]
    points += [z + k * min(noise, sd) for k in (-40, -8, -3, 0, 3, 8, 40)]
    points += [z, mean + width, sd * 1e-4, sd * 1e-2]
    edges = sorted({p for p in points if p > low} | ({low} if np.isfinite(low) else set()))
    log_law = LOGP[pair.law.__name__]
    at = np.linspace(edges[0] + 1e-12 * sd, edges[-1], 4001)
    top = np.max(log_law(at, parameters) + noise_logp(pair.mechanism, z, at, noise))

    # The square takes the pole of a small shape away.
    u = (NODES + np.arange(PANELS)[:, None]) / PANELS
    a, b = np.array(edges[:-1])[:, None, None], np.array(edges[1:])[:, None, None]
    s = a + (b - a) * u * u
    joint = np.exp(log_law(s, parameters) + noise_logp(pair.mechanism, z, s, noise) - top)
    total = np.sum(joint * 2 * u * (b - a) * WEIGHTS / PANELS)
    return total, top


CASES = [
    pytest.param(pair, p, id=f"{pair.law.__name__}-{pair.mechanism.__name__}-{p}")
    for pair in PAIRS.values()
    for p in pair.examples
]


@pytest.mark.parametrize(("pair", "parameters"), CASES)
def test_log_marginal_and_gradient(pair, parameters):
    mean, sd = MOMENTS[pair.law.__name__](parameters)
    noise, z = pt.vectors("noise", "z")
    symbols = pt.dvectors(len(parameters))
    logp = pair.log_marginal(pair.mechanism(1.0).with_parameters(noise), z, *symbols)
    wrt = [z, noise, *symbols]
    gradient = pytensor.grad(logp.sum(), wrt)
    function = pytensor.function([z, noise, *symbols], [logp, *gradient])
    points = [
        (mean + k * sd + j * e * sd, e * sd)
        for e in NOISES
        for k, j in ((0, 0), (1, 2), (-2, -1), (0, 30), (0, -30), (6, 0))
    ]
    discrete = pair.law in DISCRETE
    if discrete:  # off the kinks at whole numbers
        points = [(np.floor(z_) + 0.3, e) for z_, e in points]
    if pair.mechanism is GeometricMechanism:
        points = [(np.round(z_), e) for z_, e in points]
    zs, noises = np.array(points).T
    columns = [np.full(len(points), p) for p in parameters]
    value, *slopes = function(zs, noises, *columns)
    expected = []
    for z_, e in points:
        total, top = integrate_joint(pair, parameters, e, z_)
        expected.append(np.log(total) + top)
    np.testing.assert_allclose(value, expected, rtol=2e-8, atol=2e-8)

    inputs = [zs, noises, *columns]
    for j, slope in enumerate(slopes):
        scale = np.maximum(np.abs(inputs[j]), 1e-3 * sd)
        step = 1e-5 * np.minimum(scale, noises if j < 2 else scale)
        # The noise of counts is never differentiated in, nor a whole number.
        if discrete and (j == 1 or (j == 0 and pair.mechanism is GeometricMechanism)):
            continue
        high, low = ([x + (i == j) * d for i, x in enumerate(inputs)] for d in (step, -step))
        numeric = (function(*high)[0] - function(*low)[0]) / (2 * step)
        kink = 2e-5 / noises if j == 0 else 0.0
        assert np.all(np.isfinite(slope))
        assert np.all(np.abs(slope - numeric) <= 2e-4 * np.abs(numeric) + 1e-4 / scale + kink)


def check_counts(pair, parameters, many, seed, z, noise):
    z = np.round(z) if pair.mechanism is GeometricMechanism else z
    x = many(np.random.default_rng(seed), 20_000, z, noise, tuple(map(float, parameters)))
    s = np.arange(x.max() + 10)
    joint = LOGP[pair.law.__name__](s, parameters) + noise_logp(pair.mechanism, z, s, noise)
    counts_follow(np.bincount(x.astype(int), minlength=s.size), special.softmax(joint))


@pytest.mark.parametrize(("pair", "parameters"), CASES)
@pytest.mark.by_day(
    "ExponentialRV-LaplaceMechanism-(0.3,)",
    "ExponentialRV-LaplaceMechanism-(20.0,)",
    "GammaRV-GaussianMechanism-(4.0, 30.0)",
    "NormalRV-LaplaceMechanism-(-5.0, 0.01)",
    "PoissonRV-GeometricMechanism-(0.02,)",
)
def test_draw(pair, parameters):
    mean, sd = MOMENTS[pair.law.__name__](parameters)
    draw = pair.draw

    @njit(cache=True)
    def many(rng, n, z, noise, law):
        out = np.empty(n)
        for i in range(n):
            if len(law) == 1:
                out[i] = draw(rng, z, noise, -np.inf, np.inf, law[0])
            else:
                out[i] = draw(rng, z, noise, -np.inf, np.inf, law[0], law[-1])
        return out

    for seed, (e, k) in enumerate([(1.0, 1.0), (0.2, -2.0), (5.0, 0.0)]):
        noise, z = e * sd, mean + k * sd
        if pair.law in DISCRETE:
            check_counts(pair, parameters, many, seed, z, noise)
            continue
        x = many(np.random.default_rng(seed), 20_000, z, noise, tuple(map(float, parameters)))
        low = -np.inf if pair.law is NormalRV else 0.0
        left, right = max(low, x.min() - sd), x.max() + sd
        root = np.linspace(0, 1, 200_001)[1:]
        grid = root**2 * (right - left) + left
        with np.errstate(all="ignore"):
            log_joint = LOGP[pair.law.__name__](grid, parameters)
            log_joint = log_joint + noise_logp(pair.mechanism, z, grid, noise)
            weight = np.exp(log_joint - np.nanmax(log_joint[np.isfinite(log_joint)]))
        # In the root of the distance: poles at zero are weaker there.
        follows(np.sqrt((x - left) / (right - left)), (root, weight * root), where=(e, k))


def test_unsupported_pair_names_what_is_supported():
    with pytest.raises(NotImplementedError, match="Beta statistic under LaplaceMechanism"):
        find_pair(pm.Beta.dist(1, 1).owner.op, LaplaceMechanism(1.0), closed=True)
    with pytest.raises(NotImplementedError, match="Normal under GaussianMechanism"):
        find_pair(pm.Beta.dist(1, 1).owner.op, GaussianMechanism(1.0), closed=True)
    assert find_pair(pm.Gamma.dist(1, 1).owner.op, LaplaceMechanism(1.0)).law is GammaRV
