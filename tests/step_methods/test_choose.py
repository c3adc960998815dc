"""The steps: who gets which, what they refuse, and that they behave in `pm.sample`."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import FeasibleSlice, choose_steps
from tests.chains import assigned, begun, sampled, step_of

Z = np.array([34.3, 2224.8])
NOISE = np.array([9.3, 900.0])
ONE = dp.LaplaceMechanism(1.0)


def records_model(*, bounds=None, conjugate=True, n=43, mechanism=dp.LaplaceMechanism):
    with pm.Model() as model:
        mu = pm.Normal("mu", 30, 20)
        if conjugate:
            sigma = pt.sqrt(pm.InverseGamma("sigma2", 3, 600))
        else:
            sigma = pm.HalfNormal("sigma", 20)
        x = pm.Normal("lead", mu, sigma, shape=n)
        statistic = [x.mean(), x.var(ddof=1)]
        dp.PrivateObservation("z", statistic, mechanism(NOISE), observed=Z, bounds=bounds)
    return model


MODELS = {
    "conjugate": {},
    "bounded": {"bounds": (0, 135)},
    "general": {"conjugate": False},
    "bounded general": {"conjugate": False, "bounds": (0, 135)},
    "gaussian": {"mechanism": dp.GaussianMechanism},
}


@pytest.fixture(scope="module")
def rungs():
    """Every model on both rungs with latent variables."""
    models = {name: records_model(**kwargs) for name, kwargs in MODELS.items()}
    return {(n, "records"): m for n, m in models.items()} | {
        (n, "statistics"): dp.collapse(m, "statistics") for n, m in models.items()
    }


# --- Who gets which -------------------------------------------------------------------------------

PARAMETERS = {"mu": "ConjugateGibbs", "sigma2": "ConjugateGibbs"}
SLICED = {"mu": "ConjugateGibbs", "sigma": "FeasibleSlice"}
RECORDS = {"lead": "RecordMetropolis"}
STATISTICS = {"lead_mean": "TwoSidedGibbs", "lead_var": "TruncatedGammaMixtureGibbs"}
STEPS = {
    ("conjugate", "records"): PARAMETERS | RECORDS,
    ("conjugate", "statistics"): PARAMETERS | STATISTICS,
    ("bounded", "records"): PARAMETERS | RECORDS,
    ("bounded", "statistics"): PARAMETERS | STATISTICS,
    ("general", "records"): {"mu": "ConjugateGibbs"} | RECORDS,
    ("general", "statistics"): {"mu": "ConjugateGibbs"} | STATISTICS,
    ("bounded general", "records"): SLICED | RECORDS,
    ("bounded general", "statistics"): SLICED | STATISTICS,
    ("gaussian", "statistics"): PARAMETERS | STATISTICS | {"lead_var": "TwoSidedGibbs"},
}


@pytest.mark.parametrize("key", STEPS, ids=" on ".join)
def test_choice(rungs, key):
    chosen = {rv.name: step.__name__ for rv, step in choose_steps(Reading(rungs[key])).items()}
    assert chosen == STEPS[key]


def test_steps_of_a_model(rungs):
    model = rungs["conjugate", "statistics"]
    built = dp.steps(model)
    assert [type(s).__name__ for s in built] == [
        "TruncatedGammaMixtureGibbs",
        "TwoSidedGibbs",
        "ConjugateGibbs",
    ]
    assert [v.name for v in built[2].vars] == ["mu", "sigma2_log__"]
    # The step of the caller wins over the tags of the collapsed model.
    with model:
        slice_step = pm.Slice([model["lead_mean"]])
    assert assigned(model, [slice_step]) == {
        "lead_mean": "Slice",
        "lead_var_log__": "TruncatedGammaMixtureGibbs",
        "mu": "ConjugateGibbs",
        "sigma2_log__": "ConjugateGibbs",
    }


def test_pm_sample_assigns_the_records_alone(rungs):
    found = assigned(rungs["conjugate", "records"])
    assert found == {"mu": "NUTS", "sigma2_log__": "NUTS", "lead": "RecordMetropolis"}
    model = rungs["general", "records"]
    with model:
        nuts = pm.NUTS()
    assert set(assigned(model, [nuts]).values()) == {"NUTS"}  # the way out


def test_pm_sample_assigns_everything_on_the_statistics_rung(rungs):
    for name in ("conjugate", "general", "bounded general"):
        found = assigned(rungs[name, "statistics"])
        expected = STEPS[name, "statistics"]
        for variable, step in found.items():
            bare = variable.removesuffix("_log__")
            assert step == expected.get(bare, "NUTS"), (name, variable)


def test_pm_sample_leaves_ordinary_models_alone():
    with pm.Model() as model:
        mu, s2 = pm.Normal("mu"), pm.InverseGamma("s2", 2, 2)
        pm.Normal("y", mu, pt.sqrt(s2), observed=[1.0, 2.0])
    assert set(assigned(model).values()) == {"NUTS"}
    with pytest.raises(ValueError, match=r"no step applies: the model has no release"):
        dp.steps(model)
    with pytest.raises(ValueError, match="no step applies"):
        dp.steps(dp.collapse(records_model()))


# --- Refusals -------------------------------------------------------------------------------------


def released(rv, statistic=None, mechanism=ONE, observed=0.0):
    """Release a variable, or a statistic of it; returns the variable."""
    statistic = rv if statistic is None else statistic(rv)
    dp.PrivateObservation(f"of_{rv.name}", statistic, mechanism, observed=observed)
    return rv


@pytest.fixture(scope="module")
def misfits():
    gauss = dp.GaussianMechanism(1.0)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        released(pm.Normal("x", mu, sigma, shape=5), pt.mean)
        with_child = released(pm.Normal("with_child", mu, sigma, shape=5), pt.mean)
        pm.Normal("child", with_child.mean(), 1, observed=0.0)
        released(pm.Normal("unread", mu, sigma, shape=5), pt.std, observed=1.0)
        released(pm.Beta("beta", 1, 1))
        twice = released(pm.Normal("twice", mu, 1))
        dp.PrivateObservation("again", twice, ONE, observed=0.0)
        released(pm.Normal("s", mu, 1), pt.sqr)
        heard = released(pm.Normal("heard", mu, 1))
        pm.Normal("echo", heard, 1, observed=0.0)
        released(pm.Normal("clipped", mu, 1), mechanism=ONE.clipped(0, 1), observed=0.5)
        released(pm.Normal("noisy", mu, 1), mechanism=gauss, observed=0.5)
        released(pm.Gamma("gamma", 0.5, 1), mechanism=gauss, observed=0.5)
        released(pm.Normal("matrix", shape=(2, 2)), pt.transpose, observed=np.zeros((2, 2)))
        released(pm.Normal("short", shape=1), lambda s: s + np.zeros(3), observed=np.zeros(3))
        released(pm.Normal("several", shape=3), pt.sum)
        pm.Normal("of_student", pm.StudentT("student", 3), 1, observed=0.0)
    return model


TWO, TGM, MIX = dp.TwoSidedGibbs, dp.TruncatedGammaMixtureGibbs, dp.LaplaceScaleMixtureGibbs
REFUSALS = [
    (dp.RecordMetropolis, "mu", "'mu', which is a single draw of normal"),
    (dp.RecordMetropolis, "beta", "'beta', which is a single draw of beta"),
    (TWO, "mu", r"TwoSidedGibbs cannot update 'mu': '\w+' depends on it too, and is not a release"),
    (TWO, "beta", "TwoSidedGibbs cannot update 'beta': a Beta statistic .* there is one for"),
    (TWO, "twice", r"'twice': it must feed exactly one release, and feeds \['of_twice', 'again'\]"),
    (TWO, "s", "'s': the statistic of 'of_s' is not linear in it"),
    (TWO, "heard", "'heard': 'echo' depends on it too"),
    (TWO, "clipped", "'clipped': .*ClippedMechanism"),
    (TWO, "matrix", "'matrix': the statistic of 'of_matrix': .* makes it something else"),
    (TWO, "short", "'short': the statistic of 'of_short': several entries share a value"),
    (TWO, "several", "'several': the statistic of 'of_several': .* makes it something else"),
    (TGM, "s", "TruncatedGammaMixtureGibbs cannot update 's', which follows .* it updates Gamma"),
    (TGM, "gamma", "'gamma': its release 'of_gamma' uses GaussianMechanism; write TwoSidedGibbs"),
    (MIX, "beta", "LaplaceScaleMixtureGibbs cannot update 'beta', .*TwoSidedGibbs for others"),
    (MIX, "twice", r"'twice': it must feed one release .* feeds \['of_twice', 'again'\]"),
    (MIX, "noisy", "'noisy': the release 'of_noisy' must carry Laplace noise"),
    (MIX, "clipped", "'clipped': the release 'of_clipped' must carry Laplace noise"),
    (MIX, "s", "'s': the statistic of 'of_s' is not linear"),
    (dp.ConjugateGibbs, "sigma", "update 'sigma': 'sigma' has the prior halfnormal"),
    (dp.ConjugateGibbs, "student", "'student' has the prior .* conjugate updates for .*Normal"),
    (dp.ConjugateGibbs, "several", "'several' is not a scalar"),
    (dp.ConjugateGibbs, "heard", "'heard' has no conjugate update: .*'of_heard' depends on it"),
]


@pytest.mark.parametrize(
    ("step", "name", "match"), REFUSALS, ids=[f"{s.__name__}-{n}" for s, n, _ in REFUSALS]
)
def test_refusals(misfits, step, name, match):
    with misfits, pytest.raises(ValueError, match=match):
        step([misfits[name]])


def test_one_step_updates_all_records():
    with pm.Model() as model:
        for name in "xy":
            released(pm.Normal(name, shape=5), pt.mean, observed=0.3)
        [step] = dp.steps(model)
    assert [v.name for v in step.vars] == ["x", "y"]
    assert len(step.engines) == 2


def test_steps_refuse_data_that_became_useless():
    """At the start and within a chain; with other data they go on."""
    with pm.Model() as model:
        value, scale = pm.Data("value", 0.0), pm.Data("scale", 1.0)
        s, v = pm.Normal("s"), pm.Normal("v", shape=2)
        x = pm.Normal("x", 0, 1, shape=5)
        laplace, geometric = dp.LaplaceMechanism(scale), dp.GeometricMechanism(scale)
        dp.PrivateObservation("z", s, laplace, observed=value)
        dp.PrivateObservation("zv", v + value, laplace, observed=[1.0, 2.0])
        dp.PrivateObservation("zx", x.mean(), laplace, observed=value)
        y, t, c = pm.Poisson("y", 2.0, shape=5), pm.Poisson("t", 4.0), pm.Binomial("c", 9, 0.5)
        dp.PrivateObservation("zy", -y, geometric, observed=[3, -1, 4, 2, 0])
        dp.PrivateObservation("zt", t, geometric, observed=3)
        dp.PrivateObservation("zc", c, laplace, observed=value)
        steps = [TWO([s]), TWO([v]), MIX([s]), dp.RecordMetropolis([x])]
        steps += [dp.SkellamBesselGibbs([y]), dp.TableGibbs([t]), dp.CountGibbs([c])]
    point = model.initial_point()
    for bad in ({"value": np.nan}, {"scale": -1.0}, {"scale": np.nan}, {"scale": 0.0}):
        for step in steps:
            if "value" in bad and step in steps[4:6]:
                continue
            for begins in (True, False):
                pm.set_data({"value": 0.0, "scale": 1.0}, model=model)
                begun(step)
                if not begins:
                    after, _ = step.step(point)
                    assert all(after[k].dtype == point[k].dtype for k in point)
                pm.set_data(bad, model=model)
                with pytest.raises(ValueError, match=r"cannot be drawn.* the pm\.Data"):
                    step.step(point)


@pytest.mark.parametrize(
    ("step", "name", "outside"),
    [(TWO, "lead_mean", {"lead_var_log__": np.log(5000.0)}),
     (dp.ConjugateGibbs, "sigma2", {"mu": np.array(-10.0)})],
)  # fmt: skip
def test_a_chain_outside_of_the_bounds_is_told_so(rungs, step, name, outside):
    model = rungs["bounded", "statistics"]
    with pytest.raises(ValueError, match="outside of the feasible region"):
        step_of(step, model, name).step(feasible_point(model) | outside)


# --- In pm.sample ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [("conjugate", "records"), ("bounded", "statistics")])
def test_points_keep_their_order_and_are_not_mutated(rungs, key):
    model = rungs[key]
    steps = dp.steps(model)
    start = feasible_point(model)
    for step in steps:
        for value in start.values():
            value.setflags(write=False)
        before = {k: v.copy() for k, v in start.items()}
        first, _ = begun(step).step(start)
        kept = {k: v.copy() for k, v in first.items()}
        second, _ = step.step(first)
        begun(step)
        assert list(first) == list(second) == list(start)
        for name in start:
            np.testing.assert_array_equal(start[name], before[name])
            np.testing.assert_array_equal(first[name], kept[name])
            assert isinstance(first[name], np.ndarray)
            assert first[name].shape == start[name].shape
        repeated, _ = step.step(start)
        changed = False
        for name in start:
            np.testing.assert_array_equal(repeated[name], first[name])
            changed |= not np.array_equal(first[name], second[name])
        assert changed


def test_pm_sample_is_reproducible(rungs):
    model = rungs["conjugate", "statistics"]
    one, two, other = (sampled(model, random_seed=seed).posterior for seed in (4, 4, 5))
    for name in ("mu", "sigma2", "lead_mean", "lead_var"):
        np.testing.assert_array_equal(one[name], two[name])
        assert not np.array_equal(one[name], other[name])
        assert not np.array_equal(one[name][0], one[name][1])


@pytest.mark.nightly
def test_beside_nuts():
    model = records_model(conjugate=False)
    tree = sampled(model, chains=1)
    assert {"dp_record_accept", "tree_depth"} <= set(tree.sample_stats)
    assert 0 < float(tree.sample_stats["dp_record_accept"].mean()) <= 1
    collapsed = dp.collapse(model, "statistics")
    with collapsed:
        steps = [TWO([collapsed["lead_mean"]]), TGM([collapsed["lead_var"]])]
        steps.append(pm.NUTS([collapsed["mu"], collapsed["sigma"]]))
    tree = sampled(collapsed, step=steps, chains=1)
    assert set(tree.posterior) == {"mu", "sigma", "lead_mean", "lead_var"}
    assert "tree_depth" in tree.sample_stats
    assert np.unique(tree.posterior["lead_mean"]).size == 30


def test_slice_respects_the_walls(rungs):
    model = rungs["bounded general", "statistics"]
    tree = sampled(model, draws=100, chains=1)
    mu, sigma = (tree.posterior[name].to_numpy() for name in ("mu", "sigma"))
    assert np.all(sigma**2 <= mu * (135 - mu))
    assert np.unique(sigma).size > 50
    assert FeasibleSlice.competence(model["mu"]) == FeasibleSlice.competence(model["lead_mean"])
