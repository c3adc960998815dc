"""Measured marginals behind synthetic data: of private-pgm (`mbi`), and of OpenDP's tables.

Neither library is imported: everything is read from the objects that the user passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np

from pymc_dp import mechanisms
from pymc_dp.mechanisms import Mechanism
from pymc_dp.published.value import Published

_WHO = "from_mbi"
# Both libraries say sqrt(2) b for noise of scale b, on whole numbers too.
_NOISE: dict[str, Callable[[Any], Mechanism]] = {
    "gaussian": mechanisms.GaussianMechanism,
    "laplace": lambda sd: mechanisms.LaplaceMechanism(sd / sqrt(2)),
    "discrete gaussian": mechanisms.DiscreteGaussianMechanism,
    "geometric": lambda sd: mechanisms.GeometricMechanism(sd / sqrt(2)),
}
_FIELDS = ("query", "noisy_measurement", "stddev", "clique")


def from_mbi(
    cls: type[Published],
    measurements: Sequence[Any],
    levels: Mapping[str, int | Sequence[Any]],
    *,
    mechanism: str | Callable[[Any], Mechanism] = "gaussian",
    **described: Any,
) -> list[Any]:
    r"""Read the noisy marginals that private-pgm (`mbi`) makes synthetic data from.

    Each becomes a release of its own: a table with a dimension for each column, in the order of
    the measurement's clique, whose name is "margin age x income", and "margin age x income 2"
    where the same columns were measured again. See `LogLinear` for the model.

    Parameters
    ----------
    measurements : list of measurement
        ``mbi.LinearMeasurement(noisy_measurement, clique, stddev, query)`` or, as of older
        versions, tuples ``(Q, y, sigma, columns)``. The query must be that of all cells.
    levels : dict of str to int, or to a sequence of labels; or ``mbi.Domain``
        The columns, and how many levels each has, or which.
    mechanism : {"gaussian", "laplace", "discrete gaussian", "geometric"} or callable
        Noise of the standard deviation that the measurement states, which the objects do not
        say the law of. The scale b of "laplace", and of "geometric" on whole numbers, is
        :math:`\sigma / \sqrt 2`. Or a function of the standard deviation that returns a mechanism.
    **described
        `privacy` and `source` of each release.

    Returns
    -------
    list of Release

    Raises
    ------
    ValueError
        A column that `levels` lacks, numbers that are not as many as cells, a standard deviation
        that is not finite and positive, another query, a total of no columns, an unknown
        `mechanism`.
    TypeError
        Not a list of measurements.

    Notes
    -----
    A mechanism that chose by the data what to measure, as AIM and MST do, told something by the
    choice. That is not in the measurements, and is left out. Of a fixed list of marginals nothing
    is.

    References
    ----------
    .. [1] R. McKenna, D. Sheldon, G. Miklau (2019). Graphical-model based estimation and inference
       for differential privacy. ICML.

    Examples
    --------
    Older versions have tuples; of newer ones the list is passed in the same way.

    >>> import pymc as pm, pymc_dp as dp
    >>> levels = {"age": ["young", "old"], "job": 3, "income": 2}
    >>> y = [12.1, 30.4, 7.9, 21.0, 18.8, 11.2], [31.5, 9.0, 24.2, 25.1, 3.3, 8.7]
    >>> measured = [(None, y[0], 2.0, ("age", "job")), (None, y[1], 2.0, ("job", "income"))]
    >>> releases = dp.Release.from_mbi(measured, levels)
    >>> with pm.Model() as model:
    ...     rows = dp.LogLinear("rows", levels, [release.dims for release in releases], n=100)
    ...     for release in releases:
    ...         z = dp.PrivateObservation(release.name, rows.margin(*release.dims), release)
    >>> [(release.name, release.value.shape) for release in releases]
    [('margin age x job', (2, 3)), ('margin job x income', (3, 2))]
    """
    if not isinstance(measurements, list | tuple):
        raise TypeError(
            f"{_WHO}: a list of measurements is needed, got {type(measurements).__name__}; of a "
            f"ContingencyTable of OpenDP, write dp.Release.from_opendp(query, table)"
        )
    noise = _NOISE.get(mechanism) if isinstance(mechanism, str) else mechanism
    if not callable(noise):
        wanted = f"one of {', '.join(map(repr, _NOISE))}, or a function of the standard deviation"
        raise ValueError(f"{_WHO}: mechanism={mechanism!r}: write {wanted}")
    stated = getattr(levels, "labels_config", None) or getattr(levels, "config", levels)
    if not isinstance(stated, Mapping):
        raise TypeError(f'{_WHO}: levels={levels!r}: write {{"age": 5, "sex": ["f", "m"]}}')
    labels = {c: range(x) if isinstance(x, int | np.integer) else x for c, x in stated.items()}
    described = {"source": "Private-PGM", **described}
    releases: list[Any] = []
    for number, measurement in enumerate(measurements):
        query, values, sd, columns = _parts(number, measurement)
        name = f"margin {' x '.join(map(str, columns))}"
        value = _cells(f"{_WHO}: measurement {number}, {name}", query, values, sd, columns, labels)
        before = sum(release.dims == columns for release in releases)
        name += f" {before + 1}" if before else ""
        coords = {c: labels[c] for c in columns}
        releases.append(cls(value, noise(float(sd)), name, columns, coords, **described))
    return releases


def of_contingency_table(cls: type[Published], measure: str, table: Any, **described: Any):
    """Read the marginals of an `opendp.extras.mbi.ContingencyTable`.

    All are counts with noise on whole numbers: discrete Gaussian of scale stddev under zCDP,
    discrete Laplace of scale stddev / sqrt(2) under pure privacy (``get_std`` in its
    ``extras/mbi/_utilities``).
    """
    if not hasattr(table.marginals, "flatten"):
        why = "OpenDP < 0.16 averaged what was measured twice, and cut counts at zero"
        raise ValueError(f"from_opendp: {why}: release the table with a newer one")
    if table.thresholds:
        raise ValueError(
            f"from_opendp: the levels of {', '.join(table.thresholds)} were found in the data, by "
            f"noisy counts: state them in the query, contingency_table(keys=...)"
        )
    # OpenDP adds a level, None, for what is in none of the keys.
    levels = {
        c: ["null" if x is None else x if isinstance(x, str | int | float) else str(x) for x in k]
        for c, k in table.keys.items()
    }
    law = "discrete gaussian" if "ZeroConcentrated" in measure else "geometric"
    described.setdefault("source", "OpenDP")
    return from_mbi(cls, table.marginals.flatten(), levels, mechanism=law, **described)


def _parts(number: int, measurement: Any) -> tuple[Any, Any, Any, tuple[str, ...]]:
    """Return the query, the noisy numbers, their standard deviation and the columns."""
    found = tuple(getattr(measurement, f) for f in _FIELDS if hasattr(measurement, f))
    parts: Any = found or measurement
    if not (isinstance(parts, tuple) and len(parts) == len(_FIELDS)):
        raise TypeError(
            f"{_WHO}: measurement {number} is a {type(measurement).__name__}: it must have "
            f"{', '.join(_FIELDS)}, as mbi.LinearMeasurement, or be a tuple (Q, y, sigma, columns)"
        )
    *rest, columns = parts
    return *rest, (columns,) if isinstance(columns, str) else tuple(columns)


def _cells(
    subject: str, query: Any, values: Any, stddev: Any, columns: Sequence[str], labels: Any
) -> np.ndarray:
    """Return the noisy table of a measurement, whose parts must fit."""
    shape = tuple(len(labels.get(c, ())) for c in columns)
    # None becomes NaN.
    values, sd = np.asarray(values, dtype="float64"), np.asarray(stddev, dtype="float64")
    if not columns:
        wrong = "a total of no columns: leave it out, and state n in the model"
    elif 0 in shape:
        wrong = f"levels= lacks {columns[shape.index(0)]!r}; it has {', '.join(labels)}"
    elif sd.ndim or not 0 < sd < inf:
        wrong = f"stddev={stddev!r} must be the standard deviation of the noise, finite and > 0"
    elif values.size != prod(shape):
        cells = " x ".join(map(str, shape))
        wrong = f"it has {values.size} numbers, and levels= {cells} cells: state what was measured"
    else:
        wrong = "" if query is None else _not_of_cells(query, values.size)
    if wrong:
        raise ValueError(f"{subject}: {wrong}")
    whole = np.all(values == np.round(values))
    return values.reshape(shape).astype("int64" if whole else "float64")


def _not_of_cells(query: Any, size: int) -> str:
    """Say what is wrong with a linear query that does not give back random numbers."""
    cells = np.random.default_rng(8).uniform(1.0, 2.0, size)
    factor = SimpleNamespace(values=cells, datavector=lambda flatten=True: cells)  # as of mbi
    try:
        # A LinearOperator can be called, too.
        answer = np.ravel(query @ cells if hasattr(query, "shape") else query(factor))
        same, why = np.allclose(answer, cells, rtol=1e-5), ""
    except Exception as error:  # a user's function may raise anything
        same, why = False, f" ({error})"
    instead = "a measurement of all cells. Of a matrix M, release M @ c, c a pm.Multinomial"
    name = getattr(query, "__qualname__", type(query).__name__)
    return "" if same else f"the query {name} is not of its {size} cells{why}: pass {instead}"
