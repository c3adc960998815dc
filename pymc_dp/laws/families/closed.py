"""Sums of records whose law is closed under addition, and single records of any law.

Where no record is in two entries of a release, the entries are independent. The sum in an entry has
a known law for Bernoulli, Binomial, Gamma, Exponential and negative binomial records of equal
parameters, and for Poisson records of any rates. An entry of a single record has the record's law.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.graphs.signs import is_nonnegative
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.one_value import Law
from pymc_dp.laws.sums import FAMILIES, Entries, Family, Sums
from pymc_dp.reading.cells import Index, at_records, cells_of, combined


def law(op, *parameters) -> Law:
    """Return a `Law` with parameters that may be graphs or numbers."""
    return Law(op, tuple(map(pt.as_tensor, parameters)))


@ability
def sum_of(op, n, *parameters) -> Law:
    """Return the law of the sum of n independent records with these parameters.

    Dispatched on the op of the records' law. `n` is an array or a graph, the parameters are vectors
    or scalars.
    """
    raise Declined


sum_of.register(ptr.PoissonRV, lambda op, n, rate: law(op, n * rate))
sum_of.register(ptr.NormalRV, lambda op, n, mu, sigma: law(op, n * mu, pt.sqrt(n) * sigma))
sum_of.register(ptr.BernoulliRV, lambda op, n, p: law(ptr.binomial, n, p))
sum_of.register(ptr.BinomialRV, lambda op, n, m, p: law(op, n * m, p))
sum_of.register(ptr.ExponentialRV, lambda op, n, scale: law(ptr._gamma, n * 1.0, scale))
sum_of.register(ptr.GammaRV, lambda op, n, shape, scale: law(op, n * shape, scale))
sum_of.register(ptr.NegBinomialRV, lambda op, n, m, p: law(op, n * m, p))


@FAMILIES.register(order=10)
class Closed(Family):
    """Sums of records whose law `sum_of` knows, and single records of any law."""

    takes = (object,)

    @classmethod
    def knows(cls, law):
        """See `Family.knows`."""
        return is_registered(sum_of, law)

    @staticmethod
    def named():
        """See `Family.named`."""
        elsewhere = ptr.BernoulliRV, ptr.NormalRV  # named by `CountedRecords` and `OneColumn`
        return law_names(law for law in sum_of.registry if law not in elsewhere)

    def __init__(self, sums: Sums):
        if isinstance(sums.law, ptr.NormalRV):
            raise Declined  # the family `Normal` covers these
        super().__init__(sums)

    def law_of(self, statistic):
        """See `Family.law_of`."""
        op, weights, rv = self.sums.law, statistic.weights, self.rv
        sizes, factor = statistic.sizes, statistic.factors(rv)
        empty = sizes == 0
        if isinstance(op, ptr.PoissonRV):
            [rate] = self.sums.parameters
            counts = weights.astype(bool).multiply(1.0 * statistic.times).tocsr()
            total = combined(counts, rate, statistic.index) + empty
            of_sum = law(op, possible(statistic.index, rate, total))
            return Entries(of_sum, factor, statistic.offset, empty)
        single = bool((sizes <= 1).all())
        if not single and not is_registered(sum_of, op):
            raise Declined
        parameters = statistic.parameters(rv, self.sums.parameters)
        if single:
            return Entries(law(op, *parameters), factor, statistic.offset, empty)
        n = np.maximum(sizes, 1)
        of_sum = sum_of(op, n[0] if (n == n[0]).all() else n, *parameters)
        return Entries(of_sum, factor, statistic.offset, empty)


def possible(index: Index, parameter: TensorVariable, total: TensorVariable):
    """Return a total of parameters, NaN where one is negative: the total may not show it."""
    if is_nonnegative(parameter):
        return total
    of_cells = at_records(index, parameter, cells_of(index, [parameter]).first)
    return pt.switch(pt.all(of_cells >= 0), total, np.nan)
