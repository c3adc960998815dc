"""A naive Bayes classifier from noisy counts: exact draws of the table, and neural.

Each of 100 persons is in one of two classes and has two binary features, independent given the
class. Of each class and feature the number of persons with either value is published with Laplace
noise of scale 0.4: eight counts (Xiong, Ju & Zhang, 2024). The chances have Beta(2, 2) priors.

The confidential counts are the eight cells of a table class × feature × feature; the published ones
are two of its margins. `TableGibbs` draws the table given both, which is exact. Sequential neural
estimation of the posterior (SPPE) or the likelihood (SPLE) needs only that it can be simulated. The
reference adds up what the counts can be (`enumerate_counts`).

Run it with ``python3 run.py example naive_bayes [--method sppe|sple|both|none] [--rounds R]
[--simulations N] [--draws D]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import special, stats
from xarray import DataTree

import pymc_dp as dp
import report

PEOPLE, ALPHA, SCALE = 100, 2.0, 0.4
# (class, feature, value)
RELEASED = np.array(
    [[[32.754, 45.2008], [58.6172, 18.2683]], [[12.926, 8.5805], [12.8789, 9.5372]]]
)
SHARE = "P(class 1)"
NAMES = tuple(f"P(feature {k} | class {i})" for i in (1, 2) for k in (1, 2))


def build(released: np.ndarray = RELEASED) -> pm.Model:
    """Write the model of the confidential table, with what was released of it."""
    with pm.Model() as model:
        share = pm.Beta("share", ALPHA, ALPHA)  # of class 1
        p = pm.Beta("p", ALPHA, ALPHA, shape=(2, 2))  # of the first value: (class, feature)
        q = pt.stack([p, 1 - p], axis=-1)
        classes = pt.stack([share, 1 - share])
        cells = classes[:, None, None] * q[:, 0, :, None] * q[:, 1, None, :]
        table = pm.Multinomial("table", n=PEOPLE, p=cells.ravel()).reshape((2, 2, 2))
        noise = dp.LaplaceMechanism(SCALE)
        # A release for each feature: no person is in two entries of one.
        dp.PrivateObservation("feature_1", table.sum(axis=2), noise, observed=released[:, 0])
        dp.PrivateObservation("feature_2", table.sum(axis=1), noise, observed=released[:, 1])
    return model


def enumerate_counts(released: np.ndarray = RELEASED) -> dict[str, tuple[float, float]]:
    """Compute the exact means and standard deviations, as mixtures of Betas over the counts.

    Given how many are in class 1, the four chances are independent, each a mixture over one count.
    """
    log_weight, moments = [], []
    for members in range(PEOPLE + 1):
        total = stats.betabinom.logpmf(members, PEOPLE, ALPHA, ALPHA)
        rows = [_beta_moments(ALPHA + members, ALPHA + PEOPLE - members)]
        for in_class, values in zip((members, PEOPLE - members), released, strict=True):
            for first, second in values:
                count = np.arange(in_class + 1)
                log_joint = stats.betabinom.logpmf(count, in_class, ALPHA, ALPHA)
                log_joint -= (abs(first - count) + abs(second - (in_class - count))) / SCALE
                total += special.logsumexp(log_joint)
                each = _beta_moments(ALPHA + count, ALPHA + in_class - count)
                rows.append(each @ special.softmax(log_joint))
        log_weight.append(total)
        moments.append(rows)
    mean, square = np.einsum("c,cqm->mq", special.softmax(log_weight), np.array(moments))
    sd = np.sqrt(square - mean**2)
    return {name: (m, s) for name, m, s in zip((SHARE, *NAMES), mean, sd, strict=True)}


def _beta_moments(a, b) -> np.ndarray:
    """Mean and mean square of Beta(a, b)."""
    mean = a / (a + b)
    return np.array([mean, mean * (a + 1) / (a + b + 1)])


def chances(idata: DataTree) -> dict[str, np.ndarray]:
    """Return the draws of the five chances."""
    p = report.draws(idata, "p").reshape(-1, 4)
    return {SHARE: report.draws(idata, "share"), **dict(zip(NAMES, p.T, strict=True))}


def exact(model: pm.Model, draws: int, seed: int) -> DataTree:
    """Sample the exact posterior: `TableGibbs` for the table, NUTS for the chances."""
    return dp.sample(
        model,
        draws=draws,
        tune=500,
        chains=2,
        var_names=["share", "p"],
        random_seed=seed,
        progressbar=False,
        compute_convergence_checks=False,
    )


def main(arguments: Sequence[str] | None = None) -> Mapping[str, report.Draws]:
    """Run the example."""
    args = report.options(__doc__, arguments, **report.NEURAL, draws=4000)
    model = build()
    with report.timed("table"):
        found = {"table (exact)": chances(exact(model, args.draws, args.seed))}
    found |= {name: chances(idata) for name, idata in report.neural_fits(model, args)}
    title = "Naive Bayes, eight counts with Laplace noise"
    report.say(report.comparison(enumerate_counts(), found, title))
    return found


if __name__ == "__main__":
    main()
