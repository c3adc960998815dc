"""Small models, one of every kind that the package reads."""

from functools import partial, wraps

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from arviz_base import from_dict

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.kernels.moments.gaussian_chain import GaussianModel
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.model import Reading
from pymc_dp.routes import routes
from tests.references import references

LAPLACE, GEOMETRIC = dp.LaplaceMechanism(2.0), dp.GeometricMechanism(2.0)
GROUPS = np.repeat(np.arange(6), [2, 3, 5, 1, 4, 8])
GROUP_MEANS = np.array([0.4, -1.2, 2.0, 5.5, 1.1, 1.9])


def as_model(build):
    """Return a function that makes a model of the variables that `build` declares."""

    @wraps(build)
    def made(*args, **kwargs):
        with pm.Model() as model:
            build(*args, **kwargs)
        return model

    return made


def route_table(model, approximate=None, **options):
    """Return (route, rate, "") for each route that is open, (route, 0.0, reason) for the others."""
    return [
        (route, 0.0, str(plan))
        if isinstance(plan, Declined)
        else (route, route.priority(plan.rate), "")
        for route, plan in routes(Reading(model), approximate, **options)
    ]


def refuses(model, match, *rungs, error=NotImplementedError, **options):
    """Assert that a model does not collapse to these rungs, or to any, for this reason."""
    for to in rungs or ("statistics", "marginal"):
        with pytest.raises(error, match=match):
            dp.collapse(model, to, **options)


