"""Studies: closed forms, seeds, checkpoints, failures, and what they refuse."""

import logging
import os
import signal
import threading
import time
from functools import partial

import joblib
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor.graph.op import Op
from scipy import stats
from scipy.sparse import csr_matrix

import pymc_dp as dp
from pymc_dp.studies.chains import ChainSampler
from pymc_dp.studies.engines import ModelSimulator, compiled
from pymc_dp.studies.fingerprint import fingerprint, object_fingerprint
from pymc_dp.studies.run import reseeded, seeds
from pymc_dp.studies.summaries import FIELDS, mode, summarize

TRUTH = {"mu": 0.5, "sigma2": 0.04}
SMALL = {"draws": 100, "tune": 20, "chains": 1, "random_seed": 3, "progressbar": False}


def build(n=40, epsilon=2.0):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.5, 0.3)
        sigma2 = pm.InverseGamma("sigma2", 3, 0.08)
        x = pm.Normal("x", mu, pm.math.sqrt(sigma2), shape=n)
        noise = dp.LaplaceMechanism.from_epsilon(epsilon / 2, 1 / n)
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise)
    return model


def build_mean(location=0.0, scale=1.0, observed=None):
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", location, scale), 1, shape=9)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=observed)
    return model


def study(function=build, **kwargs):
    return dp.studies.coverage(function, **{"truth": TRUTH, "replicates": 6, **SMALL, **kwargs})


def agree(function, **arguments):
    """Compare what a kernel and dp.sample say of one release."""
    one = {"replicates": 1, "draws": 4000} | arguments
    ours, theirs = (study(function, compiled=c, **one).squeeze() for c in (True, False))
    sd = theirs["sd"]
    for field in ("mean", "median"):
        np.testing.assert_allclose((ours[field] - theirs[field]) / sd, 0.0, atol=0.12)
    np.testing.assert_allclose(ours["sd"] / sd, 1.0, atol=0.1)


def simulate_alike(model, truth, count):
    """Compare the law of the release that a kernel simulates with that of PyMC's draws."""
    names = ["mu", "sigma2"]
    kernels = compiled(model, names), None
    rng = np.random.default_rng(4)
    ours, theirs = (
        np.array([simulate(rng)[1]["z"] for _ in range(count)])
        for simulate in (ModelSimulator(model, names, truth, kernel) for kernel in kernels)
    )
    for j in range(2):
        assert stats.ks_2samp(ours[:, j], theirs[:, j]).pvalue > 1e-3


def is_nominal(found, prob):
    """Whether coverage is what it should be, and no replicate failed."""
    error = np.sqrt(prob * (1 - prob) / found.sizes["replicate"])
    return np.all(np.abs(found["coverage"] - prob) < 3.5 * error) and not found["failures"].any()


# --- Summaries ------------------------------------------------------------------------------------


def test_summaries_against_closed_forms():
    rng = np.random.default_rng(1)
    draws = rng.standard_gamma(2.0, size=(2, 40_000, 1))
    [row] = summarize(draws, np.array([1.0]), 0.9, "hdi", rng)
    found = dict(zip(FIELDS, row, strict=True))
    law = stats.gamma(2.0)
    low = np.linspace(0.0, law.ppf(0.1), 4001)
    at = np.argmin(law.ppf(np.minimum(law.cdf(low) + 0.9, 1 - 1e-12)) - low)
    assert found["truth"] == 1.0
    assert found["mean"] == pytest.approx(2.0, abs=0.03)
    assert found["median"] == pytest.approx(law.median(), abs=0.03)
    assert found["mode"] == pytest.approx(1.0, abs=0.1)
    assert found["sd"] == pytest.approx(np.sqrt(2), abs=0.03)
    assert found["lower"] == pytest.approx(low[at], abs=0.03)
    assert found["upper"] == pytest.approx(law.ppf(law.cdf(low[at]) + 0.9), abs=0.08)
    assert found["pit"] == pytest.approx(law.cdf(1.0), abs=0.15)
    assert found["ess"] == pytest.approx(80_000, rel=0.1)
    [row] = summarize(draws, np.array([1.0]), 0.9, "eti", rng)
    np.testing.assert_allclose(row[5:7], law.ppf([0.05, 0.95]), atol=0.06)


