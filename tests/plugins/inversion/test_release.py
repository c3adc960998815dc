"""Marginals by inverted characteristic functions: exact references, closed forms, refusals.

All posteriors are integrated by quadrature over the parameters; nothing is sampled.
"""

from functools import cache, partial

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.random.basic import GammaRV, NormalRV
from scipy import integrate, special, stats

import pymc_dp as dp
from pymc_dp.laws.tilting import laplace_log_marginal
from pymc_dp.plugins.inversion.kernels.line import TOLERANCE
from pymc_dp.plugins.inversion.kernels.nodes import NODES, WEIGHTS
from pymc_dp.plugins.inversion.kernels.numbers import sparing_line
from pymc_dp.plugins.inversion.kernels.release import release_line
from pymc_dp.plugins.inversion.law import sum_of_all
from pymc_dp.plugins.inversion.ops import ReleaseDensity
from pymc_dp.plugins.inversion.quadrature import detail
from tests.agreement import has_gradient, same_law, weighted
from tests.models import RECORD_CASES, RECORD_MODELS
from tests.references import legendre


def marginal_of(model, records="x", release="z"):
    x = model[records]
    return sum_of_all(x, 0, str(x.name), [model[release]])


def density(model, names):
    """Compile (parameters, z) -> log density, gradient by the parameters and z."""
    rv = marginal_of(model)
    z = pt.tensor("z", dtype="float64", shape=rv.type.shape)
    inputs = [pt.dscalar(name) for name in names]
    logp = _logprob(rv.owner.op, [z], *rv.owner.inputs)
    given = {model[name]: value for name, value in zip(names, inputs, strict=True)}
    logp = graph_replace([logp], given, strict=False)[0]
    function = pytensor.function([*inputs, z], [logp, *pytensor.grad(logp, [*inputs, z])])
    return lambda *values: [v if np.ndim(v) else float(v) for v in function(*values)]


def compiled(names, records, statistic, mechanism):
    """The same of records x, which `records` makes from scalars of these names."""
    with pm.Model() as model:
        # Of no account here: only the density of the release is asked for.
        free = [pm.Normal(name) for name in names]
        x = records(*free)
        dp.PrivateObservation("z", statistic(x), mechanism)
    return density(model, names)


# --- Reference posteriors -----------------------------------------------------------------------


@cache
def reference(name, *parameters):
    return density(RECORD_MODELS[name](), parameters)


clamped_normal = partial(reference, "i_clamped_normal_mean_laplace", "mu")


