"""TableGibbs: how tables and their releases are read from a model, and what is refused."""

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special

import pymc_dp as dp
from pymc_dp.kernels.counts.tables import Releases, sums_of
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from pymc_dp.step_methods.tables import TableGibbs
from tests.agreement import values_follow
from tests.chains import SHORT, assigned, begun, chain, step_of

COUNTY = np.array([0, 0, 1, 1, 1, 2])


def geography(batch=True):
    """Two states of six tracts in three counties each; a noisy value of every tract and county."""
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.full(6, 3.0), shape=(2, 6))
        y = pm.Multinomial("y", n=np.array([60, 90]), p=p)
        dp.PrivateObservation(
            "tract", y, dp.DiscreteGaussianMechanism(2.0), observed=np.full((2, 6), 12)
        )
        county = pt.zeros((2, 3))[:, COUNTY].inc(y)
        dp.PrivateObservation(
            "county", county, dp.GeometricMechanism(1.0), observed=[[20, 30, 10], [30, 40, 20]]
        )
    return model


def released(table, point):
    z, lam, tau = table.read(point)[0]
    return Releases(z, lam, tau, *table.entries[:3])


def test_reads_cells_and_sums():
    model = geography()
    [table] = step_of(TableGibbs, model, "y")._updates
    found = released(table, model.initial_point())
    y = np.arange(12.0)
    county = np.array([np.bincount(COUNTY, row) for row in y.reshape(2, 6)]).ravel()
    np.testing.assert_array_equal(sums_of(y, found), [*y, *county])
    np.testing.assert_array_equal(found.z, [12] * 12 + [20, 30, 10, 30, 40, 20])
    np.testing.assert_allclose(found.lam, [0] * 12 + [1] * 6)
    np.testing.assert_allclose(found.tau, [0.25] * 12 + [0] * 6)


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        (lambda y: [y[0], 3.0 * y[1:].sum() + 5.0], lambda y: [y[0], 3 * y[1:].sum()]),
        (lambda y: y.reshape((2, 3)).sum(axis=0), lambda y: y.reshape(2, 3).sum(axis=0)),
        (lambda y: pt.dot(np.eye(6)[::2], y) / 2, lambda y: y[::2] / 2),
        (lambda y: y.mean(), lambda y: [y.mean()]),
        (lambda y: y[np.array([4, 0, 2])], lambda y: y[[4, 0, 2]]),
        (lambda y: -y, lambda y: -y),
        (lambda y: pm.Deterministic("d", y[:2].sum()), lambda y: y[:2].sum()),
    ],
)
def test_reads_linear_statistics(statistic, expected):
    with pm.Model() as model:
        y = pm.Poisson("y", 4.0, shape=6)
        value = np.zeros(np.shape(expected(np.zeros(6))))
        given = statistic(y)
        shape = () if getattr(given, "ndim", 1) == 0 else value.shape
        dp.PrivateObservation("z", given, dp.LaplaceMechanism(1.0), observed=value.reshape(shape))
    [table] = TableGibbs([y], model=model)._updates
    cells = np.arange(6.0)
    np.testing.assert_allclose(
        sums_of(cells, released(table, model.initial_point())), expected(cells)
    )


def test_totals_hold_in_every_draw_and_are_restored():
    model = geography()
    start = {"y": np.zeros((2, 6), dtype=int)}  # no totals at all
    found = chain(TableGibbs([model["y"]], model=model), model.initial_point() | start, 20)["y"]
    np.testing.assert_array_equal(found.sum(axis=2), [[60, 90]] * 20)
    assert found.dtype == model["y"].dtype


NOISE, LAPLACE = dp.GeometricMechanism(1.0), dp.LaplaceMechanism(1.0)


def release(statistic, noise=NOISE, name="z"):
    statistic = pt.as_tensor(statistic)
    dp.PrivateObservation(name, statistic, noise, observed=np.zeros(statistic.type.shape, int))