def test_mode_of_heavy_tails_and_of_constant_draws():
    draws = np.sort(3.0 + stats.t(2).rvs(20_000, random_state=2))
    assert mode(draws) == pytest.approx(3.0, abs=0.1)
    assert mode(np.full(100, 2.0)) == 2.0


# --- Numbers --------------------------------------------------------------------------------------


def test_a_replicate_can_be_repeated_from_its_seed():
    found = study(grid={"epsilon": [0.5, 5.0]})
    again = study(grid={"epsilon": [0.5, 5.0]})
    xr.testing.assert_identical(found, again)
    more = study(grid={"epsilon": [0.5, 5.0]}, replicates=9)
    xr.testing.assert_identical(found[list(FIELDS)], more[list(FIELDS)].isel(replicate=slice(0, 6)))
    assert len(np.unique(found["seed"])) == 12
    np.testing.assert_array_equal(found["seed"].isel(epsilon=1), seeds(3, 1, 6))
    np.testing.assert_array_equal(found["truth"].isel(parameter=1), 0.04)


def test_generators_are_reseeded_as_numpy_seeds_them():
    rng = np.random.default_rng(1)
    rng.random(3, dtype="float32")
    for seed in (0, 5, 2**63 - 1):
        wanted = np.random.default_rng(seed)
        assert reseeded(rng, seed).bit_generator.state == wanted.bit_generator.state
        assert rng.random() == wanted.random()


@pytest.mark.nightly
def test_processes_give_the_same_numbers():
    xr.testing.assert_identical(study(), study(n_jobs=2, batch=2))


def test_compiled_replicates_agree_with_dp_sample():
    def simulate(cell, rng):
        return np.array([0.45, 0.06])

    agree(build, tune=300, chains=2, simulate=simulate)


def test_kernels_simulate_what_the_model_says():
    simulate_alike(build(n=5), TRUTH, 4000)


@pytest.mark.nightly
def test_coverage_of_a_prior_average_is_nominal():
    found = study(truth=None, replicates=400, prob=0.8, interval="eti", draws=400)
    share = found["coverage"].to_numpy()
    assert is_nominal(found, 0.8)
    expected = np.sqrt(share * (1 - share) / 400)
    np.testing.assert_allclose(found["coverage_se"], expected, rtol=0.02)
    assert np.all(study(prob=0.999, replicates=3)["coverage_se"] > 0.1)  # all three agree
    error = found["mean"] - found["truth"]
    np.testing.assert_allclose(found["rmse"], np.sqrt((error**2).mean("replicate")))


@pytest.mark.nightly
def test_calibration_of_the_kernel_and_of_wrong_ones(monkeypatch):
    calibrate = partial(dp.studies.calibration, build, replicates=300, **SMALL | {"draws": 500})
    right = calibrate()
    assert np.all(right["ks"] < 1.63 / np.sqrt(300))
    assert right["pit"].shape == (300, 2)
    with pytest.raises(TypeError, match="truth=: calibration draws"):
        calibrate(truth=TRUTH)

    # The noise of the builder is 20 times what the posterior knows of.
    def noisier(cell, rng):
        return np.array([0.5, 0.04]) + rng.laplace(0, 0.5, 2)

    wrong = study(replicates=200, simulate=noisier, grid={"epsilon": [20.0]})
    assert np.all(wrong["coverage"].sel(parameter="mu") < 0.5)

    def narrow(self, released, rng, exact=ChainSampler.__call__):
        draws = exact(self, released, rng)
        center = draws.mean(axis=1, keepdims=True)
        return center + 0.5 * (draws - center)

    monkeypatch.setattr(ChainSampler, "__call__", narrow)
    found = calibrate()
    assert np.all(found["ks"] > 1.63 / np.sqrt(300))


@pytest.mark.nightly
# PyTensor multiplies a transposed matrix by a vector.
@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")
def test_regression_runs_compiled():
    def build_regression(n, scale):
        with pm.Model() as model:
            sigma2 = pm.InverseGamma("sigma2", 3, 3)
            beta = pm.MvNormal("beta", np.zeros(2), sigma2 * np.eye(2), shape=2)
            x = pm.Normal("x", 0, 1, shape=n)
            y = pm.Normal("y", beta[0] + beta[1] * x, pm.math.sqrt(sigma2), shape=n)
            statistic = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
            dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(scale))
        return model

    grid = {"n": [50], "scale": [2.0]}
    found = study(
        build_regression, truth=None, grid=grid, replicates=60, prob=0.8, compiled=True, draws=300,
        tune=200,
    )  # fmt: skip
    assert list(found.parameter.values) == ["sigma2", "beta[0]", "beta[1]"]
    assert is_nominal(found, 0.8)
    agree(
        build_regression, truth={"sigma2": 1, "beta": [0, 1]}, grid=grid, chains=2, tune=1000,
        simulate=lambda cell, rng: [3.0, 55.0, -4.0, 40.0, 80.0],
    )  # fmt: skip


