"""What is added to pymc_dp by importing another package; run in a process of its own."""

import dp_acme
import numpy as np
import pymc as pm
import pytest
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.laws import PAIRS
from pymc_dp.mechanisms import registered_mechanisms
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES
from pymc_dp.step_methods import STEPS, choose_steps
from tests.conformance import test_sum_laws

RNG = np.random.default_rng(1)

# All of it is found where the package's own things are.
assert dp_acme.AcmeCauchy in registered_mechanisms()
assert dp_acme.UNIFORM_LAPLACE in PAIRS.values()
assert dp_acme.PriorGibbs in STEPS
assert dp_acme.ROUTE in ROUTES

# The mechanism: density and interval, also clipped and in a model of records.
mechanism, z = dp_acme.AcmeCauchy(0.7), np.array([-30.0, 0.9, 4.0])
np.testing.assert_allclose(mechanism.logp(z, 1.0).eval(), stats.cauchy.logpdf(z, 1.0, 0.7))
found = np.exp(mechanism.log_interval([-2.0, 50.0], [3.0, 60.0], 1.0).eval())
ends = stats.cauchy.sf([[-2.0, 3.0], [50.0, 60.0]], 1.0, 0.7)
np.testing.assert_allclose(found, ends[:, 0] - ends[:, 1], rtol=1e-12)
with pm.Model() as model:
    x = pm.Normal("x", pm.Normal("mu", 0, 10), 1, shape=20)
    dp.PrivateObservation("z", x.mean(), mechanism.clipped(-5, 5), observed=1.4)
short = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
idata = dp.sample(model, draws=20, tune=20, **short)
assert np.isfinite(idata["posterior"]["mu"]).all()

# Noise without a parameter, and noise for each entry that is not log-concave: all models are
# explained, and collapsed where that is open.


def poisson(noise):
    y = pm.Poisson("y", pm.Gamma("rate", 2.0, 1.0) * 4.0, shape=6)
    dp.PrivateObservation("z", [y[:3].sum(), y[3:].sum()], noise, observed=[9.0, 12.0])


def bernoulli(noise):
    x = pm.Bernoulli("x", pm.Beta("p", 1.0, 1.0), shape=30)
    dp.PrivateObservation("z", [x[:20].sum(), x[20:].sum()], noise, observed=[9.0, 3.0])


def table(noise):
    y = pm.Multinomial("y", n=20, p=pm.Dirichlet("p", np.ones(2)))
    dp.PrivateObservation("z", y, noise, observed=[9.0, 12.0])


def counts(noise):
    y = pm.Poisson("y", pm.Gamma("rate", 2.0, 1.0), shape=2)
    dp.PrivateObservation("z", y, noise, observed=[3.0, 6.0])


def factorization(noise):
    theta, phi = (pm.Gamma(k, 1.0, 1.0, shape=s) for k, s in (("t", (2, 1)), ("p", (1, 2))))
    dp.PrivateObservation(
        "z", pm.Poisson.dist(theta @ phi), noise, observed=[[3.0, 6.0], [0.0, 3.0]]
    )


def normal(noise):
    x = pm.Normal("x", pm.Normal("mu", 0, 10), 1, shape=20)
    dp.PrivateObservation("z", [x[:9].sum(), x[9:].sum()], noise, observed=[9.0, 12.0])


for noise in (dp_acme.RoundingToThree(), dp_acme.AcmeCauchy([0.7, 2.0])):
    for build in (poisson, bernoulli, table, counts, factorization, normal):
        if build is factorization and not noise.log_concave:
            continue  # its counts have no marginal, which is refused where they are released
        with pm.Model() as model:
            build(noise)
        assert "z" in str(dp.explain(model, details=True)), (build, noise)
        choose_steps(Reading(model))
        for rung in ("statistics", "marginal"):
            try:
                found = dp.collapse(model, rung)
            except (NotImplementedError, ValueError) as error:
                assert len(str(error)) > 40, (build, noise)  # noqa: PT017
            else:
                logp = found.compile_logp(mode="FAST_COMPILE")(found.initial_point())
                assert np.isfinite(logp) if rung == "marginal" else not np.isnan(logp)

# The law: integrated out of its release, and drawn given it.
with pm.Model() as marginal:
    law = pm.Uniform.dist(0.0, 2.0)
    dp.PrivateObservation("z", law, dp.LaplaceMechanism(0.5), observed=1.7)
