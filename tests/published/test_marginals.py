"""The readers of measured marginals, against what private-pgm and OpenDP hand out."""

import json
from math import sqrt
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from scipy import sparse, stats

import pymc_dp as dp

OPENDP = json.loads((Path(__file__).parents[1] / "data" / "mbi.json").read_text())
LEVELS = {"age": ["young", "old"], "job": 3}
Y = [12.5, 30.0, 7.0, 21.0, 18.5, 11.0]


class Factor:
    """That of mbi 1 and 2: the query of all cells is its method, or calls it."""

    def datavector(self, flatten=True):
        return self.values.flatten() if flatten else self.values


class DatavectorQuery:
    def __call__(self, factor):
        return factor.datavector()


def measured(y=Y, clique=("age", "job"), stddev=2.0, query=Factor.datavector):
    return SimpleNamespace(noisy_measurement=y, clique=clique, stddev=stddev, query=query)


def read(*measurements, levels=LEVELS, **options):
    return dp.Release.from_mbi([*measurements], levels, **options)


@pytest.mark.parametrize(
    "measurement",
    [
        measured(),
        measured(query=DatavectorQuery()),
        measured(np.reshape(Y, (2, 3)), ["age", "job"], np.float32(2)),
        *[
            (query, np.array(Y), 2.0, ("age", "job"))
            for query in (
                None,
                np.eye(6),
                sparse.eye(6),
                sparse.linalg.aslinearoperator(sparse.eye(6)),
            )
        ],
    ],
)
def test_a_measurement_is_a_table(measurement):
    [release] = read(measurement)
    np.testing.assert_array_equal(release.value, np.reshape(Y, (2, 3)))
    assert release.name == "margin age x job"
    assert release.dims == ("age", "job")
    assert release.coords == {"age": ("young", "old"), "job": (0, 1, 2)}
    assert repr(release.mechanism) == "GaussianMechanism(sigma=2.0)"
    assert release.source == "Private-PGM"


def test_names_levels_and_what_is_kept():
    one = (None, np.array([5.5, 6.0]), 1.0, "age")
    domain = SimpleNamespace(config={"age": 2, "job": 3})  # mbi.Domain
    labelled = SimpleNamespace(config=domain.config, labels_config={"age": "fm", "job": "abc"})
    privacy = dp.Privacy(rho=0.1)
    releases = read(measured(), one, measured(), levels=domain, privacy=privacy, source="AIM")
    assert [r.name for r in releases] == ["margin age x job", "margin age", "margin age x job 2"]
    assert {(r.privacy, r.source) for r in releases} == {(privacy, "AIM")}
    assert releases[1].coords == {"age": (0, 1)}
    labelled.labels_config = {"age": ("f", "m"), "job": ("a", "b", "c")}
    assert read(one, levels=labelled)[0].coords == {"age": ("f", "m")}


@pytest.mark.parametrize(
    ("mechanism", "variance"),
    [("gaussian", 9.0), ("laplace", 9.0), ("discrete gaussian", 9.0), ("geometric", 9.0 - 1 / 6)],
)
def test_noise_has_the_stated_spread(mechanism, variance):
    # That of discrete Laplace noise of scale b is 2 b^2 - 1/6 + O(1 / b^2).
    whole = np.round(Y)
    [release] = read(measured(whole, stddev=3.0), mechanism=mechanism)
    at = np.linspace(-60, 60, 12001) if mechanism in ("gaussian", "laplace") else np.arange(-60, 61)
    mass = np.exp(release.mechanism.logp(at, 0).eval())
    assert np.sum(at**2 * mass) / np.sum(mass) == pytest.approx(variance, rel=2e-3)
    assert release.value.dtype == "int64"


