"""The law of sums over rows: exact, and by the central limit theorem."""

import json
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy import stats

import pymc_dp as dp
from pymc_dp.kernels.regression_law import gaussian_moments, moments_from_fourth, row_law
from pymc_dp.row_sums import (
    StandardisedLog,
    bartlett_latents,
    exact_sums,
    moment_latents,
    moment_law,
    moment_sums,
    normal_law,
    normal_release_rv,
    normal_sums,
    read_moments,
)

CASES = json.loads((Path(__file__).parent / "data" / "regression.json").read_text())["cases"]
MOMENTS = next(case for case in CASES if case["id"] == "A_moments_d2")
PLAIN = Mode(linker="py", optimizer=None)
RNG = np.random.default_rng(1)


def value(*graphs):
    return [np.asarray(v) for v in pytensor.function([], list(graphs), mode=PLAIN)()]


def normal_rows(width):
    root = np.linalg.cholesky(np.cov(RNG.normal(size=(width, 3 * width))) + 0.1 * np.eye(width))
    return RNG.normal(size=width), root


def test_reference_moments():
    inputs, expected = MOMENTS["inputs"], MOMENTS["expected"]
    a, b = inputs["theta"]
    [mx], [[t]] = inputs["mx"], inputs["T"]
    sd = np.sqrt(inputs["sigma2"])
    root = np.array([[np.sqrt(t), 0.0], [b * np.sqrt(t), sd]])
    normal = normal_law(pt.constant([mx, a + b * mx]), pt.constant(root), 2)
    moments = read_moments(inputs["eta4"])
    assert moments.moved == 0.0
    stated = moment_law(moments, pt.constant(a), pt.constant([b]), pt.constant(sd))
    for law in (normal, stated):
        order = [law.products.index(p) for p in [(0,), (0, 0), (1,), (0, 1), (1, 1)]]
        mean, factor = value(law.mean, law.factor)
        np.testing.assert_allclose(mean[order], expected["mu_t"], rtol=1e-10)
        cov = (factor @ factor.T)[np.ix_(order, order)]
        np.testing.assert_allclose(cov, expected["Sigma_t"], rtol=1e-10)


@pytest.mark.parametrize("width", [2, 4])
def test_law_of_normal_rows_agrees_with_the_kernels(width):
    mean_x, root_x = normal_rows(width - 1)
    theta, sigma = RNG.normal(size=width), 0.7
    row = np.concatenate([theta[1:] @ root_x, [sigma]])
    root = np.block([[root_x, np.zeros((width - 1, 1))], [row[None]]])
    mean = np.append(mean_x, theta[0] + theta[1:] @ mean_x)
    law = normal_law(pt.constant(mean), pt.constant(root), width)
    eta, xi = gaussian_moments(mean_x, root_x @ root_x.T)
    m, v = row_law(theta, sigma**2, eta, xi)
    i, j = (index[1:] for index in np.triu_indices(width))
    names = [tuple(int(c) - 1 for c in pair if c) for pair in zip(i, j, strict=True)]
    names += [tuple(c - 1 for c in (k, width) if c) for k in range(width)]
    names += [(width - 1, width - 1)]
    order = [law.products.index(name) for name in names]
    ours, factor = value(law.mean, law.factor)
    np.testing.assert_allclose(ours[order], m, rtol=1e-12)
    cov = (factor @ factor.T)[np.ix_(order, order)]
    np.testing.assert_allclose(cov, v, rtol=1e-11, atol=1e-12)


def of_sums(sums, products):
    """Return the sums as one vector, around zero."""
    center, first, second = value(sums.center, sums.first, sums.second)
    assert not center.any()
    return np.array([first[p[0]] if len(p) == 1 else second[p] for p in products])


