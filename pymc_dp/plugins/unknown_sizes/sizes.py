"""Which numbers of records matter, where nobody knows how many there are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.discrete import DiscreteUniformRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.values import known_value, noticed_function
from pymc_dp.plugins.unknown_sizes.density import Windows, log_prior
from pymc_dp.plugins.unknown_sizes.totals import TotalRV
from pymc_dp.reading.bounds import starting_values

_FALL = 45.0  # in log density: numbers farther below the largest are left out
MAX_NUMBERS = 100_000  # numbers that are looked at

# Laws of counts with one mode, beyond which the mass falls or hardly rises again.
_ONE_MODE = (
    ptr.PoissonRV, ptr.NegBinomialRV, ptr.GeometricRV, ptr.BinomialRV, ptr.BetaBinomialRV,
    ptr.HyperGeometricRV, DiscreteUniformRV,
)  # fmt: skip


def by_group(number: TensorVariable) -> list[TensorVariable]:
    """Return the parameters of the law of some numbers, one after the other.

    Small types would give the densities few digits.
    """
    op, shape = number.owner.op, lengths(number)
    parameters = []
    for p, core in zip(op.dist_params(number.owner), op.ndims_params, strict=True):
        p = p.astype("float64" if p.dtype.startswith("float") else "int64")
        core_shape = [p.shape[k] for k in range(p.type.ndim - core, p.type.ndim)]
        parameters.append(pt.broadcast_to(p, (*shape, *core_shape)).reshape((-1, *core_shape)))
    return parameters


def sizes_that_matter(
    number: TensorVariable,
    records: str,
    matrix: TensorVariable,
    noise: TensorVariable,
    start: np.ndarray,
    most: int,
    *,
    linear: bool,
) -> Windows:
    """Return the numbers of records that matter, given the releases.

    For all other numbers, prior times noise is far below its maximum. A prior with random
    parameters moves: then the window is that of the noise alone, extended to the window of the
    prior at the starting values unless it becomes longer than `most`.

    Parameters
    ----------
    number, records : the numbers, and the names of the records.
    matrix, noise : a row of numbers for each group, and the log density of the releases there.
    start : for each group a number that the releases suggest; NaN without a release.
    linear : whether all releases are linear in the number, so that `noise` has one mode.
    """
    op, parameters = number.owner.op, by_group(number)
    fixed = all(known_value(p) is not None for p in parameters)
    ends = _ends(number)
    few = ends is not None and np.max(ends.last - ends.first) < MAX_NUMBERS
    if np.isnan(start).any() and not (fixed or few):
        raise Declined(
            f"the number {number.name!r} of the records {records} is not released, and its prior "
            f"has random parameters: release it, or write numbers in its prior"
        )
    [*known, mean] = starting_values([*parameters, number])
    prior = log_prior(op, [pt.constant(p[:, None]) for p in known], matrix)
    if not few and not (linear and isinstance(op, _ONE_MODE)):
        raise Declined(
            f"which numbers {number.name!r} of the records {records} matter is not known: "
            f"release linear functions of it, with a prior such as pm.Poisson, or give it a prior "
            f"with known ends, pm.DiscreteUniform({number.name!r}, 0, 500) say"
        )
    begin = np.where(np.isnan(start), np.ravel(mean), start)

    def matter(log_density) -> Windows | None:
        function = noticed_function([matrix], log_density)
        if few and ends is not None:
            high = _high(np.where(ends.within, function(ends.sizes), -np.inf))
            return _spanned(ends.first, high)
        return around(function, begin, most)

    windows = matter(noise + prior)
    if not fixed:
        alone, near = matter(noise), windows
        windows = alone
        if alone is not None and near is not None:
            both = Windows(np.minimum(alone.first, near.first), np.maximum(alone.last, near.last))
            windows = both if np.max(both.last - both.first) < most else alone
    if windows is None or np.max(windows.last - windows.first) >= most:
        raise Declined(
            f"more than {most:,} numbers {number.name!r} of the records {records} are possible, "
            f"which are too many to sum over"
        )
    return windows._replace(likely=begin)


def around(function: Callable, start: np.ndarray, most: int) -> Windows | None:
    """Return windows outside of which log densities of one mode are far below their largest.

    The function takes a row of numbers for each group, and returns their log densities.
    """
    low = np.maximum(0, np.floor(start).astype(int) - 8)
    high = np.maximum(0, np.ceil(start).astype(int)) + 8
    while np.max(high - low) <= most:
        looked_at = Windows(low, high)
        matter = _high(np.where(looked_at.within, function(looked_at.sizes), -np.inf))
        window, some = _spanned(low, matter), matter.any(axis=1)
        left, right = some & (window.first > low), some & (window.last < high)
        done = right & (left | (low == 0))
        if done.all():
            return window
        width = high - low
        low = np.where(done | left, low, np.maximum(0, low - width))
        high = np.where(done | right, high, high + width)
    return None


def _spanned(first: np.ndarray, matter: np.ndarray) -> Windows:
    """Return the first and the last number of each row that matters."""
    last = matter.shape[1] - 1 - np.argmax(matter[:, ::-1], axis=1)
    return Windows(first + np.argmax(matter, axis=1), first + last)


def _high(log_density: np.ndarray) -> np.ndarray:
    """Whether each is near the largest of its row, and not impossible."""
    density = np.nan_to_num(log_density, nan=-np.inf)
    return density > np.maximum(density.max(axis=1) - _FALL, -np.finfo("float64").max)[:, None]


def _ends(number: TensorVariable) -> Windows | None:
    """Return the least and the largest number that a prior allows; None if not known."""
    op, parameters = number.owner.op, number.owner.op.dist_params(number.owner)
    ends: list = []
    match op:
        case ptr.CategoricalRV():
            ends = [np.zeros(()), np.array(lengths(parameters[0])[-1] - 1)]
        case ptr.BernoulliRV():
            ends = [np.zeros(()), np.ones(())]
        case ptr.BinomialRV() | ptr.BetaBinomialRV():
            ends = [np.zeros(()), known_value(parameters[0])]
        case TotalRV():
            ends = [np.array(op.first), np.array(op.last)]
        case DiscreteUniformRV():
            ends = [known_value(p) for p in parameters]
        case _:
            return None
    if any(end is None for end in ends):
        return None
    low, high = (np.broadcast_to(e, lengths(number)).ravel().astype(int) for e in ends)
    return Windows(np.maximum(low, 0), high)
