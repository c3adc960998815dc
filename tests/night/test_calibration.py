"""Simulation-based calibration of the kernels and of the marginal, with proper priors.

That of the records is in test_record_calibration.py.
"""

from unittest import mock

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_tilted_gamma, draw_tilted_normal
from pymc_dp.kernels.draws.scale_mixture import draw_independent
from pymc_dp.kernels.moments.gaussian_chain import run_sweeps
from tests.agreement import follows, rank, uniform
from tests.geweke import normal_records
from tests.models import GAUSSIAN_CHAIN, as_model

TRIALS = 300
DRAWS, BINS = 99, 20  # ranks 0..99 in 20 bins of five
MU0, SD0, A0, B0 = 0.4, 0.3, 3.0, 0.1
N, NOISE_MEAN, NOISE_VAR = 12, 0.1, 0.05


def prior(kappa):
    tau = 0.0 if kappa else SD0**-2
    return {"mu0": MU0, "kappa0": kappa, "tau0": tau, "a0": A0, "b0": B0}


def simulate(rng, bounded, n=N, kappa=0.0):
    """Draw parameters and sample moments; the feasible part of the joint law if bounded."""
    size = 10 * TRIALS if bounded else TRIALS
    return normal_records(rng, size, n=n, bounded=bounded, **prior(kappa))[:TRIALS]


@pytest.mark.by_day("normal-inverse-gamma-unbounded-gaussian-12")
@pytest.mark.parametrize(
    ("noise", "n"),
    [("laplace", 2), ("laplace", 3), ("laplace", N), ("gaussian", 3), ("gaussian", N)],
)
@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("kappa", [0.0, 0.7], ids=["normal", "normal-inverse-gamma"])
def test_fused(noise, bounded, kappa, n):
    rng, laplace, scales = np.random.default_rng(11), noise == "laplace", (NOISE_MEAN, NOISE_VAR)
    lam = [laplace / scale for scale in scales]
    tau = [(not laplace) / scale**2 for scale in scales]
    model = GAUSSIAN_CHAIN._replace(
        **prior(kappa),
        n=float(n),
        lam_mean=lam[0],
        tau_mean=tau[0],
        lam_var=lam[1],
        tau_var=tau[1],
        bounded=bounded,
    )
    ranks, out = [], np.empty((DRAWS, 2))
    for mu, s2, *statistics in simulate(rng, bounded, n, kappa):
        z = (rng.laplace if laplace else rng.normal)(statistics, scales)
        given = model._replace(z_mean=z[0], z_var=z[1])
        state = run_sweeps(rng, (0.5, 0.05, 0.5, 0.05), given, 1, np.empty((200, 2)))
        run_sweeps(rng, state, given, 20, out)
        ranks.append(rank(rng, [mu, s2], out))
    assert len(ranks) == TRIALS
    uniform(ranks, DRAWS, BINS)


@njit(cache=True)
def _gibbs(rng, z1, z2, n, draws, thin, mixture):
    """Separate updates as the steps make them: statistics, then parameters."""
    mu, s2, ybar, var = MU0, 0.05, MU0, 0.05
    out = np.empty((draws, 2))
    for i in range(draws):
        for _ in range(thin):
            if mixture:
                ybar = draw_independent(
                    rng,
                    np.array([ybar]),
                    np.array([z1]),
                    np.array([NOISE_MEAN]),
                    np.array([mu]),
                    np.array([np.sqrt(s2 / n)]),
                )[0]
            else:
                ybar = draw_tilted_normal(rng, mu, s2 / n, 1 / NOISE_MEAN, z1, -np.inf, np.inf)
            a = (n - 1) / 2
            var = draw_tilted_gamma(rng, a, a / s2, 1 / NOISE_VAR, z2, 0.0, np.inf)
            precision = n / s2 + SD0**-2
            mu = (n / s2 * ybar + MU0 * SD0**-2) / precision
            mu += rng.standard_normal() / np.sqrt(precision)
            scale = B0 + ((n - 1) * var + n * (ybar - mu) ** 2) / 2
            s2 = scale / rng.standard_gamma(A0 + n / 2)
        out[i] = mu, s2
    return out


@pytest.mark.parametrize("mixture", [False, True], ids=["two-sided", "scale-mixture"])
def test_statistic_kernels(mixture):
    rng = np.random.default_rng(12)
    ranks = []
    for mu, s2, *statistics in simulate(rng, False):
        z1, z2 = rng.laplace(statistics, (NOISE_MEAN, NOISE_VAR))
        out = _gibbs(rng, z1, z2, float(N), DRAWS + 10, 25, mixture)[10:]
        ranks.append(rank(rng, [mu, s2], out))
    uniform(ranks, DRAWS, BINS)


