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

import blood_lead
import cirrhosis
import clamped_regression
import glm
import hospitals
import naive_bayes
import pymc_dp as dp
import sir
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.record_lengths import written_length
from tests.agreement import has_moments, has_quantiles

# Blood lead, by quadrature on the scale of [0, 1]: posterior medians of mu and sigma2, and the
# probability of the feasible region; without and with the bounds.
QUADRATURE = {
    ("flat", False): (0.343027, 0.241569, 0.3882),
    ("flat", True): (0.376355, 0.148441, 1.0),
    ("informative", False): (0.20397, 0.0124961, 0.899337),
    ("informative", True): (0.19802, 0.00842515, 1.0),
}
# Shares of a new person's predictive below 0 and above 100.
OUTSIDE = {"flat": (0.242708, 0.101389), "informative": (0.0909156, 0.0162712)}


def cover(truth, low, high):
    return np.mean((low < truth) & (truth < high))


def posteriors_are_those_of_quadrature(fits):
    for (prior, bounded), (mu, sigma2, probability) in QUADRATURE.items():
        idata = fits[prior, bounded]
        has_quantiles(idata["posterior"]["mu"], {0.5: 100 * mu})
        has_quantiles(idata["posterior"]["sigma2"], {0.5: 100**2 * sigma2})
        inside = blood_lead.feasible(*blood_lead.draws_of(idata)).reshape(4, -1)
        model = blood_lead.build(prior, bounded)
        new = dp.predict_records(model, idata, size=1, random_seed=5)
        if bounded:
            assert inside.all()
            assert cover(new, 0, 100) == 1
            continue
        has_moments(inside, probability)
        for share, expected in zip((new < 0, new > 100), OUTSIDE[prior], strict=True):
            # a record to a draw, and draws are nearly independent: half of them is a safe count
            error = np.sqrt(expected * (1 - expected) / (share.size / 2))
            assert abs(float(share.mean()) - expected) < 4 * error


def noise_widens_and_bounds_hold(fits):
    width = {k: np.ptp(cirrhosis.quantiles(v, [0.05, 0.95])[1]) for k, v in fits.items()}
    assert width["ours"] > 1.5 * width["confidential"] > 1.5 * width["naive"]
    intercept, slope, _ = cirrhosis.draws_of(fits["ours, bounds"])
    line = np.stack([intercept, intercept + slope])  # it meets the unit square
    assert np.all((line.max(axis=0) >= 0) & (line.min(axis=0) <= 1))


def intervals_cover(found):
    for name, (truth, _, exact) in found.items():
        # Intervals of 95%: four standard errors of those of a state's 24, of a county's 72.
        assert cover(truth, *exact) > (0.76 if name == "state" else 0.84)
    truth, rival, exact = found["county"]
    assert np.mean(exact[1] - exact[0]) < 1.02 * np.mean(rival[1] - rival[0])


def coefficients_are_the_references(found):
    for name, (mean, sd) in clamped_regression.REFERENCE.items():
        has_moments(found["records (exact)"][name].reshape(4, -1), mean, sd, least=100)
    assert np.all(np.isfinite([*found["sppe"].values(), *found["sple"].values()]))


def chances_are_as_enumerated(found):
    for name, (mean, sd) in naive_bayes.enumerate_counts().items():
        chains = found["table (exact)"][name].reshape(2, -1)
        has_moments(chains, mean, sd, sd_within=0.06, least=400)
        assert all(cover(found[method][name], 0, 1) == 1 for method in ("sppe", "sple"))


def noise_widens(results):
    for study, fits in results.values():
        spread = {analysis: glm.coefficients(fit).std(axis=1) for analysis, fit in fits.items()}
        for analysis in ("confidential", "naive"):
            assert np.all(spread["private"] > 1.2 * spread[analysis])
        ends = np.quantile(glm.coefficients(fits["private"]), [0.001, 0.999], axis=1)
        assert cover(study.kind.truth, *ends) == 1


def noise_is_told_from_differences(results):
    study, fits = results
    found = hospitals.intervals(study, fits)
    error = {name: np.abs(middle - study.truth).mean() for name, (_, middle, _) in found.items()}
    assert error["private"] < error["naive"] < error["no pooling"]
    assert cover(study.truth, *found["private"][::2]) > 0.8
    ends = np.quantile(fits["private"]["posterior"]["between"], [0.01, 0.99])
    assert cover(hospitals.BETWEEN, *ends) == 1