def build_counts(epsilon, integrated=False):
    with pm.Model() as model:
        rate = pm.Gamma("rate", 4, 0.2)
        y = pm.Poisson.dist(rate, shape=5) if integrated else pm.Poisson("y", rate, shape=5)
        dp.PrivateObservation("z", y, dp.GeometricMechanism.from_epsilon(epsilon))
    return model


@pytest.mark.parametrize("integrated", [True, False])
@pytest.mark.nightly
def test_counts_run_compiled(integrated):
    own = partial(
        study, partial(build_counts, integrated=integrated), truth=None, grid={"epsilon": [0.3]},
        prob=0.8, compiled=True, interval="eti", draws=400, tune=300,
    )  # fmt: skip
    found = own(replicates=200)
    assert list(found.parameter.values) == ["rate"]
    assert is_nominal(found, 0.8)
    again = own(replicates=4, n_jobs=2, batch=2)
    xr.testing.assert_identical(found[list(FIELDS)].isel(replicate=slice(4)), again[list(FIELDS)])
    for more in ({"min_ess": 50}, {"thin": 2}):
        with pytest.raises(NotImplementedError, match="is for Gibbs kernels, and NUTS samples"):
            own(**more)


@pytest.mark.nightly
def test_compiled_counts_agree_with_quadrature():
    """Of a release that no placeholder resembles, one value of it negative."""
    z, scale = np.array([-9, 31, 18, 60, 2]), dp.GeometricMechanism.from_epsilon(0.3)
    found = study(
        build_counts, grid={"epsilon": [0.3]}, truth={"rate": 20}, simulate=lambda cell, rng: z,
        replicates=1, compiled=True, draws=20_000, tune=500,
    )  # fmt: skip
    rates = np.linspace(0.01, 80, 4000)
    counts = np.arange(300)
    eta = np.exp(pm.logp(scale.dist(counts[:, None]), z).eval())
    each = np.log(stats.poisson(rates[:, None]).pmf(counts) @ eta).sum(axis=1)
    weight = np.exp(each + stats.gamma(4, scale=5).logpdf(rates))
    weight /= weight.sum()
    mean = rates @ weight
    sd = np.sqrt((rates - mean) ** 2 @ weight)
    row = found.squeeze()
    assert abs(row["mean"] - mean) < 4 * sd / np.sqrt(row["ess"])
    assert row["sd"] == pytest.approx(sd, rel=0.03)


@pytest.mark.nightly
def test_compiled_densities_take_several_releases_data_and_dims():
    def build_two():
        with pm.Model(coords={"town": ["a", "b"]}) as model:
            exposure = pm.Data("exposure", np.array([2.0, 3.0]), dims="town")
            rate = pm.Gamma("rate", 4, 0.4, dims="town")
            share = pm.Beta("share", 2, 2)
            pm.Deterministic("ratio", rate[0] / rate[1])
            y = pm.Poisson("y", exposure * rate, dims="town")
            dp.PrivateObservation("cases", y, dp.GeometricMechanism(3.0))
            dp.PrivateObservation("ill", pm.Binomial.dist(40, share), dp.LaplaceMechanism(2.0))
        return model

    def simulate(cell, rng):
        return {"ill": 22.7, "cases": [-2, 41]}

    truth, names = {"rate": [5, 9], "share": 0.4}, ["share", "rate", "ratio"]
    agree(build_two, truth=truth, simulate=simulate, var_names=names, tune=500)


