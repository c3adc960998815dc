r"""Linear functions of Normal records, with any weights.

Entries :math:`A x` that use no record twice are independent; those that share records are jointly
Normal, with covariance :math:`A \operatorname{diag}(\sigma^2) A'`.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws.families.closed import law, possible
from pymc_dp.laws.moments.normal import normal_release
from pymc_dp.laws.sums import FAMILIES, Entries, Family, Placed
from pymc_dp.reading.cells import at_records, cells_of, combined
from pymc_dp.reading.statistic import is_shared

_MOST_JOINT_ENTRIES = 2000  # of one release, whose covariance matrix is dense


@FAMILIES.register(order=20)
class Normal(Family):
    """Sums of Normal records."""

    takes = (ptr.NormalRV,)
    joint = True

    def __init__(self, sums):
        if not all(statistic.is_linear for statistic in sums.statistics):
            raise Declined
        self.is_joint = is_shared(*sums.statistics)
        if self.is_joint and len(sums.statistics) > 1:
            raise Declined(
                f"the records {sums.rv.name!r} are in several releases ({sums.releases}), which "
                f"use the same records: write them as one release of pt.concatenate([...])"
            )
        if self.is_joint and sums.beside:
            raise Declined(
                f"the releases use entries of {sums.rv.name!r} more than once, beside other "
                f"records: write two releases",
                near=1,
            )
        super().__init__(sums)

    def law_of(self, statistic):
        """See `Family.law_of`."""
        if self.is_joint:
            return None
        index, (mu, sigma) = statistic.index, self.sums.parameters
        empty = statistic.sizes == 0
        sums = statistic.weights @ sparse.diags_array(1.0 * statistic.times)
        mean = combined(sums, mu, index)
        squares = sparse.csr_array(sums.multiply(statistic.weights))
        variance = possible(index, sigma, combined(squares, sigma**2, index))
        # An empty sum has variance 0, where the density has no gradient: use 1.
        of_sum = law(self.sums.law, mean, pt.sqrt(variance + empty))
        return Entries(of_sum, np.ones(empty.size), statistic.offset, empty)

    def statistics(self, change):
        """See `Family.statistics`."""
        if not self.is_joint:
            return super().statistics(change)
        [statistic] = self.sums.statistics
        mean, factor = self._joint()
        name, times, added = self.shown(statistic)
        standard = pm.Normal.dist(0.0, 1.0, shape=factor.type.shape[1])
        change.added[f"{name}_standard"] = (standard, None)
        value, shape = mean + factor @ standard, known_shape(statistic.rv)
        change.deterministics[name] = ((value - added) / times).reshape(shape)
        change.entries_of[name] = statistic.rv
        return {statistic.rv: Placed(np.arange(statistic.offset.size), value)}

    def marginal(self, statistic, change):
        """See `Family.marginal`."""
        if not self.is_joint:
            return super().marginal(statistic, change)
        shown = self.shown(statistic)
        return normal_release(change, statistic.rv, *self._joint(), shown.name, shown.public)

    def _joint(self) -> tuple[TensorVariable, TensorVariable]:
        """Return the mean and a factor of the covariance matrix of the entries of the release."""
        [statistic] = self.sums.statistics
        weights, index, (mu, sigma) = statistic.weights, statistic.index, self.sums.parameters
        sums = weights @ sparse.diags_array(1.0 * statistic.times)
        entries = weights.shape[0]
        if entries > _MOST_JOINT_ENTRIES:
            raise Declined(
                f"the release {statistic.rv.name!r} has {entries} entries that use the same "
                f"records: their covariance matrix is too large"
            )
        mean = combined(sums, mu, index) + statistic.offset
        mean = possible(index, sigma, mean)
        cells = cells_of(index, [sigma])
        spread = at_records(index, sigma, cells.first)
        columns = []
        for c in range(cells.sizes.size):
            own = np.flatnonzero(cells.of == c)
            values, vectors = np.linalg.eigh((sums[:, own] @ weights[:, own].T).toarray())
            kept = values > 1e-12 * values.max(initial=0.0)
            root = pt.constant(vectors[:, kept] * np.sqrt(values[kept]))
            columns.append(root * (spread[c] if spread.type.ndim else spread))
        return mean, pt.concatenate(columns, axis=1)