def releases_say_what_the_records_do(found):
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
    """Arguments by day, names of pictures, some of what is printed.

    `right` checks what is returned: by night, with the arguments `night`, or by day if there are
    none.
    """

    day: str
    pictures: str
    words: tuple[str, ...]
    right: Callable = lambda found: None
    night: str = ""


SAMPLED = {"blood_lead", "census", "factorization", "sir"}  # by day, too
NETWORKS = "--method both --rounds 1 --simulations 100"
EXAMPLES = {
    "ab_test": Example("--draws 20", "ab_test", ("visitors A", "P(B better)", "modelled"),
                       night="--draws 20"),
    "blood_lead": Example("--draws 2000 --seed 11",
                          "feasible_region posterior_predictive side_by_side",
                          ("confidential", "naive", "ours, bounds", "34.30", "288.32", "R-hat"),
                          posteriors_are_those_of_quadrature),
    "census": Example("--tracts 80 --draws 4", "census",
                      ("75 tracts with 24 kinds of people in 3", "Totals hold in every draw: True"),
                      intervals_cover, "--tracts 80 --draws 300 --seed 2"),
    "cirrhosis": Example("--splits 1 --draws 200", "coverage densities lines",
                         ("12.23", "Laplace noise of scale 5 on each", "ours, bounds"),
                         noise_widens_and_bounds_hold, "--splits 1 --draws 1000 --seed 3"),
    "clamped_regression": Example("--method none --draws 100", "", ("records (exact)", "-2.6480"),
                                  coefficients_are_the_references, f"{NETWORKS} --draws 5000"),
    "factorization": Example("--iterations 20 --draws 20", "divergence hidden_counts",
                             ("Root mean square error",)),
    "glm": Example("--study logistic --people 30 --draws 20", "glm",
                   ("Logistic", "Median and 90%"), noise_widens, "--people 200 --draws 200"),
    "hospitals": Example("--hospitals 6 --draws 20", "hospitals", ("hospitals of", "no pooling"),
                         noise_is_told_from_differences, "--draws 300"),
    "naive_bayes": Example("--method none --draws 100", "", ("table (exact)", "0.7679"),
                           chances_are_as_enumerated, f"{NETWORKS} --draws 2000 --seed 2"),
    "opendp_releases": Example("--draws 20 --epsilon 30", "posteriors",
                               ("mean off by (sd)", "R-hat"),
                               releases_say_what_the_records_do, "--draws 300 --epsilon 30"),
    "sir": Example("--study school --method none --draws 400", "sir",
                   ("Influenza in a boarding school, ε = 10", "privatised with seed 1"),
                   rate_of_the_literature),
}  # fmt: skip


def prior(model=None, *, draws, **kwargs):
    model = pm.modelcontext(model)
    # Records of which the number varies have no draws that make up one array.
    lengths = {v: written_length(v) for v in model.free_RVs}
    varying = {v for v, n in lengths.items() if n is not None and nearest_rvs([n])}
    names = [v.name for v in model.unobserved_RVs if v not in varying]
    return mock_sample(draws=draws, model=model, var_names=names, random_seed=1)


@pytest.mark.filterwarnings("ignore")  # what few draws, or those of a prior, look like is no news
@pytest.mark.parametrize(
    ("name", "when"),
    [(name, "day") for name in EXAMPLES]
    + [
        pytest.param(name, "night", marks=pytest.mark.nightly)
        for name, example in EXAMPLES.items()
        if example.night
    ],
)
def test_example(name, when, tmp_path, monkeypatch, capsys):
    if name == "opendp_releases":
        pytest.importorskip("opendp", reason="needs the extra [opendp]")
    example, output = EXAMPLES[name], tmp_path / "pictures"
    if "both" in example.night and when == "night":
        pytest.importorskip("sbi", reason="needs the extra [neural]")
    if when == "day" and name not in SAMPLED:
        monkeypatch.setattr(dp, "sample", prior)
        monkeypatch.setattr(pm, "sample", prior)
    pictures = example.pictures.split()
    to = ["--output", str(output)] if pictures else []
    found = import_module(name).main([*getattr(example, when).split(), *to])
    if when == "night" or not example.night:
        example.right(found)
    printed = capsys.readouterr().out
    assert printed.count("\n") > 5
    assert name == "census" or "…" not in printed  # no table is cut; census shows its progress
    assert not {word for word in (*example.words, *pictures) if word not in printed}
    assert sorted(path.stem for path in output.glob("*.png")) == pictures
    for path in output.glob("*.png"):
        image = imread(path)
        assert min(image.shape[:2]) > 300
        assert image[..., :3].std() > 0.05  # something was drawn
