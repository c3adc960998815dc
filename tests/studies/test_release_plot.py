"""Pictures of releases hold what was published, and the intervals of the results."""

import arviz_base
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
from matplotlib.colors import to_hex

import pymc_dp as dp

RNG = np.random.default_rng(1)
TOWNS = ["Aa", "Bb", "Cc"]
CASES = np.array([12.0, np.nan, 27.0])
DRAWS = {"x_mean": RNG.normal(8, 1, (2, 50)), "cases_confidential": RNG.poisson(12, (2, 50, 3))}
PREDICTED = {"total": RNG.normal(700, 9, (2, 50)), "cases": RNG.poisson(12, (2, 50, 3)) * 1.0}
PREDICTED["cases"][:, :20, 1] = np.nan  # where it would have been withheld
OBSERVED = {"total": 690.0, "cases": CASES, "sent": np.array([-1.0, 9.0])}


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"town": TOWNS}) as built:
        x = pm.Normal("x", pm.Normal("mu"), 1, shape=43)
        dp.PrivateObservation("total", 2 * x.sum() + 3, dp.LaplaceMechanism(3.0), observed=690.0)
        cases = pm.Poisson.dist(pm.Gamma("rate", 2, 0.1, dims="town"), shape=3)
        hidden = dp.GeometricMechanism(3.0).suppressed(below=5)
        dp.PrivateObservation("cases", cases, hidden, observed=CASES, dims="town")
        printed = dp.LaplaceMechanism(2.0).suppressed(below=5, sentinel=-1)
        dp.PrivateObservation("sent", pm.Normal("s", shape=2), printed, observed=[-1.0, 9.0])
        pm.Normal("other", 0, 1, observed=1.0)
    return built


def result(*groups):
    held = {
        "posterior": DRAWS,
        "posterior_predictive": PREDICTED,
        "prior_predictive": {name: 3 * draws for name, draws in PREDICTED.items()},
        "observed_data": OBSERVED,
    }
    dims = {"cases": ["town"], "cases_confidential": ["town"]}
    chosen = {group: held[group] for group in groups}
    return arviz_base.from_dict(chosen, dims=dims, coords={"town": TOWNS})


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def intervals(axes):
    """Return the ends of the intervals that were drawn, one for each entry, by color."""
    names = {to_hex(name): name for name in ("C0", "C1", "C3", "gray")}
    lines = {names[to_hex(line.get_color())]: line.get_xdata() for line in axes.get_lines()}
    return {
        name: np.reshape(x, (-1, 3))[:, :2] for name, x in lines.items() if np.isfinite(x).any()
    }


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def ends(draws, prob=0.5):
    draws = np.reshape(draws, (100, -1))
    return np.nanquantile(draws, [(1 - prob) / 2, (1 + prob) / 2], axis=0).T


def test_all_that_is_there_is_drawn(model):
    idata = result("posterior", "posterior_predictive", "prior_predictive", "observed_data")
    dp.plot_release(idata, model=model, prob=0.5)
    total, cases, sent = plt.gcf().axes
    found = {"C0": PREDICTED["total"], "gray": 3 * PREDICTED["total"]}
    found["C1"] = 2 * 43 * DRAWS["x_mean"] + 3  # in the units of the release
    for color, draws in found.items():
        np.testing.assert_allclose(intervals(total)[color], ends(draws))
    np.testing.assert_allclose(intervals(cases)["C0"], ends(PREDICTED["cases"]))
    np.testing.assert_allclose(intervals(cases)["C1"], ends(DRAWS["cases_confidential"]))
    assert labels(cases)[::2] == ["Aa", "Cc"]
    share = np.isnan(PREDICTED["cases"][..., 1]).mean()
    assert labels(cases)[1] == f"Bb (withheld, {share:.0%} predicted)"
    assert labels(sent) == ["0 (withheld)", "1"]
    assert [axes.get_title() for axes in (total, cases, sent)] == ["total", "cases (town)", "sent"]
    published = [p.get_offsets() for p in cases.collections][-1]
    np.testing.assert_allclose(np.asarray(published[[0, 2]])[:, 0], CASES[[0, 2]])
    assert not intervals(sent)


def test_unlike_statistics_have_panels_of_their_own():
    both = RNG.normal([34, 2224], [4, 900], (2, 50, 2))
    held = {"posterior": {"z_confidential": both}, "observed_data": {"z": np.array([34.3, 2224.8])}}
    dp.plot_release(arviz_base.from_dict(held), prob=0.5)
    panels = plt.gcf().axes
    assert [axes.get_title() for axes in panels] == ["z[0]", "z[1]"]
    for axes, law in zip(panels, ends(both), strict=True):
        np.testing.assert_allclose(intervals(axes)["C1"], [law])
        assert axes.get_xlim()[1] < 1.5 * law[1]


def test_what_is_missing_is_not_drawn():
    dp.plot_release(result("posterior", "observed_data"), var_names="cases", coords={"town": "Cc"})
    [axes] = plt.gcf().axes
    assert set(intervals(axes)) == {"C1"}
    assert labels(axes) == ["Cc"]


@pytest.mark.parametrize(
    ("groups", "arguments", "message"),
    [
        (
            ("observed_data",),
            {},
            r"sample_posterior_predictive\(idata.*dp\.recover\(model, idata\)",
        ),
        (("posterior",), {}, "no published values"),
        (("posterior", "observed_data"), {"var_names": ["x"]}, "no release 'x' in idata"),
        (("posterior", "observed_data"), {"coords": {"city": "A"}}, "no dim 'city', but"),
        (("posterior", "observed_data"), {"most": 5}, "6 entries are more than most=5"),
        (("posterior", "observed_data"), {"prob": 95}, "prob=95"),
    ],
)
def test_errors_say_what_to_do(groups, arguments, message):
    with pytest.raises(ValueError, match=message):
        dp.plot_release(result(*groups), **arguments)