@as_model
def calibration_model(mechanism=dp.LaplaceMechanism, n=N):
    """The model of these tests, its release without a value."""
    mu = pm.Normal("mu", MU0, SD0)
    s2 = pm.InverseGamma("s2", A0, B0)
    x = pm.Normal("x", mu, pt.sqrt(s2), shape=n)
    observed = pm.Data("observed", [0.4, 0.05])
    noise = mechanism([NOISE_MEAN, NOISE_VAR])
    dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, observed=observed)


@pytest.mark.parametrize("mechanism", [dp.LaplaceMechanism, dp.GaussianMechanism])
@pytest.mark.nightly
def test_marginal(mechanism):
    """Posterior distribution functions at the truth are uniform; one compiled function, no MCMC."""
    collapsed = dp.collapse(calibration_model(mechanism), "marginal")
    mu, s2 = pt.dmatrix("mu"), pt.dmatrix("s2")
    rv = collapsed["z"]
    value = collapsed.rvs_to_values[rv]
    logp = pm.logp(rv, value).sum()
    grid_mu = np.linspace(MU0 - 6 * SD0, MU0 + 6 * SD0, 70)
    grid_log_s2 = np.linspace(np.log(0.003), np.log(1.5), 60)
    mu, s2 = (a.ravel() for a in np.meshgrid(grid_mu, np.exp(grid_log_s2), indexing="ij"))
    batched = {
        collapsed["mu"]: pt.vector("mu", shape=(mu.size,)),
        collapsed["s2"]: pt.vector("s2", shape=(mu.size,)),
    }
    from pytensor.graph.replace import vectorize_graph

    function = pm.compile(list(batched.values()), vectorize_graph(logp, batched))
    log_prior = stats.norm.logpdf(mu, MU0, SD0) + stats.invgamma.logpdf(s2, A0, scale=B0)
    log_prior += np.log(s2)  # the grid is even in log s2
    rng = np.random.default_rng(14)
    draw = rng.laplace if mechanism is dp.LaplaceMechanism else rng.normal
    pits = np.empty((TRIALS, 2))
    for t, (true_mu, true_s2, *statistics) in enumerate(simulate(rng, False)):
        with collapsed:
            pm.set_data({"observed": draw(statistics, (NOISE_MEAN, NOISE_VAR))})
        log_density = function(mu, s2) + log_prior
        weight = np.exp(log_density - log_density.max()).reshape(70, 60)
        for j, (grid, truth) in enumerate(((grid_mu, true_mu), (grid_log_s2, np.log(true_s2)))):
            marginal = weight.sum(axis=1 - j)
            cdf = np.concatenate([[0.0], np.cumsum(marginal)]) / marginal.sum()
            edges = np.concatenate([grid - (grid[1] - grid[0]) / 2, [np.inf]])
            pits[t, j] = np.interp(truth, edges[:-1], cdf[:-1])
    for column in pits.T:
        follows(column, "uniform")


def _rung(name):
    model = calibration_model()
    return model if name == "records" else dp.collapse(model, name)


def _simuk(rung, simulations, draws):
    tune = 300 if rung == "marginal" else 100
    return simuk_ranks(_rung(rung), ["mu", "s2"], simulations, draws, tune)


def observe_anew(model, vars_to_observations, observe=pm.observe):
    """Observe other values, through pm.Data where there is one: no constant to compile anew."""
    values = {model.rvs_to_values[model[name]]: v for name, v in vars_to_observations.items()}
    if not set(values) <= set(model.data_vars):
        return observe(model, vars_to_observations)
    with model:
        pm.set_data({data.name: value for data, value in values.items()})
    return model


def simuk_ranks(model, names, simulations, draws, tune):
    """Return the ranks of scalars, one row for each simulation."""
    import simuk

    sbc = simuk.SBC(
        model,
        num_simulations=simulations,
        sample_kwargs={
            "draws": draws,
            "tune": tune,
            "chains": 1,
            "cores": 1,
            "quiet": True,
            "compute_convergence_checks": False,
            "nuts_sampler": "pymc",
        },
        seed=1,
        progress_bar=False,
    )
    with mock.patch("pymc.observe", observe_anew):
        sbc.run_simulations()
    found = np.column_stack([np.ravel(sbc.simulations["prior_sbc"][name]) for name in names])
    assert len(found) == simulations
    return found


RUNGS = ["records", "statistics", "marginal"]


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.nightly
def test_simuk_smoke(rung):
    """Our releases and steps work under simuk as PyMC's own do."""
    for ranks in _simuk(rung, 6, draws=50).T:
        assert 0 < ranks.mean() < 50
        assert np.ptp(ranks) > 10


# Enough draws that ranks are uniform in spite of their autocorrelation.
DRAWS_NIGHTLY = {"records": 500, "statistics": 2_000, "marginal": 500}


@pytest.mark.nightly
@pytest.mark.parametrize("rung", RUNGS)
def test_simuk(rung):
    draws = DRAWS_NIGHTLY[rung]
    uniform(_simuk(rung, 300, draws=draws), draws)
