"""What is done to releases one after the other, against an enumeration of the first."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.mechanisms.checks import is_published
from tests.mechanisms.noise import evaluate

INF = np.inf


def suppress(x, below=-INF, above=INF):
    both = np.where(np.less(above, below), (x < below) & (x > above), (x < below) | (x > above))
    return np.where(both, np.nan, x)


AFTER = {
    "clipped": lambda x, lower=-INF, upper=INF: np.clip(x, lower, upper),
    "rounded": lambda x, base=1: base * np.round(x / base),
    "floored": lambda x, base=1: base * np.floor(x / base),
    "ceiled": lambda x, base=1: base * np.ceil(x / base),
    "truncated": lambda x, base=1: base * np.trunc(x / base),
    "suppressed": suppress,
}


def enumerated(mechanism, s):
    """Values and their masses; cells of a half in the place of a density, which no step splits."""
    if isinstance(mechanism, dp.RandomRounding):
        b, low = mechanism.base, mechanism.base * np.floor(s / mechanism.base)
        return np.array([low, low + b]), np.array([1 - (s - low) / b, (s - low) / b])
    b, half = float(mechanism.scale), np.arange(-800, 800) / 2
    if isinstance(mechanism, dp.GeometricMechanism):
        return half[::2], np.tanh(0.5 / b) * np.exp(-np.abs(half[::2] - s) / b)
    near = np.where(half >= s, half - s, s - half - 0.5)
    return half + 0.25, -0.5 * np.exp(-near / b) * np.expm1(-0.5 / b)


G, L = dp.GeometricMechanism(3.0), dp.LaplaceMechanism(2.0)
THRESHOLDS = np.array([-INF, -4.0, 0.0, 2.0, INF])
UP, BETWEEN, THREE = {"upper": 16}, {"below": 1, "above": -1}, {"base": 3}
ROWS = [
    (G, 7, "clipped", {"lower": 0, "upper": 12}, "suppressed", {"below": 4}, "rounded", THREE),
    (L, 1, "clipped", {"lower": -2.5, "upper": 3.5}, "suppressed", {"below": -1.5}, "rounded", {}),
    (L, 1, "clipped", {"lower": -2.5, "upper": 4.5}, "suppressed", {"above": 4}, "ceiled", {}),
    (L, 0, "clipped", {"lower": -3, "upper": 4}, "suppressed", BETWEEN, "floored"),
    (L, 2, "clipped", {"lower": -1.5, "upper": 6.5}, "rounded", {"base": 3}),
    (L, -1, "clipped", {"lower": -4, "upper": 2}, "truncated", {"base": 2}),
    (L, 1, "rounded", {}, "clipped", {"lower": -1.5, "upper": 2}),
    (L, 1, "clipped", {"lower": -0.5, "upper": 3.5}, "rounded", {}),
    (L, 1, "clipped", {"lower": 0.6, "upper": 1.4}, "rounded", {}),
    (L, 2, "rounded", {}, "rounded", {"base": 10}),
    (G, 3, "clipped", {"lower": 0, "upper": 8}),
    (L, -1, "rounded", {}, "rounded", {"base": 2}, "suppressed", {"below": -3, "above": 2}),
    (G, 6, "rounded", {"base": 4}, "suppressed", {"below": 8}),
    (G, 6, "rounded", {"base": 4}, "suppressed", {"below": 8, "above": 0}, "clipped", UP),
    (G, -3, "suppressed", {"below": -5}, "clipped", {"lower": -4, "upper": 3}),
    (G, -3, "suppressed", {"below": -5, "above": 2}, "floored", THREE, "ceiled", {"base": 2}),
    (G, 0, "suppressed", {"below": THRESHOLDS}, "truncated", {"base": 2}),
    (G, 1, "suppressed", {"above": THRESHOLDS}),
    (G, 1, "suppressed", {"below": -2}, "rounded", THREE, "suppressed", {"above": 4}),
    (dp.RandomRounding(5), 8, "suppressed", {"below": 10}),
    (dp.RandomRounding(5), -8, "clipped", {"lower": -7}, "suppressed", {"above": -7}),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(map(str, row)))
def test_one_after_the_other(row):
    mechanism, s, *steps = row
    x, p = enumerated(mechanism, s)
    x = x[:, None]
    for how, arguments in zip(steps[::2], [*steps[1::2], {}], strict=False):
        mechanism, x = getattr(mechanism, how)(**arguments), AFTER[how](x, **arguments)
    values = np.unique(x)[:, None]
    withheld = np.isnan(values[-1, 0])
    same = (x == values[:, None]) | (np.isnan(x) & np.isnan(values[:, None]))
    masses = (same * p[:, None]).sum(axis=1)
    keep = slice(None, -1 if withheld else None)
    z, middle = values[keep], values[np.argmax(masses[keep, :1]), 0]
    graphs = [mechanism.logp(values, s), mechanism.log_interval(-INF, z, s)]
    graphs.append(mechanism.log_interval(middle - 2, middle + 2.0, s))
    near = ((np.abs(z - middle) <= 2) * masses[keep]).sum(axis=0)
    expected = masses, np.cumsum(masses[keep], axis=0), near
    for a, b in zip(evaluate(*graphs), expected, strict=True):
        np.testing.assert_allclose(np.exp(a), b, rtol=1e-10, atol=1e-50)
    assert np.all(np.isneginf(evaluate(mechanism.logp(z + 0.3, s))))


def test_another_value_decides_and_empty_groups_have_no_row():
    (z, p), decides, s = enumerated(G, 2), dp.GeometricMechanism(1.0), np.array([2, 0])
    mechanism = G.suppressed(below=1, above=-2, by=decides, empty=True)
    y, q = enumerated(decides, 2)
    kept = q[(y <= -2) | (y >= 1)].sum()
    logp, between = mechanism.logp(z[:, None], s), mechanism.log_interval(0, 3, s)
    found = np.exp(np.vstack(evaluate(logp, between, mechanism.logp(np.nan, s))))
    expected = [*(p * kept), kept * p[(z >= 0) & (z <= 3)].sum(), 1 - kept]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-10, atol=1e-50)
    np.testing.assert_array_equal(found[:, 1], np.arange(len(z) + 2) > len(z))


def test_what_bounds_exclude_is_not_withheld():
    with pm.Model():
        mean, mechanism = pm.Uniform("mean", -1, 1), dp.LaplaceMechanism(1.0).suppressed(below=0)
        x = pm.Normal("x", mean, 0.1, shape=3)
        z = dp.PrivateObservation("z", x.mean(), mechanism, bounds=(0, 1))
    m, draws = pm.draw([mean, z], 200, random_seed=1)
    assert not is_published(mechanism, draws[m < 0]).any()
    assert 0.2 < np.isnan(draws[m > 0.4]).mean() < 0.5
