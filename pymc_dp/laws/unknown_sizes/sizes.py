"""Which numbers of records matter, where nobody knows how many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.discrete import DiscreteUniformRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import known_value, lengths, noticed_function
from pymc_dp.laws.unknown_sizes.density import log_prior
from pymc_dp.reading.bounds import starting_values

_FALL = 45.0  # of the log of what is left out
MOST = 100_000  # numbers that are looked at

# Laws of counts whose mass falls on both sides of what is likely, or hardly rises again.
_ONE_MODE = (
    ptr.PoissonRV, ptr.NegBinomialRV, ptr.GeometricRV, ptr.BinomialRV, ptr.BetaBinomialRV,
    ptr.HyperGeometricRV, DiscreteUniformRV,
)  # fmt: skip


def sizes_that_matter(
    number: TensorVariable,
    records: str,
    vector: TensorVariable,
    noise: TensorVariable,
    start: Sequence[float],
    most: int,
    *,
    linear: bool,
) -> np.ndarray:
    """Return the numbers of records that matter, given what is published of them.

    Beyond, prior and noise are far below their largest product. A prior whose parameters are random
    moves: with it, it is what the noise leaves, and what lies between this and the prior as it
    starts, unless that is more than `most`.

    Parameters
    ----------
    number, records : the number, and the name of the records.
    vector, noise : numbers, and the log density of what is published for each.
    start : numbers that what is published suggests.
    linear : whether all that is published is linear in the number, so that `noise` has one mode.
    """
    op, parameters = number.owner.op, number.owner.op.dist_params(number.owner)
    fixed = all(known_value(p) is not None for p in parameters)
    if not start and not fixed:
        raise Declined(
            f"the number {number.name!r} of the records {records!r} is not released, and its prior "
            f"has random parameters: release it, or write numbers in its prior"
        )
    [*known, mean] = starting_values([*parameters, number])
    prior = log_prior(op, [pt.constant(p) for p in known], vector)
    ends = _ends(number)
    few = ends is not None and ends[1] - ends[0] < MOST
    if not few and not (linear and isinstance(op, _ONE_MODE)):
        raise Declined(
            f"which numbers {number.name!r} of the records {records!r} matter is not known: "
            f"release linear functions of it, with a prior such as pm.Poisson, or give it a prior "
            f"with known ends, pm.DiscreteUniform({number.name!r}, 0, 500) say"
        )

    def matter(log_density) -> np.ndarray | None:
        function = noticed_function([vector], log_density)
        if few and ends is not None:
            sizes = np.arange(ends[0], ends[1] + 1)
            return sizes[_high(function(sizes))]
        return around(function, [*start, float(mean)][0], most)

    found = matter(noise + prior)
    if not fixed:
        alone, near = matter(noise), found
        found = alone
        if alone is not None and near is not None and alone.size and near.size:
            between = range(min(alone[0], near[0]), max(alone[-1], near[-1]) + 1)
            found = np.array(between) if len(between) <= most else alone
    if found is None or found.size > most:
        raise Declined(
            f"more than {most:,} numbers {number.name!r} of the records {records!r} are possible, "
            f"which are too many to sum over"
        )
    return found


def around(function: Callable, start: float, most: int) -> np.ndarray | None:
    """Return whole numbers outside of which a log density of one mode is far below its largest."""
    low, high = max(0, math.floor(start) - 8), max(0, math.ceil(start)) + 8
    while high - low <= most:
        sizes = np.arange(low, high + 1)
        [matter] = np.nonzero(_high(function(sizes)))
        left = matter.size > 0 and matter[0] > 0
        right = matter.size > 0 and matter[-1] < sizes.size - 1
        if right and (left or low == 0):
            return sizes[matter[0] : matter[-1] + 1]
        width = high - low
        low = low if left else max(0, low - width)
        high = high if right else high + width
    return None


def _high(log_density: np.ndarray) -> np.ndarray:
    """Whether each is near the largest, and not impossible."""
    density = np.nan_to_num(log_density, nan=-np.inf)
    return density > max(density.max() - _FALL, -np.finfo("float64").max)


def _ends(number: TensorVariable) -> tuple[int, int] | None:
    """Return the least and the largest number that a prior allows; None if not known."""
    op, parameters = number.owner.op, number.owner.op.dist_params(number.owner)
    match op:
        case ptr.CategoricalRV():
            return 0, lengths(parameters[0])[-1] - 1
        case ptr.BernoulliRV():
            return 0, 1
        case ptr.BinomialRV() | ptr.BetaBinomialRV():
            ends = [np.zeros(1), known_value(parameters[0])]
        case DiscreteUniformRV():
            ends = [known_value(p) for p in parameters]
        case _:
            return None
    low, high = (None if end is None else int(np.squeeze(end)) for end in ends)
    return None if low is None or high is None else (max(low, 0), high)
