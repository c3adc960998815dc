"""The readers of SmartNoise, PipelineDP and Tumult, against what the libraries say and answer."""

import itertools
import json
import re
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE

DATA = Path(__file__).parents[1] / "data"
SMARTNOISE, PIPELINEDP, TUMULT = (
    json.loads((DATA / f"{name}.json").read_text())
    for name in ("smartnoise", "pipelinedp", "tumult")
)


def law_agrees(mechanism, draws, statistic):
    at = np.quantile(draws, [0.1, 0.3, 0.5, 0.7, 0.9], method="lower")
    cdf = np.exp(mechanism.logcdf(at, statistic).eval())
    share = np.mean(np.asarray(draws) <= at[:, None], axis=1)
    return np.all(np.abs(share - cdf) < 4.5 * np.sqrt(cdf * (1 - cdf) / len(draws)))


# --- SmartNoise SQL -----------------------------------------------------------------------------


class Typed(str):
    """An expression of a query."""

    def type(self):
        return self.kind


def reader_of(case):
    """Return a reader that says what that of the library said."""
    inner = []
    for symbol in case["inner"]:
        noise = symbol["mechanism"] and dict(symbol["mechanism"])
        kind = noise and type(noise.pop("class"), (), noise)
        inner.append(SimpleNamespace(**{**symbol, "mechanism": kind and kind()}))
    outer, named = [], []
    for text, kind in zip(case["expressions"], case["types"], strict=True):
        expression = Typed(text)
        expression.kind = kind
        outer.append(SimpleNamespace(expression=expression))
        named.append(SimpleNamespace(expression=expression))
    whole = SimpleNamespace(
        _select_symbols=outer,
        select=SimpleNamespace(namedExpressions=named),
        having=None,
        limit=None,
        **case["options"],
    )
    query = SimpleNamespace(_select_symbols=inner)
    return SimpleNamespace(
        _rewrite=lambda text: (query, whole),
        _get_mechanisms=lambda query: [one.mechanism for one in query._select_symbols],
    )


def of_smartnoise(case, **options):
    return dp.Release.from_smartnoise(
        reader_of(case), case["query"], case["rows"], "x", groups=["a", "b", "c"], **options
    )


READ, REFUSED = SMARTNOISE["cases"][:7], SMARTNOISE["cases"][7:]


@pytest.mark.parametrize("case", READ, ids=lambda case: f"{case['query'][7:30]}{case['options']}")
def test_smartnoise_law_is_that_of_the_draws(case):
    release, runs = of_smartnoise(case), case["runs"]
    assert release.coords == {"g": ("a", "b", "c")}
    assert release.privacy.epsilon == 0.8
    for group, statistic in case["statistic"].items():
        hidden = np.exp(release.mechanism.logp(np.nan, float(statistic)).eval())
        assert abs(1 - hidden - case["present"][group]) < 4.5 * np.sqrt(0.25 / runs)
        below = release.mechanism.inner if group not in case["at"] else release.mechanism
        for z, share in zip(
            case["at"].get(group, []), case["share_up_to"].get(group, []), strict=True
        ):
            whole = case["types"][1] == "int"
            values = np.arange(z - 400, z + 1) if whole else None
            total = np.exp(below.logp(values, float(statistic)).eval()).sum()
            assert abs(total - share) < 4.5 * np.sqrt(0.25 / runs)


@pytest.mark.parametrize(
    ("case", "match"),
    [(REFUSED[0], "decided by keycount.*or state both"), (REFUSED[1], "an AVG is SUM / COUNT")],
    ids=["sum", "avg"],
)
def test_smartnoise_refusals(case, match):
    with pytest.raises(ValueError, match=match):
        of_smartnoise(case)


# --- PipelineDP ---------------------------------------------------------------------------------


def results_of(case):
    return [(key, namedtuple("MetricsTuple", row)(**row)) for key, row in case["results"].items()]


