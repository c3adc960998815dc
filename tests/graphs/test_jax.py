"""JAX computes what numba does, and the samplers that run on it take the marginals."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp import laws
from pymc_dp.laws import find_pair
from tests.laws.test_count_sums import OPS, PAIRS, SMOOTH, TRIALS, values
from tests.models import gaussian

jax = pytest.importorskip("jax", exc_type=ImportError)


def assert_same(inputs, logp, points, moved=None):
    """Compare log density and gradient, which in JAX are JAX's own, with PyTensor's."""
    from pymc.sampling.jax import get_jaxified_graph

    moved = list(range(len(inputs))) if moved is None else moved
    gradient = pytensor.grad(logp, [inputs[i] for i in moved]) if moved else []
    expected = pytensor.function(inputs, [logp, *gradient], on_unused_input="ignore")
    graph = get_jaxified_graph(inputs, [logp])
    if moved:
        ours = jax.jit(jax.value_and_grad(lambda *x: graph(*x)[0], argnums=moved))
    else:
        ours = jax.jit(lambda *x: (graph(*x)[0], []))
    for point in points:
        point = [np.asarray(x, dtype="float64") for x in point]
        value, slopes = ours(*point)
        right, *slopes_right = expected(*point)
        np.testing.assert_allclose(value, right, rtol=1e-10)
        for found, slope in zip(slopes, slopes_right, strict=True):
            np.testing.assert_allclose(
                found, slope, rtol=1e-10, atol=1e-10 * np.max(np.abs(slope), initial=1e-3)
            )
    return ours


@pytest.mark.parametrize(("name", "mechanism"), PAIRS, ids=lambda x: str(x))
@pytest.mark.by_day(
    "PoissonRV-LaplaceMechanism(scale=2.0)0",
    "BernoulliRV-DiscreteGaussianMechanism(sigma=3.0)",
    "HyperGeometricRV-DiscreteGaussianMechanism(sigma=3.0)",
    "Atom-LaplaceMechanism(scale=2.0)",
    "PoissonRV-GeometricMechanism(scale=2.0).clipped(lower=0.0)",
)
def test_counts(name, mechanism):
    pair = find_pair(OPS[name], mechanism)
    symbols = pt.dscalars(len(pair.examples[0]))
    logp = pair.log_marginal(mechanism, pt.constant(values(mechanism)), *symbols)
    logp = pt.switch(pt.isinf(logp), 0.0, logp).sum()
    moved = [
        i for i in range(len(symbols)) if pair.law in SMOOTH and not (i == 0 and pair.law in TRIALS)
    ]
    assert_same(symbols, logp, pair.examples, moved)


@pytest.mark.parametrize(
    "pair", laws.PAIRS.values(), ids=lambda p: f"{p.law.__name__}-{p.mechanism.__name__}"
)
def test_pairs(pair):
    symbols = pt.dscalars(len(pair.examples[0]))
    whole = issubclass(pair.mechanism, dp.GeometricMechanism)
    z = np.array([-3.0, 0.0, 2.0, 40.0]) + (0 if whole else 0.3)
    logp = pair.log_marginal(pair.mechanism(1.5), pt.constant(z), *symbols).sum()
    assert_same(symbols, logp, pair.examples[:2])


def released(statistic, mechanism, observed, n=9, law=None):
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 2, 2), shape=n) if law is None else law(n)
        dp.PrivateObservation("z", statistic(x), mechanism, observed=observed)
    return model


def clamped(n):
    return pm.Normal("x", pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1), shape=n)


def sums(x):
    y = pt.clip(x, -2, 2)
    return [y.sum(), (y**2).sum()]


def zero_inflated():
    with pm.Model() as model:
        y = pm.ZeroInflatedPoisson.dist(pm.Beta("psi", 2, 2), pm.Gamma("rate", 2, 1), shape=3)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=[3, -1, 2])
    return model


def regression():
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 1, shape=2), pm.HalfNormal("sigma", 1)
        x = pm.Normal("x", 0, 1, shape=50)
        y = pm.Normal("y", beta[0] + beta[1] * x, sigma, shape=50)
        found = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
        z = [1.0, 49.0, 24.0, 30.0, 90.0]
        dp.PrivateObservation("z", found, dp.GaussianMechanism(2.0), observed=z)
    return dp.collapse(model, "marginal", approximate="clt")


LAPLACE = dp.LaplaceMechanism
MODELS = {
    "moments": gaussian,
    "bounded": lambda: gaussian(bounds=(0, 1)),
    "bounded Gaussian": lambda: gaussian(bounds=(0, 1), mechanism=dp.GaussianMechanism),
    "count": lambda: released(pt.sum, LAPLACE(2.0), 4.3),
    "variance": lambda: released(lambda x: x.var(), LAPLACE(0.1), 0.2),
    "long count": lambda: released(pt.sum, LAPLACE(2.0), 1500.3, n=4000),
    "discrete count": lambda: released(pt.sum, dp.DiscreteGaussianMechanism(2.0), 4),
    "reported count": lambda: released(pt.sum, dp.RandomizedResponse(0.8).counted(9), 4),
    "reports": lambda: released(lambda x: x, dp.RandomizedResponse(0.8), [0, 1, 1] * 3),
    "inverted": lambda: released(lambda x: sums(x)[0], LAPLACE(2.0), 4.3, n=30, law=clamped),
    "two inverted": lambda: released(
        sums, dp.GaussianMechanism(2.0), [4.3, 25.0], n=30, law=clamped
    ),
    "zero-inflated": zero_inflated,
    "central limit theorem": regression,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.by_day("moments", "long count", "reports")
def test_models(name):
    model = MODELS[name]()
    if model.free_RVs and any(rv.name == "x" for rv in model.free_RVs):
        model = dp.collapse(model, "marginal")
    point = model.initial_point()
    rng = np.random.default_rng(1)
    points = [
        [np.asarray(v) + s * rng.normal(size=np.shape(v)) for v in point.values()] for s in (0, 0.3)
    ]
    ours = assert_same(model.value_vars, model.logp(), points)
    batch = [np.stack(x) for x in zip(*points, strict=True)]
    found, _ = jax.jit(jax.vmap(ours))(*batch)
    np.testing.assert_allclose(found, [ours(*p)[0] for p in points], rtol=1e-13)


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", ["numpyro", "blackjax", "nutpie", "dp.sample"])
def test_samplers(sampler):
    model = dp.collapse(MODELS["moments"](), "marginal")
    few = {"draws": 500, "tune": 500, "chains": 2}
    options = few | {"progressbar": False, "random_seed": 1}
    exact = pm.sample(model=model, **options).posterior
    if sampler == "nutpie":
        nutpie = pytest.importorskip("nutpie")
        compiled = nutpie.compile_pymc_model(model, backend="jax")
        tree = nutpie.sample(compiled, **few, cores=1, seed=1, progress_bar=False)
    elif sampler == "dp.sample":
        tree = dp.sample(MODELS["moments"](), nuts_sampler="numpyro", **options)
    else:
        pytest.importorskip(sampler)
        tree = pm.sample(model=model, nuts_sampler=sampler, **options)
    for name in ("mu", "s2"):
        error = float(tree.posterior[name].mean() - exact[name].mean())
        assert abs(error) < 0.3 * float(exact[name].std())


def test_derivatives_that_pytensor_refuses_jax_refuses():
    from pymc.sampling.jax import get_jaxified_graph

    s = pt.dscalar("s")
    logp = dp.DiscreteGaussianMechanism(1.0).with_parameters(s).logp(2.0, 0.0)
    graph = get_jaxified_graph([s], [logp])
    slope = jax.grad(lambda x: graph(x)[0])
    assert np.isfinite(slope(1.5))
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        jax.grad(slope)(1.5)


def test_variables_with_steps_are_refused_by_name():
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("rate", 2, 1))
        dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=3)
    with pytest.raises(ValueError, match=r"'numpyro' cannot move 'y'.*dp.collapse"):
        dp.sample(model, nuts_sampler="numpyro")