def test_latents_and_law_are_the_same():
    n, width = 50, 3
    mean, root = normal_rows(width)
    z = RNG.normal(size=width + width * (width + 1) // 2)
    sums = normal_sums(pt.constant(mean), pt.constant(root), n, width, pt.constant(z))
    center, first, second = value(sums.center, sums.first, sums.second)
    raw = first + n * center
    products = second + np.outer(center, first) + np.outer(first, center)
    products += n * np.outer(center, center)
    law = normal_law(pt.constant(mean), pt.constant(root), width)
    m, f = value(law.mean, law.factor)
    expected = n * m + np.sqrt(n) * f @ z
    ours = [raw[p[0]] if len(p) == 1 else products[p] for p in law.products]
    np.testing.assert_allclose(ours, expected, rtol=1e-11)


def test_latents_and_law_are_the_same_for_stated_moments():
    n = 50
    x = RNG.gamma(2.0, size=(400, 2))
    features = np.column_stack([np.ones(400), x])
    fourth = np.einsum("ni,nj,nk,nl->ijkl", *[features] * 4) / 400
    moments = read_moments(fourth)
    parts = moments, pt.constant(0.3), pt.constant([1.0, -2.0]), pt.constant(0.7)
    z = RNG.normal(size=moment_latents(moments))
    law = moment_law(*parts)
    m, f = value(law.mean, law.factor)
    ours = of_sums(moment_sums(*parts, n, pt.constant(z)), law.products)
    np.testing.assert_allclose(ours, n * m + np.sqrt(n) * f @ z, rtol=1e-10)
    eta, xi = moments_from_fourth(fourth)
    mean, cov = row_law(np.array([0.3, 1.0, -2.0]), 0.49, eta, xi)
    np.testing.assert_allclose(m, mean, rtol=1e-12)
    np.testing.assert_allclose(f @ f.T, cov, rtol=1e-8, atol=1e-9)


def test_moments_of_no_distribution_are_projected():
    moments = read_moments([0.2, 0.05, 0.1, 0.02])
    assert moments.moved > 0.01
    kept = moments.root @ moments.root.T
    assert np.linalg.eigvalsh(kept).min() > -1e-12
    for wrong, match in (
        ([0.1, 0.2], "first four moments"),
        (np.ones((2, 2, 2)), "shape"),
        (2 * np.ones((2, 2, 2, 2)), "its moments are 1"),
    ):
        with pytest.raises(ValueError, match=match):
            read_moments(wrong)


def test_exact_sums_follow_the_wishart_law():
    """Against data: means, scatter matrices and their dependence, in a fixed simulation."""
    n, width, draws = 6, 3, 20_000
    mean, root = normal_rows(width)
    latents = bartlett_latents(width, n)
    names = list(latents)
    e, below, chi2 = (pt.TensorType("float64", rv.type.shape)() for rv, _ in latents.values())
    sums = exact_sums(pt.constant(mean), pt.constant(root), n, e, chi2, below)
    own, cov = sums.moments(n)
    function = pytensor.function([e, below, chi2], [own, cov])
    assert names == ["mean_standard", "cov_standard", "cov_chi2"]
    rng = np.random.default_rng(2)
    ours, data = [], []
    for _ in range(draws):
        chi = rng.chisquare(n - 1 - np.arange(width))
        m, c = function(rng.normal(size=3), rng.normal(size=3), chi)
        ours.append([*m, *c[np.tril_indices(3)], np.linalg.det(c)])
        rows = mean + rng.normal(size=(n, width)) @ root.T
        c = np.cov(rows.T)
        data.append([*rows.mean(axis=0), *c[np.tril_indices(3)], np.linalg.det(c)])
    for a, b in zip(np.array(ours).T, np.array(data).T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-4


@pytest.mark.parametrize("alpha", [0.5, 3.0, 5e8])
def test_standardised_log(alpha):
    transform = StandardisedLog()
    inputs = [None, None, pt.constant(np.float64(alpha)), pt.constant(np.float64(2.0))]
    v = pt.dscalar()
    back = transform.backward(v, *inputs)
    jacobian = pytensor.gradient.grad(back, v)
    f = pytensor.function(
        [v], [transform.forward(back, *inputs), pt.log(jacobian), transform.log_jac_det(v, *inputs)]
    )
    for point in (-2.0, 0.0, 1.5):
        again, direct, ours = f(point)
        assert again == pytest.approx(point, abs=1e-6)
        assert ours == pytest.approx(direct, rel=1e-10)
    typical = stats.gamma(alpha, scale=2.0).ppf([0.1587, 0.8413]) if alpha < 1e6 else None
    if typical is not None and alpha > 1:
        scaled = np.sqrt(alpha) * np.log(typical / (2 * alpha))
        assert np.all(np.abs(np.abs(scaled) - 1) < 0.5)


def test_normal_release():
    k, count = 4, 3
    mean, factor = RNG.normal(size=k), RNG.normal(size=(k, count))
    sigma = np.array([[0.5, 1.0], [2.0, 0.7]])
    rv = normal_release_rv(
        pt.constant(mean),
        pt.constant(factor),
        dp.GaussianMechanism(sigma),
        shape=(2, 2),
        names=("s",),
    )
    z = RNG.normal(size=(2, 2))
    law = stats.multivariate_normal(mean, factor @ factor.T + np.diag(sigma.ravel() ** 2))
    assert pm.logp(rv, z).eval() == pytest.approx(law.logpdf(z.ravel()), rel=1e-12)
    draws = pm.draw(rv, 4000, random_seed=1).reshape(4000, -1)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.2)
    np.testing.assert_allclose(np.cov(draws.T), law.cov, atol=0.6)
