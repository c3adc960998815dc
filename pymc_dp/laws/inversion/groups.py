r"""Sums over groups of continuous records of any smooth law, each by its characteristic function.

A release :math:`z_j = b_j + w_j \sum_{i \in j} h(x_i)` plus noise has in each entry the density of
`inversion.release`, with the parameters and the size of its group. One graph is written for one
group and vectorised over all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.draws import each_draw
from pymc_dp.graphs.questions import keeps_values, known_shape, known_value, lengths, nearest_rvs
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release, recovered
from pymc_dp.laws.inversion.breakpoints import Summand, read_summand
from pymc_dp.laws.inversion.quadrature import (
    law_of_sum,
    log_density_of_sum,
    panel_counts,
    starts_at_zero,
)
from pymc_dp.laws.inversion.readable import readable_law
from pymc_dp.laws.inversion.release import (
    noise_parts,
    require_smooth,
    sums_given,
)
from pymc_dp.laws.inversion.trial import require_found, require_somewhere
from pymc_dp.laws.shown import as_released, of_weights
from pymc_dp.reading.bounds import at_start
from pymc_dp.reading.cells import factors, parameters_of_entries
from pymc_dp.reading.model import (
    Reading,
    release_mechanism,
    release_statistic,
)
from pymc_dp.reading.statistic import Statistic, read_statistic, stand_in_records

_QUANTILES = (np.arange(32) + 0.5) / 32  # of a record, at which its moments are guessed


def log_densities(law, parameters, sizes, summand, record, z, laplace, gaussian) -> TensorVariable:
    """Log densities of noisy sums over groups of these sizes, each as `log_density_of_sum`.

    Vectors with a number for each group; parameters and noise may be scalars, for all.
    """
    least = int(sizes.min()) if sizes.size else 1

    def density(record_law, n, *ones):
        return log_density_of_sum(record_law, n, least, summand, record, *ones)

    return _of_each(density, law, parameters, sizes, z, laplace, gaussian)


def _of_each(write, law, parameters, sizes, z, laplace, gaussian):
    """Return what is written for one group, vectorised over all."""
    own = [pt.scalar(dtype="float64") for _ in parameters]
    n, *noise = (pt.scalar(dtype="float64") for _ in range(4))
    _, record_law = law(*own, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    one = write(record_law, n, *(x[None] for x in noise))
    given = pt.constant(sizes.astype("float64")), z, laplace, gaussian, *parameters
    return vectorize_graph(one, dict(zip((n, *noise, *own), given, strict=True)))


@dataclass(frozen=True, eq=False)
class InvertedGroups(Integrated):
    """Sums over groups of iid records; parameters are those of the records' law in each group."""

    law: RandomVariable
    sizes: np.ndarray
    factor: np.ndarray
    constant: np.ndarray
    summand: Summand
    record: TensorVariable
    names: tuple[str, ...]
    public: tuple[Any, Any]  # the factors and constants that are not in results, raveled
    elementwise = True
    by_entry = True

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"inverted group": entries}

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        most = int(self.sizes.max())
        like = pt.broadcast_arrays(*parameters, pt.zeros(self.sizes.shape))[-1]
        rng, x = self.law(
            *(p[..., None] for p in parameters),
            size=(*like.shape, most),
            rng=rng,
            return_next_rng=True,
        )
        flat = clone_replace(self.summand.h, {self.record: x.ravel()}, rebuild_strict=False)
        mine = np.arange(most) < self.sizes[..., None]
        sums = pt.switch(mine, pt.broadcast_to(flat, (x.size,)).reshape(x.shape), 0.0).sum(axis=-1)
        return rng, self.factor * sums + self.constant

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`: by quantiles of the records' law."""
        own = (p[..., None] for p in parameters)
        _, law = self.law(*own, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
        try:
            x = pm.icdf(law, _QUANTILES)
        except NotImplementedError:
            raise Declined from None
        # Parameters without a law have no mean; a check would raise an error.
        checks = (v for v in ancestors([x]) if v.owner and isinstance(v.owner.op, CheckAndRaise))
        [x] = graph_replace([x], {v: v.owner.inputs[0] for v in checks}, strict=False)
        x = pt.switch(x[..., -1:] >= x[..., :1], x, np.nan)
        flat = graph_replace(self.summand.h, {self.record: x.ravel()}, strict=False)
        h = pt.broadcast_to(flat, (x.size,)).reshape(x.shape)
        scale = self.sizes * self.factor
        return self.constant + scale * h.mean(axis=-1), scale * self.factor * h.var(axis=-1)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        shape, [filled] = self.sizes.shape, np.nonzero(self.sizes.ravel() > 0)
        sizes, scale, noisy, given = self._standardised(value, mechanism, parameters)
        logp = log_densities(self.law, given, sizes, self.summand, self.record, *noisy)
        logp = logp - np.log(scale)
        if filled.size == self.sizes.size:
            return logp.reshape(shape)
        # A density that no record enters has no place in the gradient: it may be NaN.
        alone = mechanism.logp(value, self.constant).ravel()
        return pt.set_subtensor(alone[filled], logp).reshape(shape)

    def _standardised(self, value, mechanism, parameters):
        """Return what the groups that are not empty have; of sums whose factor is 1.

        Sizes and the size of the factors, the release and its noise, the parameters of a record.
        """
        shape, [filled] = self.sizes.shape, np.nonzero(self.sizes.ravel() > 0)
        sizes, factor, constant = (
            x.ravel()[filled].astype("float64") for x in (self.sizes, self.factor, self.constant)
        )
        own_value, b, sd, *given = (
            pt.broadcast_to(p.astype("float64"), shape).ravel()[filled]
            for p in (value, *noise_parts(mechanism), *parameters)
        )
        scale = abs(factor)
        return sizes, scale, ((own_value - constant) / factor, b / scale, sd / scale), given


@recovered.register
def _recover_groups(law: InvertedGroups, rv, value, posterior, rng):
    mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
    sizes, _, noisy, given = law._standardised(value, mechanism, parameters)
    counts = panel_counts(int(sizes.min(initial=1)))[-1:]

    def nodes(record_law, n, *ones):
        return law_of_sum(record_law, n, counts, law.summand, law.record, *ones)

    laws = _of_each(nodes, law.law, given, sizes, *noisy)
    [filled] = np.nonzero(law.sizes.ravel() > 0)
    found = []
    for of_all in each_draw(posterior, [*laws, *noisy]):
        drawn = law.constant.ravel().copy()
        for j, n, *of_one, z, b, sd in zip(filled, sizes, *of_all, strict=True):
            noise = (x.reshape(1) for x in (z, b, sd))
            drawn[j] += law.factor.ravel()[j] * sums_given(law.names[0], rng, *of_one, n, *noise)[0]
        times, added = map(np.asarray, law.public)
        found.append(((drawn - added) / times).reshape(law.sizes.shape))
    return in_results(posterior, law.names[0], np.array(found))


def released_by_group(
    rv: TensorVariable, part: TensorVariable, release: Statistic, several: bool
) -> TensorVariable:
    """Build the release of sums over groups of a function of each record, which are integrated out.

    `several` says whether there are others of these records, which decides on the name.
    """
    op, weights = readable_law(rv), release.weights
    mechanism, shape = release_mechanism(release.rv), lengths(release.rv)
    with about(f"the release {release.rv.name!r}"):
        noise_parts(mechanism)
    sizes = release.sizes
    factor, parameters = factors(release, rv), rv.owner.op.dist_params(rv.owner)
    own = [p.astype("float64") for p in parameters_of_entries(release, rv, parameters)]
    scalars = [p[0] if p.type.ndim else p for p in own]
    own = [p.reshape(shape) if p.type.ndim else pt.broadcast_to(p, shape) for p in own]
    _, law = op(*scalars, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    sizes, factor, offset = (x.reshape(shape) for x in (sizes, factor, release.offset))
    record = pt.vector("record", dtype="float64")
    positive = starts_at_zero(law, rv.name)
    with about(f"the release {release.rv.name!r}"):
        summand = summand_of(part, rv, math.prod(lengths(rv)), record, positive)
        require_smooth(rv, mechanism, summand, record)
        _require_found(rv.name, op, sizes, factor, own, summand, record, mechanism)
    shown = as_released(release.rv, sizes.size)
    if part is rv:
        of = f"{rv.name}_{release.rv.name}" if several else str(rv.name)
        shown = of_weights(of, rv.owner.op, release.rv, weights, release.offset)
    own_names = (shown.name,), shown.public
    of_groups = InvertedGroups(op, sizes, factor, offset, summand, record, *own_names)
    return integrated_release(of_groups, mechanism, *own)


def _require_found(name, op, sizes, factor, own, summand, record, mechanism) -> None:
    """Try the smallest of the groups, under the narrowest noise of all."""
    [filled] = np.nonzero(sizes.ravel())
    if not filled.size:
        return
    j = filled[np.argmin(sizes.ravel()[filled])]
    noise = [
        pt.broadcast_to(part / abs(factor), sizes.shape).ravel()[filled].min(keepdims=True)
        for part in noise_parts(mechanism)
    ]
    n = int(sizes.ravel()[j])

    def found_at(times):
        parameters = at_start([p.ravel()[j] for p in own], times)
        _, law = op(*parameters, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
        require_found(name, law, n, summand, record, *at_start(noise))

    require_somewhere(found_at)


def part_of(reading: Reading, mine: list[TensorVariable], rv: TensorVariable) -> TensorVariable:
    """Return the function of each record that all releases are linear in."""
    above = ancestors([release_statistic(r) for r in mine], blockers=[rv])
    for found in (rv, *above):  # sums of the records themselves first
        elementwise = found.owner is not None and isinstance(found.owner.op, Elemwise)
        if not (found is rv or elementwise):
            continue
        if found.type.ndim != rv.type.ndim or known_shape(found) != known_shape(rv):
            continue
        if not _of_one_record(found, rv):
            continue
        try:
            for release in mine:
                read_statistic(reading, release, rv, (), found)
        except Declined:
            continue
        return found
    raise Declined(
        f"by inversion by group: the releases of {rv.name!r} are no sums of one function of a "
        f"single record: write it once for all records, c = pt.clip(x, a, b), and release sums of c"
    )


def _of_one_record(graph: TensorVariable, rv: TensorVariable) -> bool:
    """Whether entry i of a graph is the same function of entry i of a variable for all i."""
    if graph is rv:
        return True
    node = graph.owner
    if not nearest_rvs([graph]):
        return all(graph.type.broadcastable) and known_value(graph, fixed=True) is not None
    if node is None or not (isinstance(node.op, Elemwise) or keeps_values(node.op, node.inputs[0])):
        return False
    return all(_of_one_record(i, rv) for i in node.inputs)


def summand_of(part, rv, n: int, record: TensorVariable, positive: bool) -> Summand:
    """Read a function of each of n records `rv` as one of a vector of records."""
    alike = stand_in_records(n)
    stand_in = alike.type()  # a clone would copy what is drawn
    column = stand_in.dimshuffle(0, *["x"] * (rv.type.ndim - 1))
    [of_column] = clone_replace([part], {rv: column}, rebuild_strict=False)
    vector = of_column.dimshuffle(0) if rv.type.ndim > 1 else of_column
    [entry] = graph_replace([vector.sum()], {stand_in: alike}, strict=False)
    found = read_summand(entry, alike, n, record, column=0, positive=positive)
    # What is added is added for each record, of which there may be another number.
    return replace(found, h=found.h + found.offset / n, offset=pt.zeros(()))