@pytest.mark.parametrize(
    ("name", "parameter", "grid", "prior"),
    [
        ("i_clamped_normal_mean_laplace", "mu", (-0.5, 2.4), stats.norm(0, 10)),
        ("iii_exponential_clamped_gaussian", "rate", (0.3, 4.5), stats.gamma(2)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_reference_posterior_of_one_statistic(name, parameter, grid, prior):
    case, function = RECORD_CASES[name], reference(name, parameter)
    expected = case["params"][parameter]
    theta, weight = legendre(grid, 200)
    logp = np.array([function(t, case["inputs"]["s_dp"])[0] for t in theta])
    log_joint = logp + prior.logpdf(theta)
    evidence = special.logsumexp(log_joint, b=weight)
    mean, sd, _ = weighted(theta, weight * np.exp(log_joint - evidence))
    np.testing.assert_allclose(mean, expected["mean"], rtol=3e-6)
    np.testing.assert_allclose(sd, expected["sd"], rtol=2e-5)
    np.testing.assert_allclose(evidence, expected["log_evidence"], atol=1e-5)


# --- Closed forms -------------------------------------------------------------------------------


def out_of_reach(logp, expected, n):
    """Whether few records would have to lie where the nodes do not: NaN, and nothing else."""
    return n < 100 and expected < -500 and np.isnan(logp)


@pytest.mark.parametrize("n", [2, 1000, 10**9])
@pytest.mark.by_day("2")
def test_normal_mean_with_gaussian_noise(n):
    noise = 0.5
    function = compiled(
        ["mu", "sigma"],
        lambda mu, sigma: pm.Normal("x", mu, sigma, shape=n),
        lambda x: x.mean(),
        dp.GaussianMechanism(noise),
    )
    # In the bulk, in the tails of the release, and with records far from what was released.
    for mu, sigma, z in [(1.3, 2, 1), (1.3, 0.1, 3.4), (-100, 2, 3), (1e4, 1, 1e4), (0, 3, -25)]:
        logp, by_mu, by_sigma, by_z = function(mu, sigma, z)
        variance = sigma**2 / n + noise**2
        e = z - mu
        expected = stats.norm.logpdf(z, mu, np.sqrt(variance))
        if out_of_reach(logp, expected, n):
            continue
        np.testing.assert_allclose(logp, expected, rtol=1e-11, atol=1e-10)
        # The derivatives of the log weights are of the order of n and cancel: what is left of their
        # rounding is relative to the scale of the slope, also where the slope itself is zero.
        np.testing.assert_allclose(
            [by_mu, by_z],
            [e / variance, -e / variance],
            rtol=max(1e-8, 1e-16 * n),
            atol=1e-11 + 1e-16 * n / np.sqrt(variance),
        )
        slope = (e**2 / variance - 1) / variance * sigma / n
        np.testing.assert_allclose(by_sigma, slope, rtol=1e-8, atol=1e-15 * n)


def gamma_reference():
    z, b, n, scale = pt.dscalars("z", "b", "n", "scale")
    logp = laplace_log_marginal(GammaRV(), z, 1 / b, n, scale)
    return pytensor.function([z, b, n, scale], [logp, *pytensor.grad(logp, [scale, z])])


@pytest.fixture(scope="module")
def exponential_sum():
    """Densities of a noisy sum of n exponential records, with the scale of the noise set later."""

    @cache
    def build(n):
        b = pytensor.shared(np.array(1.0), "b")
        function = compiled(
            ["scale"],
            lambda scale: pm.Exponential("x", scale=scale, shape=n),
            lambda x: x.sum(),
            dp.LaplaceMechanism(b),
        )
        return b, function

    return build


@pytest.mark.parametrize("n", [30, 10**6, 10**9])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 4.0])
def test_exponential_sum_with_laplace_noise(exponential_sum, n, ratio):
    reference = gamma_reference()
    b, function = exponential_sum(n)
    b.set_value(np.array(ratio * np.sqrt(n)))
    for scale in (1.0, 37.0):
        # Far above, where only the noise's tail is left, and far below the sum.
        for q in (-4.0, -1.0, 0.0, 0.7, 3.0, 15.0, 200.0):
            z = scale * (n + q * np.sqrt(n))
            b.set_value(np.array(scale * ratio * np.sqrt(n)))
            logp, by_scale, by_z = function(scale, z)
            expected, slope, slope_z = reference(z, float(b.get_value()), n, scale)
            if out_of_reach(logp, expected, n):
                continue
            np.testing.assert_allclose(logp, expected, rtol=1e-10, atol=1e-8)
            np.testing.assert_allclose(by_z, slope_z, rtol=1e-7, atol=1e-9 / scale)
            limit = 1e-8 * np.sqrt(n) / scale
            np.testing.assert_allclose(by_scale, slope, rtol=1e-7, atol=limit)


def test_error_stays_below_the_bound_or_is_nan(exponential_sum):
    """With few records the integrand dies out slowly: what is not exact must be NaN."""
    reference = gamma_reference()
    rng = np.random.default_rng(5)
    finite = {}
    for n in (2, 5):
        b, function = exponential_sum(n)
        b_value, q = np.exp(rng.uniform(-4, 3, 150)), rng.uniform(-1.4, 8, 150)
        kept = 0
        for bi, qi in zip(b_value, q, strict=True):
            z = n + qi * np.sqrt(n)
            b.set_value(np.array(bi))
            logp = function(1.0, z)[0]
            if not np.isnan(logp):
                kept += 1
                # The bound is of an estimate, which may be short by half.
                np.testing.assert_allclose(logp, reference(z, bi, n, 1.0)[0], rtol=0, atol=2e-5)
        finite[n] = kept / 150
    assert finite[2] == 1.0  # few records are added up
    assert 0.5 < finite[5] < 1.0  # it is not all NaN, and the error estimate is put to use


@pytest.mark.parametrize("mechanism", [dp.LaplaceMechanism, dp.GaussianMechanism])
def test_count_is_a_binomial_sum(mechanism):
    n, noise = 60, 0.03
    function = compiled(
        ["mu"],
        lambda mu: pm.Normal("x", mu, 2, shape=n),
        lambda x: (x > 3).mean(),
        mechanism(noise),
    )
    law = stats.laplace if mechanism is dp.LaplaceMechanism else stats.norm
    k = np.arange(n + 1)
    for mu, z in [(2, 0.404), (2, 0.41), (-3, 0.2), (9, -0.1), (2, 3.0)]:
        logp, *_ = function(mu, z)
        mass = stats.binom.logpmf(k, n, stats.norm.sf((3 - mu) / 2))
        expected = special.logsumexp(mass + law.logpdf(z - k / n, 0, noise))
        np.testing.assert_allclose(logp, expected, rtol=1e-11, atol=1e-11)
        has_gradient(function, mu, z, rtol=1e-5)


def test_clipping_without_effect_changes_nothing():
    """Far bounds: the atoms vanish and the closed form of unclipped Normal records is left."""
    n, b = 50, 0.2
    function = compiled(
        ["mu"],
        lambda mu: pm.Normal("x", mu, 1, shape=n),
        lambda x: pt.clip(x, -30, 30).mean(),
        dp.LaplaceMechanism(b),
    )
    z, mu = pt.dscalars("z", "mu")
    logp = laplace_log_marginal(NormalRV(), z, 1 / b, mu, 1 / np.sqrt(n))
    reference = pytensor.function([mu, z], [logp, pytensor.grad(logp, mu)])
    for mu_value, z_value in [(0, 0.1), (3, 2.5), (-8, -11), (22, 21.5)]:
        logp, by_mu, _ = function(mu_value, z_value)
        np.testing.assert_allclose([logp, by_mu], reference(mu_value, z_value), rtol=1e-9)


# --- Gradients and tails ------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [-5.0, -1.0, 0.9, 2.2, 4.0])
def test_gradient_of_clamped_mean(mu):
    has_gradient(clamped_normal(), mu, 0.85)


def test_tails_are_those_of_the_noise():
    """Beyond n * c no sum can lie: the density is exactly exponential, with the same gradient."""
    c = RECORD_CASES["i_clamped_normal_mean_laplace"]["inputs"]
    at_end = clamped_normal()(1.0, c["c"])
    for z in (c["c"] + 0.5, 10.0, 1e4):
        logp, by_mu, by_z = clamped_normal()(1.0, z)
        np.testing.assert_allclose(logp, at_end[0] - (z - c["c"]) / c["b"], rtol=1e-12)
        np.testing.assert_allclose([by_mu, by_z], [at_end[1], -1 / c["b"]], rtol=1e-10)
        assert by_mu > 0  # towards the release


def test_density_integrates_to_one():
    c = RECORD_CASES["i_clamped_normal_mean_laplace"]["inputs"]
    z, weight = legendre([0.1, 0.7, 1.3, 1.6, 1.9], 16)
    mass = weight @ [np.exp(clamped_normal()(1.1, x)[0]) for x in z]
    # Outside of these the sum does not come and the density falls off as exp(-|z| / b).
    ends = [clamped_normal()(1.1, x)[0] for x in (-0.3, 0.1, 1.9)]
    np.testing.assert_allclose(ends[1] - ends[0], 0.4 / c["b"], rtol=1e-7)
    np.testing.assert_allclose(mass + c["b"] * np.exp(ends[1:]).sum(), 1.0, atol=1e-6)


# --- The random variable ------------------------------------------------------------------------


def test_draws_have_the_law_of_the_release():
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, 1.5, shape=12)
        dp.PrivateObservation("z", [pt.clip(x, 0, 2).sum()], dp.LaplaceMechanism([0.5]))
    direct = pm.draw(model["z"], draws=4000, random_seed=1)
    marginal = pm.draw(marginal_of(model), draws=4000, random_seed=2)
    same_law(direct, marginal)


