"""The rungs of the ladder agree, on problems drawn at random and at extremes."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from scipy import stats

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.routes import gaussian as fused
from tests.agreement import has_moments
from tests.chains import SHORT
from tests.models import gaussian_model

PRIOR = {"mu_0": 0.3, "kappa_0": 0.5, "nu_0": 6.0, "sigma_0_sq": 0.05}


def random_problem(seed, bounded):
    """Draw n, the noise and a release, some of them far outside of what is possible."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([2, 3, 10, 80, 500]))
    scales = np.exp(rng.uniform(np.log(0.003), np.log(0.5), size=2))
    z = np.array([0.4, 0.06]) + scales * rng.laplace(size=2) * rng.choice([1, 8], size=2)
    mechanism = dp.LaplaceMechanism if n < 3 or rng.random() < 0.7 else dp.GaussianMechanism
    bounds = (0, 1) if bounded else None
    return gaussian_model(n, scales, z, bounds=bounds, prior=PRIOR, mechanism=mechanism)


def grid_moments(model, posterior):
    """Moments of mu and log s2 on the marginal rung by quadrature on one compiled density.

    Draws of the posterior only say where to put the grid.
    """
    collapsed = dp.collapse(model, "marginal")
    rv = collapsed["z"]
    logp = pm.logp(rv, collapsed.rvs_to_values[rv]).sum()
    names = ("mu", "s2")
    bounds = model["z"].owner.op.bounds
    window = {}
    for name, x in (("mu", posterior["mu"]), ("log_s2", np.log(posterior["s2"]))):
        center, sd = float(x.mean()), float(x.std())
        window[name] = np.linspace(center - 9 * sd, center + 9 * sd, 130 if bounds else 400)
    mu, log_s2 = (x.ravel() for x in np.meshgrid(window["mu"], window["log_s2"], indexing="ij"))
    s2 = np.exp(log_s2)
    if bounds:
        function = pm.compile([collapsed[name] for name in names], logp)
        ok = s2 < mu * (1 - mu)
        log_density = np.full(mu.size, -np.inf)
        log_density[ok] = [function(*p) for p in zip(mu[ok], s2[ok], strict=True)]
    else:
        batched = {collapsed[k]: pt.vector(k, shape=(mu.size,)) for k in names}
        function = pm.compile(list(batched.values()), vectorize_graph(logp, batched))
        log_density = function(mu, s2)
    a = PRIOR["nu_0"] / 2
    log_density += stats.norm.logpdf(mu, PRIOR["mu_0"], np.sqrt(s2 / PRIOR["kappa_0"]))
    log_density += stats.invgamma.logpdf(s2, a, scale=a * PRIOR["sigma_0_sq"])
    weight = np.exp(log_density - log_density.max()) * s2  # ds2 = s2 dlog(s2), on an even grid
    found = {}
    for name, x in (("mu", mu), ("log_s2", log_s2)):
        mean = np.average(x, weights=weight)
        found[name] = mean, np.sqrt(np.average((x - mean) ** 2, weights=weight))
    return found


@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.by_day("3-unbounded")
def test_fused_agrees_with_marginal(seed, bounded):
    model = random_problem(seed, bounded)
    idata = dp.sample(
        model, rung="statistics", draws=20_000, chains=2, random_seed=seed, quiet=True
    )
    posterior = idata["posterior"]
    assert posterior.attrs["route"] == "fused Gibbs"
    exact = grid_moments(model, posterior)
    for name, x in (("mu", posterior["mu"]), ("log_s2", np.log(posterior["s2"]))):
        mean, sd = exact[name]
        has_moments(x, mean, sd, mean_se=7e-4 * sd, sd_within=0.03, where=name)


@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("rung", ["records", "statistics"])
@pytest.mark.nightly
def test_steps_agree_with_fused(rung, bounded):
    """The Gibbs steps inside PyMC, on records and on statistics, against the fused chain."""
    bounds = (0, 1) if bounded else None
    model = gaussian_model(12, [0.02, 0.02], [0.35, 0.06], bounds=bounds, prior=PRIOR)
    exact = dp.sample(model, draws=20_000, chains=2, random_seed=1, quiet=True)["posterior"]
    on = model if rung == "records" else dp.collapse(model, "statistics")
    start = {"mu": 0.4, "s2": 0.05} if bounded else None
    options = {"step": dp.steps(on), "initvals": start, "random_seed": 2, "model": on}
    idata = pm.sample(8_000, tune=300, **options, **SHORT)
    for name in ("mu", "s2"):
        error = 0.0025 * float(exact[name].std())
        has_moments(idata["posterior"][name], float(exact[name].mean()), mean_se=error, least=400)
    if rung == "records":
        assert 0 < idata["sample_stats"]["dp_record_accept"].mean() <= 1


@pytest.mark.parametrize("mechanism", [dp.LaplaceMechanism, dp.GaussianMechanism])
@pytest.mark.parametrize("bounds", [None, (0, 1)], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("n", [3, 10**9])
def test_extremes_are_finite(n, bounds, mechanism):
    """From epsilon 1e-6 to 1e6, releases a thousand noise scales from any possible value."""
    for epsilon in (1e-6, 1e6):
        scale = 1 / (epsilon * n)
        for z in ([0.4, -0.3], [1 + 1000 * scale, 0.25 + 1000 * scale], [-1000 * scale] * 2):
            model = gaussian_model(
                n, [scale, scale], z, bounds=bounds, prior=PRIOR, mechanism=mechanism
            )
            kernel = fused.kernel_model(model, fused.covered(Reading(model)))
            rng = np.random.default_rng(1)
            out = np.empty((200, 2))
            fused.run_sweeps(rng, fused.start(kernel, rng), kernel, 2, out)
            assert np.all(np.isfinite(out))
            assert np.all(out[:, 1] > 0)
            if bounds:
                assert np.all(out[:, 1] <= out[:, 0] * (1 - out[:, 0]) + 1e-15)


@pytest.mark.parametrize("bounds", [None, (0, 1)], ids=["unbounded", "bounded"])
def test_extreme_marginals_have_finite_gradients(bounds):
    n, scale = 10**9, 1e-15
    model = gaussian_model(n, [scale, scale], [0.4, -1000 * scale], bounds=bounds, prior=PRIOR)
    collapsed = dp.collapse(model, "marginal")
    function = collapsed.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    for point in ([-1.0, -3.0], [2.0, 0.5], [0.0, -8.0]):
        value, gradient = function(np.array(point))
        assert np.isfinite(value)
        assert np.all(np.isfinite(gradient))


def test_n_is_only_a_number():
    """A billion records: collapse, explain and sample allocate nothing of that size."""
    model = gaussian_model(10**9, [1e-6, 1e-6], [0.4, 0.05], prior=PRIOR)
    idata = dp.sample(model, draws=200, chains=2, random_seed=1, quiet=True)
    assert abs(float(idata["posterior"]["mu"].mean()) - 0.4) < 1e-4
    assert abs(float(idata["posterior"]["s2"].mean()) - 0.05) < 1e-4
    recovered = dp.recover(model, idata, random_seed=1)
    assert abs(float(recovered["posterior"]["x_mean"].mean()) - 0.4) < 1e-4
