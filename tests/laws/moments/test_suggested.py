"""What published sums of rows say before any sampling: notes, routes, counts as covariates."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import pymc_dp as dp
from pymc_dp.plugins.regression.route import covered
from pymc_dp.reading.model import Reading
from tests.models import five_sums, refuses, simple_regression

PLAIN = Mode(linker="py", optimizer=None)
SUMS = [40.0, 60.0, 90.0, 150.0, 400.0]


def regression(released, z, scale=2.0, *, x_law=None):
    return simple_regression(200, z, scale, statistic=released, x_law=x_law)


def features(x, y):
    rows = pt.stack([pt.ones(x.shape[0]), x, y], axis=1)
    return rows.T @ rows


def test_possible_sums_need_no_note():
    assert dp.explain(regression(five_sums, SUMS), details=True).notes == []


@pytest.mark.by_day("z0-0.01")
@pytest.mark.parametrize(
    ("z", "scale"),
    [
        ([40.0, 1.0, 90.0, 50.0, 400.0], 0.01),  # the squares sum up to 40^2 / 200 at least
        ([4e7, 60.0, 90.0, 50.0, 400.0], 2.0),
        ([40.0, 60.0, 90.0, 500.0, 400.0], 2.0),  # a correlation of 3
    ],
)
def test_sums_of_no_data_are_noted(z, scale, caplog):
    model = regression(five_sums, z, scale)
    [note] = dp.explain(model, details=True).notes
    assert note.startswith("'z': no 200 rows have these sums: entry")
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="no route"):
        dp.sample(model, rung="marginal")
    assert note in caplog.text


def test_one_draw_of_noise_that_is_counted_twice():
    z = np.array([[200.0, 40.0, 90.0], [40.0, 60.0, 50.0], [90.0, 50.0, 400.0]])
    notes = dp.explain(regression(features, z), details=True).notes
    assert [note.split(" is released 2 times")[0] for note in notes] == [
        f"'z': the sum of {what}" for what in ("x·y", "y", "x")
    ]
    z += np.triu(np.ones((3, 3)), 1)  # separate draws
    assert dp.explain(regression(features, z), details=True).notes == []
    upper = regression(lambda x, y: features(x, y)[np.triu_indices(3)], z[np.triu_indices(3)])
    assert dp.explain(upper, details=True).notes == []


def test_the_public_number_of_rows_is_said_to_be_public():
    z = np.array([[190.0, 40.0, 90.0], [41.0, 60.0, 50.0], [91.0, 51.0, 400.0]])
    [row] = dp.explain(regression(features, z), details=True).tables[0][2]
    assert row[1].startswith("200 (public), Σ x, Σ y, Σ x,")


def test_counts_as_covariates():
    """A covariate that is a count has the moments of its law, and no exact law of the sums."""
    z = [80.0, 82.0, 90.0, 50.0, 400.0]
    flags = regression(five_sums, z, x_law=lambda n: pm.Bernoulli("x", 0.4, shape=n))
    refuses(flags, "'x' follow Bernoulli", "statistics")
    uniform = regression(five_sums, z, x_law=lambda n: pm.Uniform("x", 0.0, 1.0, shape=n))
    counts = regression(five_sums, z, x_law=lambda n: pm.Poisson("x", 0.4, shape=n))
    for model, moments in ((flags, [0.4] * 4), (counts, [0.4, 0.56, 0.944, 1.9296])):
        own = dp.collapse(model, "marginal", approximate="clt")
        stated = dp.collapse(uniform, "marginal", approximate="clt", moments=moments)
        point = own.initial_point()
        # Graphs of a minute's compilation, evaluated once.
        densities = [m.compile_logp(mode=PLAIN)(point) for m in (own, stated)]
        assert densities[0] == pytest.approx(densities[1], rel=1e-8)
    assert "x_y_sums_standard" in dp.collapse(flags, "statistics", approximate="clt").named_vars


def test_a_spread_that_is_written_as_a_list():
    with pm.Model() as model:
        s2 = pm.InverseGamma("s2", 3.0, 1.0)
        sd = pt.sqrt(s2)
        b = pm.Normal("b", 0.0, [1.5 * sd, 0.05 * sd], shape=2)
        x = pm.Normal("x", 0.3, 0.5, shape=200)
        y = pm.Normal("y", b[0] + b[1] * x, sd, shape=200)
        dp.PrivateObservation("z", five_sums(x, y), dp.LaplaceMechanism(2.0), observed=SUMS)
    np.testing.assert_allclose(covered(Reading(model)).prior.cov, np.diag([2.25, 0.0025]))


def test_reasons_are_told_once():
    clipped = regression(lambda x, y: pt.clip(x * y, 0, 1).sum()[None], [20.0])
    with pytest.raises(ValueError, match="no route on the rung 'statistics'") as error:
        dp.sample(clipped, rung="statistics")
    assert str(error.value).count("makes it something else") == 1
