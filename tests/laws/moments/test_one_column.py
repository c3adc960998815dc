"""The marginal rung without any sampling: densities and moments by quadrature."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from tests.agreement import has_gradient, weighted
from tests.models import GAUSSIAN_CASES, gaussian_model, reference_model
from tests.references import legendre

# The flat truncated case has a prior of its own: sigma2 is cut off there.
EXACT = [c for c in GAUSSIAN_CASES if c["name"] != "n10_e02_uncon_flat"]


def posterior_on_grid(model, size):
    """Evaluate a two-parameter posterior on a grid of the sampler's own coordinates.

    The trapezoidal rule converges fast here: densities there are smooth and fall off at all ends.
    """
    names = [v.name for v in model.value_vars]
    logp = model.compile_logp(jacobian=True)
    values = model.replace_rvs_by_values([model["mu"], model["s2"]])
    natural = pm.compile(model.value_vars, values, on_unused_input="ignore")
    axes, weights = [], []
    for name in names:
        if name == "mu":  # not transformed: heavy tails
            t = np.linspace(-7, 7, size)
            center, scale = model.grid_scale
            axes.append(center + scale * np.sinh(t))
            weights.append(scale * np.cosh(t) * (t[1] - t[0]))
        else:
            low, high, count = (-14.0, 9.0, size) if name == "s2_log__" else model.grid[name[:2]]
            axes.append(np.linspace(low, high, count))
            weights.append(np.full(count, (high - low) / (count - 1)))
    points = np.array(np.meshgrid(*axes, indexing="ij")).reshape(2, -1).T
    weight = np.outer(*weights).ravel()
    log_density = np.array([logp(dict(zip(names, p, strict=True))) for p in points])
    mu, s2 = np.array([natural(*p) for p in points]).T
    return mu, s2, special.softmax(log_density + np.log(weight))


@pytest.mark.nightly
@pytest.mark.parametrize("case", EXACT, ids=lambda c: c["name"])
def test_reference_moments(case, night):
    collapsed = dp.collapse(reference_model(case), "marginal")
    collapsed.grid_scale = case["input"]["z1_priv_mean"], 0.2 * case["output"]["mu_sd"]
    # On the interval's scale a large n confines mu to a narrow range, with a kink in it.
    wide = (-11.0, 11.0, 80)
    narrow = case["input"]["n"] == 1000
    collapsed.grid = {"mu": (-7.0, -1.0, 240) if narrow else wide, "s2": wide}
    if narrow:
        collapsed.grid["s2"] = (-13.0, 0.0, 80)
    mu, s2, weight = posterior_on_grid(collapsed, 200 if night else 100)
    exact = case["output"]
    for name, x in (("mu", mu), ("s2", s2)):
        if name == "s2" and case["name"] == "n10_e02_uncon_flat_notrunc":
            x, mean, sd = np.sqrt(s2), exact["sigma_mean"], exact["sigma_sd"]  # heavy tail
        else:
            mean, sd = exact[f"{name}_mean"], exact[f"{name}_sd"]
        found, spread, _ = weighted(x, weight)
        assert abs(found - mean) < 1e-3 * sd, (name, found)
        assert abs(spread / sd - 1) < 2e-3, (name, spread)


def brute_force(n, m, v, components, mechanism, noise, z, lower, upper):
    """Integrate over the feasible region, sqrt(variance) outside and the mean inside."""
    law = stats.laplace if mechanism is dp.LaplaceMechanism else stats.norm
    half, middle = (upper - lower) / 2, (upper + lower) / 2
    sd = np.sqrt(v / n)
    released = dict(zip(components, zip(z, noise, strict=True), strict=True))

    def around(x, widths):
        return [x + k * w for w in widths for k in (-30, -8, -3, -1, 0, 1, 3, 8, 30)]

    def inner(s):
        width = np.sqrt(max(half**2 - (n - 1) / n * s, 0.0))
        a, b = middle - width, middle + width
        cuts = [a, b, *around(m, [sd])]
        if "mean" in released:
            z1, e = released["mean"]
            cuts += around(z1, [e])
            cuts += around((m * e**2 + z1 * sd**2) / (e**2 + sd**2), [min(e, sd)])
        y, w = legendre(np.clip(cuts, a, b), 24)
        value = stats.norm.pdf(y, m, sd)
        if "mean" in released:
            value = value * law.pdf(released["mean"][0], y, released["mean"][1])
        return w @ value

    cap = n / (n - 1) * half**2
    cuts = [
        *np.linspace(0.0, cap, 60),
        *around(v, [v * np.sqrt(2 / n)]),
        *around(m * (1 - m), [sd]),
    ]
    if "var" in released:
        cuts += around(released["var"][0], [released["var"][1]])
    if "mean" in released:
        x = np.array(around(released["mean"][0], [released["mean"][1]]))
        cuts += [*(n / (n - 1) * (x - lower) * (upper - x))]
    q, w = legendre(np.sqrt(np.clip(cuts, 0, cap)), 24)
    s = q * q
    value = stats.gamma.pdf(s, (n - 1) / 2, scale=2 * v / (n - 1)) * 2 * q
    if "var" in released:
        value = value * law.pdf(released["var"][0], s, released["var"][1])
    return np.log(w @ (value * np.array([inner(x) for x in s])))


@pytest.mark.by_day("2-['mean', 'var']-[0.3, 0.2]-[0.4, 0.1]-LaplaceMechanism")
@pytest.mark.parametrize("mechanism", [dp.LaplaceMechanism, dp.GaussianMechanism])
@pytest.mark.parametrize(
    ("n", "components", "noise", "z"),
    [
        (2, ["mean", "var"], [0.3, 0.2], [0.4, 0.1]),
        (3, ["mean", "var"], [0.1, 0.3], [1.3, -0.2]),
        (43, ["mean", "var"], [0.093, 0.093], [0.343, 0.222]),
        (43, ["mean", "var"], [0.01, 0.005], [0.5, 0.2]),
        (43, ["mean"], [0.05], [0.2]),
        (43, ["var"], [0.02], [0.1]),
        (400, ["mean", "var"], [0.5, 0.004], [-0.4, 0.02]),
    ],
    ids=str,
)
def test_feasible_marginal_against_brute_force(mechanism, n, components, noise, z):
    with pm.Model() as model:
        s2 = pm.Uniform("s2", 0, 1)
        mu = pm.Normal("mu", 0.5, 1)
        x = pm.Normal("x", mu, pt.sqrt(s2), shape=n)
        statistics = {"mean": x.mean(), "var": x.var(ddof=1)}
        dp.PrivateObservation(
            "z", [statistics[c] for c in components], mechanism(noise), observed=z, bounds=(0, 1)
        )
    collapsed = dp.collapse(model, "marginal")
    logp = pm.compile(
        [collapsed["mu"], collapsed["s2"]], pm.logp(collapsed["z"], np.array(z)).sum()
    )
    for m, v in [(0.4, 0.15), (0.05, 0.01), (0.5, 0.249)]:
        expected = brute_force(n, m, v, components, mechanism, noise, z, 0, 1)
        np.testing.assert_allclose(logp(m, v), expected, rtol=1e-7, atol=1e-7)
    assert logp(0.1, 0.2) == -np.inf
    assert logp(1.2, 0.1) == -np.inf


def test_feasible_gradient():
    model = gaussian_model(43, [0.093, 0.093], [0.343, 0.222], bounds=(0, 1))
    collapsed = dp.collapse(model, "marginal")
    function = collapsed.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    for point in ([0.2, -0.5], [-2.0, -3.0], [3.0, 1.0]):
        has_gradient(function, np.array(point), rtol=1e-5, atol=1e-5)