def test_model_with_data_in_the_statistic():
    """Breakpoints follow `pm.set_data`, and 10^9 records cost what 10 do."""
    n, noise = 10**9, 1e-5
    with pm.Model() as model:
        bound, scale = pm.Data("bound", 2.0), pm.Data("noise", noise)
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1, shape=n)
        dp.PrivateObservation("z", pt.clip(x, -bound, bound).mean(), dp.LaplaceMechanism(scale))
        model.register_rv(marginal_of(model), "w", observed=0.3)
    value = model.rvs_to_values[mu]
    logp = model.logp(vars=[model["w"]])
    function = model.compile_fn([logp, pytensor.grad(logp, value)], inputs=[value])

    def expected(mu, c):
        """Log density of the mean as if it were normal, as it is to many digits."""
        y, w = legendre([-c, c], 100)
        f = w * stats.norm.pdf(y, mu)
        low, high = stats.norm.cdf(-c - mu), stats.norm.sf(c - mu)
        mean, second = f @ y + c * (high - low), f @ y**2 + c**2 * (high + low)
        law = [0.3, 1 / noise, mean, np.sqrt((second - mean**2) / n)]
        return float(laplace_log_marginal(NormalRV(), *map(pt.constant, law)).eval())

    for c in (2.0, 1.0):
        pm.set_data({"bound": c}, model=model)
        for mu_value in (0.3, 0.34):
            found, slope = function({"mu": mu_value})
            np.testing.assert_allclose(found, expected(mu_value, c), rtol=1e-4, atol=1e-3)
            ends = [expected(mu_value + e, c) for e in (1e-6, -1e-6)]
            np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-3)


