"""A linear regression from nine noisy, clamped sums: exact on the records, and neural.

Of 100 persons two covariates and a response are confidential. They are clamped to [-10, 10] and
divided by ten, and the means of their products (nine of them) are published with Laplace noise of
total privacy loss 10. Release and reference are those of Xiong, Ju & Zhang (2024, Table 1).

The model is that of the confidential records, and nothing in it says how it will be fitted.
`RecordMetropolis` samples its posterior exactly; sequential neural estimation of the posterior
(SPPE) or the likelihood (SPLE) needs only that it can be simulated. All are set beside the
reference. Every fit finds the ridge that noise leaves: the three coefficients are much less
certain than 100 persons would make them.

Run it with ``python3 run.py example clamped_regression [--method sppe|sple|both|none]
[--rounds R] [--simulations N] [--draws D]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
from xarray import DataTree

import pymc_dp as dp
import report

PEOPLE, REACH, EPSILON = 100, 10.0, 10.0
CENTRE = np.array([0.90014, -1.17335])  # of the covariates, public
# Exchanging one person changes the nine means by (p² + 3p + 3) / n together, p = 2.
SENSITIVITY = 13 / PEOPLE
RELEASED = (
    -0.38244, -0.066783, 0.0319974, 0.271985, 0.0988348, -0.138503, 0.0218818, -0.0228842, 0.0340915
)  # fmt: skip
NAMES = ("β₀", "β₁", "β₂")

# From a long run of another record-level sampler: mean and standard deviation.
REFERENCE = dict(zip(NAMES, ((-0.644, 0.874), (-2.648, 0.700), (0.587, 0.919)), strict=True))
# The means of Table 1.
PUBLISHED = {"SPPE": (-0.51, -2.40, 0.90), "SPLE": (-0.64, -2.61, 0.64)}


def products(x, y) -> list:
    """Return what a person adds to each of the nine means; of numbers, or of a model's variables.

    The means are those of y and its products with the covariates, of y², of the covariates, and of
    their squares and product.
    """
    u, y = x.clip(-REACH, REACH) / REACH, y.clip(-REACH, REACH) / REACH
    u, v = u[:, 0], u[:, 1]
    return [y, u * y, v * y, y * y, u, v, u * u, u * v, v * v]


def build(released: Sequence[float] = RELEASED, epsilon: float = EPSILON) -> pm.Model:
    """Write the model of the confidential records, with what was released of them."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        x = pm.Normal("x", CENTRE, 1, shape=(PEOPLE, 2))
        y = pm.Normal("y", beta[0] + x @ beta[1:], np.sqrt(2), shape=PEOPLE)
        dp.PrivateObservation(
            "release",
            [p.mean() for p in products(x, y)],
            dp.LaplaceMechanism.from_epsilon(epsilon, SENSITIVITY),
            observed=np.asarray(released, float),
        )
    return model


def coefficients(idata: DataTree) -> dict[str, np.ndarray]:
    """Return the draws of the coefficients."""
    return dict(zip(NAMES, report.draws(idata, "beta").T, strict=True))


def exact(model: pm.Model, draws: int, seed: int) -> DataTree:
    """Sample the exact posterior on the records."""
    return dp.sample(
        model, rung="records", draws=draws, chains=4, random_seed=seed, progressbar=False
    )


def main(arguments: Sequence[str] | None = None) -> Mapping[str, report.Draws]:
    """Run the example."""
    args = report.options(__doc__, arguments, **report.NEURAL, draws=5000)
    model = build()
    with report.timed("records"):
        found = {"records (exact)": coefficients(exact(model, args.draws, args.seed))}
    found |= {name: coefficients(idata) for name, idata in report.neural_fits(model, args)}
    report.say(
        report.comparison(REFERENCE, found, "Clamped regression, ε = 10"),
        *(f"Published means, {name}: {means}" for name, means in PUBLISHED.items()),
    )
    return found


if __name__ == "__main__":
    main()