# Why a table is refused, by what is said of it beside its law; Poisson where no law is given.
REFUSED = {
    "its release 'z' is made by ClippedMechanism.*RecordMetropolis": lambda y: release(
        y, NOISE.clipped(0)
    ),
    "the statistic of 'z' is not linear.*RecordMetropolis": lambda y: release(
        (y**2).sum(), LAPLACE
    ),
    "'z' has whole-number noise, and an entry .*Write a": lambda y: release(y[0] + y[1:].sum() / 2),
    "whole-number noise leaves gaps .* one of its cells in two entries": lambda y: (
        release(y / 2),
        release((y + 1) / 3, name="w"),
    ),
    "whole-number noise leaves .* in another release, too": lambda y: (
        release(y.mean()),
        release(y[0], name="w"),
    ),
    "'x', which is no release": lambda y: (release(y), pm.Normal("x", y, observed=np.zeros(3))),
    "the statistic of 'z' is one of 'x', too": lambda y: release(
        y + pm.Binomial("x", 4, 0.5, shape=3)
    ),
    "no release of it": lambda y: None,
}
OTHER_LAWS = {
    "'y', which follows .*it updates Multinomial, DirichletMultinomial, Poisson": lambda: release(
        pm.Normal("y", shape=3), LAPLACE
    ),
    "one of its cells is in several entries of the statistic of 'z'": lambda: release(
        pt.dot(np.ones((2, 401)), pm.NegativeBinomial("y", 2.0, 1.0, shape=401))
    ),
    "'y': whole-number noise leaves .*Write CountGibbs": lambda: release(
        pm.Multinomial("y", 9, np.ones(4) / 4) / 2
    ),
    "'y': whole-number noise leaves .* they are not Poisson.*Write a": lambda: release(
        pm.NegativeBinomial("y", n=2.0, p=0.3, shape=4).mean()
    ),
}
CASES = OTHER_LAWS | {
    f"'y': {match}": lambda build=build: build(pm.Poisson("y", 4.0, shape=3))
    for match, build in REFUSED.items()
}


@pytest.mark.parametrize("match", CASES)
def test_what_is_refused_is_named(match):
    with pm.Model() as model:
        CASES[match]()
    with pytest.raises(ValueError, match=match):
        step_of(TableGibbs, model, "y")


def test_a_product_of_counts_is_refused():
    with pm.Model() as model:
        release(pm.Poisson("a", 4.0) * pm.Poisson("b", 4.0), LAPLACE)
    with pytest.raises(ValueError, match="'z' is not linear"):
        step_of(TableGibbs, model, "a", "b")


def test_one_entry_with_gaps_is_none_of_another():
    with pm.Model() as model:
        y = pm.Poisson("y", 4.0, shape=3)
        both = [y[0] / 2, 2 * y[1] + 3 * y[2]]
        dp.PrivateObservation("z", both, dp.GeometricMechanism(1.0), observed=[1, 12])
    [table] = TableGibbs([y], model=model)._updates
    np.testing.assert_array_equal(table.entries.gaps.step, [2, 1, 1])


def test_a_constant_may_change_a_coefficient_may_not():
    with pm.Model():
        c, k = pm.Data("c", 1.0), pm.Data("k", 2.0)
        y = pm.Poisson("y", 4.0, shape=2)
        dp.PrivateObservation("z", k * y + c, dp.GaussianMechanism(1.0), observed=[5.0, 7.0])
        step = TableGibbs([y])
        pm.set_data({"c": 0.5})
        begun(step)
        pm.set_data({"k": 3.0})
    with pytest.raises(ValueError, match=r"'y' cannot be drawn: .*'k' has changed"):
        begun(step)


# Whole-number noise leaves gaps; each model is small enough to write all states out.


def two_sums():
    y = pm.Poisson("y", np.array([1.0, 2.0, 0.5, 1.5]))
    dp.PrivateObservation("other", y[:0].sum(), dp.LaplaceMechanism(1.0), observed=0.0)
    sums = [(y[:2].sum() + 1) / 2, (2 * y[2:].sum() + 1) / 3]
    dp.PrivateObservation("z", sums, dp.DiscreteGaussianMechanism(0.8), observed=[2, 1])
    return (9, 9, 7, 8)


def two_steps():
    y = pm.Poisson("y", np.array([2.0, 3.0]))
    parts = [(y[0] + 1) / 2, (y[1] + 2) / 3]
    dp.PrivateObservation("z", parts, dp.GeometricMechanism(1.0), observed=[2, 1])
    dp.PrivateObservation("sum", y.sum(), dp.GaussianMechanism(0.5), observed=6.0)
    return (18, 18)


def no_rate():
    y = pm.Poisson("y", np.array([2.0, 0.0, 3.0]))
    dp.PrivateObservation("z", (y.sum() + 2) / 3, dp.GeometricMechanism(1.0), observed=2)
    return (16, 3, 16)


def two_scalars():
    a, b = pm.Poisson("a", 2.0), pm.Poisson("b", 3.0)
    dp.PrivateObservation("z", [a, b, a + b], NOISE, observed=[1, 4, 6])
    return (14, 16)