def test_noise_of_ones_own():
    [release] = read(measured(), mechanism=lambda sd: dp.StudentTMechanism(4, sd / sqrt(2)))
    assert repr(release.mechanism).startswith("StudentTMechanism")


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (lambda factor: factor.datavector() * 0.5, "is not of its 6 cells"),
        (lambda factor: factor.datavector().reshape(2, 3).T.ravel(), "is not of its 6 cells"),
        (lambda factor: factor.project("age").datavector(), "has no attribute 'project'"),
        (np.tri(6), "release M @ c"),
        (np.ones((6, 5)), "is not of its 6 cells"),
        (sparse.diags(np.linspace(1, 2, 6)), "is not of its 6 cells"),
    ],
)
def test_other_queries_are_refused(query, why):
    with pytest.raises(ValueError, match=f"measurement 0, margin age x job: the query .*{why}"):
        read(measured(query=query))
    if hasattr(query, "shape"):
        with pytest.raises(ValueError, match=why):
            read((query, Y, 2.0, ("age", "job")))


@pytest.mark.parametrize(
    ("measurement", "why"),
    [
        (measured(stddev=None), "stddev=None must be the standard deviation of the noise, finite"),
        (measured(stddev=0.0), "stddev=0.0 must be"),
        (measured(stddev=-1), "stddev=-1 must be"),
        (measured(stddev=np.inf), "stddev=inf must be"),
        (measured(stddev=[2.0] * 6), r"stddev=\[2.0, .* must be"),
        (measured(Y[:4]), "it has 4 numbers, and levels= 2 x 3 cells"),
        (
            measured(clique=("age", "town")),
            "margin age x town: levels= lacks 'town'; it has age, j",
        ),
        (measured([90.2], ()), "a total of no columns: leave it out, and state n"),
        (measured([np.nan, *Y[1:]]), "value must be finite"),
    ],
)
def test_parts_that_do_not_fit(measurement, why):
    with pytest.raises(ValueError, match=why):
        read(measured(), measurement)


def test_what_is_no_measurement():
    with pytest.raises(TypeError, match="measurement 1 is a tuple: it must have query, noisy_meas"):
        read(measured(), (Y, 2.0, ("age", "job")))
    with pytest.raises(
        TypeError, match="a list of measurements is needed, got SimpleNamespace; of"
    ):
        dp.Release.from_mbi(measured(), LEVELS)
    with pytest.raises(TypeError, match="levels=None: write"):
        read(measured(), levels=None)
    with pytest.raises(ValueError, match="mechanism='normal': write one of 'gaussian', 'laplace'"):
        read(measured(), mechanism="normal")
    with pytest.raises(ValueError, match="whole number"):
        read(measured(), mechanism="discrete gaussian")


# --- OpenDP -------------------------------------------------------------------------------------


def table_of(case, **changed):
    marginals = [measured(**kept) for kept in case["marginals"]]
    fields = {"keys": case["keys"], "thresholds": {}, **changed}
    return SimpleNamespace(marginals=SimpleNamespace(flatten=lambda: marginals), **fields)


def query_of(case):
    return SimpleNamespace(output_measure=case["measure"], map=None)


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("zcdp", lambda sd: dp.DiscreteGaussianMechanism(sd)),
        ("pure", lambda sd: dp.GeometricMechanism(sd / sqrt(2))),
    ],
)
def test_a_contingency_table_is_its_marginals(name, noise):
    case = OPENDP[name]
    releases = dp.Release.from_opendp(query_of(case), table_of(case), privacy=dp.Privacy(rho=1.0))
    assert len(releases) == len(case["marginals"])
    assert len({release.name for release in releases}) == len(releases)
    for release, kept in zip(releases, case["marginals"], strict=True):
        assert release.dims == tuple(kept["clique"])
        assert release.value.shape == tuple(len(case["keys"][c]) for c in release.dims)
        assert release.value.ravel().tolist() == kept["y"]
        assert repr(release.mechanism) == repr(noise(kept["stddev"]))
        assert (release.source, release.privacy.rho) == ("OpenDP", 1.0)
    labels = {c: x for release in releases for c, x in release.coords.items()}
    assert labels["age"] == ("lo", "mid", "hi", "null")
    assert labels["hours"] == ("(-inf, 20.0]", "(20.0, 40.0]", "(40.0, inf]")