def test_multiples_by_data_are_shown_as_released():
    """A factor that `pm.set_data` may change is no number in results."""
    with pm.Model() as model:
        x = pm.Beta("x", 2.0, pm.Gamma("b", 2, 1), shape=20)
        dp.PrivateObservation("z", (pm.Data("w", 2.0) * x).sum(), dp.GaussianMechanism(1.0))
    assert marginal_of(model).owner.op.law.names == ("z_confidential",)


@pytest.mark.parametrize("shape", [(12,), (3, 12)])
def test_derivatives_that_nothing_uses_are_not_computed(shape):
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=(*shape[:-1], 1))
        x = pm.Normal("x", mu, 1.0, shape=shape)
        dp.PrivateObservation(
            "z",
            pt.clip(x, -2, 2).sum(axis=-1),
            dp.LaplaceMechanism(1.0),
            observed=0.0 * np.ones(shape[:-1]),
        )
    collapsed = dp.collapse(model, "marginal")
    logp, value = collapsed.logp(), collapsed.value_vars[0]
    for outputs, full in (([logp], False), ([logp, pytensor.grad(logp, value)], True)):
        graph = pytensor.graph.FunctionGraph([value], outputs, clone=True)
        rewrite_graph(graph, include=("canonicalize", "specialize"))
        ops = [getattr(node.op, "core_op", node.op) for node in graph.apply_nodes]
        assert [op.full for op in ops if isinstance(op, ReleaseDensity)] == [full]


# --- Refusals -----------------------------------------------------------------------------------


def _normal(mu):
    return pm.Normal("x", mu, 1, shape=20)


LAPLACE = dp.LaplaceMechanism(1.0)