def a_scalar_and_a_vector():
    a, b = pm.Poisson("a", 1.5), pm.Poisson("b", np.array([1.0, 2.0]))
    dp.PrivateObservation("z", [a, b.sum(), 2 * a - b[0]], LAPLACE, observed=[1, 4, 0])
    return (10, 10, 12)


def several_releases():
    a, b = pm.Binomial("a", 6, 0.4), pm.Poisson("b", 2.0)
    c = pm.Poisson("c", 1.5)
    dp.PrivateObservation("z", b - c, NOISE, observed=2)
    dp.PrivateObservation("w", (b + c) / 2, dp.GaussianMechanism(1.0), observed=1.5)
    dp.PrivateObservation("v", a, NOISE, observed=3)
    return (7, 12, 11)


def sum_and_scalar():
    a, b = pm.Poisson("a", 1.5, shape=2), pm.Poisson("b", 2.0)
    dp.PrivateObservation("z", [a.sum(), b], NOISE, observed=[3, 1])
    return (9, 9, 11)


def in_one_entry():
    a, b = pm.Poisson("a", 1.5, shape=2), pm.Poisson("b", 2.0)
    dp.PrivateObservation("z", [a[0] + b, a[1]], LAPLACE, observed=[3, 1])
    return (9, 9, 11)


def by_two_releases():
    """The second makes a table of what were records."""
    a, b = pm.Poisson("a", 1.5, shape=2), pm.Poisson("b", 2.0)
    dp.PrivateObservation("z", a.sum(), LAPLACE, observed=3)
    dp.PrivateObservation("w", a[0] + b, NOISE, observed=3)
    return (9, 9, 11)


def running_totals():
    """Sums that tell each of the counts, with correlated noise."""
    y = pm.Poisson("y", np.array([1.0, 2.0, 1.5]))
    covariance = 0.8 * (np.eye(3) + np.tri(3) @ np.tri(3).T)
    dp.PrivateObservation("z", *dp.decorrelate(pt.cumsum(y), [1, 4, 5], covariance=covariance))
    return (9, 11, 10)


@pytest.mark.parametrize(
    "build",
    [
        *(two_sums, two_steps, no_rate, two_scalars, a_scalar_and_a_vector, several_releases),
        *(sum_and_scalar, in_one_entry, by_two_releases, running_totals),
    ],
)
def test_against_all_states(build):
    """One step from draws of the posterior leaves it as it is, and no state is impossible."""
    with pm.Model() as model:
        top = build()
    names = [v.name for v in model.value_vars]
    step = step_of(TableGibbs, model, *names)
    density = model.compile_fn(model.logp(), inputs=model.value_vars, point_fn=False)
    states = np.array(list(itertools.product(*map(range, top))))
    first = model.initial_point()
    cuts = np.cumsum([v.size for v in first.values()])[:-1]

    def point(state):
        parts = zip(first.items(), np.split(state, cuts), strict=True)
        return {name: part.reshape(x.shape) for (name, x), part in parts}

    weight = special.softmax([float(density(*point(state).values())) for state in states])
    size = 8_000 if build in (two_sums, two_steps, no_rate) else 2_000
    starts = states[np.random.default_rng(7).choice(len(states), size=size, p=weight)]
    drawn = [step.step(point(start))[0] for start in starts]
    drawn = np.array([np.concatenate([d[name].ravel() for name in names]) for d in drawn])
    values_follow(drawn, states, weight)


def test_exact_sums_with_weights_leave_a_table_free():
    """Of four counts with 2 in all, and 5 weighted by 1 to 4, there are two tables."""
    with pm.Model() as model:
        c = pm.Poisson("c", [2.0, 1.0, 1.0, 2.0], initval=[1, 0, 0, 1])
        dp.PrivateObservation("z", c, LAPLACE, observed=np.full(4, 0.5))
        sums = pt.dot([[1, 1, 1, 1], [1, 2, 3, 4]], c)
        dp.PrivateObservation("e", sums, dp.LaplaceMechanism(1e-3), observed=[2, 5])
    step, point, outer = step_of(TableGibbs, model, "c"), model.initial_point(), []
    for _ in range(2_000):
        point, _ = step.step(point)
        outer.append(point["c"][0])
        assert tuple(point["c"]) in {(1, 0, 0, 1), (0, 1, 1, 0)}
    assert np.mean(outer) == pytest.approx(4.0 / 5.0, abs=0.05)


