"""Posteriors that were wrong in silence: what a model says is read as it stands, or not at all."""

import copy
import pickle

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, special, stats

import pymc_dp as dp
from pymc_dp.reading.counts import possible_counts
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from tests.agreement import values_follow
from tests.chains import begun, chain, step_of
from tests.models import mean_of_bits, route_table

OWN = {"fused Gibbs", "exact regression"}  # routes with densities of their own


def open_routes(model):
    return {route.name for route, rate, _ in route_table(model) if rate > 0}


def rounded_spread():
    with pm.Model() as model:
        s, mu = pm.HalfNormal("s", 10), pm.Normal("mu", 0, 100)
        x = pm.Normal("x", mu, s.astype("int64"), shape=400)
        moments = [x.mean(), x.var(ddof=1)]
        dp.PrivateObservation("z", moments, dp.LaplaceMechanism([0.2, 0.1]), observed=[0, 15.2])
    return model


def rounded_variance():
    with pm.Model() as model:
        v = pm.InverseGamma("v", 30, 130)
        sd = pt.sqrt(v.astype("int64"))
        theta = pm.Normal("theta", 0, sd, shape=2)
        x = pm.Normal("x", 0, 1, shape=20)
        y = pm.Normal("y", theta[0] + theta[1] * x, sd, shape=20)
        sums = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
        z = [0.0, 20.0, 1.0, 1.0, 80.0]
        dp.PrivateObservation("z", sums, dp.LaplaceMechanism(1.0), observed=z)
    return model


@pytest.mark.parametrize("build", [rounded_spread, rounded_variance])
def test_a_rounded_parameter_is_not_the_parameter(build):
    assert not open_routes(build()) & OWN


