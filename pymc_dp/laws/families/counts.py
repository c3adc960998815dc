r"""Counts that differ by public groups or covariates, grouped in cells of like records.

Records of one cell have the same parameters, and the same weights in all releases. The sums over
the cells, :math:`N_k`, are independent, binomial or Poisson, and a linear release is a function of
them, whatever the number of records: :math:`X'y = \sum_k x_k N_k` for the distinct rows of X.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.values import known_value
from pymc_dp.laws.count_sums import noise_of
from pymc_dp.laws.counts.binomial_sums import SumsOfBinomials
from pymc_dp.laws.counts.listed import ListedCounts
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.one_value import Law, require_multiples
from pymc_dp.laws.sum_law import groups_in_words
from pymc_dp.laws.sums import FAMILIES, Family, Placed
from pymc_dp.reading.cells import at_records, cells_of, multiplied
from pymc_dp.reading.model import mechanism_of
from pymc_dp.reading.statistic import Statistic, is_shared

_MOST_LATENT_CELLS = 200  # counts that are latent variables
_MOST_LISTED_STATES = 4096  # values of the counts of all cells together, summed one by one
_MOST_SUMMED_CELLS = 1_000_000  # counts in the sums of a release: seconds for a gradient
_MOST_TRIALS_OF_SUM = 1e10


@FAMILIES.register(order=50)
class Counts(Family):
    """Linear releases of Bernoulli, Binomial or Poisson records, by cells.

    Attributes
    ----------
    sizes : the number of records in each cell.
    law : the law of the sum over each cell; parameters are vectors.
    weights : for each release, a matrix of the weights of the cells in its entries.
    """

    takes = (ptr.BernoulliRV, ptr.BinomialRV, ptr.PoissonRV)
    joint = True

    def __init__(self, sums):
        super().__init__(sums)
        parameters, statistics = sums.parameters, sums.statistics
        cells = cells_of(statistics[0].index, parameters, *(s.weights for s in statistics))
        sizes = np.bincount(cells.of, statistics[0].times).astype("int64")
        weights = sparse.vstack([s.weights[:, cells.first] for s in statistics])
        [used] = np.nonzero(np.diff(sparse.csc_array(weights).indptr))
        first, self.sizes = cells.first[used], sizes[used]
        cell_parameters = (at_records(statistics[0].index, p, first) for p in parameters)
        op, numbers = sum_of(sums.law, self.sizes, *cell_parameters)
        vectors = tuple(pt.broadcast_to(p, (self.sizes.size,)) for p in numbers)
        self.law = Law(op, vectors)
        self.weights = {s.rv: sparse.csr_array(s.weights[:, first]) for s in statistics}
        self.is_separate = self._is_separate()
        if not self.is_shorter:
            if sums.beside or is_shared(*statistics):
                raise Declined  # there is no law of sums over the single records
            for statistic in statistics:
                self._integrated(statistic)  # declined where there is no marginal

    def _is_separate(self) -> bool:
        """Whether each cell is in one entry only, and all cells of an entry have equal weights."""
        try:
            _ = [statistic.factors(self.rv) for statistic in self.sums.statistics]
        except Declined:
            return False
        return not is_shared(*self.sums.statistics)

    @property
    def is_shorter(self) -> bool:
        """Whether there are fewer cells than records."""
        return self.sizes.size < self.sizes.sum()

    @property
    def latent(self) -> str:
        """Name of the counts of the cells."""
        return f"{self.rv.name}_count"

    @property
    def trials(self) -> np.ndarray:
        """The binomial trials of each cell."""
        if isinstance(self.law.op, ptr.PoissonRV):
            raise Declined(
                f"the Poisson records {self.rv.name!r} have no marginal where an entry weighs them "
                f"unequally, or shares them with another entry. Use to='statistics'"
            )
        known = known_value(self.law.parameters[0], fixed=True)
        if known is None:
            raise Declined(f"the numbers of trials of {self.rv.name!r} are not known")
        return known.astype("float64")

    def describe(self, statistic):
        """See `Family.describe`."""
        name = self.rv.name
        if self.is_separate:
            return groups_in_words("sum", statistic.sizes[statistic.own], name)
        return f"linear in the counts of {self.sizes.size} kinds of {name}"

    def statistics(self, change):
        """Keep the counts of the cells as a latent variable."""
        cells, name = self.sizes.size, self.rv.name
        if not self.is_shorter or cells > _MOST_LATENT_CELLS:
            names = self.sums.releases.replace(", ", " and ")
            raise Declined(
                f"the {self.sizes.sum()} records of {name!r} in {names} are of {cells} kinds, by "
                f"their parameters and weights: their counts are latent variables where there are "
                f"fewer kinds than records, and at most {_MOST_LATENT_CELLS}"
            )
        for release in self.weights:
            mechanism = mechanism_of(release)
            if mechanism.rates is None:
                raise Declined(
                    f"the release {release.name!r} is made by {type(mechanism).__name__}: the "
                    f"counts of the records {name!r} by kinds have a draw under Laplace, "
                    f"geometric, Gaussian or discrete Gaussian noise"
                )
        rng = pt.random.shared_rng(seed=None)
        op, parameters = self.law
        _, latent = op(*parameters, size=(cells,), rng=rng, return_next_rng=True)
        change.added[self.latent] = (latent, None)
        return {s.rv: self._placed(s, latent) for s in self.sums.statistics}

    def _placed(self, statistic: Statistic, latent) -> Placed:
        matrix, offset = self.weights[statistic.rv], statistic.offset
        entries = np.arange(offset.size)
        if self.sums.beside:
            [entries] = np.nonzero(np.diff(matrix.indptr))
            matrix, offset = matrix[entries], offset[entries]
        if not (np.concatenate([matrix.data, offset]) % 1.0).any():  # integers stay integers
            matrix, offset = matrix.astype("int64"), offset.astype("int64")
        return Placed(entries, multiplied(matrix, latent) + offset)

    def marginal(self, statistic, change):
        """Integrate the counts out."""
        law, cells = self._integrated(statistic)
        chance, mechanism = self.law.parameters[1], mechanism_of(statistic.rv)
        return integrated_release(law, mechanism, chance[cells])

    def _integrated(self, statistic: Statistic):
        """Return the law of a release with the counts integrated out, and the cells in it."""
        if not self.is_separate:
            return self._listed(statistic)
        weights = self.weights[statistic.rv]
        name, mechanism = statistic.rv.name, mechanism_of(statistic.rv)
        factor = statistic.factors(self.rv)
        require_multiples(statistic.rv, mechanism, factor, statistic.offset)
        noise_of(mechanism)  # declined where noise is not log-concave
        largest = (weights.astype(bool) @ self.trials).max(initial=0.0)
        if weights.nnz > _MOST_SUMMED_CELLS or largest > _MOST_TRIALS_OF_SUM:
            raise Declined(
                f"the release {name!r} adds {weights.nnz} counts of different probabilities, of up "
                f"to {largest:g} trials: at most {_MOST_SUMMED_CELLS} counts are, and "
                f"{_MOST_TRIALS_OF_SUM:g} trials. Use to='statistics'"
            )
        several = f"_{name}" if len(self.weights) > 1 else ""
        law = SumsOfBinomials(
            (f"{self.rv.name}{several}_sum",),
            self.trials[weights.indices],
            np.repeat(np.arange(factor.size), np.diff(weights.indptr)),
            factor,
            statistic.offset,
            lengths(statistic.rv),
        )
        return law, weights.indices

    def _listed(self, statistic: Statistic):
        """Return the law of a release as a sum over all values of the counts of all cells."""
        states = np.prod(self.trials + 1.0)
        name = self.rv.name
        if len(self.weights) > 1:
            raise Declined(
                f"the records {name!r} are in several releases ({self.sums.releases}), which share "
                f"them. Write them as one release of a list, or use to='statistics'"
            )
        if states > _MOST_LISTED_STATES:
            raise Declined(
                f"the release {statistic.rv.name!r} shares the records {name!r} among entries, or "
                f"weighs them unequally, and the {states:g} values of their counts are too many to "
                f"list. Use to='statistics'"
            )
        weights = self.weights[statistic.rv].toarray()
        shape = lengths(statistic.rv)
        law = ListedCounts((self.latent,), self.trials, weights, statistic.offset, shape)
        return law, np.arange(self.sizes.size)