@pytest.mark.parametrize("case", PIPELINEDP["cases"], ids=lambda c: f"{c['kind']}-{[*c['draws']]}")
def test_pipelinedp(case):
    results, read = results_of(case), dp.Release.from_pipelinedp
    if "zz" not in case["results"]:
        with pytest.raises(ValueError, match="the partitions were selected by noise of their own"):
            read(results, "count", case["report"])
        return
    draws, users = case["draws"], np.arange(60)
    statistics = {"count": 60, "privacy_id_count": 60, "sum": (users % 5).sum()}
    statistics = {name: x for name, x in statistics.items() if name in draws}
    if "mean" in draws:
        with pytest.raises(ValueError, match=r"Beside a mean the sum is mean . count"):
            read(results, "sum", case["report"])
        del statistics["sum"]
        statistics["mean"] = (users % 5 - 3.0).sum()
        draws["mean"] = (np.array(draws["mean"]) - 3.0) * np.maximum(1.0, draws["count"])
    for metric, statistic in statistics.items():
        release = read(results, metric, case["report"], partitions=["zz", "b", "a"])
        assert release.coords == {"partition": ("zz", "b", "a")}
        assert law_agrees(release.mechanism, draws[metric], float(statistic))
        if "mean" not in draws:
            assert release.value[2] == case["results"]["a"][metric]
            again = read(results, metric, case["kind"])
            [one], [other] = release.mechanism.parameters, again.mechanism.parameters
            np.testing.assert_allclose(one.eval(), other.eval())
        else:
            with pytest.raises(ValueError, match="do not say the noise of"):
                read(results, metric, case["kind"])


def test_pipelinedp_refusals():
    results, read = results_of(PIPELINEDP["cases"][0]), dp.Release.from_pipelinedp
    for arguments, match in (
        ((results, "variance", "laplace"), "'variance' is not read"),
        ((results, "mean", "laplace"), "no 'mean' in the results, which have count"),
        ((results, "count", "cauchy"), "noise must be the report"),
    ):
        with pytest.raises(ValueError, match=match):
            read(*arguments)
    with pytest.raises(TypeError, match="pairs of a partition"):
        read(3.0, "count", "laplace")


# --- Rows that another noisy number decides -----------------------------------------------------

GROUP, UNITS = np.array([0, 0, 1, 2]), np.array([1, 2, 1, 0])  # of each kind of person
PROBABILITY = np.array([0.3, 0.2, 0.1, 0.4])


@pytest.mark.parametrize("producer", ["smartnoise", "pipelinedp"])
def test_what_is_written_where_another_number_decided(producer):
    """The text that refuses is run as it is, and its density compared with enumeration."""
    private = next(c for c in PIPELINEDP["cases"] if "zz" not in c["results"])
    noise, threshold = dp.thresholds.pipelinedp(1.0, 1e-4, 2)
    read, *read_from = {
        "smartnoise": (of_smartnoise, REFUSED[0]),
        "pipelinedp": (
            dp.Release.from_pipelinedp, results_of(private), "count", private["report"],
        ),
    }[producer]  # fmt: skip
    with pytest.raises(ValueError, match="state both") as caught:
        read(*read_from)
    values = np.array([60.0, np.nan])
    names = {"np": np, "pt": pt, "dp": dp, "noise": noise, "threshold": threshold, "values": values}

    def written(pattern):
        return eval(re.search(pattern, str(caught.value))[1], names)

    names["absent"] = written(r"absent = (np.isnan\(values\))")
    with pm.Model() as model:
        kind = pm.Categorical("kind", PROBABILITY, shape=3)
        group, units = pt.as_tensor(GROUP)[kind], pt.as_tensor(UNITS)[kind]
        names["n"] = pt.stack([pt.eq(group, g).sum() for g in range(2)])
        total = pt.stack([(30 * units * pt.eq(group, g)).sum() for g in range(2)])
        decided = written(r"(pt\.switch\(.*?\))")
        dp.PrivateObservation("there", decided, written(r"(dp\.Release\(1 - .*?\)) is released"))
        dp.PrivateObservation("z", total, written(r"(dp\.Release\(values, .*?\)) of the stat"))
    density = model.compile_logp(mode=PLAIN_MODE)
    records = np.array(list(itertools.product(range(4), repeat=3)))
    found = sum(np.exp(density({"kind": one})) for one in records)

    tau, b, own = 8.768260123027739, 1.2500000116415335, 62.50000058207667
    if producer == "pipelinedp":
        tau, b, own = threshold, noise.scale.eval(), 2.0
    expected = 0.0
    for one in records:
        n, s = ([(x[one] * (GROUP[one] == g)).sum() for g in range(2)] for x in (UNITS**0, UNITS))
        kept = [stats.laplace.sf(tau, m, b) if m else 0.0 for m in n]
        of_sum = stats.laplace(30 * s[0], own)
        # SmartNoise cuts it to a whole number.
        mass = np.diff(of_sum.cdf([60, 61]))[0] if producer == "smartnoise" else of_sum.pdf(60)
        expected += PROBABILITY[one].prod() * kept[0] * (1 - kept[1]) * mass
    np.testing.assert_allclose(found, expected, rtol=1e-10)


