"""Releases of sums over rows as numbers: which sample they suggest, and what is wrong with them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.mean_variance import noise_variance
from pymc_dp.laws.moments.latents import Linearised
from pymc_dp.laws.moments.sums import (
    RowLaw,
    column_products,
    linear_map,
    nearest_sample,
    sample_sums,
)
from pymc_dp.mechanisms.base import Mechanism, has_continuous_rates
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.column_sums import RowRelease
from pymc_dp.reading.columns import Rows
from pymc_dp.reading.sums.polynomials import Polynomial

_IMPOSSIBLE = 10.0  # standard deviations of the noise


@dataclass(frozen=True)
class LinearRelease:
    """An observed release of sums under Laplace or Gaussian noise.

    Attributes
    ----------
    name : the release's name.
    polynomials : each entry as a constant and multiples of sums.
    value, variance : vectors of the published values and of the variances of the noise.
    """

    name: str
    polynomials: list[Polynomial]
    value: TensorVariable
    variance: TensorVariable

    def linearised(self, law: RowLaw, at: TensorVariable, n: int) -> Linearised:
        """Return the release as a linear function of the latents; `law` has the sums at these."""
        mean, factor = law.of(self.polynomials, n)
        return Linearised(factor, self.value - mean + factor @ at, self.variance)


def linear_releases(model: pm.Model, releases: Sequence[RowRelease]) -> list[LinearRelease]:
    """Return the releases that are read as numbers; others are left out."""
    found = []
    for release in releases:
        noise = observed_noise(model, release.rv, release.mechanism)
        if noise is None or release.degree > 2:
            continue
        with contextlib.suppress(Declined):
            found.append(LinearRelease(release.name, release.linear_graphs(), *noise))
    return found


def observed_noise(
    model: pm.Model, rv: TensorVariable, mechanism: Mechanism
) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the published values of a release, and the variances of noise with a density."""
    if rv not in model.observed_RVs or not has_continuous_rates(mechanism):
        return None
    value = model.rvs_to_values[rv].astype("float64")
    variance = pt.broadcast_to(noise_variance(mechanism), value.shape)
    return value.ravel(), variance.ravel()


def suggested_sample(
    rows: Rows, known: list[LinearRelease], mean: TensorVariable, root: TensorVariable
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of a sample, and the factor of its scatter, that releases suggest.

    What the releases leave open is as the starting values of the model have it: `mean` and `root`
    are those of the law of the rows.
    """
    matrix, z, sd = _numbers(rows, known)
    start_mean, start_root = starting_values([mean, root])
    return nearest_sample(matrix, z, sd, rows.n, (start_mean, np.sqrt(rows.n - 1) * start_root))


def notes(model: pm.Model, rows: Rows) -> list[str]:
    """Say what is wrong with published values: a draw of noise counted twice, sums of no data."""
    known = linear_releases(model, rows.releases)
    if not known:
        return []
    numbers = _numbers(rows, known)
    names = [release.name for release in known for _ in release.polynomials]
    return wrong_values(*numbers, names, rows.labels, rows.n)


def wrong_values(
    matrix: np.ndarray, z: np.ndarray, sd: np.ndarray, names: list[str], labels: list[str], n: int
) -> list[str]:
    """Say what is wrong with values of n rows; see `nearest_sample`. Entries have names."""
    width, products = len(labels), column_products(len(labels))
    found = []
    for row in np.unique(matrix, axis=0):
        [mine] = np.nonzero((matrix == row).all(axis=1))
        if row.any() and mine.size > 1 and np.unique(z[mine]).size < mine.size:
            product = products[int(np.flatnonzero(row)[0])]
            found.append(
                f"{names[mine[0]]!r}: the sum of {'·'.join(labels[c] for c in product)} is "
                f"released {mine.size} times with the same value, which separate draws of noise do "
                f"not give: release each number once, of a symmetric matrix X'X the upper "
                f"triangle, (X.T @ X)[np.triu_indices(d)]"
            )
    if n > width:
        mean, factor = nearest_sample(
            matrix, z, sd, n, (np.zeros(width), np.sqrt(n) * np.eye(width))
        )
        distance = np.abs(matrix @ sample_sums(mean, factor, n) - z) / sd
        worst = int(np.argmax(distance))
        if distance[worst] > _IMPOSSIBLE:
            found.append(
                f"{names[worst]!r}: no {n} rows have these sums: entry "
                f"{worst - names.index(names[worst])} is {distance[worst]:.3g} standard deviations "
                f"of the noise from the nearest that rows have. Check the units, the order of the "
                f"entries, the number of rows and the noise"
            )
    return found


def _numbers(rows: Rows, known: list[LinearRelease]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the matrix from sums to releases, the values without constants, and the noise's sd."""
    polynomials = [p for release in known for p in release.polynomials]
    matrix, offset = map(pt.as_tensor, linear_map(polynomials, column_products(rows.width)))
    value, variance = (
        pt.concatenate([getattr(r, part) for r in known]) for part in ("value", "variance")
    )
    found = starting_values([matrix, value - offset, pt.sqrt(variance)])
    return found[0], found[1], found[2]