@pytest.mark.nightly
def test_what_no_kernel_covers_goes_through_dp_sample(caplog):
    def build_twice(epsilon):
        with pm.Model() as model:
            p = pm.Beta("p", 2, 2)
            y = pm.Bernoulli("y", p, shape=50)
            for name in ("first", "second"):
                dp.PrivateObservation(name, y.sum(), dp.GeometricMechanism.from_epsilon(epsilon))
        return model

    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        found = study(build_twice, truth=None, grid={"epsilon": [1.0]}, replicates=2)
    assert list(found.parameter.values) == ["p"]
    assert not found["failures"].any()
    assert "dp.sample for every replicate: no compiled kernel covers the model" in caplog.text


def test_enough_effective_draws_end_a_replicate():
    short = study(draws=20_000, min_ess=100, replicates=3, compiled=True)
    assert np.all(short["ess"] >= 100)
    assert np.all(short["ess"] < 5000)


def test_privacy_utility_has_the_levels_as_a_dimension():
    found = dp.studies.privacy_utility(build, [0.1, 10.0], truth=TRUTH, replicates=20, **SMALL)
    assert found["length"].dims == ("epsilon", "parameter")
    assert np.all(found["length"].sel(epsilon=0.1) > found["length"].sel(epsilon=10.0))
    assert np.all(found["posterior_sd"].sel(epsilon=0.1) > found["posterior_sd"].sel(epsilon=10.0))
    with pytest.raises(ValueError, match="positive levels are needed"):
        dp.studies.privacy_utility(build, [0.0, 1.0])
    with pytest.raises(ValueError, match="positive levels are needed"):
        dp.studies.privacy_utility(build, [])


# --- Checkpoints ----------------------------------------------------------------------------------


class Stop(BaseException):
    """A kill."""


def test_a_killed_study_goes_on(tmp_path):
    folder, log = tmp_path / "study", tmp_path / "calls"

    def simulate(cell, rng):  # a study calls a copy of it
        if rng.bit_generator.state != np.random.default_rng(0).bit_generator.state:  # the probe
            with log.open("a") as file:
                file.write("x")
            if log.stat().st_size == 8:
                raise Stop
        return rng.laplace([0.5, 0.04], 0.1)

    def calls():
        return log.stat().st_size

    arguments = {"grid": {"n": [20, 40]}, "simulate": simulate, "batch": 2}
    with pytest.raises(Stop):
        study(path=folder, **arguments)
    assert len(list(folder.glob("cell*.npz"))) == 3
    (folder / "cell00001-00000000-00000002.77.partial").write_bytes(b"half")
    found = study(path=folder, **arguments)
    assert calls() == 8 + 12 - 6  # those of the last, incomplete batch ran again
    xr.testing.assert_identical(found, study(**arguments))
    before = calls()
    more = study(path=folder, **arguments, replicates=8)
    assert calls() == before + 4
    assert more["mean"].notnull().all()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nothing", None])
def test_a_damaged_checkpoint_is_named_and_kept(tmp_path, damage):
    study(path=tmp_path, batch=3)
    path = sorted(tmp_path.glob("cell*.npz"))[1]
    content = path.read_bytes()[:-200] if damage is None else damage
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"00000003-00000006\.npz' is damaged"):
        study(path=tmp_path)
    assert path.read_bytes() == content
    path.unlink()
    xr.testing.assert_identical(study(path=tmp_path), study())