def posterior(draws, **values):
    """A result with the same draw of parameters again and again, in two chains."""
    found = {k: np.full((2, draws // 2, *np.shape(v)), v) for k, v in values.items()}
    return from_dict({"posterior": found})


GAUSSIAN_CASES = references("gaussian")
# What a sweep of the compiled chain conditions on: a released mean and variance, to be filled in.
GAUSSIAN_CHAIN = GaussianModel(**dict.fromkeys(GaussianModel._fields, 0.0))._replace(
    has_mean=1.0, has_var=1.0, bounded=False, hi=1.0
)


@as_model
def gaussian_model(n, scales, z, *, bounds=None, prior=None, mechanism=dp.LaplaceMechanism):
    """Normal records with a released mean and variance; a flat or normal-inverse-gamma prior."""
    if prior is None:
        mu, s2 = pm.Flat("mu"), pm.HalfFlat("s2")
    else:
        s2 = pm.InverseGamma("s2", prior["nu_0"] / 2, prior["nu_0"] * prior["sigma_0_sq"] / 2)
        mu = pm.Normal("mu", prior["mu_0"], pt.sqrt(s2 / prior["kappa_0"]))
    x = pm.Normal("x", mu, pt.sqrt(s2), shape=n)
    dp.PrivateObservation(
        "z", [x.mean(), x.var(ddof=1)], mechanism(scales), observed=z, bounds=bounds
    )


def reference_model(case):
    """Model of a reference case."""
    x = case["input"]
    return gaussian_model(
        x["n"],
        [1 / (x["n"] * x["eps_1"]), 1 / (x["n"] * x["eps_2"])],
        [x["z1_priv_mean"], x["z2_priv_var"]],
        bounds=(0, 1) if x["constrained"] else None,
        prior=x["prior"],
    )


def gaussian(**options):
    """Mean and variance of Normal records with a conjugate prior."""
    prior = {"mu_0": 0.3, "kappa_0": 1.0, "nu_0": 3.0, "sigma_0_sq": 0.1}
    return gaussian_model(20, [0.1, 0.05], [0.4, 0.06], prior=prior, **options)


def statistics(**options):
    """The same, with the records integrated out."""
    return dp.collapse(gaussian(**options), "statistics")


def five_sums(x, y):
    """Sums of columns and of products of two of them."""
    return [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]


@as_model
def simple_regression(
    n, z, scale, *, mechanism=dp.LaplaceMechanism, statistic=five_sums, x_law=None, bounds=None
):
    """Sums of products of a simple regression; `x_law` makes x from n."""
    sigma2 = pm.InverseGamma("sigma2", alpha=20, beta=0.5)
    theta = pm.Normal("theta", 0, pt.sqrt(sigma2 * 38), shape=2)
    x = x_law(n) if x_law else pm.Normal("x", 0, 0.2, shape=n)
    y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(sigma2), shape=n)
    dp.PrivateObservation("z", statistic(x, y), mechanism(scale), observed=z, bounds=bounds)


def regression():
    """A simple regression with a conjugate prior."""
    return simple_regression(100, [1.0, 4.0, 30.0, 6.0, 20.0], 5.0)


def group_means(noise=None, latent=None, groups=GROUPS, z=GROUP_MEANS):
    """Noisy means of public groups of Normal records, whose own means are latent."""
    with pm.Model() as model:
        mu, tau, s = pm.Normal("mu", 0, 3), pm.HalfNormal("tau", 2), pm.HalfNormal("s", 2)
        theta = pm.Normal("theta", mu, tau, shape=len(z)) if latent is None else latent(mu, tau)
        x = pm.Normal("x", theta[groups], s)
        sizes = np.bincount(groups, minlength=len(z))
        means = pt.as_tensor((np.arange(len(z))[:, None] == groups) / sizes[:, None]) @ x
        dp.PrivateObservation("z", means, noise or dp.LaplaceMechanism(0.5), observed=z)
    return model


@as_model
def poisson():
    """Poisson counts, each released."""
    y = pm.Poisson("y", pm.Gamma("rate", 2, 1), shape=3)
    dp.PrivateObservation("z", y, GEOMETRIC, observed=[3, -1, 2])


@as_model
def bernoulli():
    """The count of records with a sign."""
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=9)
    dp.PrivateObservation("z", x.sum(), GEOMETRIC, observed=4)


@as_model
def mean_of_bits(n=3):
    """A mean under whole-number noise, which leaves two counts possible."""
    p = pm.Beta("p", 2, 2)
    x = pm.Bernoulli("x", p, shape=n)
    dp.PrivateObservation("z", x.mean(), dp.DiscreteGaussianMechanism(0.7), observed=1)


@as_model
def table():
    """Cells of a table and their total."""
    y = pm.Poisson("y", [2.0, 3.0], shape=2)
    dp.PrivateObservation("cells", y, GEOMETRIC, observed=[1, 4])
    dp.PrivateObservation("total", y.sum(), GEOMETRIC, observed=6)


def factorization():
    """Poisson factorization of a noisy matrix of counts."""
    return dp.poisson_factorization(np.array([[3, 0], [1, 5]]), 1, GEOMETRIC)


@as_model
def normal():
    """Normal values, each released."""
    y = pm.Normal("y", pm.Normal("mu", 0, 1), 1, shape=2)
    dp.PrivateObservation("z", y, LAPLACE, observed=[1.0, -2.0])


# --- What was decided by a draw of a random variable ----------------------------------------------


@as_model
def random_shape():
    """A Gamma law under Gaussian noise, for which its shape has to be known."""
    shape = pm.Gamma("shape", 4, 2)
    s = pm.Gamma("s", shape, 1)
    dp.PrivateObservation("z", s, dp.GaussianMechanism(1.0), observed=2.0)


@as_model
def random_half():
    """A count to which a random half is added, under whole-number noise."""
    rate, u = pm.Gamma("rate", 4, 2), pm.Bernoulli("u", 0.5)
    y = pm.Poisson("y", rate)
    dp.PrivateObservation("z", y + 0.5 * u, dp.GeometricMechanism(1.0), observed=2)


@as_model
def random_exponent():
    """A variance that is a random power of another."""
    k, v = pm.Poisson("k", 1.0), pm.InverseGamma("v", 3, 2)
    x = pm.Normal("x", 0, pt.sqrt(v**k), shape=30)
    dp.PrivateObservation("z", x.var(ddof=1), LAPLACE, observed=1.5)


@as_model
def random_prior():
    """Priors of which the parameters are random in turn."""
    location, spread = pm.Normal("location", 0, 1), pm.HalfNormal("spread", 1)
    mu, sigma = pm.Normal("mu", location, 2), pm.HalfNormal("sigma", spread)
    x = pm.Normal("x", mu, sigma, shape=40)
    dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], LAPLACE, observed=[0.2, 1.5])


