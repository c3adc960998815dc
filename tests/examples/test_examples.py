"""Every example runs, prints what it should, and finds what is known.

By day, models that take long to compile have draws from the prior in the place of a sampler; all
else of them runs. By night they sample, and what they return is checked.
"""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytest
from matplotlib.image import imread
from pymc.testing import mock_sample

import cirrhosis
import glm
import hospitals
import pymc_dp as dp
import sir
from pymc_dp.graphs.questions import nearest_rvs
from pymc_dp.reading.model import written_length


def cover(truth, low, high):
    return np.mean((low < truth) & (truth < high))


def noise_widens(results):
    """Noise that is modelled widens the posterior, which holds the truth."""
    for study, fits in results.values():
        spread = {analysis: glm.coefficients(fit).std(axis=1) for analysis, fit in fits.items()}
        assert np.all(spread["private"] > 1.2 * spread["confidential"])
        assert np.all(spread["private"] > 1.2 * spread["naive"])
        ends = np.quantile(glm.coefficients(fits["private"]), [0.001, 0.999], axis=1)
        assert cover(study.kind.truth, *ends) == 1


def noise_brings_estimates_nearer(results):
    study, fits = results
    found = hospitals.intervals(study, fits)
    error = {name: np.abs(middle - study.truth).mean() for name, (_, middle, _) in found.items()}
    assert error["private"] < error["naive"] < error["no pooling"]
    assert cover(study.truth, *found["private"][::2]) > 0.8
    ends = np.quantile(fits["private"]["posterior"]["between"], [0.01, 0.99])
    assert cover(hospitals.BETWEEN, *ends) == 1


def intervals_cover(found):
    for name in ("counts of tracts", "rates of tracts"):
        truth, _, exact = found[name]
        # 80 intervals of 90%: four standard errors, and the tracts of a county are not independent.
        assert cover(truth, *exact) > 0.76
    truth, naive, exact = found["rates of tracts"]
    assert cover(truth, *naive) < min(0.75, cover(truth, *exact))
    naive, exact = (np.median(high - low) for low, high in found["counts of tracts"][1:])
    assert exact < naive  # the other tracts, and the totals, say something too


def little_noise_says_what_the_records_do(found):
    for name, reference in found["non-private"].items():
        ours = found["private"][name]
        assert abs(ours.mean() - reference.mean()) < 1.5 * reference.std()
        assert 0.7 < ours.std() / reference.std() < 1.7


def rate_of_the_literature(found):
    r0 = {method: sir.quantities(draws)["R₀"] for method, draws in found[0][1].items()}
    assert r0["particles"].std() > 1.5 * r0[sir.ALMOST].std()
    assert 3.0 < r0[sir.ALMOST].mean() < 4.5  # 3.7 or so
    assert cover(r0[sir.ALMOST].mean(), *np.quantile(r0["particles"], [0.005, 0.995])) == 1


class Example(NamedTuple):
    """Arguments, pictures, what is printed, and how it is checked.

    Attributes
    ----------
    right : a check of what is returned, of the run by night if there is one.
    night : arguments of a run by night.
    samples : by day, too.
    kept : variables of the model that are not integrated out.
    """

    arguments: str
    pictures: str
    words: tuple[str, ...]
    right: Callable = lambda found: None
    night: str = ""
    samples: bool = False
    kept: str = ""


EXAMPLES = {
    "ab_test": Example(
        "--draws 20", "ab_test", ("visitors A", "P(B better)", "ignored", "modelled"),
        night="--draws 20", kept="conversion level",
    ),
    "blood_lead": Example(
        "--draws 100 --seed 7", "feasible_region posterior_predictive side_by_side",
        ("confidential", "naive", "ours, bounds", "34.30", "288.32", "R-hat", "sible"),
        samples=True,
    ),
    "census": Example(
        "--tracts 80 --draws 4", "census",
        ("80 tracts in 8 counties", "State totals hold in every draw: True"),
        intervals_cover, "--tracts 80 --draws 200 --seed 2", samples=True,
    ),
    "cirrhosis": Example(
        "--splits 1 --draws 200", "coverage densities lines",
        ("12.23", "Laplace noise of scale 5 on each", "ours, bounds"),
        night="--splits 1 --draws 200",
    ),
    "clamped_regression": Example(
        "--method none --draws 100", "", ("records (exact)", "-2.6480"),
        night="--method none --draws 100",
    ),
    "factorization": Example(
        "--iterations 20 --draws 20", "divergence hidden_counts", ("Root mean square error",),
        samples=True,
    ),
    "glm": Example(
        "--study logistic --people 30 --draws 20", "glm", ("Logistic", "Median and 90%"),
        noise_widens, "--people 200 --draws 200",
    ),
    "hospitals": Example(
        "--hospitals 6 --draws 20", "hospitals", ("hospitals of", "no pooling"),
        noise_brings_estimates_nearer, "--draws 300", kept="mean between within offset",
    ),
    "naive_bayes": Example(
        "--method none --draws 100", "", ("table (exact)", "0.7679"),
        night="--method none --draws 100",
    ),
    "opendp_releases": Example(
        "--draws 20 --epsilon 30", "posteriors", ("mean off by (sd)", "R-hat"),
        little_noise_says_what_the_records_do, "--draws 300 --epsilon 30",
    ),
    "sir": Example(
        "--study school --method none --draws 400", "sir",
        ("Influenza in a boarding school, ε = 10", "privatised with seed 1"),
        rate_of_the_literature, samples=True,
    ),
}  # fmt: skip