def test_checkpoints_of_other_studies_are_refused(tmp_path):
    study(path=tmp_path / "a")
    before = {p: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    other = [
        ({"random_seed": 4}, "its random_seed is 3"),
        ({"truth": {"mu": 0.4, "sigma2": 0.04}}, "build, truth or simulate was changed"),
        ({"simulate": lambda cell, rng: [0.5, 0.04]}, "build, truth or simulate was changed"),
        (
            {"n_jobs": 2, "replicates": 7, "truth": lambda cell: {"mu": 0.5, "sigma2": 0.05}},
            "build, t",
        ),
        ({"grid": {"n": [7]}}, "its grid is"),
        ({"prob": 0.5}, "its prob is"),
    ]
    for change, message in other:
        with pytest.raises(ValueError, match=f"holds another study: {message}"):
            study(path=tmp_path / "a", **change)
    with pytest.raises(ValueError, match="holds another study: build, truth or simulate was"):
        study(lambda: build(n=41), path=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds other files and no study"):
        study(path=tmp_path / "b")
    assert {p: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["thesis.txt"]
    (tmp_path / "a" / "study.json").write_text('{"format": ')
    with pytest.raises(ValueError, match="is no description of a study"):
        study(path=tmp_path / "a")
    with pytest.raises(ValueError, match="path= needs random_seed="):
        study(path=tmp_path / "c", random_seed=None)


def test_a_changed_model_does_not_join_old_replicates(tmp_path):
    scale = [0.3]

    own = partial(
        study, lambda: build_mean(0.5, scale[0]), truth={"mu": 0.5}, replicates=2, path=tmp_path,
        simulate=lambda cell, rng: 0.5, compiled=False,
        sampler={"rung": "marginal", "nuts_sampler": "pymc"},
    )  # fmt: skip
    own()
    scale[0] = 0.4
    with pytest.raises(ValueError, match="holds another study: build, truth or simulate was"):
        own()


# --- Failures and bad input -----------------------------------------------------------------------


def test_a_failed_replicate_is_recorded(caplog):
    bad = int(seeds(3, 0, 6)[2])

    def simulate(cell, rng):
        if rng.bit_generator.state == np.random.default_rng(bad).bit_generator.state:
            raise RuntimeError("the register was closed")
        return rng.laplace([0.5, 0.04], 0.1)

    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        found = study(simulate=simulate)
    assert found["error"].values.tolist() == ["", "", "RuntimeError: the register was closed", *3 * [""]]  # fmt: skip  # noqa: E501
    assert int(found["failures"]) == 1
    assert f"1 of 6 replicates failed; the first with seed {bad}" in caplog.text
    assert np.isnan(found["mean"].isel(replicate=2)).all()
    assert found["coverage"].notnull().all()


@pytest.mark.parametrize("sizes", [[20, 3], [3, 20]])
def test_a_cell_that_cannot_be_built_is_recorded(tmp_path, sizes):
    def fussy(n):
        if n == 3:
            raise ValueError("three is too few")
        return build(n)

    arguments = {"grid": {"n": sizes}, "replicates": 2, "path": tmp_path}
    for _ in range(2):
        found = study(fussy, **arguments)
        assert found["error"].sel(n=3).values.tolist() == 2 * ["ValueError: three is too few"]
        assert found["mean"].sel(n=20).notnull().all()
    mended = study(**arguments)
    assert not mended["failures"].any()
    np.testing.assert_array_equal(mended["mean"].sel(n=20), found["mean"].sel(n=20))


def test_releases_and_draws_that_are_not_finite_fail_by_name():
    found = study(simulate=lambda cell, rng: [np.nan, 0.04] if cell["n"] == 30 else [0.5, 0.04],
                  grid={"n": [40, 30]}, replicates=2)  # fmt: skip
    assert "simulate= returned 'z' = [ nan 0.04], not all finite" in str(
        found["error"].values[1, 0]
    )
    assert not found["failures"].sel(n=40).any()


@pytest.mark.by_day("-3.0")
@pytest.mark.parametrize("value", [20.5, -3.0])
def test_what_the_mechanism_cannot_publish_is_refused(value):
    def build_cut():
        with pm.Model() as model:
            y = pm.Poisson("y", pm.Gamma("rate", 4, 0.2))
            dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0).clipped(lower=0))
        return model

    one = {"simulate": lambda cell, rng: value, "replicates": 1}
    found = study(build_cut, truth={"rate": 20}, **one)
    assert f"cannot publish {value}" in str(found["error"].values[0])


@pytest.mark.nightly
def test_simulations_may_change_their_cell_and_deterministics_have_true_values():
    def build_sd(n):
        with build(n) as model:
            pm.Deterministic("sigma", pm.math.sqrt(model["sigma2"]))
        return model

    def simulate(cell, rng):
        return np.full(2, 1.0 / cell.pop("n"))

    found = study(
        build_sd, simulate=simulate, grid={"n": [20]}, var_names=["mu", "sigma"], replicates=3,
        compiled=True,
    )  # fmt: skip
    assert not found["failures"].any()
    np.testing.assert_allclose(found["truth"].sel(parameter="sigma"), 0.2)


@pytest.mark.nightly
def test_bounded_records():
    """Kernel and PyMC simulate releases of data between the bounds alike; impossible ones fail."""

    def bounded():
        with pm.Model() as model:
            mu, sigma2 = pm.Uniform("mu", 0, 1), pm.HalfFlat("sigma2")
            x = pm.Normal("x", mu, pm.math.sqrt(sigma2), shape=5)
            noise = dp.LaplaceMechanism([0.1, 0.05])
            dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, bounds=(0, 1))
        return model

    simulate_alike(bounded(), {"mu": 0.3, "sigma2": 0.1}, 3000)
    found = study(bounded, truth={"mu": 0.3, "sigma2": 50.0}, replicates=2)
    assert "none of 10000 releases is possible" in str(found["error"].values[0])


