"""The steps: who gets which, that they draw exactly, and that they behave in `pm.sample`."""

from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.sampling.mcmc import assign_step_methods
from scipy import integrate, interpolate, stats

import pymc_dp as dp
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import FeasibleSlice, choose_steps

Z = np.array([34.3, 2224.8])
NOISE = np.array([9.3, 900.0])
INF = np.inf
DRAWS = 4000


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


def seeded(step, seed=1):
    step.setup_chain(np.random.default_rng(seed), tune=0, draws=1)
    return step


# --- Who gets which -------------------------------------------------------------------------------

STEPS = {
    ("conjugate", "records"): {
        "mu": "ConjugateGibbs",
        "sigma2": "ConjugateGibbs",
        "lead": "RecordMetropolis",
    },
    ("conjugate", "statistics"): {
        "mu": "ConjugateGibbs",
        "sigma2": "ConjugateGibbs",
        "lead_mean": "TwoSidedGibbs",
        "lead_var": "TruncatedGammaMixtureGibbs",
    },
    ("bounded", "records"): {
        "mu": "ConjugateGibbs",
        "sigma2": "ConjugateGibbs",
        "lead": "RecordMetropolis",
    },
    ("bounded", "statistics"): {
        "mu": "ConjugateGibbs",
        "sigma2": "ConjugateGibbs",
        "lead_mean": "TwoSidedGibbs",
        "lead_var": "TruncatedGammaMixtureGibbs",
    },
    ("general", "records"): {"mu": "ConjugateGibbs", "lead": "RecordMetropolis"},
    ("general", "statistics"): {
        "mu": "ConjugateGibbs",
        "lead_mean": "TwoSidedGibbs",
        "lead_var": "TruncatedGammaMixtureGibbs",
    },
    ("bounded general", "records"): {
        "mu": "ConjugateGibbs",
        "sigma": "FeasibleSlice",
        "lead": "RecordMetropolis",
    },
    ("bounded general", "statistics"): {
        "mu": "ConjugateGibbs",
        "sigma": "FeasibleSlice",
        "lead_mean": "TwoSidedGibbs",
        "lead_var": "TruncatedGammaMixtureGibbs",
    },
    ("gaussian", "statistics"): {
        "mu": "ConjugateGibbs",
        "sigma2": "ConjugateGibbs",
        "lead_mean": "TwoSidedGibbs",
        "lead_var": "TwoSidedGibbs",
    },
}


@pytest.mark.parametrize("key", STEPS, ids=" on ".join)
def test_choice(rungs, key):
    model = rungs[key]
    chosen = {rv.name: step.__name__ for rv, step in choose_steps(Reading(model)).items()}
    assert chosen == STEPS[key]