@as_model
def random_index():
    """The record that a random number chooses."""
    i = pm.Binomial("i", 3, 0.5)
    x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=4)
    dp.PrivateObservation("z", x[i], LAPLACE, observed=0.2)


# --- Of the reference cases of records ------------------------------------------------------------

RECORD_CASES = references("records")


class TwoSidedGeometric(Mechanism):
    """Two-sided geometric noise with ``P(k) = (1-a)/(1+a) a^|k|``, as little as a step needs."""

    def __init__(self, epsilon):
        self.epsilon = epsilon

    def noise_sample(self, rng, statistic):
        next_rng, u = pt.random.geometric(
            1 - np.exp(-self.epsilon), size=(2, *statistic.shape), rng=rng, return_next_rng=True
        )
        return next_rng, statistic + (u[0] - u[1])

    def logp(self, value, statistic=0.0):
        a = np.exp(-self.epsilon)
        distance = pt.abs(as_float(value) - as_float(statistic))
        return np.log((1 - a) / (1 + a)) - self.epsilon * distance

    def log_interval(self, lower, upper, statistic=0.0):
        raise NotImplementedError


def inputs(name):
    """Return the numbers of a case."""
    return RECORD_CASES[name]["inputs"]


@as_model
def clamped_mean():
    k = inputs("i_clamped_normal_mean_laplace")
    mu = pm.Normal("mu", k["prior_mean"], k["prior_sd"])
    x = pm.Normal("x", mu, 1, shape=k["n"])
    dp.PrivateObservation(
        "z", pt.clip(x, -k["c"], k["c"]).mean(), dp.LaplaceMechanism(k["b"]), observed=k["s_dp"]
    )


@as_model
def bernoulli_sum():
    k = inputs("ii_bernoulli_geometric")
    p = pm.Beta("p", k["prior_a"], k["prior_b"])
    x = pm.Bernoulli("x", p, shape=k["n"])
    dp.PrivateObservation("z", x.sum(), TwoSidedGeometric(k["eps"]), observed=k["s_dp"])
    pm.Deterministic("count", x.sum())


@as_model
def clamped_exponential():
    k = inputs("iii_exponential_clamped_gaussian")
    rate = pm.Gamma("rate", k["prior_shape"], k["prior_rate"])
    x = pm.Exponential("x", rate, shape=k["n"])
    dp.PrivateObservation(
        "z", pt.clip(x, 0, k["c"]).sum(), dp.GaussianMechanism(k["sigma"]), observed=k["s_dp"]
    )


@as_model
def randomized_response():
    k = inputs("v_randomized_response")
    reports = np.repeat([1, 0], [k["reports_equal_1"], k["n"] - k["reports_equal_1"]])
    p = pm.Beta("p", 1, 1)
    x = pm.Bernoulli("x", p, shape=k["n"])
    dp.PrivateObservation("z", x, dp.RandomizedResponse(k["keep_prob"]), observed=reports)


@as_model
def mean_and_square(name="gauss_meanvar_n100", noise=None):
    k = inputs(name)
    sigma2 = pm.InverseGamma("sigma2", 2, 2)
    mu = pm.Normal("mu", 0, pt.sqrt(sigma2 / 0.01))
    x = pm.Normal("x", mu, pt.sqrt(sigma2), shape=k["n"])
    clamped = pt.clip(x, -k["c"], k["c"])
    dp.PrivateObservation(
        "z",
        [clamped.sum(), (clamped**2).sum()],
        dp.GaussianMechanism(noise or k["sg"]),
        observed=[k["s1"], k["s2"]],
    )