def test_true_data_are_kept():
    """A kernel draws records anew: it does not simulate where the truth holds them."""

    data = np.linspace(0.8, 1.0, 40)
    found = study(truth={**TRUTH, "x": data}, grid={"epsilon": [1e4]}, draws=400)
    assert np.all(np.abs(found["mean"].sel(parameter="mu") - 0.9) < 0.1)


def wobbly():
    return build_mean(np.random.default_rng().normal())


@pytest.mark.parametrize(
    ("function", "kwargs", "message"),
    [
        (wobbly, {}, "something else when called a second time"),
        (build, {"grid": {}}, "grid: it is empty"),
        (build, {"random_seed": [1, 2]}, "a whole number, 0 or more"),
        (build, {"batch": -1}, "batch=-1"),
        (build, {"thin": 0}, "thin=0"),
        (build, {"min_ess": -1.0}, "min_ess=-1.0"),
        (build, {"var_names": "mu"}, "write a list of different names"),
        (build, {"var_names": []}, "write a list of different names"),
        (build, {"sampler": {"draws": 5}}, "'draws' is an argument of the study itself"),
        (build, {"sampler": {"method": "sppe"}}, "method='sppe' trains networks, for every"),
        (build, {"grid": {"quantity": [1]}}, "'quantity' is a name in the result"),
        (build, {"truth": {"mu": 0.5, "sigma2": -1.0}}, "outside of the support of its prior"),
        (build, {"truth": {"mu": np.nan}}, "is no value of type float64"),
        (build, {"truth": {"z": [0.5, 0.1]}}, "no free variable 'z', but mu, sigma2, x"),
        (
            lambda: build_mean(observed=1.0),
            {},
            "'z' has an observed value, and a study simulates it",
        ),
        (lambda: 3, {}, "build must return a pm.Model"),
        (lambda: pm.Model(), {}, "has no private release"),
        (build, {"grid": {"n": []}}, "'n' has no values"),
        (build, {"grid": {"n": [3, 3]}}, "'n' holds a value twice"),
        (build, {"grid": {"n": [None]}}, "'n' holds None; write numbers or strings"),
        (build, {"grid": {"mean": [1]}}, "'mean' is a name in the result"),
        (build, {"replicates": 0}, "replicates=0"),
        (build, {"prob": 1.0}, "prob=1.0"),
        (build, {"interval": "hpd"}, "write 'hdi' or 'eti'"),
        (build, {"point": "max"}, "write 'mean', 'median' or 'mode'"),
        (build, {"draws": 5}, "draws=5: too few"),
        (build, {"chains": 0}, "chains=0"),
        (build, {"truth": {"nu": 1.0}}, "truth: the model has no free variable 'nu'"),
        (build, {"var_names": ["nu"]}, "var_names: the model has no 'nu'"),
        (build, {"thin": 2, "sampler": {"rung": "marginal"}}, "thin= is for compiled kernels"),
        (
            build,
            {"simulate": lambda c, r: 0, "truth": {"mu": 0}},
            "needs the true value of 'sigma2'",
        ),
    ],
)
def test_bad_arguments_are_named(function, kwargs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        study(function, **{"replicates": 2} | kwargs)


def test_a_builder_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def locked():
        with lock:
            return build()

    with pytest.raises(ValueError, match="build= cannot be sent to other processes"):
        study(locked)


def test_fingerprints_tell_models_apart():
    assert fingerprint(build()) == fingerprint(build())
    models = build(), build(n=41), build(epsilon=2.5), build_mean(), build_mean(observed=1.0)
    assert len({fingerprint(model) for model in models}) == 5

    def simulated(shift, upper=1.0):
        def draw(mu, rng=None, size=None):
            return rng.normal(mu + shift, size=size)

        with pm.Model() as model:
            mu = pm.Normal("mu", transform=pm.distributions.transforms.Interval(0.0, upper))
            x = pm.CustomDist("x", mu, random=draw, shape=4)
            dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0))
        return model

    own = fingerprint(simulated(1.0))
    assert own == fingerprint(simulated(1.0))
    assert own != fingerprint(simulated(2.0))
    assert own != fingerprint(simulated(1.0, upper=2.0))

    def data(value):
        with pm.Model(coords={"a": [1, 2]}) as model:
            scale = pm.Data("scale", value)
            x = pm.Normal("x", 0, scale, dims="a")
            dp.PrivateObservation("z", x.mean(), dp.GaussianMechanism(1.0))
        return model

    assert fingerprint(data(1.0)) == fingerprint(data(1.0)) != fingerprint(data(2.0))