@pytest.mark.parametrize(
    ("records", "statistic", "mechanism", "message"),
    [
        (
            lambda mu: pm.Poisson("x", pt.exp(mu), shape=20),
            lambda x: x.mean(),
            LAPLACE,
            "values have no end",
        ),
        (
            lambda mu: pm.Normal("x", mu * np.arange(20), 1),
            lambda x: x.mean(),
            LAPLACE,
            "not identically distributed",
        ),
        (
            lambda mu: pm.Uniform("x", 0, pt.exp(mu), shape=20),
            lambda x: x.mean(),
            LAPLACE,
            "support of the records 'x' depends on 'mu'",
        ),
        (_normal, lambda x: x.var(), LAPLACE, "only a sum"),
        (_normal, lambda x: x.max(), LAPLACE, "release 'z' of 'x'"),
        (_normal, lambda x: (x * np.arange(20)).sum(), LAPLACE, "one by one"),
        (_normal, lambda x: x[:5].sum(), LAPLACE, "one by one"),
        (_normal, lambda x: pt.round(x).sum(), LAPLACE, "no registered smooth pieces"),
        (_normal, lambda x: pt.log(x).sum(), LAPLACE, "may be singular"),
        (_normal, lambda x: pt.clip(pt.erf(x), 0, 0.5).sum(), LAPLACE, "cannot be solved"),
        (
            _normal,
            lambda x: [x.clip(0, 1).sum(), (x**2).sum()],
            LAPLACE,
            "one sum over all records",
        ),
        (_normal, lambda x: ((x > 0) * 1.0 + (x > 1)).sum(), LAPLACE, "more than two classes"),
        (_normal, lambda x: x.sum(), LAPLACE.rounded(1), "RoundedMechanism"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_reason(records, statistic, mechanism, message):
    with pm.Model() as model:
        dp.PrivateObservation("z", statistic(records(pm.Normal("mu"))), mechanism)
    with pytest.raises((NotImplementedError, ValueError), match=message) as caught:
        marginal_of(model)
    assert "'x'" in str(caught.value) or "'z'" in str(caught.value)


def test_two_releases_are_refused():
    with pm.Model() as model:
        x = _normal(0.0)
        dp.PrivateObservation("z", x.sum(), LAPLACE)
        dp.PrivateObservation("w", (x**2).sum(), LAPLACE)
    with pytest.raises(NotImplementedError, match=r"'z', 'w'.*only one release, of one sum"):
        sum_of_all(model["x"], 0, "x", [model["z"], model["w"]])


def test_statistic_mixed_with_a_parameter_is_refused():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        dp.PrivateObservation("z", (_normal(mu) - mu).sum(), LAPLACE)
    with pytest.raises(NotImplementedError, match="mixes the records 'x' with 'mu'"):
        marginal_of(model)


# --- Breakpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "h", "breaks"),
    [
        (lambda x: pt.abs(x - 1).sum(), lambda x: abs(x - 1), [1]),
        (lambda x: pt.where(x > 3, x, 0).sum(), lambda x: np.where(x > 3, x, 0), [3]),
        (lambda x: pt.maximum(2 * x - 1, 0).sum(), lambda x: np.maximum(2 * x - 1, 0), [0.5]),
        (lambda x: pt.exp(pt.clip(x, 0, 2)).sum(), lambda x: np.exp(np.clip(x, 0, 2)), [0, 2]),
        (
            lambda x: pt.clip(pt.exp(x), 0, 10).sum(),
            lambda x: np.clip(np.exp(x), 0, 10),
            [np.log(10)],
        ),
        (lambda x: pt.clip(x**2, 1, 4).sum(), lambda x: np.clip(x**2, 1, 4), [-2, -1, 1, 2]),
        (lambda x: pt.log(pt.clip(x, 1, 5)).sum(), lambda x: np.log(np.clip(x, 1, 5)), [1, 5]),
        (lambda x: pt.tanh(x).sum() - 3, lambda x: np.tanh(x) - 3 / 80, []),
    ],
    ids=["abs", "where", "maximum", "exp clip", "clip exp", "clip square", "log clip", "tanh"],
)
def test_pieces_of_a_statistic(statistic, h, breaks):
    """Against a plain inversion, the characteristic function integrated on the known pieces."""
    n, mu, sigma, noise = 80, 1.2, 1.5, 6.0
    function = compiled(
        ["mu"],
        lambda m: pm.Normal("x", m, sigma, shape=n),
        statistic,
        dp.GaussianMechanism(noise),
    )
    x, weight = legendre([mu - 9 * sigma, *breaks, mu + 9 * sigma], 200)
    weight = weight * stats.norm.pdf(x, mu, sigma)
    u = np.linspace(-1.6, 1.6, 801)
    phi = np.exp(1j * u[:, None] * h(x)) @ weight
    mean = n * weight @ h(x)
    for z in (mean, mean + 20):
        integrand = phi**n * np.exp(-1j * u * z - 0.5 * (noise * u) ** 2)
        expected = np.log(integrand.real.sum() * (u[1] - u[0]) / (2 * np.pi))
        np.testing.assert_allclose(function(mu, z)[0], expected, atol=1e-8)


# --- In a model ---------------------------------------------------------------------------------


def test_collapsed_model_is_whole():
    """`dp.collapse` takes this route by itself; the model draws and has the right density."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        x = pm.Normal("x", mu, 1, shape=50)
        dp.PrivateObservation("z", x.clip(-1, 3).mean(), dp.LaplaceMechanism(0.1), observed=0.7)
    collapsed = dp.collapse(model, "marginal")
    assert [rv.name for rv in collapsed.free_RVs] == ["mu"]
    drawn = pm.sample_prior_predictive(400, model=collapsed, random_seed=3)
    direct = pm.sample_prior_predictive(400, model=model, random_seed=4)
    same_law(*(d["prior_predictive"]["z"].values.ravel() for d in (drawn, direct)))
    # The density at one point against the expectation of the noise's density over drawn records.
    sums = np.random.default_rng(5).normal(0.6, 1, (100_000, 50)).clip(-1, 3).mean(1)
    expected = np.log(stats.laplace.pdf(0.7, sums, 0.1).mean())
    logp = collapsed.compile_logp(vars=collapsed.observed_RVs)
    np.testing.assert_allclose(logp({"mu": 0.6}), expected, atol=0.01)
    assert "integrated out: z_confidential" in str(dp.explain(collapsed, details=True))


def normal_nodes(panels):
    edges = np.linspace(-9.0, 9.0, panels + 1)
    nodes = (edges[:-1, None] + np.diff(edges)[:, None] * (NODES + 1) / 2).ravel()
    weights = (np.diff(edges)[:, None] * WEIGHTS / 2).ravel()
    return stats.norm.logpdf(nodes) + np.log(weights), nodes, np.zeros(nodes.size)


# Of 20 records few nodes are plainly enough; of 3 under little noise they are not.
@pytest.mark.parametrize(("n", "scale", "enough"), [(20, 6.0, True), (3, 0.02, False)])
def test_few_nodes_where_they_are_enough(n, scale, enough):
    few, many = normal_nodes(12), normal_nodes(80)
    rest = float(n), np.zeros(1), 1.3, 0.0, scale
    both = (np.concatenate(parts) for parts in zip(few, many, strict=True))
    size = few[0].size
    logp, slope, by_weight, _ = sparing_line(*both, size, *rest, True)
    expected = stats.norm.logpdf(1.3, 0, np.sqrt(n + scale**2))
    np.testing.assert_allclose(logp, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(slope, -1.3 / (n + scale**2), rtol=1e-8)
    used, unused = (by_weight[:size], by_weight[size:])[:: 1 if enough else -1]
    own = few if enough else many
    np.testing.assert_array_equal(used, release_line(*own, *rest, TOLERANCE, True)[2])
    assert not unused.any()


@pytest.mark.parametrize("a", [0.05, 0.5])
def test_density_with_poles_at_both_ends(a):
    function = compiled(
        ["a"], lambda a: pm.Beta("x", a, 0.7, shape=2), lambda x: x.sum(), dp.GaussianMechanism(0.2)
    )
    # The substitutions u^(1/a) and u^(1/b) take the poles out, on either half of (0, 1).
    u, w = (0.5 * v for v in np.polynomial.legendre.leggauss(120))
    u += 0.5
    low, high = (0.5**a * u) ** (1 / a), (0.5**0.7 * u) ** (1 / 0.7)
    x = np.concatenate([low, 1 - high])
    mass = np.concatenate([
        w * 0.5**a / a * (1 - low) ** -0.3, w * 0.5**0.7 / 0.7 * (1 - high) ** (a - 1)
    ]) / special.beta(a, 0.7)  # fmt: skip
    for z in (-0.4, 0.3, 1.1, 2.5):
        noisy = stats.norm.pdf(z - x[:, None] - x, 0, 0.2)
        np.testing.assert_allclose(function(a, z)[0], np.log(mass @ noisy @ mass), atol=1e-8)


# Every law with smooth pieces: an example of it, and its quantiles.
SMOOTH = {
    "Beta": (pm.Beta, (0.8, 2.5), stats.beta(0.8, 2.5)),
    "Cauchy": (pm.Cauchy, (0.4, 0.6), stats.cauchy(0.4, 0.6)),
    "Exponential": (pm.Exponential, (1.7,), stats.expon(scale=1 / 1.7)),
    "Gamma": (pm.Gamma, (0.6, 1.2), stats.gamma(0.6, scale=1 / 1.2)),
    "Gumbel": (pm.Gumbel, (0.4, 0.6), stats.gumbel_r(0.4, 0.6)),
    "HalfNormal": (pm.HalfNormal, (0.7,), stats.halfnorm(scale=0.7)),
    "InverseGamma": (pm.InverseGamma, (3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    "Laplace": (pm.Laplace, (0.4, 0.6), stats.laplace(0.4, 0.6)),
    "LogNormal": (pm.LogNormal, (0.2, 0.8), stats.lognorm(0.8, scale=np.exp(0.2))),
    "Logistic": (pm.Logistic, (0.4, 0.6), stats.logistic(0.4, 0.6)),
    "Moyal": (pm.Moyal, (0.4, 0.6), stats.moyal(0.4, 0.6)),
    "Normal": (pm.Normal, (0.4, 0.6), stats.norm(0.4, 0.6)),
    "SkewNormal": (pm.SkewNormal, {"mu": 0.4, "sigma": 0.6, "alpha": 4.0},
                   stats.skewnorm(4.0, 0.4, 0.6)),
    "StudentT": (pm.StudentT, {"nu": 3.0, "mu": 0.4, "sigma": 0.6}, stats.t(3.0, 0.4, 0.6)),
    "TruncatedNormal": (
        pm.TruncatedNormal, {"mu": 0.4, "sigma": 0.6, "lower": 0.0, "upper": 2.0},
        stats.truncnorm(-0.4 / 0.6, 1.6 / 0.6, 0.4, 0.6),
    ),
    "Uniform": (pm.Uniform, (-0.5, 1.0), stats.uniform(-0.5, 1.5)),
    "Wald": (pm.Wald, (0.8, 1.5), stats.invgauss(0.8 / 1.5, scale=1.5)),
}  # fmt: skip


def test_every_smooth_law_has_an_example():
    ours = {op for op in detail.registry if op.__module__.startswith(("pymc.", "pytensor."))}
    assert {type(law.rv_op) for law, *_ in SMOOTH.values()} == ours


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_law_against_its_quantiles(name):
    law, parameters, quantiles = SMOOTH[name]
    u, w = legendre((0.0, 1.0), 60)
    low, high, x = (quantiles.ppf(p) for p in (0.1, 0.9, 0.1 + 0.8 * u))
    with pm.Model() as model:
        named = isinstance(parameters, dict)
        given = {k: np.array(p) for k, p in parameters.items()} if named else {}
        records = law("x", *([] if named else map(np.array, parameters)), **given, shape=3)
        dp.PrivateObservation("z", pt.clip(records, low, high).sum(), dp.GaussianMechanism(0.7))
    h = np.concatenate([[low], x, [high]])
    mass = np.concatenate([[0.1], 0.8 * w, [0.1]])
    total = (h[:, None, None] + h[:, None] + h).ravel()
    weight = (mass[:, None, None] * mass[:, None] * mass).ravel()
    rv = marginal_of(model)
    for z in (3 * low - 1.0, h @ mass * 3, 3 * high + 1.0):
        expected = np.log(weight @ stats.norm.pdf(z - total, 0, 0.7))
        found = float(pm.logp(rv, np.array(z)).eval(mode="FAST_COMPILE"))
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("n", [10, 100])
def test_sums_of_records_with_heavy_tails(n):
    """Against the characteristic function of a t law of five degrees of freedom, in closed form."""
    with pm.Model() as model:
        x = pm.StudentT("x", nu=5, mu=0.2, sigma=1.0, shape=n)
        dp.PrivateObservation("z", x.sum(), dp.GaussianMechanism(1.0))
    r = np.sqrt(5)
    phi = lambda u: n * (np.log1p(r * u + 5 * u**2 / 3) - r * u)  # noqa: E731
    for z in (0.2 * n, 0.2 * n + 4.0):
        term = lambda u, d=z - 0.2 * n: np.exp(phi(u) - u**2 / 2) * np.cos(u * d)  # noqa: E731
        expected = np.log(integrate.quad(term, 0, 10, epsabs=0, epsrel=1e-12)[0] / np.pi)
        found = float(pm.logp(marginal_of(model), np.array(z)).eval(mode="FAST_COMPILE"))
        assert found == pytest.approx(expected, abs=1e-9)