def assigned(model, step=None):
    """Variables by the name of the step that `pm.sample` would give them."""
    with model:
        provided, selected = assign_step_methods(model, step)
    found = {v.name: type(s).__name__ for s in provided for v in s.vars}
    return found | {v.name: cls.__name__ for cls, vs in selected.items() for v in vs}


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
    found = assigned(model, [slice_step])
    assert found == {
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


@pytest.fixture(scope="module")
def misfits():
    one = dp.LaplaceMechanism(1.0)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        x = pm.Normal("x", mu, sigma, shape=5)
        dp.PrivateObservation("of_x", x.mean(), one, observed=0.0)
        with_child = pm.Normal("with_child", mu, sigma, shape=5)
        dp.PrivateObservation("of_with_child", with_child.mean(), one, observed=0.0)
        pm.Normal("child", with_child.mean(), 1, observed=0.0)
        unread = pm.Normal("unread", mu, sigma, shape=5)
        dp.PrivateObservation("of_unread", unread.std(), one, observed=1.0)
        beta = pm.Beta("beta", 1, 1)
        dp.PrivateObservation("of_beta", beta, one, observed=0.0)
        twice = pm.Normal("twice", mu, 1)
        dp.PrivateObservation("first", twice, one, observed=0.0)
        dp.PrivateObservation("second", twice, one, observed=0.0)
        s = pm.Normal("s", mu, 1)
        dp.PrivateObservation("of_s", s**2, one, observed=0.0)
        heard = pm.Normal("heard", mu, 1)
        dp.PrivateObservation("of_heard", heard, one, observed=0.0)
        pm.Normal("echo", heard, 1, observed=0.0)
        clipped = pm.Normal("clipped", mu, 1)
        dp.PrivateObservation("of_clipped", clipped, one.clipped(0, 1), observed=0.5)
        noisy = pm.Normal("noisy", mu, 1)
        dp.PrivateObservation("of_noisy", noisy, dp.GaussianMechanism(1.0), observed=0.5)
        gamma = pm.Gamma("gamma", 0.5, 1)
        dp.PrivateObservation("of_gamma", gamma, dp.GaussianMechanism(1.0), observed=0.5)
        matrix = pm.Normal("matrix", 0, 1, shape=(2, 2))
        dp.PrivateObservation("of_matrix", matrix.T, one, observed=np.zeros((2, 2)))
        short = pm.Normal("short", 0, 1, shape=1)
        dp.PrivateObservation("of_short", short + np.zeros(3), one, observed=np.zeros(3))
        several = pm.Normal("several", 0, 1, shape=3)
        dp.PrivateObservation("of_several", several.sum(), one, observed=0.0)
        student = pm.StudentT("student", 3)
        pm.Normal("of_student", student, 1, observed=0.0)
    return model


TWO, TGM, MIX = dp.TwoSidedGibbs, dp.TruncatedGammaMixtureGibbs, dp.LaplaceScaleMixtureGibbs
REFUSALS = [
    (dp.RecordMetropolis, "mu", "'mu', which is a single draw of normal"),
    (dp.RecordMetropolis, "beta", "'beta', which is a single draw of beta"),
    (TWO, "mu", r"TwoSidedGibbs cannot update 'mu': '\w+' depends on it too, and is not a release"),
    (TWO, "beta", "TwoSidedGibbs cannot update 'beta': a Beta statistic .* there is one for"),
    (TWO, "twice", r"'twice': it must feed exactly one release, and feeds \['first', 'second'\]"),
    (TWO, "s", "'s': the statistic of 'of_s' is not linear in it"),
    (TWO, "heard", "'heard': 'echo' depends on it too"),
    (TWO, "clipped", "'clipped': .*ClippedMechanism"),
    (TWO, "matrix", "'matrix': the statistic of 'of_matrix' is not an element-by-element"),
    (TWO, "short", "'short': the statistic of 'of_short' is not an element-by-element"),
    (TWO, "several", "'several': the statistic of 'of_several' is not an element-by-element"),
    (TGM, "s", "TruncatedGammaMixtureGibbs cannot update 's', which follows .* it updates Gamma"),
    (TGM, "gamma", "'gamma': its release 'of_gamma' uses GaussianMechanism; write TwoSidedGibbs"),
    (MIX, "beta", "LaplaceScaleMixtureGibbs cannot update 'beta', .*TwoSidedGibbs for others"),
    (MIX, "twice", r"'twice': it must feed one release .* feeds \['first', 'second'\]"),
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
        x, y = (pm.Normal(name, 0, 1, shape=5) for name in "xy")
        for records in (x, y):
            dp.PrivateObservation(
                f"z{records.name}", records.mean(), dp.LaplaceMechanism(1.0), observed=0.3
            )
        [step] = dp.steps(model)
    assert [v.name for v in step.vars] == ["x", "y"]
    assert len(step.engines) == 2


def test_steps_refuse_data_that_became_useless():
    with pm.Model() as model:
        value, scale = pm.Data("value", 0.0), pm.Data("scale", 1.0)
        s, v = pm.Normal("s"), pm.Normal("v", shape=2)
        x = pm.Normal("x", 0, 1, shape=5)
        mechanism = dp.LaplaceMechanism(scale)
        dp.PrivateObservation("z", s, mechanism, observed=value)
        dp.PrivateObservation("zv", v + value, mechanism, observed=[1.0, 2.0])
        dp.PrivateObservation("zx", x.mean(), mechanism, observed=value)
        steps = [TWO([s]), TWO([v]), MIX([s]), dp.RecordMetropolis([x])]
    point = model.initial_point()
    for bad in ({"value": np.nan}, {"scale": -1.0}, {"scale": np.nan}):
        pm.set_data({"value": 0.0, "scale": 1.0} | bad, model=model)
        for step in steps:
            with pytest.raises(ValueError, match=r"cannot be drawn.* the pm\.Data"):
                seeded(step).step(point)


# --- Exact conditionals ---------------------------------------------------------------------------


def tabulated_cdf(log_density, low, high, points=()):
    """Distribution function of a density on [low, high], its kinks among the nodes."""
    edges = np.unique(np.clip(np.r_[low, points, high], low, high))
    grid = np.unique(np.concatenate([np.linspace(a, b, 20001) for a, b in pairwise(edges)]))
    log_values = log_density(grid)
    density = np.exp(log_values - log_values.max())
    cdf = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    return interpolate.interp1d(
        grid, cdf / cdf[-1], bounds_error=False, fill_value=(0.0, 1.0), assume_sorted=True
    )


def noise_logpdf(kind, z, scale):
    law = stats.laplace if kind is dp.LaplaceMechanism else stats.norm
    return lambda s: law.logpdf(z, s, scale)


def draws(step, point, name, count=DRAWS, seed=1):
    seeded(step, seed)
    return np.array([step.step(point)[0][name] for _ in range(count)])


LAPLACE, GAUSS = dp.LaplaceMechanism, dp.GaussianMechanism
LATENTS = {
    "normal-laplace": (lambda: pm.Normal("s", 1.0, 2.0), stats.norm(1, 2), LAPLACE),
    "normal-gaussian": (lambda: pm.Normal("s", 1.0, 2.0), stats.norm(1, 2), GAUSS),
    "gamma-laplace": (lambda: pm.Gamma("s", 2.5, 0.8), stats.gamma(2.5, scale=1.25), LAPLACE),
    "small gamma-laplace": (lambda: pm.Gamma("s", 0.6, 3), stats.gamma(0.6, scale=1 / 3), LAPLACE),
    "gamma-gaussian": (lambda: pm.Gamma("s", 2.5, 0.8), stats.gamma(2.5, scale=1.25), GAUSS),
    "exponential-laplace": (lambda: pm.Exponential("s", 0.5), stats.expon(scale=2), LAPLACE),
}


@pytest.mark.parametrize(("prior", "law", "mechanism"), LATENTS.values(), ids=LATENTS)
@pytest.mark.parametrize("affine", [False, True])
def test_latent_statistic(prior, law, mechanism, affine):
    factor, constant = (-2.0, 3.0) if affine else (1.0, 0.0)
    z, scale = constant + factor * 0.9, 0.7 * abs(factor)
    with pm.Model() as model:
        s = prior()
        statistic = constant + factor * s if affine else s
        dp.PrivateObservation("z", statistic, mechanism(scale), observed=z)
        step = TWO([s])
    value = model.rvs_to_values[s]
    drawn = draws(step, model.initial_point(), value.name)
    if value.name != "s":
        drawn = np.exp(drawn)
    log_noise = noise_logpdf(mechanism, 0.9, 0.7)
    low = max(law.support()[0], -20.0)
    start = 1e-9 if low == 0.0 else low
    cdf = tabulated_cdf(
        lambda s: law.logpdf(s) + log_noise(s), start, 25.0, [1e-6, 1e-4, 1e-2, 0.9]
    )
    assert stats.kstest(drawn, cdf).pvalue > 1e-3


@pytest.mark.parametrize("factor", [1, -2])
def test_latent_counts(factor):
    """Given the release, from the exact conditional; the values stay whole numbers."""
    with pm.Model() as model:
        x = pm.Poisson("x", 3.5, shape=2)
        z = np.array([3, -4])
        dp.PrivateObservation("z", factor * x + 1, dp.GeometricMechanism(2.0), observed=z)
        step = seeded(dp.TwoSidedGibbs([x]))
    found = np.array(draws(step, model.initial_point(), "x"))
    assert found.dtype == np.int64
    counts = np.arange(40)
    for j in range(2):
        joint = stats.poisson.logpmf(counts, 3.5) - abs(z[j] - factor * counts - 1) / 2.0
        p = np.exp(joint - joint.max())
        expected = found.shape[0] * p / p.sum()
        common = expected > 10
        seen = np.bincount(found[:, j], minlength=counts.size)[common]
        assert (
            stats.chisquare(seen, expected[common] * seen.sum() / expected[common].sum())[1] > 1e-3
        )


def test_entries_of_vectors_and_of_lists():
    """Every entry against its own conditional; a kernel that mixed them up would fail."""
    z, scale = np.array([0.5, 4.0, -3.0]), np.array([0.5, 1.0, 2.0])
    means = np.array([0.0, 5.0, 1.0])
    with pm.Model() as model:
        v = pm.Normal("v", means, 1.5, shape=3)
        a, b = pm.Normal("a", 2.0, 1.0), pm.Normal("b", -2.0, 1.0)
        dp.PrivateObservation("zv", 1 + 2 * v, LAPLACE(2 * scale), observed=1 + 2 * z)
        joined = pt.concatenate([a[None], (3 - b)[None]])
        dp.PrivateObservation("zab", joined, LAPLACE([0.5, 2.0]), observed=[1.0, 5.5])
        step = TWO([v, a, b])
    seeded(step)
    found = {"v": [], "a": [], "b": []}
    point = model.initial_point()
    for _ in range(DRAWS):
        after, _ = step.step(point)
        for name, values in found.items():
            values.append(after[name])
    expected = [
        *((np.array(found["v"])[:, j], means[j], 1.5, z[j], scale[j]) for j in range(3)),
        (np.array(found["a"]), 2.0, 1.0, 1.0, 0.5),
        (np.array(found["b"]), -2.0, 1.0, -2.5, 2.0),
    ]
    for drawn, mean, sd, at, b in expected:
        log_noise = noise_logpdf(LAPLACE, at, b)
        cdf = tabulated_cdf(
            lambda s, m=mean, sd=sd, f=log_noise: stats.norm.logpdf(s, m, sd) + f(s), -20, 20, [at]
        )
        assert stats.kstest(drawn, cdf).pvalue > 1e-3


@pytest.mark.parametrize("bounds", [None, (0.0, 135.0)])
@pytest.mark.by_day("bounds1")
def test_statistics_rung_against_the_conditionals(rungs, bounds):
    """All four updates of the statistics rung, each at a fixed point."""
    model = rungs["bounded" if bounds else "conjugate", "statistics"]
    mu, s2, ybar, var, n = 35.0, 900.0, 33.0, 1500.0, 43
    point = {
        "mu": np.array(mu),
        "sigma2_log__": np.array(np.log(s2)),
        "lead_mean": np.array(ybar),
        "lead_var_log__": np.array(np.log(var)),
    }
    point = {v.name: point[v.name] for v in model.value_vars}
    lo, hi = bounds or (-INF, INF)
    mean_width = np.sqrt(67.5**2 - (n - 1) / n * var) if bounds else INF
    mu_width = np.sqrt(67.5**2 - s2) if bounds else INF
    var_cap = n / (n - 1) * (ybar - lo) * (hi - ybar) if bounds else INF
    s2_cap = (mu - lo) * (hi - mu) if bounds else INF
    gamma = stats.gamma((n - 1) / 2, scale=2 * s2 / (n - 1))
    a = 3 + n / 2  # the mean adds one half, the variance (n - 1)/2
    b = 600 + n * (ybar - mu) ** 2 / 2 + (n - 1) * var / 2
    tau = 20**-2 + n / s2
    conditionals = {
        "lead_mean": (
            TWO,
            lambda s: stats.norm.logpdf(s, mu, np.sqrt(s2 / n)) - np.abs(s - Z[0]) / NOISE[0],
            (max(5.0, 67.5 - mean_width), min(65.0, 67.5 + mean_width)),
            [Z[0]],
        ),
        "lead_var_log__": (
            TGM,
            lambda s: gamma.logpdf(s) - np.abs(s - Z[1]) / NOISE[1],
            (100.0, min(5000.0, var_cap)),
            [Z[1]],
        ),
        "mu": (
            dp.ConjugateGibbs,
            lambda s: stats.norm.logpdf(s, (30 / 400 + n * ybar / s2) / tau, tau**-0.5),
            (max(0.0, 67.5 - mu_width), min(70.0, 67.5 + mu_width)),
            [],
        ),
        "sigma2_log__": (
            dp.ConjugateGibbs,
            lambda s: stats.invgamma.logpdf(s, a, scale=b),
            (300.0, min(9000.0, s2_cap)),
            [],
        ),
    }
    for name, (cls, log_density, (low, high), kinks) in conditionals.items():
        [value] = [v for v in model.value_vars if v.name == name]
        with model:
            step = cls([value])
        drawn = draws(step, point, name)
        drawn = np.exp(drawn) if name.endswith("log__") else drawn
        cdf = tabulated_cdf(log_density, low, high, kinks)
        assert stats.kstest(drawn, cdf).pvalue > 1e-3, name


TIGHT = (20.0, 80.0)


@pytest.mark.nightly
def test_bounds_truncate():
    """Bounds that matter: half of the untruncated conditionals lie outside of them."""
    n, mu, s2, ybar, var = 5, 48.0, 700.0, 47.0, 900.0
    with pm.Model() as model:
        mu_ = pm.Normal("mu", 30, 20)
        w = pm.InverseGamma("s2", 2, 900)
        x = pm.Normal("x", mu_, pt.sqrt(w), shape=n)
        release = [x.mean(), x.var(ddof=1)]
        dp.PrivateObservation("z", release, LAPLACE([30.0, 2000.0]), observed=[60, 1000],
                              bounds=TIGHT)  # fmt: skip
    model = dp.collapse(model, "statistics")
    names = {"mu": mu, "s2_log__": np.log(s2), "x_mean": ybar, "x_var_log__": np.log(var)}
    point = {v.name: np.array(names[v.name]) for v in model.value_vars}
    lo, hi = TIGHT
    tau, a = 20**-2 + n / s2, 2 + n / 2
    b = 900 + n * (ybar - mu) ** 2 / 2 + (n - 1) * var / 2
    ranges = {
        "x_mean": (50 - np.sqrt(900 - 0.8 * var), 50 + np.sqrt(900 - 0.8 * var)),
        "x_var_log__": (1e-9, 1.25 * (ybar - lo) * (hi - ybar)),
        "mu": (50 - np.sqrt(900 - s2), 50 + np.sqrt(900 - s2)),
        "s2_log__": (1e-9, (mu - lo) * (hi - mu)),
    }
    densities = {
        "x_mean": lambda s: stats.norm.logpdf(s, mu, np.sqrt(s2 / n)) - np.abs(s - 60) / 30,
        "x_var_log__": lambda s: stats.gamma.logpdf(s, 2, scale=s2 / 2) - np.abs(s - 1000) / 2000,
        "mu": lambda s: stats.norm.logpdf(s, (30 / 400 + n * ybar / s2) / tau, tau**-0.5),
        "s2_log__": lambda s: stats.invgamma.logpdf(s, a, scale=b),
    }
    with model:
        steps = {v.name: s for s in dp.steps(model) for v in s.vars}
    for name, log_density in densities.items():
        drawn = draws(steps[name], point, name)
        drawn = np.exp(drawn) if name.endswith("log__") else drawn
        low, high = ranges[name]
        if name == steps[name].vars[-1].name != steps[name].vars[0].name:
            continue  # drawn given the new value of the step's first variable
        assert drawn.min() >= low
        assert drawn.max() <= high
        cdf = tabulated_cdf(log_density, low, high, [60, 1000])
        assert stats.kstest(drawn, cdf).pvalue > 1e-3, name
    outside = {**point, "mu": np.array(10.0)}
    with pytest.raises(ValueError, match="outside of the feasible region"):
        seeded(steps["x_mean"]).step({**point, "x_var_log__": np.array(np.log(5000.0))})
    step = model_step(model, "s2")
    with pytest.raises(ValueError, match="outside of the feasible region"):
        step.step(outside)


def model_step(model, name):
    with model:
        return seeded(dp.ConjugateGibbs([model[name]]))


def test_integer_parameters():
    """PyTensor keeps 20 as an 8-bit integer, of which neither 20**2 nor 20**-2 exists."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 100, 20)
        x = pm.Normal("x", mu, 20, shape=4)
        dp.PrivateObservation("z", x.mean(), LAPLACE(3), observed=60)
        pm.Normal("y", mu, 20, observed=[70, 50])
    model = dp.collapse(model, "statistics")
    point = {"mu": np.array(100.0), "x_mean": np.array(50.0)}
    drawn = draws(model_step(model, "mu"), point, "mu")
    law = stats.norm((100 + 70 + 50 + 4 * 50) / 7, 20 / np.sqrt(7))
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3
    with model:
        step = TWO([model["x_mean"]])
    cdf = tabulated_cdf(lambda s: stats.norm.logpdf(s, 100, 10) - np.abs(s - 60) / 3, 0, 200, [60])
    assert stats.kstest(draws(step, point, "x_mean"), cdf).pvalue > 1e-3


Y = np.array([1.0, 2.0, 4.0, 4.5])
CONJUGATE = {
    "normal": (
        lambda: pm.Normal("p", 1.0, 2.0),
        lambda p: pm.Normal("y", p, 1.5, observed=Y),
        stats.norm((1 / 4 + Y.sum() / 2.25) / (1 / 4 + 4 / 2.25), (1 / 4 + 4 / 2.25) ** -0.5),
    ),
    "flat": (
        lambda: pm.Flat("p"),
        lambda p: pm.Normal("y", 3 - 2 * p, 1.5, observed=Y),
        stats.norm((3 - Y).mean() / 2, 1.5 / 4),
    ),
    "inverse gamma": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: pm.Normal("y", 2, pt.sqrt(p), observed=Y),
        stats.invgamma(4, scale=3 + ((Y - 2) ** 2).sum() / 2),
    ),
    "half flat": (
        lambda: pm.HalfFlat("p"),
        lambda p: pm.Normal("y", 2, pt.sqrt(p / 2), observed=Y),
        stats.invgamma(1, scale=((Y - 2) ** 2).sum()),
    ),
    "scale of a gamma": (
        lambda: pm.InverseGamma("p", 2, 3),
        lambda p: pm.Gamma("y", 2.5, 1 / (2 * p), observed=Y),
        stats.invgamma(2 + 4 * 2.5, scale=3 + Y.sum() / 2),
    ),
}


@pytest.mark.parametrize(("prior", "child", "law"), CONJUGATE.values(), ids=CONJUGATE)
def test_conjugate(prior, child, law):
    with pm.Model() as model:
        child(prior())
    step = model_step(model, "p")
    value = model.value_vars[0].name
    drawn = draws(step, model.initial_point(), value)
    drawn = np.exp(drawn) if value != "p" else drawn
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3


def test_conjugate_normal_inverse_gamma():
    """Both members of the prior, each given the other."""
    with pm.Model() as model:
        v = pm.InverseGamma("v", 2, 3)
        mu = pm.Normal("mu", 1.0, pt.sqrt(v / 0.5))
        pm.Normal("y", mu, pt.sqrt(v), observed=Y)
    point = {"v_log__": np.array(np.log(2.0)), "mu": np.array(2.0)}
    mean = draws(model_step(model, "mu"), point, "mu")
    law = stats.norm((0.5 + Y.sum()) / 4.5, np.sqrt(2 / 4.5))
    assert stats.kstest(mean, law.cdf).pvalue > 1e-3
    var = np.exp(draws(model_step(model, "v"), point, "v_log__"))
    scale = 3 + 0.5 * (2 - 1) ** 2 / 2 + ((Y - 2) ** 2).sum() / 2
    assert stats.kstest(var, stats.invgamma(2 + 2.5, scale=scale).cdf).pvalue > 1e-3


def test_conjugate_sees_through_other_variables():
    """Proportionality is decided at more than one value of the other variables."""
    with pm.Model() as model:
        v, power = pm.InverseGamma("v", 2, 3), pm.HalfNormal("power")
        pm.Normal("y", 0.0, pt.sqrt(v**power), observed=Y)
    with model, pytest.raises(ValueError, match="not proportional to it"):
        dp.ConjugateGibbs([v])


def chain(step, point, count, names, seed=1):
    """Run a step on its own output; returns an array for each name."""
    seeded(step, seed)
    out = {name: np.empty((count, *np.shape(point[name]))) for name in names}
    for i in range(count):
        point, _ = step.step(point)
        for name in names:
            out[name][i] = point[name]
    return out


def mcse(x):
    """Monte Carlo standard error of a chain's mean, by batches."""
    batches = x[: x.size // 50 * 50].reshape(50, -1).mean(1)
    return batches.std(ddof=1) / np.sqrt(50)


@pytest.mark.nightly
def test_scale_mixture_normal():
    z, b = np.array([0.0, 3.0]), np.array([0.5, 1.0])
    with pm.Model() as model:
        s, t = pm.Normal("s", 1.0, 2.0, shape=2), pm.Normal("t", 1.0, 2.0)
        dp.PrivateObservation("zs", s, LAPLACE(b), observed=z)
        dp.PrivateObservation("zt", 1 - 2 * t, LAPLACE(1.0), observed=1.0)
        step = MIX([s, t])
    found = chain(step, model.initial_point(), 20_000, ["s", "t"])
    for x, at, scale in ((found["s"][:, 0], 0.0, 0.5), (found["s"][:, 1], 3.0, 1.0),
                         (found["t"], 0.0, 0.5)):  # fmt: skip
        grid = np.unique(np.r_[np.linspace(-15, 15, 20001), at])
        density = np.exp(stats.norm.logpdf(grid, 1, 2) - np.abs(grid - at) / scale)
        density /= integrate.trapezoid(density, grid)
        mean = integrate.trapezoid(grid * density, grid)
        square = integrate.trapezoid((grid - mean) ** 2 * density, grid)
        assert abs(x.mean() - mean) < 4 * mcse(x)
        assert abs(((x - mean) ** 2).mean() - square) < 4 * mcse((x - mean) ** 2)


@pytest.mark.nightly
def test_scale_mixture_multivariate():
    mean, cov = np.array([0.0, 1.0]), np.array([[2.0, 1.2], [1.2, 1.0]])
    z, b = np.array([1.5, -0.5]), np.array([0.6, 1.0])
    with pm.Model() as model:
        s = pm.MvNormal("s", mean, cov)
        dp.PrivateObservation("z", s, LAPLACE(b), observed=z)
        step = MIX([s])
    x = chain(step, model.initial_point(), 20_000, ["s"])["s"]
    axis = np.linspace(-9, 9, 721) + 1e-9
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    logs = stats.multivariate_normal(mean, cov).logpdf(grid) - (np.abs(grid - z) / b).sum(-1)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    expected = (weight[..., None] * grid).sum((0, 1))
    for j in range(2):
        assert abs(x[:, j].mean() - expected[j]) < 4 * mcse(x[:, j])
    product = (x[:, 0] - expected[0]) * (x[:, 1] - expected[1])
    covariance = (weight * (grid[..., 0] - expected[0]) * (grid[..., 1] - expected[1])).sum()
    assert abs(product.mean() - covariance) < 4 * mcse(product)


@pytest.mark.nightly
@pytest.mark.parametrize("bounds", [None, (0.0, 100.0)])
@pytest.mark.parametrize("mechanism", [LAPLACE, GAUSS])
def test_record_metropolis_against_the_conditional_of_the_mean(bounds, mechanism, night):
    n, mu, sd, z, scale = 6, 80.0, 20.0, 60.0, 12.0
    with pm.Model() as model:
        mu_ = pm.Normal("mu", mu, 1)
        x = pm.Normal("x", mu_, sd, shape=n)
        dp.PrivateObservation("z", x.mean(), mechanism(scale), observed=z, bounds=bounds)
        step = dp.RecordMetropolis([x])
    point = {**model.initial_point(), "mu": np.array(mu)}
    seeded(step)
    point, _ = step.step(point)  # draws the records afresh, from starting values of its own
    point = {**point, "mu": np.array(mu)}
    records = np.empty((60_000 if night else 6_000, n))
    for row in records:
        point, _ = step.step(point)
        row[:] = point["x"]
    records = records[10:]
    ybar, s2 = records.mean(1), records.var(1, ddof=1)
    lo, hi = bounds or (-INF, INF)

    # The exact law of (mean, variance) given the parameters, on a grid.
    a = np.linspace(10 if bounds is None else 0.05, 130 if bounds is None else 99.95, 400)
    v = np.linspace(0.5, 6000, 800)
    grid_a, grid_v = np.meshgrid(a, v, indexing="ij")
    log_noise = noise_logpdf(mechanism, z, scale)
    logs = stats.norm.logpdf(grid_a, mu, sd / np.sqrt(n)) + log_noise(grid_a)
    logs = logs + stats.gamma.logpdf(grid_v, (n - 1) / 2, scale=2 * sd**2 / (n - 1))
    if bounds:
        logs[(n - 1) / n * grid_v > (grid_a - lo) * (hi - grid_a)] = -INF
        assert np.all((n - 1) / n * s2 <= (ybar - lo) * (hi - ybar) + 1e-9)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    for found, grid in ((ybar, grid_a), (s2, grid_v)):
        expected = (weight * grid).sum()
        assert abs(found.mean() - expected) < 4 * mcse(found) + 2e-3 * np.ptp(grid) / 100
        square = (weight * (grid - expected) ** 2).sum()
        squares = (found - expected) ** 2
        assert abs(squares.mean() - square) < 4 * mcse(squares) + 5e-3 * square


@pytest.mark.nightly
def test_record_metropolis_starts_afresh_in_every_chain():
    model = records_model(conjugate=False)
    with model:
        step = dp.RecordMetropolis([model["lead"]], interweave=False)
    start = model.initial_point()
    collapsed = {**start, "sigma_log__": np.array(-8.0), "lead": np.full(43, 30.0)}
    for seed in (1, 2):
        seeded(step, seed)
        point, _ = step.step(collapsed)
        assert point["sigma_log__"] == start["sigma_log__"]
        assert point["lead"].std() > 5
        again, _ = step.step({**point, "sigma_log__": np.array(2.0)})
        assert again["sigma_log__"] == 2.0  # only in the first call
    with model:
        first_of_the_list = dp.RecordMetropolis([model["lead"]], interweave=False, restart=False)
    point, _ = seeded(first_of_the_list).step({**collapsed, "sigma_log__": np.array(2.5)})
    assert point["sigma_log__"] == 2.5


def test_other_variables_of_the_statistic_are_read_from_the_point():
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", 0, 10)
        dp.PrivateObservation("z", a + b, dp.GaussianMechanism(0.1), observed=7.0)
        step = seeded(dp.TwoSidedGibbs([a]))
    point = {**model.initial_point(), "b": np.array(6.0)}
    draws = np.array([step.step(point)[0]["a"] for _ in range(2000)])
    variance = 1 / (1 + 100)
    exact = stats.norm(variance * 100 * (7.0 - 6.0), np.sqrt(variance))
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-3


# --- In pm.sample ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [("conjugate", "records"), ("bounded", "statistics")])
@pytest.mark.by_day("key1")
def test_points_keep_their_order_and_are_not_mutated(rungs, key):
    model = rungs[key]
    steps = dp.steps(model)
    start = feasible_point(model)
    for step in steps:
        for value in start.values():
            value.setflags(write=False)
        before = {k: v.copy() for k, v in start.items()}
        first, _ = seeded(step).step(start)
        kept = {k: v.copy() for k, v in first.items()}
        second, _ = step.step(first)
        seeded(step)
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


def quick(model, **kwargs):
    settings = {
        "draws": 30, "tune": 20, "chains": 2, "cores": 1, "progressbar": False,
        "compute_convergence_checks": False, "random_seed": 4,
    }  # fmt: skip
    with model:
        return pm.sample(**(settings | kwargs))


def test_pm_sample_is_reproducible(rungs):
    model = rungs["conjugate", "statistics"]
    one, two = quick(model), quick(model)
    other = quick(model, random_seed=5)
    for name in ("mu", "sigma2", "lead_mean", "lead_var"):
        np.testing.assert_array_equal(one.posterior[name], two.posterior[name])
        assert not np.array_equal(one.posterior[name], other.posterior[name])
        assert not np.array_equal(one.posterior[name][0], one.posterior[name][1])


@pytest.mark.nightly
def test_beside_nuts():
    model = records_model(conjugate=False)
    tree = quick(model, chains=1)
    assert {"dp_record_accept", "tree_depth"} <= set(tree.sample_stats)
    assert 0 < float(tree.sample_stats["dp_record_accept"].mean()) <= 1
    collapsed = dp.collapse(model, "statistics")
    with collapsed:
        steps = [TWO([collapsed["lead_mean"]]), TGM([collapsed["lead_var"]])]
        steps.append(pm.NUTS([collapsed["mu"], collapsed["sigma"]]))
    tree = quick(collapsed, step=steps, chains=1)
    assert set(tree.posterior) == {"mu", "sigma", "lead_mean", "lead_var"}
    assert "tree_depth" in tree.sample_stats
    assert np.unique(tree.posterior["lead_mean"]).size == 30


def test_slice_respects_the_walls(rungs):
    model = rungs["bounded general", "statistics"]
    tree = quick(model, draws=100, chains=1)
    mu, sigma = (tree.posterior[name].to_numpy() for name in ("mu", "sigma"))
    assert np.all(sigma**2 <= mu * (135 - mu))
    assert np.unique(sigma).size > 50
    assert FeasibleSlice.competence(model["mu"]) == FeasibleSlice.competence(model["lead_mean"])