truth = np.diff(stats.laplace.cdf([-0.3, 1.7], scale=0.5)).item() / 2
# PyMC's logcdf of the Laplace law has log(0.5) in single precision.
np.testing.assert_allclose(marginal.compile_logp()({}), np.log(truth), rtol=1e-9)
with pm.Model() as latent:
    s = pm.Uniform("s", 0.0, 2.0, default_transform=None)
    dp.PrivateObservation("z", s, dp.LaplaceMechanism(0.5), observed=1.7)
assert choose_steps(Reading(latent))[latent["s"]] is dp.TwoSidedGibbs
[step] = dp.steps(latent)
step.setup_chain(RNG, tune=0, draws=1)
draws = [float(step.step({"s": np.array(1.0)})[0]["s"]) for _ in range(4_000)]
mean = (
    integrate.quad(lambda s: s * stats.laplace.pdf(1.7, s, 0.5) / 2, 0, 2, points=[1.7])[0] / truth
)
assert abs(np.mean(draws) - mean) < 4 * np.std(draws) / 4_000**0.5

# What else is known of a law: sums over Rice records are integrated out.
with pm.Model() as records:
    x = pm.Rice("x", nu=pm.Normal("nu", 0, 10), sigma=1.0, shape=50)
    dp.PrivateObservation("z", x.sum(), dp.GaussianMechanism(30.0), observed=120.0)
found = dp.collapse(records).compile_logp(mode="FAST_COMPILE")({"nu": np.array(2.0)})
nodes, weights = np.polynomial.legendre.leggauss(200)
x, w = 6 * (nodes + 1), np.linspace(-1, 1, 2001)
of_one = np.exp(1j * np.outer(w, x)) @ (6 * weights * stats.rice.pdf(x, 2.0))
density = (of_one**50 * np.exp(-450 * w**2 - 120j * w)).real.sum() / 1_000 / (2 * np.pi)
# PyMC's logp of the Normal law has log(2 pi) in single precision.
np.testing.assert_allclose(found, np.log(density) + stats.norm.logpdf(2.0, 0, 10), rtol=1e-8)

# So are inverse Gaussian ones; sums over groups of them have a law, and all tests of such laws.
test_sum_laws.ROWS["Wald"] = test_sum_laws.Row(
    lambda: pm.Wald("x", pm.Gamma("m", 1, 1, shape=3)[test_sum_laws.THREE], 2.0, shape=12),
    {"m": [0.6, 1.0, 0.5]},
    test_sum_laws.GROUPS,
    dp.GaussianMechanism,
    2.0,
    {"x_sum": lambda s: s},
)
test_sum_laws.test_statistics_have_the_law_of_those_of_records("Wald")
test_sum_laws.test_densities_agree_with_the_oracle("Wald", night=True)
test_sum_laws.test_what_is_recovered_is_what_the_release_leaves("Wald")
for spelling in range(1, len(test_sum_laws.GROUPS)):
    test_sum_laws.test_spellings_have_one_density("Wald", spelling)

# The step: claimed by what it says, drawn from its law.
with latent:
    half = pm.Uniform("half", 0.0, 2.0, default_transform=None)
    free = pm.Normal("free", 3 * half, 0.5)
assert choose_steps(Reading(latent))[free] is dp_acme.PriorGibbs
step = next(own for own in dp.steps(latent) if isinstance(own, dp_acme.PriorGibbs))
step.setup_chain(RNG, tune=0, draws=1)
point = {"half": np.array(1.5), "free": np.array(0.0)}
draws = [float(step.step(point)[0]["free"]) for _ in range(200)]
assert abs(np.mean(draws) - 4.5) < 4 * 0.5 / 200**0.5

# The route: one of the table, with its reason where it is shut, and taken where it is the best.
assert "draws of the prior" in str(dp.explain(model, details=True))
with pm.Model() as unobserved:
    x = pm.Normal("x", pm.Normal("mu", 0, 10), 1, shape=20)
    dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0))
assert dp.sample(unobserved, draws=7)["posterior"].sizes["draw"] == 7

# The reader.
with pm.Model():
    x = pm.Normal("x", pm.Normal("mu", 0, 10), 1, shape=20)
    release = dp.PrivateObservation("z", x.mean(), dp_acme.read("acme 1.25 laplace 0.5"))
    assert float(pm.modelcontext(None).rvs_to_values[release].eval()) == 1.25

# The suite of conformance runs over it, as over the package's own.
suite = [
    "tests/conformance/test_mechanisms.py",
    "-k",
    "Cauchy or Rounding",
    "-q",
    "-p",
    "no:cacheprovider",
]
assert pytest.main(suite) == 0
