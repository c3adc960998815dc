"""Posteriors of quantities of the tables, of data from the prior: ranks and intervals."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from tests.agreement import rank, uniform

LEVELS = {"a": 3, "b": 4, "c": 2, "d": 2}
TERMS = [("a", "b"), ("b", "c"), ("c", "d")]
RELEASED = [("a", "b"), ("c", "b"), ("c", "d"), ("b",)]
N, TOTAL = 400, 12.0
REPEATS, TUNE, DRAWS, THIN = 60, 60, 99, 3


def model_of(sigma):
    """Return the rows, with released margins of three cliques, and one that two of them share."""
    with pm.Model() as model:
        rows = dp.LogLinear("rows", LEVELS, TERMS, N, concentration=TOTAL)
        for columns in RELEASED:
            margin, name = rows.margin(*columns), "".join(columns)
            z = pm.Data(f"{name}_published", np.zeros(margin.type.shape))
            dp.PrivateObservation(name, margin, dp.GaussianMechanism(sigma), observed=z)
    return model, rows


def quantities(rows, tables):
    """Return a share, a mean, a count, a log odds ratio and a share of another clique."""
    ab, bc, cd = (rows.margin(*term).owner.op.of(tables) for term in TERMS)
    shares = ab[..., 0, 1] / np.maximum(ab[..., 1].sum(-1), 1), bc[..., 2, 1] / N
    odds = np.log((cd[..., 0, 0] + 0.5) * (cd[..., 1, 1] + 0.5))
    odds -= np.log((cd[..., 0, 1] + 0.5) * (cd[..., 1, 0] + 0.5))
    return np.stack([*shares, ab.sum(-1) @ [0, 1, 2], bc[..., 1].sum(-1), odds], axis=-1)


def draws_of(point, step, rng):
    """Return tables given the published values, each `THIN` sweeps after the last."""
    step.setup_chain(rng, TUNE, DRAWS)
    drawn = []
    for sweep in range(TUNE + THIN * DRAWS):
        point, _ = step.step(point)
        if sweep >= TUNE and sweep % THIN == 0:
            drawn.append(point["rows"])
    return np.array(drawn)


@pytest.mark.nightly
@pytest.mark.parametrize("sigma", [3.0, 30.0])
def test_posterior_is_calibrated_and_intervals_cover(sigma):
    """A cell has 33 people on average: noise is small beside them, or as large.

    One step serves all repeats, which a call of `dp.sample` would build anew for each.
    """
    model, rows = model_of(sigma)
    step = dp.CliqueGibbs([rows.rv], model=model, rng=1)
    start = model.initial_point()
    rng, ranks, covered = np.random.default_rng(2), [], []
    for truth in rows.rv.owner.op.rng_fn(rng, N, TOTAL, (REPEATS,)):
        counts = [rows.margin(*columns).owner.op.of(truth) for columns in RELEASED]
        published = {"".join(c): x + rng.normal(0.0, sigma, x.shape)
                     for c, x in zip(RELEASED, counts, strict=True)}  # fmt: skip
        with model:
            pm.set_data({f"{name}_published": z for name, z in published.items()})
        true = quantities(rows, truth)
        found = quantities(rows, draws_of(start, step, rng))
        ranks.append(rank(rng, true, found))
        low, high = np.quantile(found, [0.025, 0.975], axis=0)
        covered.append((low <= true) & (true <= high))  # a count at the end of its interval, too
    uniform(ranks, DRAWS, bins=5)
    for hits in np.sum(covered, axis=0):
        assert stats.binomtest(int(hits), REPEATS, 0.95).pvalue > 1e-3
