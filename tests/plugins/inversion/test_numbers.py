"""Sums over a number of records that nobody knows: one inversion for all numbers."""

import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.plugins.inversion.kernels.nodes import NODES, WEIGHTS
from pymc_dp.plugins.inversion.kernels.numbers import release, sparing_line

K = np.arange(60)
NUMBERS = {  # the least number, and log weights of it and of those that follow
    "as a producer has it": (40.0, stats.poisson.logpmf(40 + K, 57) - abs(K - 22) / 1.3),
    "from none": (0.0, np.full(60, -np.log(60))),
    "two of them": (30.0, np.where((K == 3) | (K == 20), -0.7, -np.inf)),
    "many": (1e5, stats.norm.logpdf(K, 30, 9)),
}


def clamped(mu, sd, low, high, panels=6):
    """Nodes of a clamped Normal record: panels between the bounds, an atom at each."""
    edges = np.linspace(low, high, panels + 1)
    inner = (edges[:-1, None] + np.diff(edges)[:, None] * (NODES + 1) / 2).ravel()
    log_weight = np.log((np.diff(edges)[:, None] * WEIGHTS / 2).ravel())
    log_weight += stats.norm.logpdf(inner, mu, sd)
    ends = [stats.norm.logcdf(low, mu, sd), stats.norm.logsf(high, mu, sd)]
    log_weight = np.concatenate([*(p + np.log(WEIGHTS / 2) for p in ends), log_weight])
    return log_weight, np.concatenate([np.repeat([low, high], NODES.size), inner])


LAWS = {
    "inside": clamped(12, 5, 0, 30),
    "mostly clamped": clamped(-5, 4, -2, 10),
    "two values": [part[: 2 * NODES.size] for part in clamped(12, 50, 11.99, 12.01)],
}


@pytest.mark.parametrize("noise", [(9.0, 0.0), (0.0, 12.0), (200.0, 0.0)], ids=str)
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("law", LAWS)
def test_one_inversion_for_all_numbers(law, numbers, noise):
    (log_weight, h), (n, lp) = LAWS[law], NUMBERS[numbers]
    if law == "two values":
        log_weight = log_weight - special.logsumexp(log_weight)
    mean = np.exp(log_weight) @ h
    one, cut = np.zeros(1), np.zeros(h.size)
    nodes = [np.tile(part, 2) for part in (log_weight, h, cut)]

    def of(n, lp, z):
        logp, by_z, *others = sparing_line(*nodes, h.size, n, lp, z, *noise, True)
        return logp, np.full(1, by_z), *others

    for z in (mean * (n + special.softmax(lp) @ K), mean * n - 3 * max(noise)):
        each = [of(n + k, one, z) for k in K]
        share = lp + [found[0] for found in each]
        if np.isnan(share).any():
            continue  # where all clamped records have a corner, one number alone has no density
        expected = special.logsumexp(share)
        share = special.softmax(share)
        logp, by_z, by_node, by_number = of(n, lp, z)
        assert logp == pytest.approx(expected, abs=1e-6 if noise[0] else 1e-8)
        np.testing.assert_allclose(by_number, share, atol=1e-6)
        for found, place in ((by_z, 1), (by_node, 2)):
            own = sum(s * e[place] for s, e in zip(share, each, strict=True) if s > 0)
            close(found, own)
        # The same where the release depends on their number: here it does not, in a mean it does.
        apart = release(*nodes, h.size, n, lp, *(np.full(K.size, v) for v in (z, *noise)))
        assert apart[0] == pytest.approx(expected, abs=1e-10)
        close(apart[1].sum(keepdims=True), by_z)
        close(apart[2], by_node)


@pytest.mark.parametrize("many", [False, True])
def test_a_mean_over_an_unknown_number(many):
    """Many numbers are interpolated between, unless what is released is no smooth function."""
    log_weight, h = LAWS["inside"]
    nodes = [np.tile(part, 2) for part in (log_weight, h, np.zeros(h.size))]
    n, k = (300.0, np.arange(200)) if many else (25.0, np.arange(60))
    lp = stats.norm.logpdf(n + k, n + 0.4 * k.size, 0.12 * k.size)

    def of(n, lp, z, b):
        return release(*nodes, h.size, n, lp, z, b, np.zeros(z.size))

    odd = np.where(k == k.size // 2 + 1, 1.02, 1.0)
    for mean, other in ((12.5, 1.0), (20.0, 1.0), (12.5, odd)):
        z, b = mean * other * (n + k), 0.4 * (n + k)
        each = [of(n + i, np.zeros(1), z[[i]], b[[i]]) for i in k]
        share = lp + [found[0] for found in each]
        logp, by_z, by_node, by_number = of(n, lp, z, b)
        assert logp == pytest.approx(special.logsumexp(share), abs=1e-9)
        share = special.softmax(share)
        np.testing.assert_allclose(by_number, share, atol=1e-9)
        slopes = np.ravel([found[1] for found in each])
        assert by_z @ z == pytest.approx((share * slopes) @ z, rel=1e-7)
        close(by_node, sum(s * found[2] for s, found in zip(share, each, strict=True)))


def close(found, expected):
    """Whichever of the two sets of nodes is used."""
    found, expected = (
        v if v.size == 1 else v.reshape(2, -1).sum(axis=0) for v in (found, expected)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("noise", [(9.0, 0.0), (0.0, 12.0)], ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_the_density_is_the_same_without_derivatives(law, noise):
    (log_weight, h), (n, lp) = LAWS[law], next(iter(NUMBERS.values()))
    log_weight = log_weight - special.logsumexp(log_weight)
    nodes = [np.tile(part, 2) for part in (log_weight, h, np.zeros(h.size))]
    z = n * np.exp(log_weight) @ h
    full, value = (sparing_line(*nodes, h.size, n, lp, z, *noise, which) for which in (True, False))
    assert value[:2] == full[:2]
    assert not value[2].any()