@pytest.mark.parametrize("law", ["Poisson", "Binomial"])
@pytest.mark.parametrize("build", [sum_and_scalar, in_one_entry, by_two_releases])
def test_records_and_a_scalar_have_one_step(build, law, monkeypatch):
    """Every way to choose steps gives them to one: no step takes a part of a table."""
    if law == "Binomial":
        monkeypatch.setattr(pm, "Poisson", lambda name, mu, **how: pm.Binomial(name, 9, 0.3, **how))
    with pm.Model() as model:
        build()
        for chosen in (assigned(model), assigned(model, dp.steps())):
            assert chosen == {"a": "TableGibbs", "b": "TableGibbs"}
    idata = dp.sample(model, draws=2, tune=2, **SHORT)
    assert set(idata["posterior"]) == {"b"}


def test_running_totals_are_a_table_however_long():
    with pm.Model() as model:
        y = pm.Poisson("y", pt.exp(pt.cumsum(pm.Normal("steps", shape=64))), shape=64)
        dp.PrivateObservation(
            "z", *dp.decorrelate(pt.cumsum(y), np.arange(64), covariance=np.eye(64))
        )
    assert assigned(model)["y"] == "TableGibbs"
    assert choose_steps(Reading(model))[y] is TableGibbs


M = np.kron(np.eye(4), np.ones((1, 3))).astype(int)
SPELLINGS = {
    "two releases": lambda c: [c, M @ c],
    "concatenate": lambda c: [pt.concatenate([c, M @ c])],
    "one matrix": lambda c: [np.vstack([np.eye(12, dtype=int), M]) @ c],
    "stack": lambda c: [
        pt.stack([*(c[i] for i in range(12)), *(c[i : i + 3].sum() for i in (0, 3, 6, 9))])
    ],
}


def test_one_table_has_one_step_and_one_draw_however_it_is_written():
    published = np.r_[np.arange(12) % 5, [4, 9, 5, 4]]
    draws = []
    for spelled in SPELLINGS.values():
        with pm.Model() as model:
            c = pm.Poisson("c", pt.exp(pm.Normal("a", 1, 1)), shape=12)
            first = 0
            for k, statistic in enumerate(spelled(c)):
                last = first + statistic.type.shape[0]
                noise = dp.GeometricMechanism(1.0)
                dp.PrivateObservation(f"z{k}", statistic, noise, observed=published[first:last])
                first = last
        [step] = dp.steps(model)
        assert type(step) is dp.TableGibbs
        step = dp.TableGibbs([c], model=model, rng=3, interweave=False)
        point, _ = step.step(model.initial_point())
        draws.append(point["c"])
    assert all(np.array_equal(own, draws[0]) for own in draws)


def test_counts_of_which_some_were_published_are_a_table():
    with pm.Model() as model:
        level = pm.Normal("level", 1, 1, shape=4)
        y = pm.NegativeBinomial("y", mu=pt.exp(level)[:, None], alpha=3.0, shape=(4, 3))
        noise = dp.DiscreteGaussianMechanism(2.0)
        dp.PrivateObservation("some", y[:2], noise, observed=np.full((2, 3), 4))
        dp.PrivateObservation("sums", y.sum(axis=1), noise, observed=np.full(4, 12))
        chosen = {v.name: type(s) for s in dp.steps(model) for v in s.vars}
    assert chosen == {"y": TableGibbs}  # and the levels are no records


def test_dirichlet_multinomial_tables():
    a, z = np.array([0.5, 1.0, 2.0]), np.array([4, -1, 3])
    with pm.Model() as model:
        y = pm.DirichletMultinomial("y", n=6, a=a)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(1.0), observed=z)
        dp.PrivateObservation("w", y[:2].sum(), dp.LaplaceMechanism(2.0), observed=4.5)
    found = chain([step_of(TableGibbs, model, "y")], model.initial_point(), 16_000)["y"][100::2]
    tables = np.array([t for t in itertools.product(range(7), repeat=3) if sum(t) == 6])
    log_p = (special.gammaln(tables + a) - special.gammaln(tables + 1)).sum(1)
    log_p -= np.abs(z - tables).sum(1) + np.abs(4.5 - tables[:, :2].sum(1)) / 2
    values_follow(found, tables, special.softmax(log_p))


def test_rates_of_counts_that_are_released_in_sums_too_move_together():
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("rate", 2.0, 0.3, shape=4), shape=4)
        noise = dp.GeometricMechanism(3.0)
        dp.PrivateObservation("cells", y, noise, observed=[4, 6, 2, 7])
        dp.PrivateObservation("sums", y.reshape((2, 2)).sum(axis=1), noise, observed=[11, 8])
    [weave] = TableGibbs([y], model=model).weaves
    assert weave.parameters == [model["rate"]]
