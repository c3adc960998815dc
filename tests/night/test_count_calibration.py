"""Simulation-based calibration of counts under every mechanism: marginals, draws and tables."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.kernels.counts.laws import POISSON
from pymc_dp.kernels.counts.tables import Releases, make_pair_sweep
from pymc_dp.laws import find_pair, row_sampler
from tests.agreement import follows, rank, uniform
from tests.kernels.counts.test_tables import all_counts

TRIALS = 300

MECHANISMS = (
    dp.LaplaceMechanism(1.5),
    dp.GeometricMechanism(1.5),
    dp.GaussianMechanism(2.0),
    dp.DiscreteGaussianMechanism(2.0),
    dp.BinomialMechanism(40, 10, 30),
    dp.GeometricMechanism(1.5).clipped(0),
    dp.GaussianMechanism(2.0).rounded(0),
)
# Parameters drawn from the prior, given a grid of its quantiles, and how the law takes them.
LAWS = {
    "Poisson": (pm.Poisson.dist(1.0), stats.gamma(2, scale=3), lambda t: [t]),
    "Binomial": (pm.Binomial.dist(1, 0.5), stats.beta(1, 2), lambda t: [20, t]),
    "NegativeBinomial": (
        pm.NegativeBinomial.dist(n=1.0, p=0.5),
        stats.beta(3, 3),
        lambda t: [0 * t + 0.6, t],  # not log-concave
    ),
}
CASES = [("Poisson", m) for m in MECHANISMS]
CASES += [(name, m) for name in ("Binomial", "NegativeBinomial") for m in MECHANISMS[2:4]]


@pytest.mark.parametrize(("name", "mechanism"), CASES, ids=str)
@pytest.mark.by_day("Poisson-GeometricMechanism(scale=1.5).clipped(lower=0.0)")
def test_marginal_and_draw(name, mechanism):
    """The parameter's posterior is put on a grid; the count is drawn given a draw from it."""
    variable, prior, parameters = LAWS[name]
    rng, op = np.random.default_rng(1), variable.owner.op
    pair = find_pair(op, mechanism)
    theta = prior.rvs(TRIALS, random_state=rng)
    count = np.array(op.rng_fn(rng, *parameters(theta), None), dtype=float)
    if isinstance(
        mechanism, dp.BinomialMechanism
    ):  # a larger count than the population: no release
        theta, count = theta[count <= 30], count[count <= 30]
    z = np.asarray(pm.draw(mechanism.dist(count), random_seed=2), dtype=float)

    grid = prior.ppf((np.arange(400) + 0.5) / 400)
    value, t = pt.dvector("value"), pt.dvector("t")
    logp = pair.log_marginal(mechanism, value[:, None], *parameters(t[None, :]))
    log_weight = pytensor.function([value, t], logp)(z, grid)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)

    # Where the true parameter falls in its posterior, between the points of the grid.
    cells = np.concatenate([np.zeros((len(z), 1)), np.cumsum(weight, axis=1)], axis=1)
    place = prior.cdf(theta) * 400
    below = np.floor(place).astype(int).clip(0, 399)
    rows = np.arange(len(z))
    pit = cells[rows, below] + (place - below) * weight[rows, below]
    follows(pit, "uniform")

    # The rank of the true count among 19 draws, ties broken at random.
    n_draws = 19
    picked = np.array([rng.choice(grid, n_draws, p=w) for w in weight]).ravel()
    noise = [float(p.eval()) for p in mechanism.parameters]
    theta = pair.parameters(*map(pt.as_tensor, parameters(picked)))
    theta = [pt.as_tensor(x).eval() for x in theta]
    columns = [np.repeat(z, n_draws), *noise, -np.inf, np.inf, *theta]
    columns = np.array(np.broadcast_arrays(*columns), dtype=float)
    drawn = row_sampler(pair.draw, len(columns))(rng, columns).reshape(-1, n_draws)
    assert not np.isnan(drawn).any()
    uniform(rank(rng, count, drawn.T), n_draws)


@pytest.mark.parametrize("kind", ["Laplace", "Gaussian", "both"])
@pytest.mark.nightly
def test_tables(kind):
    """A table of four cells in two groups, its total public: ranks of a cell and of a group."""
    rng, sweep = np.random.default_rng(4), make_pair_sweep(POISSON)
    p, groups = np.array([0.1, 0.4, 0.3, 0.2]), np.array([0, 0, 1, 1])
    first, which = np.arange(0, 9, 2), np.stack([np.arange(4), 4 + groups], axis=1).ravel()
    lam = np.where(kind == "Gaussian", 0.0, [0.5] * 4 + [1.0] * 2)
    tau = np.where(kind == "Laplace", 0.0, [0.1] * 4 + [0.3] * 2)
    if kind == "both":
        lam[:4], tau[4:] = 0.0, 0.0
    ranks = []
    for _ in range(TRIALS):
        table = rng.multinomial(30, p).astype(float)
        sums = np.append(table, np.bincount(groups, table))
        noise = [
            rng.laplace(0, 1 / a) if a else rng.normal(0, b**-0.5)
            for a, b in zip(lam, tau, strict=True)
        ]
        released = Releases(sums + noise, lam, tau, first, which, np.ones(8))
        y = rng.multinomial(30, p).astype(float)
        draws = []
        for k in range(30 + 19 * 4):
            assert sweep(rng, y, p[None], 4, released, all_counts(4))
            if k >= 30 and k % 4 == 0:
                draws.append([y[0], y[:2].sum()])
        ranks.append(rank(rng, [table[0], table[:2].sum()], np.array(draws)))
    uniform(ranks, 19)
