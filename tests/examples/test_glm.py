"""The GLM example: its quadrature, its three posteriors, and what the command writes."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from matplotlib.image import imread
from pytensor.graph.replace import graph_replace

from pymc_dp.examples import glm
from pymc_dp.graphs.questions import PLAIN_MODE

DRAWS, SEED = 200, 1


@pytest.mark.parametrize("name", glm.REGRESSIONS)
def test_moments_are_those_of_simulated_people(name):
    kind, n = glm.REGRESSIONS[name], 50_000
    study = glm.simulate(kind, n, SEED)
    with pm.Model() as model:
        _, nodes, weights = kind.covariate()
        intercept, slope = kind.truth
        found = glm.moments(kind, intercept + slope * nodes, nodes, weights)
    truth = {"mean": 0.3, "spread": 1.0}  # of a Normal x
    known = {rv: pt.constant(np.float64(truth[rv.name])) for rv in model.free_RVs}
    found = pm.draw(graph_replace(found, known, strict=False), mode=PLAIN_MODE)
    terms = np.stack(kind.terms(study.x, study.y)).astype(float)
    error = terms.std(axis=1) / np.sqrt(n)
    np.testing.assert_array_less(np.abs(terms.mean(axis=1) - found[0]), 5 * error)
    np.testing.assert_allclose(np.cov(terms), found[1], rtol=0.1, atol=0.02)


@pytest.mark.parametrize("name", glm.REGRESSIONS)
def test_one_person_changes_no_sum_by_more_than_its_sensitivity(name):
    kind = glm.REGRESSIONS[name]
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(0, 3, 10_000), rng.poisson(3, 10_000)
    terms = np.stack(kind.terms(x, y)).astype(float)
    np.testing.assert_allclose(np.ptp(terms, axis=1), kind.sensitivity, rtol=0.01)


# Most of its time is the compilation of three models.
@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.nightly
def test_command(name, tmp_path, capsys):
    results = glm.main(
        ["--study", name, "--people", "200", "--draws", str(DRAWS), "--output", str(tmp_path)]
    )
    said = capsys.readouterr().out
    assert glm.REGRESSIONS[name].title in said
    assert "confidential" in said

    # Noise that is modelled widens the posterior.
    study, fits = results[name]
    spread = {analysis: glm.coefficients(fit).std(axis=1) for analysis, fit in fits.items()}
    assert np.all(spread["private"] > 1.2 * spread["confidential"])
    assert np.all(spread["private"] > 1.2 * spread["naive"])
    low, high = np.quantile(glm.coefficients(fits["private"]), [0.001, 0.999], axis=1)
    assert np.all((low < study.kind.truth) & (study.kind.truth < high))

    axes = glm.picture(results).axes
    assert len(axes) == 3
    assert all(ax.lines and ax.get_xlabel() for ax in axes)
    assert imread(tmp_path / "glm.png")[..., :3].std() > 0.05
