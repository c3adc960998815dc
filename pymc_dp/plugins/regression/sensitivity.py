"""How much one record can change a statistic: the sensitivities that noise is scaled to."""

from collections.abc import Sequence

import numpy as np

_NEIGHBOURS = ("replace", "add")


def _checked(bounds, name: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} is {bounds!r}, not a pair of numbers: write (low, high), as in (0.0, 1.0)."
        ) from None
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError(
            f"{name} is ({low:g}, {high:g}): the sensitivity of products is infinite without "
            "finite bounds. Write the ends that the curator clips the records to."
        )
    if low > high:
        raise ValueError(f"{name} is ({low:g}, {high:g}): write the lower end first.")
    return low, high


def regression_sensitivity(
    x_bounds: Sequence[tuple[float, float]],
    y_bounds: tuple[float, float],
    *,
    neighbours: str = "replace",
) -> np.ndarray:
    r"""Return the sensitivity of every sum of products of a linear regression.

    The sums are those of :math:`x_i x_j` for i <= j (lexicographic), :math:`x_i y` and :math:`y^2`,
    in this order, for features x that start with the constant 1. The number of rows, the (0, 0)
    entry of :math:`X'X`, is public and left out: for one covariate the sums are those of
    :math:`x, x^2, y, xy, y^2`.

    Parameters
    ----------
    x_bounds : sequence of (low, high)
        What each covariate is confined to; the constant is not listed.
    y_bounds : (low, high)
        What the response is confined to.
    neighbours : {"replace", "add"}
        Whether neighbouring data differ in the values of one row, or by one row.

    Returns
    -------
    numpy.ndarray
        The range of each product over the box of the bounds or, for "add", its largest absolute
        value. The total, ``.sum()``, is an upper bound of the L1 sensitivity of all sums together:
        Laplace noise of scale ``sensitivity.sum() / epsilon`` on each is epsilon-private, and so is
        noise of scale ``len(sensitivity) * sensitivity / epsilon``, which splits epsilon evenly.

    Raises
    ------
    ValueError
        Bounds that are no pair, not finite or not in order; another word for `neighbours`.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.regression_sensitivity([(0, 1)], (0, 1))
    array([1., 1., 1., 1., 1.])
    >>> dp.regression_sensitivity([(5, 6)], (-1, 1))
    array([ 1., 11.,  2., 12.,  1.])
    """
    if neighbours not in _NEIGHBOURS:
        raise ValueError(f"neighbours is {neighbours!r}: write 'replace' or 'add'.")
    boxes = [(1.0, 1.0)]
    for i, bounds in enumerate(x_bounds):
        boxes.append(_checked(bounds, f"x_bounds[{i}]"))
    boxes.append(_checked(y_bounds, "y_bounds"))

    def sensitivity(i: int, j: int) -> float:
        ends = np.outer(boxes[i], boxes[j]).ravel()
        if i == j:  # a square: its two ends are never multiplied, and 0 may lie between
            low, high = boxes[i]
            ends = np.square([low, high, min(max(low, 0.0), high)])
        return float(np.abs(ends).max() if neighbours == "add" else np.ptp(ends))

    y = len(boxes) - 1
    pairs = [(i, j) for i in range(y) for j in range(max(i, 1), y)]
    return np.array([sensitivity(*pair) for pair in [*pairs, *((i, y) for i in range(y)), (y, y)]])
