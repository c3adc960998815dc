"""Models of the record-level reference cases."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_dp as dp
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from tests.references import references

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


def clamped_mean():
    k = inputs("i_clamped_normal_mean_laplace")
    with pm.Model() as model:
        mu = pm.Normal("mu", k["prior_mean"], k["prior_sd"])
        x = pm.Normal("x", mu, 1, shape=k["n"])
        dp.PrivateObservation(
            "z", pt.clip(x, -k["c"], k["c"]).mean(), dp.LaplaceMechanism(k["b"]), observed=k["s_dp"]
        )
    return model


def bernoulli_sum():
    k = inputs("ii_bernoulli_geometric")
    with pm.Model() as model:
        p = pm.Beta("p", k["prior_a"], k["prior_b"])
        x = pm.Bernoulli("x", p, shape=k["n"])
        dp.PrivateObservation("z", x.sum(), TwoSidedGeometric(k["eps"]), observed=k["s_dp"])
        pm.Deterministic("count", x.sum())
    return model


def clamped_exponential():
    k = inputs("iii_exponential_clamped_gaussian")
    with pm.Model() as model:
        rate = pm.Gamma("rate", k["prior_shape"], k["prior_rate"])
        x = pm.Exponential("x", rate, shape=k["n"])
        dp.PrivateObservation(
            "z", pt.clip(x, 0, k["c"]).sum(), dp.GaussianMechanism(k["sigma"]), observed=k["s_dp"]
        )
    return model


def randomized_response():
    k = inputs("v_randomized_response")
    reports = np.repeat([1, 0], [k["reports_equal_1"], k["n"] - k["reports_equal_1"]])
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        x = pm.Bernoulli("x", p, shape=k["n"])
        dp.PrivateObservation("z", x, dp.RandomizedResponse(k["keep_prob"]), observed=reports)
    return model


def mean_and_square(name="gauss_meanvar_n100", noise=None):
    k = inputs(name)
    with pm.Model() as model:
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
    return model


def mean_and_square_n1000():
    return mean_and_square("gauss_meanvar_n1000")


def admissions():
    k = inputs("a_admissions_2x2")
    with pm.Model() as model:
        pi = pm.Dirichlet("pi", np.ones(4))
        cell = pm.Categorical("cell", pi, shape=k["N"])
        counts = pt.eq(cell[:, None], np.arange(4)).sum(0)
        dp.PrivateObservation(
            "z", counts, dp.GaussianMechanism(k["sigma"]), observed=np.array(k["s_dp"], float)
        )
        for j, label in enumerate(k["cell_order"]):
            pm.Deterministic(label, pi[j])
        pm.Deterministic("log_or", pt.log(pi[0] * pi[3] / (pi[1] * pi[2])))
    return model


def regression():
    k = inputs("iv_regression_n20_laplace")
    with pm.Model() as model:
        b0, b1 = (pm.Normal(name, 0, np.sqrt(k["prior_var"])) for name in ("b0", "b1"))
        x = pm.Uniform("x", -1, 1, shape=k["n"])
        y = pm.Normal("y", b0 + b1 * x, np.sqrt(k["noise_var"]), shape=k["n"])
        dp.PrivateObservation(
            "z",
            [y.sum(), (y**2).sum(), x.sum(), (x * y).sum(), (x**2).sum()],
            dp.LaplaceMechanism(k["b"]),
            observed=np.array(k["s_dp"]),
        )
    return model


def clamped_regression():
    k = inputs("vi_regression_clamped_laplace")
    with pm.Model() as model:
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
    return model


RECORD_MODELS = {
    "i_clamped_normal_mean_laplace": clamped_mean,
    "ii_bernoulli_geometric": bernoulli_sum,
    "iii_exponential_clamped_gaussian": clamped_exponential,
    "v_randomized_response": randomized_response,
    "gauss_meanvar_n100": mean_and_square,
    "gauss_meanvar_n1000": mean_and_square_n1000,
    "a_admissions_2x2": admissions,
    "iv_regression_n20_laplace": regression,
    "vi_regression_clamped_laplace": clamped_regression,
}