# --- Tumult Analytics ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", TUMULT["cases"], ids=lambda c: f"{c['budget']}-{c['name']}")
def test_tumult(case):
    pd = pytest.importorskip("pandas")
    frame, read = pd.DataFrame(case["rows"]), dp.Release.from_tumult
    if case["name"] == "suppressed":  # counts of empty towns, those below 1 left out
        with pytest.raises(ValueError, match="state it with below=, and name all of them"):
            read(case["noise"], frame, "count", below=1)
        towns = {"groups": [f"t{i}" for i in range(150)], "below": 1}
        release = read(case["noise"], frame, "count", **towns)
        assert frame["count"].min() == 1  # a count at the threshold is kept
        [hidden] = np.exp(release.mechanism.logp([np.nan], 0.0).eval())
        assert abs(np.isnan(release.value).mean() - hidden) < 4.5 * np.sqrt(0.25 / 150)
        with pytest.raises(ValueError, match=r"unless suppress\(\) left out"):
            read(case["noise"], frame, "count", groups=towns["groups"])
        return
    if case["name"] in ("average", "median"):
        match = "An average" if case["name"] == "average" else "a quantile is drawn"
        with pytest.raises(ValueError, match=match):
            read(case["noise"], frame)
        return
    column = frame.columns[-1]
    release = read(case["noise"], frame, column)
    assert release.name == column
    if "town" in frame:
        assert release.dims == ("town",)
        assert law_agrees(release.mechanism, release.value, 0.0)
    else:
        assert release.value == frame[column][0]


def test_tumult_refusals():
    noise = [{"noise_mechanism": "LAPLACE", "noise_parameter": 0}]
    with pytest.raises(ValueError, match="finite and > 0, got 0"):
        dp.Release.from_tumult(noise, 3.0)
    with pytest.raises(TypeError, match=r"session\._noise_info"):
        dp.Release.from_tumult(3.0, 3.0)


# --- Thresholds ---------------------------------------------------------------------------------


def test_thresholds_of_smartnoise():
    for case in SMARTNOISE["cases"]:
        for one in case["inner"]:
            if one["is_key_count"]:
                own = one["mechanism"]
                sigma = own["scale"] if own["class"] == "Gaussian" else None
                noise, tau = dp.thresholds.smartnoise(0.8, 1e-3, own["max_contrib"], sigma=sigma)
                assert abs(tau - own["threshold"]) < 1e-9
                np.testing.assert_allclose(noise.parameters[0].eval(), own["scale"], rtol=1e-6)


@pytest.mark.parametrize("case", PIPELINEDP["thresholds"], ids=str)
@pytest.mark.parametrize("gaussian", [False, True])
def test_thresholds_of_pipelinedp(case, gaussian):
    epsilon, delta, most, thresholds, kept = case
    noise, tau = dp.thresholds.pipelinedp(epsilon, delta, most, gaussian=gaussian)
    # Its search for sigma stops at three digits.
    np.testing.assert_allclose(tau, thresholds[gaussian], rtol=1e-3 if gaussian else 1e-12)
    law, scale = (stats.norm if gaussian else stats.laplace), float(noise.parameters[0].eval())
    found = law.sf(tau, loc=[1, 12], scale=scale)
    np.testing.assert_allclose(found, kept[gaussian], rtol=0.05 if gaussian else 1e-9)


@pytest.mark.parametrize("case", TUMULT["thresholds"], ids=str)
def test_thresholds_of_tumult(case):
    epsilon, delta, most, scale, threshold = case
    noise, found = dp.thresholds.tumult(epsilon, delta, most)
    np.testing.assert_allclose(noise.scale.eval(), scale)
    assert found == threshold
