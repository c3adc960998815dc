"""The fused chain against exact posteriors, on every case that is not truncated by request."""

import numpy as np
import pytest

from pymc_dp.kernels.moments.gaussian_chain import GaussianModel, run_sweeps
from tests.agreement import has_moments
from tests.models import GAUSSIAN_CASES, GAUSSIAN_CHAIN

# The published sampler cuts sigma2 at (n - 1) / (2 n eps2); we do so only when asked, in a model.
EXACT = [
    c
    for c in GAUSSIAN_CASES
    if c["input"]["constrained"]
    or c["input"]["sigma2_truncated_at"] is None
    or not c["input"]["flat_prior"]
]


def kernel_model(case) -> GaussianModel:
    x, prior = case["input"], case["input"]["prior"] or {}
    n = float(x["n"])
    return GAUSSIAN_CHAIN._replace(
        n=n,
        mu0=prior.get("mu_0", 0.0),
        kappa0=prior.get("kappa_0", 0.0),
        a0=prior.get("nu_0", -2.0) / 2,
        b0=prior.get("nu_0", 0.0) * prior.get("sigma_0_sq", 0.0) / 2,
        lam_mean=n * x["eps_1"],
        z_mean=x["z1_priv_mean"],
        lam_var=n * x["eps_2"],
        z_var=x["z2_priv_var"],
        bounded=x["constrained"],
    )


@pytest.mark.by_day("n200_e02_z2neg_con_flat")
@pytest.mark.parametrize("case", EXACT, ids=lambda c: c["name"])
def test_reference_posteriors(case):
    model, exact = kernel_model(case), case["output"]
    chains = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        mean = min(max(case["input"]["z1_priv_mean"], 0.2), 0.8)
        state = run_sweeps(rng, (mean, 0.05, mean, 0.05), model, 5, np.empty((500, 2)))
        out = np.empty((150_000, 2))
        run_sweeps(rng, state, model, 5, out)
        chains.append(out)
    draws = np.stack(chains)
    for j, name in enumerate(("mu", "s2")):
        x = draws[..., j]
        mean, sd = exact[f"{name}_mean"], exact[f"{name}_sd"]
        if name == "s2" and not case["input"]["constrained"] and case["input"]["n"] < 20:
            x, mean, sd = np.sqrt(x), exact["sigma_mean"], exact["sigma_sd"]  # heavy tail
        assert abs(x.mean() - mean) < 0.01 * sd, name
        # The references have six digits.
        has_moments(x, mean, sd, mean_se=5e-6 * abs(mean), sd_within=0.01, where=name)
        quantiles = np.quantile(draws[..., j], [0.025, 0.25, 0.5, 0.75, 0.975])
        np.testing.assert_allclose(
            quantiles, exact[f"{name}_q"], atol=0.04 * exact[f"{name}_sd"], rtol=0.01
        )
    mu, s2 = draws[..., 0], draws[..., 1]
    assert abs(np.mean((mu > 0) & (mu < 1) & (s2 <= mu * (1 - mu))) - exact["P_feasible"]) < 0.005


def test_published_bug_is_not_there():
    """The informative update with kappa0 (mu - mu0)^2 left out has the wrong sigma2 (methods 8)."""
    case = next(c for c in GAUSSIAN_CASES if c["name"] == "ex1_con_inf")
    out = np.empty((200_000, 2))
    run_sweeps(np.random.default_rng(1), (0.5, 0.05, 0.5, 0.05), kernel_model(case), 5, out)
    assert abs(out[:, 1].mean() * 1e4 - 337) < 12  # the published code gives 275
    assert abs(np.median(out[:, 1]) * 1e4 - 84) < 6  # and 43


def test_statistics_that_are_not_released_come_from_the_prior():
    """Without a released variance sigma2 keeps its prior; without a mean, mu does."""
    base = kernel_model(GAUSSIAN_CASES[5])._replace(mu0=0.3, tau0=25.0, a0=3.0, b0=0.2)
    only_mean = base._replace(has_var=0.0, lam_var=0.0, lam_mean=1e-9)
    out = np.empty((100_000, 2))
    run_sweeps(np.random.default_rng(2), (0.3, 0.1, 0.3, 0.1), only_mean, 3, out)
    assert abs(out[:, 1].mean() - 0.1) < 0.003  # InverseGamma(3, 0.2)
    assert abs(out[:, 0].mean() - 0.3) < 0.006
    assert abs(out[:, 0].std() - 0.2) < 0.006
