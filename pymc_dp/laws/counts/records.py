"""The law of what was released of identically distributed records with finitely many values.

Continuous records are read likewise where only their counts between public numbers are used, as by
a private median over candidates: the value of a record is then its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.distribution import DiracDeltaRV
from pytensor import scalar as ps
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.counts.marginal import OnesAmongRecords
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.of_function import of_multiple
from pymc_dp.laws.one_value import Law, Piece, is_scaled, pieces_release
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.laws.tails import log_between
from pymc_dp.mechanisms.release import apart, release_rv
from pymc_dp.reading.checks import check_transform, leaves_gaps
from pymc_dp.reading.columns import column_parameters, only_column
from pymc_dp.reading.counts import MOST_LISTED, CountStatistic, read_counts
from pymc_dp.reading.model import mechanism_of, release_statistic, releases_of
from pymc_dp.reading.record_lengths import record_length
from pymc_dp.reading.sums import additive


@dataclass(frozen=True)
class CountedRecords(SumLaw):
    """Functions of the counts of identically distributed records with values 0, ..., cells - 1."""

    rv: TensorVariable
    name: str
    n: int
    cells: int
    parameter: TensorVariable  # the probability of a one, or the vector of probabilities
    releases: dict[TensorVariable, CountStatistic]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return law_names(read_cells.registry)

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [records] = group.records
        finite = is_registered(read_cells, records.owner.op)
        releases = releases_of(reading.model, [records])
        if not finite and not _may_be_cut(records):
            raise Declined
        check_transform(reading.model, records)
        n = record_length(records)
        if not finite:
            parameter, statistics = _between_cuts(records, n, releases)
            cells = 2 if parameter.type.ndim == 0 else parameter.type.shape[0]
            return cls(records, str(records.name), n, cells, parameter, statistics)
        j, name = only_column(records, releases)
        parameter, cells = read_cells(records.owner.op, records, j)
        statistics = {release: _read_release(release, records, n, cells, j) for release in releases}
        return cls(records, name, n, cells, parameter, statistics)

    @property
    def binary(self) -> bool:
        """Whether the parameter is the probability of a one."""
        return self.parameter.type.ndim == 0

    @property
    def latent(self) -> str:
        """Name of the count of ones, or of the vector of counts."""
        return f"{self.name}_count" if self.binary else f"{self.name}_counts"

    def describe(self, release):
        """See `SumLaw.describe`."""
        statistic = self.releases[release]
        kind = "a function of" if statistic.affine is None else "linear in"
        return f"{kind} the counts of {self.name}"

    def statistics(self):
        """Keep the counts as a latent variable."""
        change = Change()
        if self.binary:
            counts = pm.Binomial.dist(n=self.n, p=self.parameter)
        else:
            counts = pm.Multinomial.dist(n=self.n, p=self.parameter)
        change.added[self.latent] = (counts, None)
        as_float = counts.astype(pytensor.config.floatX)
        for release, count_statistic in self.releases.items():
            statistic = (
                count_statistic.of_binary(as_float, self.n)
                if self.binary
                else count_statistic.of(as_float)
            )
            change.replaced[release] = release_rv(statistic, mechanism_of(release))
        return change

    def marginal(self):
        """Integrate the counts out."""
        if len(self.releases) > 1:
            raise Declined(
                f"the records {self.name!r} are released more than once (in "
                f"{', '.join(repr(r.name) for r in self.releases)}): the releases are "
                f"dependent. Write them as one release of a list, or use to='statistics'"
            )
        [(release, statistic)] = self.releases.items()
        if not self.binary:
            kind = "cut in intervals" if self.rv.dtype.startswith("float") else "Categorical"
            raise Declined(
                f"the records {self.name!r} are {kind}: the counts of their {self.cells} "
                f"values have no marginal. Use to='statistics'"
            )
        return Change(replaced={release: self._of_one_count(release, statistic)})

    def _of_one_count(self, release, statistic: CountStatistic) -> TensorVariable:
        """Build the release of a function of the number of ones, which is integrated out."""
        mechanism = mechanism_of(release)
        affine = statistic.affine
        if affine is not None and len(affine[1]) == 1 and not mechanism.statistic_ndim:
            [[of_zero, of_one]], [constant] = affine
            factor, constant = float(of_one - of_zero), float(constant + self.n * of_zero)
            if factor and mechanism.log_concave and not leaves_gaps(release):
                law = Law(ptr.binomial, (pt.constant(self.n), self.parameter))
                if not is_scaled(mechanism, factor, constant):
                    mechanism, factor, constant = of_multiple(mechanism, factor, constant), 1.0, 0.0
                piece = Piece(self.latent, law, 0, factor, constant)
                return pieces_release([piece], release, mechanism)
        most = MOST_LISTED
        if mechanism.statistic_ndim:
            most = min(most, 50 * most // mechanism.work(math.prod(statistic.shape)))
        if self.n > most:
            raise Declined(
                f"the density of the release {release.name!r} is a sum over {self.n + 1} numbers "
                f"of ones among {self.name!r}, and at most {most} terms are summed. For a "
                f"single sum or mean under log-concave noise (the property `log_concave` of a "
                f"mechanism), few of them are. Use to='statistics'"
            )
        ones = OnesAmongRecords(statistic, self.n, (self.latent,))
        return integrated_release(ones, mechanism, self.parameter)


@ability
def read_cells(op, records: TensorVariable, j: int) -> tuple[TensorVariable, int]:
    """Return the parameter of the records in column j, and how many values (cells) they have.

    Dispatched on the op of records with values 0, ..., cells - 1. The parameter is the probability
    of a one, or the vector of the probabilities of all values.
    """
    raise Declined


@read_cells.register
def _bernoulli_cells(op: BernoulliRV, records, j):
    [p] = column_parameters(records, j)
    return p, 2


@read_cells.register
def _categorical_cells(op: CategoricalRV, records, j):
    [p] = op.dist_params(records.owner)
    if p.type.ndim > 1 and records.type.ndim > 1 and not p.type.broadcastable[-2]:
        p = p[..., j, :]
    if not all(p.type.broadcastable[:-1]):
        raise Declined(
            f"the records {records.name!r} are not identically distributed: their probabilities "
            f"have {p.type.ndim} dimensions. Write one vector p= for all of {records.name!r}, or "
            f"sample on the records"
        )
    cells = known_shape(p)[-1]
    if cells is None:
        raise Declined(
            f"the number of values of the records {records.name!r} is not known: give their "
            f"probabilities a shape="
        )
    node = p.owner
    while p.type.ndim > 1 and isinstance(getattr(node, "op", None), DimShuffle):
        p, node = node.inputs[0], node.inputs[0].owner
    return (p if p.type.ndim == 1 else p.reshape((cells,))), cells


def _may_be_cut(records: TensorVariable) -> bool:
    """Whether records are a vector of a continuous law."""
    op = records.owner.op
    plain = isinstance(op, RandomVariable) and not op.ndim_supp and not isinstance(op, DiracDeltaRV)
    return plain and records.type.ndim == 1 and records.dtype.startswith("float")


def _between_cuts(records, n: int, releases) -> tuple[TensorVariable, dict]:
    """Return the probabilities of the intervals between public numbers, and the statistics.

    Of two intervals the probability of the upper one is returned. The statistics are functions of
    the counts in the intervals.
    """
    edges = np.unique(
        [c for r in releases for c in _cuts(apart(release_statistic(r)), records, n, r)]
    )
    if not edges.size:
        raise Declined(f"no release counts the records {records.name!r} below numbers")
    ends = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
    middle = (ends[:-1] + ends[1:]) / 2.0
    statistics = {r: _read_release(r, records, n, edges.size + 1, 0, middle) for r in releases}
    parameters = column_parameters(records, 0)
    # `log_between` declines a law without a distribution function in PyMC.
    chances = pt.special.softmax(log_between(records.owner.op, parameters, edges))
    chances = pt.specify_shape(chances, (edges.size + 1,))
    return (chances[1] if edges.size == 1 else chances), statistics


_COMPARED = (ps.LT, ps.LE, ps.GT, ps.GE)


def _cuts(statistic: TensorVariable, records: TensorVariable, n: int, release) -> list[float]:
    """Return the numbers that a statistic compares records with; decline any other use of them."""
    cuts: list[float] = []
    refusal = Declined(
        f"the release {release.name!r} is not computed from how many of {records.name!r} are below "
        f"or above public numbers, such as ({records.name} < 3).sum()"
    )
    try:
        maps = additive(statistic, {records: n}).maps
    except Declined:
        raise refusal from None
    for summed in maps:
        reshaped_records: set = {records}  # the records, in any shape
        for node in toposort([summed], blockers=[records]):
            record_inputs = [i for i in node.inputs if i in reshaped_records]
            if isinstance(node.op, DimShuffle | Subtensor) and record_inputs:
                reshaped_records.update(node.outputs)
            elif record_inputs:
                numbers = [
                    known_value(i, fixed=True) for i in node.inputs if i not in reshaped_records
                ]
                compares = isinstance(getattr(node.op, "scalar_op", None), _COMPARED)
                if not compares or len(numbers) != 1 or numbers[0] is None:
                    raise refusal
                cuts += [float(c) for c in np.unique(numbers[0]) if np.isfinite(c)]
    return cuts


def _read_release(release, records, n, cells, column, codes=None) -> CountStatistic:
    statistic = apart(release_statistic(release))
    further_rvs = [rv for rv in nearest_rvs([statistic]) if rv is not records]
    if further_rvs:
        raise Declined(
            f"the release {release.name!r} mixes the records {records.name!r} with "
            f"{', '.join(repr(o.name) for o in further_rvs)}"
        )
    try:
        return read_counts(statistic, records, n, cells, column, codes)
    except Declined as error:
        raise Declined(
            f"the statistic of the release {release.name!r} is no function of the counts of "
            f"{records.name!r}: {error}"
        ) from None


LAWS.register(
    Phase.SPECIFIC,
    Takes(read_cells, single=True, selection=None),
    Takes(single=True, selection=True),
)(CountedRecords)