def run(name, arguments, tmp_path, capsys):
    if name == "opendp_releases":
        pytest.importorskip("opendp", reason="needs the extra [opendp]")
    example, output = EXAMPLES[name], tmp_path / "pictures"
    pictures = example.pictures.split()
    to = ["--output", str(output)] if pictures else []
    found = import_module(name).main([*arguments.split(), *to])
    printed = capsys.readouterr().out
    assert printed.count("\n") > 5
    assert name == "census" or "…" not in printed  # no table is cut; census shows its progress
    assert not {word for word in (*example.words, *pictures) if word not in printed}
    assert sorted(path.stem for path in output.glob("*.png")) == pictures
    for path in output.glob("*.png"):
        image = imread(path)
        assert min(image.shape[:2]) > 300
        assert image[..., :3].std() > 0.05  # something was drawn
    return found


@pytest.mark.filterwarnings("ignore")  # what draws of a prior look like is no news
@pytest.mark.parametrize("name", EXAMPLES)
def test_by_day(name, tmp_path, monkeypatch, capsys):
    example, models = EXAMPLES[name], []

    def prior(model=None, *, draws, **kwargs):
        model = pm.modelcontext(model)
        models.append(model)
        # Records of which the number varies have no draws that make up one array.
        lengths = {v: written_length(v) for v in model.free_RVs}
        varying = {v for v, n in lengths.items() if n is not None and nearest_rvs([n])}
        names = [v.name for v in model.unobserved_RVs if v not in varying]
        return mock_sample(draws=draws, model=model, var_names=names, random_seed=1)

    if not example.samples:
        monkeypatch.setattr(dp, "sample", prior)
        monkeypatch.setattr(pm, "sample", prior)
    found = run(name, example.arguments, tmp_path, capsys)
    if not example.night:
        example.right(found)
    private = next((model for model in models if dp.reading.model.releases(model)), None)
    assert (private is None) == example.samples
    if example.kept:
        assert {v.name for v in dp.collapse(private).free_RVs} == {*example.kept.split()}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.night])
def test_by_night(name, tmp_path, capsys):
    EXAMPLES[name].right(run(name, EXAMPLES[name].night, tmp_path, capsys))


@pytest.mark.nightly
def test_bounds_and_noise_of_the_regression_of_cirrhosis():
    x, y = cirrhosis.states()
    released = cirrhosis.release(x, y, 1.0, np.random.default_rng(3))
    fits = cirrhosis.fit_all(x, y, released, 1.0, draws=1_000, seed=3)
    ends = {k: cirrhosis.quantiles(v, [0.05, 0.95])[1] for k, v in fits.items()}
    width = {k: high - low for k, (low, high) in ends.items()}
    assert width["ours"] > 1.5 * width["confidential"] > 1.5 * width["naive"]
    intercept, slope, _ = cirrhosis.draws_of(fits["ours, bounds"])
    line = np.stack([intercept, intercept + slope])  # it meets the unit square
    assert np.all((line.max(axis=0) >= 0) & (line.min(axis=0) <= 1))
    found = cirrhosis.coverage(2, (1e5,), seed=2)  # next to no noise
    for shares in found.values():
        assert np.all(np.abs(shares - found["confidential"]) < 0.16)  # three of twenty states


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["sppe", "sple"])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("clamped_regression", -np.inf, np.inf), ("naive_bayes", 0, 1), ("sir", -np.inf, np.inf)],
)
@pytest.mark.nightly
def test_neural(name, low, high, method, capsys):
    pytest.importorskip("sbi")
    more = ["--study", "measles", "--no-particles"] if name == "sir" else ["--draws", "50"]
    found = import_module(name).main(
        ["--rounds", "1", "--simulations", "100", "--method", method, *more]
    )
    found = {method: sir.quantities(found[0][1][method])} if name == "sir" else found
    assert all(np.all((low < x) & (x < high)) for x in found[method].values())
    assert method in capsys.readouterr().out