# --- A cluster ------------------------------------------------------------------------------------


def slow(cell, rng):
    time.sleep(0.2)
    return rng.laplace([0.5, 0.04], 0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.nightly
def test_dask_loses_a_worker_and_no_number(tmp_path):
    """Two worker processes, one is killed in the middle; the result is that of one process."""
    distributed = pytest.importorskip("distributed")
    folder = tmp_path / "study"
    arguments = {"replicates": 30, "batch": 3, "simulate": slow}
    serial = study(**arguments)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
        local_directory=str(tmp_path),
    ) as cluster, distributed.Client(cluster) as client:  # fmt: skip
        victim = next(iter(cluster.workers.values())).pid
        done_at_kill = []

        def kill():
            while len(list(folder.glob("cell*"))) < 3:
                time.sleep(0.05)
            os.kill(victim, signal.SIGKILL)
            done_at_kill.append(len(list(folder.glob("cell*"))))

        killer = threading.Thread(target=kill)
        killer.start()
        with joblib.parallel_config(backend="dask"):
            found = study(**arguments, path=folder)
        killer.join()
        assert client.status == "running"
    assert 3 <= done_at_kill[0] < 8  # of ten batches: in the middle
    xr.testing.assert_identical(found, serial)
    covered = [tuple(map(int, p.stem.split("-")[1:])) for p in folder.glob("cell*")]
    assert sum(b - a for a, b in covered) == 30


def test_fingerprints_tell_own_densities_apart():
    """Those of the same draws, also where something is done to the release."""

    def model(constant):
        def logp(value, statistic):
            return -abs(value - statistic) - np.log(2) + constant

        def random(statistic, rng=None, size=None):
            return rng.laplace(statistic, 1.0, size)

        with pm.Model() as found:
            own = dp.CustomMechanism(logp, random).suppressed(where=[False, True])
            dp.PrivateObservation("z", pm.Normal("x", shape=2), own, observed=[0.1, np.nan])
        return fingerprint(found)

    assert model(0.0) == model(0.0) != model(1e-9)


def test_fingerprints_tell_functions_and_long_arrays_apart():
    first, second = np.zeros(2401), np.zeros(2401)
    second[1200] = 1.0
    told = [object_fingerprint({"moments": m}) for m in (first, first.copy(), second)]
    assert told[0] == told[1] != told[2]
    told = [object_fingerprint({"f": f}) for f in (lambda x: x, lambda x: x + 1)]
    assert told[0] != told[1]


def test_fingerprints_tell_sparse_matrices_apart():
    """By all of their entries, of which their text has some only."""

    def held(weights):
        with pm.Model() as model:
            x = pm.Normal("x", shape=(200, 1))
            sums = pytensor.sparse.dot(csr_matrix(weights), x)
            dp.PrivateObservation("z", sums[:, 0], dp.LaplaceMechanism(1.0), observed=[0.0])
        return fingerprint(model)

    first, second = np.ones((1, 200)), np.ones((1, 200))
    second[0, 100] = 2.0
    assert held(first) == held(first.copy()) != held(second)


def test_fingerprints_know_what_an_op_holds():
    class Box(Op):
        itypes, otypes = [pt.dscalar], [pt.dscalar]

        def __init__(self, data):
            self.data = np.asarray(data)

        def perform(self, node, inputs, outputs):
            outputs[0][0] = np.asarray(self.data.sum() * inputs[0])

    def held(data):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Deterministic("found", Box(data)(mu))
        return fingerprint(model)

    assert held([1.0, 2.0]) == held([1.0, 2.0]) != held([5.0, 20.0])
