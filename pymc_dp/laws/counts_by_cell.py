r"""Counts that differ by public groups or covariates, by the cells in which they are alike.

Records of one cell have the same parameters, and the same weights in all that was released. Their
sums :math:`N_k` are independent, binomial or Poisson, and a linear release is one of these,
whatever the number of records is: :math:`X'y = \sum_k x_k N_k` for the distinct rows of X.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.questions import known_shape, known_value
from pymc_dp.laws.count_sums import noise_of
from pymc_dp.laws.counts.binomial_sums import SumsOfBinomials
from pymc_dp.laws.counts.marginal import log_binomial, log_sum
from pymc_dp.laws.group_sums import read_sums, sum_of
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release, recovered
from pymc_dp.laws.one_value import Law, require_multiples
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw, groups_in_words
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.cells import LinearSums, at_records, cells_of, factors, is_shared, multiplied
from pymc_dp.reading.model import release_mechanism

_MOST_CELLS = 200  # that are latent variables
_MOST_STATES = 4096  # of all cells together, which are gone through one by one
_MOST_SUMMED = 1_000_000  # cells that are added up: seconds for a gradient
_MOST_TRIALS = 1e10  # of a sum


@SUM_LAWS.register(order=44)
@dataclass(frozen=True, eq=False)
class CountsByCell(SumLaw):
    """Bernoulli, Binomial or Poisson records, by cells.

    Attributes
    ----------
    sizes : the number of records in each cell.
    law : of the sum over each cell; parameters are vectors.
    weights : for each release, those of the cells in its entries.
    """

    rv: TensorVariable
    releases: tuple[LinearSums, ...]
    sizes: np.ndarray
    law: Law
    weights: tuple[sparse.csr_array, ...]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return ""

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [rv, *more] = group.records
        if more or not isinstance(rv.owner.op, ptr.BernoulliRV | ptr.BinomialRV | ptr.PoissonRV):
            raise Declined
        law, parameters, sums = read_sums(reading, rv)
        cells = cells_of(rv, parameters, *sums)
        weights = sparse.csc_array(sparse.vstack([s.weights[:, cells.first] for s in sums]))
        [used] = np.nonzero(np.diff(weights.indptr))
        first, sizes = cells.first[used], cells.sizes[used]
        op, numbers = sum_of(law, sizes, *(at_records(rv, p, first) for p in parameters))
        vectors = tuple(pt.broadcast_to(p, (sizes.size,)) for p in numbers)
        matrices = tuple(sparse.csr_array(s.weights[:, first]) for s in sums)
        found = cls(rv, sums, sizes, Law(op, vectors), matrices)
        if not found.is_shorter:
            if is_shared(*sums):
                raise Declined  # and of sums of the records themselves nothing is known
            _ = found.marginals  # or why there are none
        return found

    @property
    def is_shorter(self) -> bool:
        """Whether there are fewer cells than records."""
        return self.sizes.size < self.sizes.sum()

    @property
    def latent(self) -> str:
        """Name of the counts of the cells."""
        return f"{self.rv.name}_count"

    @cached_property
    def trials(self) -> np.ndarray:
        """The trials of each cell."""
        if isinstance(self.law.op, ptr.PoissonRV):
            raise Declined(
                f"the Poisson records {self.rv.name!r} have no marginal where an entry weighs them "
                f"unequally, or shares them with another. Use to='statistics'"
            )
        known = known_value(self.law.parameters[0], fixed=True)
        if known is None:
            raise Declined(f"the numbers of trials of {self.rv.name!r} are not known")
        return known.astype("float64")

    @cached_property
    def is_separate(self) -> bool:
        """Whether each cell is in one entry only, and entries weigh their cells alike."""
        try:
            _ = [factors(release, self.rv) for release in self.releases]
        except Declined:
            return False
        return not is_shared(*self.releases)

    @cached_property
    def marginals(self) -> list[tuple[LinearSums, Integrated, np.ndarray]]:
        """For each release, its law with the counts integrated out, and of which cells."""
        if not self.is_separate:
            return [self._listed()]
        return [self._summed(*pair) for pair in zip(self.releases, self.weights, strict=True)]

    def _summed(self, release: LinearSums, weights: sparse.csr_array):
        """Return the law of entries that are sums over cells."""
        name, mechanism = release.rv.name, release_mechanism(release.rv)
        factor = factors(release, self.rv)
        require_multiples(release.rv, mechanism, factor, release.offset)
        noise_of(mechanism)  # or why there is none
        largest = (weights.astype(bool) @ self.trials).max(initial=0.0)
        if weights.nnz > _MOST_SUMMED or largest > _MOST_TRIALS:
            raise Declined(
                f"the release {name!r} adds {weights.nnz} counts of different probabilities, of up "
                f"to {largest:g} trials: at most {_MOST_SUMMED} counts are, and {_MOST_TRIALS:g} "
                f"trials. Use to='statistics'"
            )
        several = f"_{name}" if len(self.releases) > 1 else ""
        shape = tuple(int(n or 0) for n in known_shape(release.rv))
        law = SumsOfBinomials(
            f"{self.rv.name}{several}_sum",
            self.trials[weights.indices],
            np.repeat(np.arange(factor.size), np.diff(weights.indptr)),
            factor,
            release.offset,
            shape,
        )
        return release, law, weights.indices

    def _listed(self):
        """Return the law of a release of all cells, whose counts are gone through one by one."""
        states = np.prod(self.trials + 1.0)
        name = self.rv.name
        if len(self.releases) > 1:
            raise Declined(
                f"the records {name!r} are in several releases "
                f"({', '.join(repr(r.rv.name) for r in self.releases)}), which share them. Write "
                f"them as one release of a list, or use to='statistics'"
            )
        [release], [weights] = self.releases, self.weights
        if states > _MOST_STATES:
            raise Declined(
                f"the release {release.rv.name!r} shares the records {name!r} among entries, or "
                f"weighs them unequally, and the {states:g} values of their counts are too many to "
                f"list. Use to='statistics'"
            )
        shape = tuple(int(n or 0) for n in known_shape(release.rv))
        law = ListedCounts(self.latent, self.trials, weights.toarray(), release.offset, shape)
        return release, law, np.arange(self.sizes.size)

    def describe(self, release):
        """See `SumLaw.describe`."""
        [found] = [r for r in self.releases if r.rv is release]
        name = self.rv.name
        if self.is_separate:
            return groups_in_words("sum", np.diff(found.weights.indptr), name)
        return f"linear in the counts of {self.sizes.size} kinds of {name}"

    def latents(self):
        """Keep the counts of the cells as a latent variable."""
        cells, name = self.sizes.size, self.rv.name
        if not self.is_shorter or cells > _MOST_CELLS:
            names = " and ".join(repr(release.rv.name) for release in self.releases)
            raise Declined(
                f"the {self.sizes.sum()} records of {name!r} in {names} are of {cells} kinds, by "
                f"their parameters and weights: their counts are latent variables where there are "
                f"fewer kinds than records, and at most {_MOST_CELLS}"
            )
        for release in self.releases:
            mechanism = release_mechanism(release.rv)
            if mechanism.rates is None:
                raise Declined(
                    f"the release {release.rv.name!r} is made by {type(mechanism).__name__}: the "
                    f"counts of the records {name!r} by kinds have a draw under Laplace, "
                    f"geometric, Gaussian or discrete Gaussian noise"
                )
        rng = pt.random.shared_rng(seed=None)
        op, parameters = self.law
        _, latent = op(*parameters, size=(cells,), rng=rng, return_next_rng=True)
        change = Change(added={self.latent: (latent, None)})
        for release, weights in zip(self.releases, self.weights, strict=True):
            matrix, offset = weights, release.offset
            if not (np.concatenate([matrix.data, offset]) % 1.0).any():  # whole, and known to be
                matrix, offset = matrix.astype("int64"), offset.astype("int64")
            statistic = (multiplied(matrix, latent) + offset).reshape(known_shape(release.rv))
            change.replaced[release.rv] = release_rv(statistic, release_mechanism(release.rv))
        return change

    def integrated(self):
        """Integrate the counts out, too."""
        change = Change()
        for release, law, cells in self.marginals:
            chance, mechanism = self.law.parameters[1], release_mechanism(release.rv)
            change.replaced[release.rv] = integrated_release(law, mechanism, chance[cells])
        return change


@dataclass(frozen=True, eq=False)
class ListedCounts(Integrated):
    """Counts of a few cells in a release, linear in them: a sum over all of their values.

    The log density is one number for all entries; the parameter is the probabilities of the cells.

    Attributes
    ----------
    name : the name in results of the counts.
    trials : of each cell.
    weights, constant : entries of the release, raveled, are ``weights @ counts + constant``.
    shape : that of the release.
    """

    name: str
    trials: np.ndarray
    weights: np.ndarray
    constant: np.ndarray
    shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return (self.name,)

    @cached_property
    def states(self) -> np.ndarray:
        """All values of the counts, one a row."""
        return np.indices(tuple(self.trials.astype(int) + 1)).reshape(self.trials.size, -1).T

    def draw(self, rng, chance):
        """See `Integrated.draw`."""
        trials = self.trials.astype("int64")
        rng, counts = pt.random.binomial(trials, chance, rng=rng, return_next_rng=True)
        return rng, (pt.dot(self.weights, counts) + self.constant).reshape(self.shape)

    def log_joint(self, value, mechanism: Mechanism, chance) -> TensorVariable:
        """Log density of the release and each state."""
        total = pt.zeros(len(self.states))
        for k, n in enumerate(self.trials):
            mass = log_binomial(pt.arange(int(n) + 1), n, chance[k])
            total += mass[self.states[:, k]]
        statistics = self.states @ self.weights.T + self.constant
        each = mechanism.logp(value, statistics.reshape(-1, *self.shape))
        return total + each.sum(axis=tuple(range(1, each.type.ndim)))

    def logp(self, value, mechanism, chance):
        """See `Integrated.logp`."""
        return log_sum(self.log_joint(value, mechanism, chance))


@recovered.register
def _recover_listed(law: ListedCounts, rv, value, posterior, rng):
    mechanism, [chance] = rv.owner.op.split(rv.owner.inputs)
    joint = per_draw(posterior, law.log_joint(value, mechanism, chance))
    # By Gumbel noise the largest is a draw.
    k = np.argmax(joint + rng.gumbel(size=joint.shape), axis=1)
    return in_results(posterior, law.name, law.states[k])