@as_model
def admissions():
    k = inputs("a_admissions_2x2")
    pi = pm.Dirichlet("pi", np.ones(4))
    cell = pm.Categorical("cell", pi, shape=k["N"])
    counts = pt.eq(cell[:, None], np.arange(4)).sum(0)
    dp.PrivateObservation(
        "z", counts, dp.GaussianMechanism(k["sigma"]), observed=np.array(k["s_dp"], float)
    )
    for j, label in enumerate(k["cell_order"]):
        pm.Deterministic(label, pi[j])
    pm.Deterministic("log_or", pt.log(pi[0] * pi[3] / (pi[1] * pi[2])))


@as_model
def uniform_regression():
    k = inputs("iv_regression_n20_laplace")
    b0, b1 = (pm.Normal(name, 0, np.sqrt(k["prior_var"])) for name in ("b0", "b1"))
    x = pm.Uniform("x", -1, 1, shape=k["n"])
    y = pm.Normal("y", b0 + b1 * x, np.sqrt(k["noise_var"]), shape=k["n"])
    dp.PrivateObservation(
        "z",
        [y.sum(), (y**2).sum(), x.sum(), (x * y).sum(), (x**2).sum()],
        dp.LaplaceMechanism(k["b"]),
        observed=np.array(k["s_dp"]),
    )


@as_model
def clamped_regression():
    k = inputs("vi_regression_clamped_laplace")
    beta = pm.Normal("beta", 0, np.sqrt(k["prior_var"]), shape=3)
    x = pm.Normal("x", np.array(k["m"]), 1, shape=(k["n"], 2))
    y = pm.Normal("y", beta[0] + x @ beta[1:], np.sqrt(k["noise_var"]), shape=k["n"])
    u, w = (pt.clip(v, -k["c"], k["c"]) / k["c"] for v in (x, y))
    u, v = u[:, 0], u[:, 1]
    products = [w, u * w, v * w, w * w, u, v, u * u, u * v, v * v]
    dp.PrivateObservation(
        "z", [p.mean() for p in products], dp.LaplaceMechanism(k["b"]), observed=k["s_dp"]
    )
    for j in range(3):
        pm.Deterministic(f"b{j}", beta[j])


RECORD_MODELS = {
    "i_clamped_normal_mean_laplace": clamped_mean,
    "ii_bernoulli_geometric": bernoulli_sum,
    "iii_exponential_clamped_gaussian": clamped_exponential,
    "v_randomized_response": randomized_response,
    "gauss_meanvar_n100": mean_and_square,
    "gauss_meanvar_n1000": partial(mean_and_square, "gauss_meanvar_n1000"),
    "a_admissions_2x2": admissions,
    "iv_regression_n20_laplace": uniform_regression,
    "vi_regression_clamped_laplace": clamped_regression,
}

# --- All ------------------------------------------------------------------------------------------

MODELS = {
    build.__name__: build
    for build in (
        gaussian,
        regression,
        poisson,
        bernoulli,
        mean_of_bits,
        table,
        factorization,
        normal,
        random_shape,
        random_half,
        random_exponent,
        random_prior,
        random_index,
    )
}
MODELS |= {name: build for name, build in RECORD_MODELS.items() if name != "gauss_meanvar_n1000"}
MODELS["bounded"] = lambda: gaussian(bounds=(0, 1))


@as_model
def releasing(records, statistic=pt.sum, mechanism=LAPLACE, z=1.0, **options):
    """One release, of a statistic of the records that a function declares."""
    dp.PrivateObservation("z", statistic(records()), mechanism, observed=z, **options)


def normals(n, mean=0.0, sd=1.0, sigma=1.0):
    """Normal records, and a Normal prior of their mean."""
    return pm.Normal("x", pm.Normal("mu", mean, sd), sigma, shape=n)


def bits(n, a=1.0, b=1.0):
    """Records of two values, and a Beta prior of their chance."""
    return pm.Bernoulli("x", pm.Beta("p", a, b), shape=n)