@pytest.mark.parametrize("change", [pt.floor, lambda v: v.astype("int64"), lambda v: v // 1])
def test_a_rounded_rate_has_no_conjugate_update(change):
    with pm.Model() as model:
        rate = pm.Gamma("rate", 8, 2)
        pm.Poisson("y", change(rate), shape=3, observed=[1, 2, 3])
    with model, pytest.raises(ValueError, match="'rate'"):
        dp.ConjugateGibbs([rate])


def test_a_rounded_sum_is_not_the_sum():
    """A sum of eight exponential variables, cut to a whole number and released with noise."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        x = pm.Exponential("x", rate, shape=8)
        cut = x.sum().astype("int64")
        dp.PrivateObservation("z", cut, dp.GaussianMechanism(0.3), observed=4)
    assert open_routes(model) == {
        "Metropolis on the records", "NUTS on the records", "records in one loop"
    }  # fmt: skip
    with pytest.raises(NotImplementedError, match=r"'z'.*int64"):
        dp.collapse(model, "marginal")


# --- Statistics whose possible values are not neighbours ------------------------------------------


@pytest.mark.parametrize("n", [3, 49])
def test_counts_with_gaps_are_drawn_over_all_that_are_possible(n):
    """Of a mean of bits under whole-number noise only 0 and 1 are possible; 49 * (1 / 49) < 1."""
    model = dp.collapse(mean_of_bits(n), "statistics")
    step = step_of(dp.CountGibbs, model, "p", "x_count")
    counts = chain(step, model.initial_point(), 4_000)["x_count"]
    weight = stats.betabinom.pmf([0, n], n, 2, 2) * stats.norm.pdf([1.0, 0.0], 0, 0.7)
    values_follow(counts, [0, n], weight)


def test_gaps_that_a_look_at_some_counts_does_not_see():
    """Of 20,001 counts, all as likely before, each 777th is possible."""
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        k = pm.Binomial("k", 20_000, p)
        dp.PrivateObservation("z", k / 777, dp.DiscreteGaussianMechanism(1.0), observed=8)
    found = chain(step_of(dp.CountGibbs, model, "k", "p"), model.initial_point(), 500)["k"]
    times = np.arange(26)
    values_follow(found, 777 * times, np.exp(-0.5 * (times - 8) ** 2))


def test_tables_with_gaps_are_drawn_over_all_that_are_possible():
    """Moves of two cells do not reach (1, 1, 1), nor lead out of it."""
    with pm.Model() as model:
        k = pm.Multinomial("k", 3, [0.2, 0.3, 0.5])
        mean = (k[1] + 2 * k[2]) / 3
        dp.PrivateObservation("z", mean, dp.GeometricMechanism(1.0), observed=1)
    drawn = chain(step_of(dp.CountGibbs, model, "k"), model.initial_point(), 8_000)["k"]
    possible = np.array([(0, 0, 3), (0, 3, 0), (1, 1, 1), (3, 0, 0)])
    chances = stats.multinomial.pmf(possible, 3, [0.2, 0.3, 0.5])
    values_follow(drawn, possible, chances * np.exp(-abs(1 - possible @ [0, 1, 2] / 3)))


def test_too_many_tables_with_gaps_are_refused():
    with pm.Model() as model:
        k = pm.Multinomial("k", 3_000, [0.2, 0.3, 0.5])
        mean = (k[1] + 2 * k[2]) / 3_000
        dp.PrivateObservation("z", mean, dp.GeometricMechanism(1.0), observed=1)
    with pytest.raises(ValueError, match=r"'k': 'z' has whole-number noise.*sum"):
        step_of(dp.CountGibbs, model, "k")


@pytest.mark.by_day("matrix1")
@pytest.mark.parametrize("matrix", [np.eye(4), np.kron(np.eye(2), np.ones((1, 2)))])
def test_sums_by_a_matrix_of_whole_numbers_leave_no_gaps(matrix):
    with pm.Model() as model:
        k = pm.Multinomial("k", 10_000, np.full(4, 0.25))
        sums = pt.dot(matrix, k)
        z = [2_500] * 4 if len(matrix) == 4 else [5_000, 5_000]
        dp.PrivateObservation("z", sums, dp.GeometricMechanism(1.0), observed=z)
    assert step_of(dp.CountGibbs, model, "k")._updates[0].concave


@pytest.mark.parametrize(
    ("slope", "constant", "expected"),
    [
        (1.0, 0.0, (1, 0)),
        (0.5, 0.0, (2, 0)),
        (3 / 4, 1 / 4, (4, 1)),
        (-2 / 3, 5.0, (3, 0)),
        (1 / 49, 12 / 49, (49, 37)),
        (7.0, 3.0, (1, 0)),
        (0.5, 0.3, None),
        (np.sqrt(0.5), 0.0, None),
        (1 / 1009, 0.0, None),
        (0.5 + 4e-8, 1e6, None),
        (1e-15, 0.0, None),
    ],
)
def test_possible_counts(slope, constant, expected):
    assert possible_counts(slope, constant) == expected
    if expected is not None:
        step, rest = expected
        values = slope * np.arange(3 * step) + constant
        found = np.flatnonzero(np.abs(values - np.round(values)) < 1e-9)
        np.testing.assert_array_equal(found, rest + step * np.arange(3))


def poisson_parts(statistic, z):
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("rate", 2, 1), shape=3)
        dp.PrivateObservation("z", statistic(y), dp.DiscreteGaussianMechanism(0.7), observed=z)
    return model


@pytest.mark.parametrize(
    ("statistic", "z", "step"),
    [(lambda y: y / 2, [1, 2, 0], "TwoSidedGibbs"), (lambda y: y.mean(), 2, "TableGibbs")],
)
def test_parts_of_poisson_counts_have_exact_draws(statistic, z, step):
    model = poisson_parts(statistic, z)
    assert model["y"].tag.dp_step == step
    assert choose_steps(Reading(model))[model["y"]].__name__ == step
    exact = {"exact draws of the counts", "steps in one loop, on the counts"}
    by_value = {"NUTS on the marginal"} if step == "TwoSidedGibbs" else set()
    assert open_routes(model) == exact | by_value


@pytest.mark.parametrize(
    ("statistic", "z", "step"),
    [
        (lambda y: np.sqrt(0.5) * y, [1, 2, 0], dp.TwoSidedGibbs),
        (lambda y: y / 2 + 0.3, [1, 2, 0], dp.TwoSidedGibbs),
        (lambda y: y[0] + y[1:].sum() / 2, 2, dp.TableGibbs),
        (lambda y: [y.mean(), y[0]], [2, 1], dp.TableGibbs),
    ],
)
def test_parts_that_are_no_multiple_of_a_sum_are_refused(statistic, z, step):
    with pytest.raises(ValueError, match=r"'y'.*[Ww]rite"):
        step_of(step, poisson_parts(statistic, z), "y")


def test_a_changed_multiple_is_not_taken_for_the_old_one():
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("rate", 2, 1))
        half = pm.Data("half", 0.5)
        dp.PrivateObservation("z", half * y, dp.GeometricMechanism(1.0), observed=1)
    with model, pytest.raises(ValueError, match=r"'y'.*whole"):
        dp.TwoSidedGibbs([y])


@pytest.mark.parametrize("step", [dp.TwoSidedGibbs, dp.TableGibbs])
def test_coefficients_that_were_whole_are_looked_at_again(step):
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("rate", 2, 1), shape=2)
        twice = pm.Data("twice", 2.0)
        dp.PrivateObservation("z", twice * y, dp.GeometricMechanism(1.0), observed=[1, 3])
    own = step_of(step, model, "y")
    own.step(model.initial_point())
    pm.set_data({"twice": 0.5}, model=model)
    with model, pytest.raises(ValueError, match=r"'y' cannot be drawn"):
        pm.sample(1, tune=0, chains=1, cores=1, step=[own], progressbar=False)


def test_a_cast_of_what_is_whole_now_may_come_to_round():
    with pm.Model() as model:
        y, c = pm.Poisson("y", 3.0, shape=2), pm.Data("c", 2.0)
        cut = (c * y).astype("int64")
        dp.PrivateObservation("z", cut, dp.GeometricMechanism(1.0), observed=[4, 6])
    with model, pytest.raises(ValueError, match="'y'"):
        dp.TwoSidedGibbs([y])


@pytest.mark.parametrize("records", [False, True])
def test_gaps_that_data_open_are_noticed(records):
    with pm.Model() as model:
        p, c = pm.Beta("p", 1, 1), pm.Data("c", 1.0)
        if records:
            x = pm.Bernoulli("x", p, shape=20)
            dp.PrivateObservation("z", c * x.sum(), dp.GeometricMechanism(1.0), observed=6)
            step = dp.RecordMetropolis([x])
        else:
            k = pm.Binomial("k", 20, p)
            dp.PrivateObservation("z", c * k, dp.GeometricMechanism(1.0), observed=6)
            step = dp.CountGibbs([k, p])
    begun(step)
    pm.set_data({"c": 0.5}, model=model)
    with pytest.raises(ValueError, match=r"cannot be drawn: 'c' has changed.*Make the step anew"):
        begun(step)


def test_an_exponent_that_may_change_is_no_power():
    with pm.Model() as model:
        v, k = pm.InverseGamma("v", 3, 2), pm.Data("k", 0.5)
        pm.Normal("x", 0, v**k, shape=3)
    with model, pytest.raises(ValueError, match="'v'"):
        dp.ConjugateGibbs([v])


def test_the_marginal_of_a_mean_of_bits():
    model = dp.collapse(mean_of_bits(3), "marginal")
    density = model.compile_logp(jacobian=False)
    p = np.array([0.2, 0.5, 0.8])
    found = np.array([density({"p_logodds__": special.logit(v)}) for v in p])

    def exact(v):
        noise = np.exp(-(np.array([1.0, 0.0]) ** 2) / (2 * 0.49))
        return stats.beta.logpdf(v, 2, 2) + np.log([(1 - v) ** 3, v**3] @ noise)

    truth = np.array([exact(v) for v in p])
    np.testing.assert_allclose(found - found[0], truth - truth[0], atol=1e-10)
    total = integrate.quad(lambda v: np.exp(exact(v)), 0, 1)[0]
    mean = integrate.quad(lambda v: v * np.exp(exact(v)), 0, 1)[0] / total
    assert abs(mean - 0.600) < 1e-3


# --- What was refused without saying what to write ------------------------------------------------


def test_a_number_less_a_number_is_read():
    """`3 * x.sum() - 1` ended in an AttributeError."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=5)
        dp.PrivateObservation("z", 3 * x.sum() - 1, dp.LaplaceMechanism(1.0), observed=2.0)
    assert "NUTS on the marginal" in open_routes(model)


@pytest.mark.parametrize("mechanism", [dp.LaplaceMechanism(2), dp.GeometricMechanism(2.0)])
def test_constant_parameters_are_numbers(mechanism):
    assert float(mechanism.scale) == 2.0
    assert float(copy.deepcopy(mechanism).scale) == 2.0
    assert float(pickle.loads(pickle.dumps(mechanism)).scale) == 2.0
    with pm.Model(), pytest.raises(TypeError):
        float(dp.LaplaceMechanism(pm.Data("scale", 2.0)).scale)


def test_gaps_are_summed_over_however_many_counts_there_are():
    n, step, z = 20_000, 777, 8
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        x = pm.Bernoulli("x", p, shape=n)
        dp.PrivateObservation("z", x.sum() / step, dp.DiscreteGaussianMechanism(1.0), observed=z)
    collapsed = dp.collapse(model)
    density = collapsed.compile_logp(vars=collapsed["z"])
    counts = step * np.arange(n // step + 1)
    for at in (0.25, 0.311, 0.5):
        noise = -((z - counts / step) ** 2) / 2 - np.log(
            np.exp(-(np.arange(-40, 41) ** 2) / 2).sum()
        )
        truth = special.logsumexp(stats.binom.logpmf(counts, n, at) + noise)
        found = density({"p_logodds__": special.logit(at)})
        np.testing.assert_allclose(found, truth, rtol=1e-10)


def test_records_do_not_move_across_gaps():
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        x = pm.Binomial("x", 2, p, shape=60)
        dp.PrivateObservation("z", x.mean(), dp.GeometricMechanism(1.0), observed=1)
    with pytest.raises(
        ValueError, match="'z' adds whole-number noise to a statistic that is not known to be whole"
    ):
        dp.sample(model, draws=10)
    with model, pytest.raises(ValueError, match="'z' has whole-number noise"):
        dp.RecordMetropolis([x])


def test_listed_tables_of_another_total_are_refused():
    with pm.Model() as model:
        total = pm.Data("total", 3)
        k = pm.Multinomial("k", total, pm.Dirichlet("p", np.ones(3)))
        mean = (k * [0, 1, 2]).sum() / 3
        dp.PrivateObservation("z", mean, dp.GeometricMechanism(1.0), observed=1)
    step = step_of(dp.CountGibbs, model, "k", "p")
    pm.set_data({"total": 6}, model=model)
    with pytest.raises(ValueError, match="'k'"):
        step.step(model.initial_point() | {"k": np.array([1, 2, 3])})


@pytest.mark.parametrize("integrated", [False, True])
def test_data_are_checked_as_they_were_given(integrated):
    """PyMC cuts what it takes for a count: half a count and NaN have to be seen before."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        z = pm.Data("published", np.array([2.0, 3.0]))
        y = pm.Poisson.dist(rate, shape=2) if integrated else pm.Poisson("y", rate, shape=2)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(1.0), observed=z)
    for wrong in ([2.5, 3.0], [np.nan, 3.0]):
        pm.set_data({"published": wrong}, model=model)
        with pytest.raises(ValueError, match="'z'"):
            dp.sample(model, draws=5)
        if not integrated:
            with pytest.raises(ValueError, match="'z'"):
                dp.collapse(model)


def test_initial_values_of_each_chain():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1, shape=4)
        dp.PrivateObservation("z", x.sum(), dp.GaussianMechanism(1.0), observed=3.0)
    starts = [{mu: 0.1}, {"mu": 0.2}]
    options = {"draws": 3, "tune": 3, "chains": 2, "cores": 1, "progressbar": False}
    for rung in ("marginal", "records"):
        assert dp.sample(model, rung=rung, initvals=starts, **options)["posterior"]["mu"].size == 6
