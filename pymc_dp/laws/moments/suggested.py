"""Releases of sums over rows as numbers: which sample they suggest, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.laws.mean_variance import noise_variance
from pymc_dp.laws.moments.sums import (
    column_products,
    nearest_sample,
    sample_sums,
)
from pymc_dp.mechanisms.base import Mechanism, has_continuous_rates

_IMPOSSIBLE = 10.0  # standard deviations of the noise


def observed_noise(
    model: pm.Model, rv: TensorVariable, mechanism: Mechanism
) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the published values of a release, and the variances of noise with a density."""
    if rv not in model.observed_RVs or not has_continuous_rates(mechanism):
        return None
    value = model.rvs_to_values[rv].astype("float64")
    variance = pt.broadcast_to(noise_variance(mechanism), value.shape)
    return value.ravel(), variance.ravel()


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