@pytest.mark.parametrize("name", ["zcdp", "pure"])
def test_law_is_that_of_opendps_noise(name):
    case = OPENDP[name]
    noise, times = case["noise"], np.array(case["noise"]["times"])
    one = measured([0], ("a",), noise["stddev"])
    table = SimpleNamespace(
        marginals=SimpleNamespace(flatten=lambda: [one]), keys={"a": [1]}, thresholds={}
    )
    [release] = dp.Release.from_opendp(query_of(case), table)
    expected = times.sum() * np.exp(release.mechanism.logp(np.array(noise["values"]), 0).eval())
    often = expected > 5
    chi2 = np.sum((times - expected)[often] ** 2 / expected[often])
    assert stats.chi2.sf(chi2, often.sum()) > 0.01


def test_tables_that_are_not_read():
    case = OPENDP["zcdp"]
    with pytest.raises(ValueError, match=r"levels of age were found in the data.*keys=\.\.\."):
        dp.Release.from_opendp(query_of(case), table_of(case, thresholds={"age": 12}))
    old = SimpleNamespace(marginals={}, keys={}, thresholds={})
    with pytest.raises(ValueError, match=r"OpenDP < 0.16 averaged"):
        dp.Release.from_opendp(query_of(case), old)
    with pytest.raises(ValueError, match="leave sensitivity= and groups= out"):
        dp.Release.from_opendp(query_of(case), table_of(case), sensitivity=1.0)


@pytest.mark.parametrize("name", ["zcdp", "pure"])
def test_a_model_of_it_draws(name):
    case = OPENDP[name]
    releases = dp.Release.from_opendp(query_of(case), table_of(case))
    levels = {c: labels for release in releases for c, labels in release.coords.items()}
    with pm.Model(coords={"sex": levels["sex"]}):
        rows = dp.LogLinear("rows", levels, [release.dims for release in releases], n=500)
        for release in releases:
            dp.PrivateObservation(release.name, rows.margin(*release.dims), release)
        pm.Deterministic("by sex", rows.margin("sex"), dims="sex")
        idata = dp.sample(draws=60, tune=60, chains=1, random_seed=1, progressbar=False)
    drawn = idata["posterior"]["by sex"].to_numpy()
    assert np.all(drawn.sum(-1) == 500)
    assert np.all(np.abs(drawn.mean((0, 1)) - OPENDP["sex"]) < 12)


# --- private-pgm itself -------------------------------------------------------------------------


def test_measurements_of_the_library():
    mbi = pytest.importorskip("mbi")
    domain = mbi.Domain(["age", "job"], [2, 3])
    measurements = [
        mbi.LinearMeasurement(np.array(Y), ("age", "job"), 2.0),
        mbi.LinearMeasurement(np.array(Y[:3]), ["job"], query=lambda factor: factor.datavector()),
    ]
    releases = dp.Release.from_mbi(measurements, domain)
    assert [release.name for release in releases] == ["margin age x job", "margin job"]
    assert [repr(r.mechanism) for r in releases] == [
        "GaussianMechanism(sigma=2.0)",
        "GaussianMechanism(sigma=1.0)",
    ]


@pytest.mark.filterwarnings("ignore")
def test_tables_of_opendp_itself():
    pytest.importorskip("mbi")
    od, pl = pytest.importorskip("opendp.prelude"), pytest.importorskip("polars")
    od.enable_features("contrib")
    context = od.Context.compositor(
        data=pl.LazyFrame({"sex": [0, 1] * 20, "hours": [5.0, 30.0, 50.0, 30.0] * 10}),
        privacy_unit=od.unit_of(contributions=1),
        privacy_loss=od.loss_of(epsilon=2.0),
        split_evenly_over=1,
    )
    query = context.query().contingency_table(
        keys={"sex": [0, 1]},
        cuts={"hours": [20.0, 40.0]},
        algorithm=od.mbi.Fixed(queries=[od.mbi.Count(("hours", "sex"))]),
    )
    [release] = dp.Release.from_opendp(query, query.release())
    assert repr(release.mechanism) == "GeometricMechanism(scale=0.5)"
    assert release.coords["sex"] == (0, 1, "null")
    assert np.all(np.abs(release.value - [[10, 0, 0], [0, 20, 0], [10, 0, 0]]) < 12)
