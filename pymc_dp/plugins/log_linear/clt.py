"""Tables of a log-linear model, Normal by the central limit theorem: ``approximate="clt"``.

The cell probabilities become variables, for NUTS: for every clique a matrix with a row for each
value of its separator. The tables are integrated out of all released margins together, see
`normal`. Release after release has its density given those before it, so that the densities of the
prefixes cancel in their sum, and one of them is left to be computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import Transform
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.laws.integrated import Integrated, integrated_release
from pymc_dp.laws.kernel_call import KernelCall, doubles
from pymc_dp.laws.sum_law import APPROXIMATIONS, Approximation, Change
from pymc_dp.mechanisms.base import has_continuous_rates, has_kink
from pymc_dp.plugins.log_linear.cliques import JunctionTree
from pymc_dp.plugins.log_linear.layout import fit_margins
from pymc_dp.plugins.log_linear.normal import (
    Cells,
    cells_of_tree,
    joint_chances,
    log_normal,
    mean_covariance,
)
from pymc_dp.plugins.log_linear.step import read_margins
from pymc_dp.plugins.log_linear.tables import (
    CliqueTablesRV,
    cell_probabilities,
    number_of_rows,
)
from pymc_dp.plugins.log_linear.weights import WeightedTablesRV
from pymc_dp.reading.model import Reading, mechanism_of
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.nuts import nuts_plan

_MOST = 1_500  # cells of cliques, and released ones: a gradient takes their number to the third


class LogNormal(KernelCall):
    """`log_normal` of rows, z, n and variances; the gradient is the other outputs."""

    __props__ = ()

    def make_node(self, rows, z, n, variances, *cells):
        """Apply to vectors, a number and the arrays of `Cells`."""
        numbers = doubles(rows, z, n, variances)
        types = [pt.dscalar, *(v.type for v in (numbers[0], numbers[1], numbers[1]))]
        return Apply(self, [*numbers, *map(pt.as_tensor, cells)], [t() for t in types])

    def call(self):
        """See `KernelCall.call`."""

        def log_normal_of(rows, z, n, variances, *cells):
            numbers = log_normal(rows, z, n.item(), variances, Cells(*cells))
            return np.asarray(numbers[0]), *numbers[1:]

        return log_normal_of

    def connection_pattern(self, node):
        """Connect rows, z and variances."""
        return [[i in (0, 1, 3)] * 4 for i in range(len(node.inputs))]

    def pullback(self, inputs, outputs, cotangents):
        """Return the gradient of the density; there are no second derivatives."""
        first, *others = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in others):
            raise NotImplementedError("the Normal law of margins has no second derivatives")
        by_rows, by_z, by_variances = (first * slope for slope in outputs[1:])
        rest = [disconnected_type() for _ in inputs[4:]]
        return [by_rows, by_z, disconnected_type(), by_variances, *rest]


class Moments(KernelCall):
    """Mean and covariance of the indicators of released cells; draws need no gradient."""

    __props__ = ("count",)

    def __init__(self, count: int):
        self.count = count

    def make_node(self, rows, *cells):
        """Apply to rows and the arrays of `Cells`."""
        inputs = [*doubles(rows), *map(pt.as_tensor, cells)]
        return Apply(self, inputs, [pt.dvector(), pt.dmatrix()])

    def call(self):
        """See `KernelCall.call`."""
        count = self.count

        def moments(rows, *cells):
            arrays = Cells(*cells)
            return mean_covariance(joint_chances(rows, arrays), arrays, count)

        return moments


@dataclass(frozen=True, eq=False)
class NoisyMargin(Integrated):
    """A margin, given those released before it.

    Parameters are the rows, the earlier releases in a row, the variances of their noise, and those
    of its own.

    Attributes
    ----------
    cells : those of the margins up to this one, and up to the one before.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    n: int
    cells: tuple[Cells, Cells]

    def draw(self, rng, rows, earlier, noise, own_noise):
        """See `Integrated.draw`."""
        count, size = int(self.cells[0].target.max()) + 1, int(np.prod(self.shape))
        mean, covariance = (self.n * m for m in Moments(count)(rows, *self.cells[0]))
        b = count - size
        gain = pt.linalg.solve(covariance[:b, :b] + pt.diag(noise), covariance[:b, b:]).T
        mean = mean[b:] + gain @ (earlier - mean[:b])
        values, vectors = pt.linalg.eigh(covariance[b:, b:] - gain @ covariance[:b, b:])
        rng, e = pt.random.normal(size=(size,), rng=rng, return_next_rng=True)
        drawn = mean + vectors @ (pt.sqrt(pt.maximum(values, 0.0)) * e)  # the total does not vary
        return rng, drawn.reshape(self.shape)

    def logp(self, value, mechanism, rows, earlier, noise, own_noise):
        """See `Integrated.logp`."""
        own, before = self.cells
        z, variances = pt.concatenate([earlier, value.ravel()]), pt.concatenate([noise, own_noise])
        logp = LogNormal()(rows, z, float(self.n), variances, *own)[0]
        if not before.target.size:
            return logp
        return logp - LogNormal()(rows, earlier, float(self.n), noise, *before)[0]

    def cost(self, entries):
        """See `Integrated.cost`."""
        return {"jointly Normal": entries}


class AgainstLargest(Transform):
    """Logs of probabilities against one of them, the last in `order`: a large one varies little."""

    name = "log_ratio"
    ndim_supp = 1

    def __init__(self, order: np.ndarray):
        self.groups, self.order = np.arange(len(order))[:, None], order

    def forward(self, value, *inputs):
        """Return the logs of ratios."""
        logs = pt.log(value[..., self.groups, self.order])
        return logs[..., :-1] - logs[..., -1:]

    def backward(self, value, *inputs):
        """Return the probabilities."""
        p = pt.exp(self._logs(value))
        return p[..., self.groups, np.argsort(self.order, axis=-1)]

    def log_jac_det(self, value, *inputs):
        """Log of the determinant of `backward`'s derivatives: the product of the probabilities."""
        return self._logs(value).sum(axis=-1)

    def _logs(self, value):
        logs = pt.concatenate([value, pt.zeros_like(value[..., :1])], axis=-1)
        return pt.special.log_softmax(logs, axis=-1)


class NormalTables(Approximation):
    """Tables of `LogLinear`, Normal with the mean and the covariance of the exact law."""

    of_records = False

    def check(self, moments):
        """See `Approximation.check`."""

    def variables(self, reading):
        """See `Approximation.variables`."""
        return [rv for rv in reading.model.free_RVs if isinstance(rv.owner.op, CliqueTablesRV)]

    def held(self, reading, group, moments):
        """See `Approximation.held`."""
        return {}

    def change(self, reading, group, to, moments):
        """See `Approximation.change`."""
        [rv] = group.records
        if to == "statistics" or moments is not None:
            wrong = "to='statistics'" if moments is None else "moments="
            raise Declined(
                f"{wrong} is for rows of several columns, and the tables {rv.name!r} have none: "
                f"leave it out"
            )
        return _marginal(reading, rv)


APPROXIMATIONS.add("clt", NormalTables())


def _marginal(reading: Reading, rv: TensorVariable) -> Change:
    released = read_margins(reading, rv)
    tree: JunctionTree = rv.owner.op.tree
    if (varying := number_of_rows(rv)) is not None:
        raise Declined(
            f"{rv.name!r} has a random number of rows, {varying.name!r}: approximate='clt' takes a "
            f"public one. Leave approximate= out, or write n= with a number"
        )
    if isinstance(rv.owner.op, WeightedTablesRV):
        raise Declined(
            f"{rv.name!r} has weights=: approximate='clt' is for those of the Dirichlet law. Leave "
            f"approximate= out"
        )
    n, total = (np.asarray(known_value(p)) for p in rv.owner.op.dist_params(rv.owner))
    margins = [margin.columns for _, margin in released]
    most = max(sum(map(tree.size, tree.cliques)), sum(map(tree.size, margins)))
    if most > _MOST:
        raise Declined(
            f"{rv.name!r} has {most:,} cells of cliques or released ones, more than {_MOST:,}: "
            f"leave approximate= out, the exact route takes time linear in their number"
        )
    change, variances = Change(), []
    for release, margin in released:
        mechanism = mechanism_of(release)
        if mechanism.rates is None or not has_continuous_rates(mechanism):
            raise Declined(
                f"the release {release.name!r} is not Normal under {type(mechanism).__name__}: "
                f"GaussianMechanism and LaplaceMechanism are supported. Leave approximate= out"
            )
        lam, tau = mechanism.rates
        variance = pt.broadcast_to(1.0 / tau, margin.shape).ravel()
        if has_kink(mechanism):  # Normal given variances of its own
            scale = pt.broadcast_to(1.0 / lam, margin.shape).ravel()
            variance = pm.Exponential.dist(scale=2 * scale**2, shape=(tree.size(margin.columns),))
            transform = pm.distributions.transforms.log
            change.added[f"{release.name}_noise_variance"] = variance, transform
        variances.append(variance)
    rows = _rows(reading, rv, tree, float(total), released, change)
    earlier = noise = pt.zeros(0)
    for k, (release, margin) in enumerate(released, 1):
        cells = cells_of_tree(tree, margins[:k]), cells_of_tree(tree, margins[: k - 1])
        law = NoisyMargin((rv.name,), margin.shape, int(n), cells)
        inputs = rows, earlier, noise, variances[k - 1]
        change.replaced[release] = integrated_release(law, mechanism_of(release), *inputs)
        earlier = pt.concatenate([earlier, release.ravel()])
        noise = pt.concatenate([noise, variances[k - 1]])
    return change


def _rows(reading, rv, tree: JunctionTree, total: float, released, change: Change):
    """Add the probabilities of every clique's cells given its separator; return them in a row."""
    published = [known_value(reading.model.rvs_to_values[release]) for release, _ in released]
    known = {m.columns: z for (_, m), z in zip(released, published, strict=True) if z is not None}
    rows: list[TensorVariable] = []
    above: list[TensorVariable] = []
    fitted = fit_margins(tree, known)
    for i, (clique, separator) in enumerate(zip(tree.cliques, tree.separators, strict=True)):
        groups = tree.cells_of(clique, separator)
        place = np.argsort(groups, kind="stable")  # the cells, group by group
        shape = (tree.size(separator), groups.size // tree.size(separator))
        weights: TensorVariable = pt.ones(shape)
        if shape[1] > 1:
            a = np.full(shape, total / groups.size)
            weights = pm.Dirichlet.dist(a=a, shape=shape)
            transform = AgainstLargest(np.argsort(fitted[i][place].reshape(shape), axis=-1))
            change.added[f"{rv.name}_{'_'.join(clique)}"] = weights, transform
        rows.append(weights.ravel()[np.argsort(place)])
        of_value = pt.ones(1)
        if separator:
            parent = tree.parents[i]
            held = tree.cells_of(tree.cliques[parent], separator)
            of_value = pt.constant(np.eye(shape[0])[held]).T @ above[parent]
        above.append(rows[i] * of_value[groups])
    change.deterministics[cell_probabilities(rv.name)] = pt.concatenate(above)
    return pt.concatenate(rows)


def _plan(reading: Reading, moments: Any) -> Plan:
    if not NormalTables().variables(reading):
        raise Declined("the model has no tables of dp.LogLinear", near=-1)
    marginal = collapsed(reading, "marginal", "clt", moments)
    name = "NUTS on cell probabilities, by the central limit theorem"
    return nuts_plan(reading, marginal, name, correlated=True)


ROUTES.add(
    Route("NUTS on cell probabilities, by the central limit theorem", "marginal", _plan,
          approximate="clt")
)  # fmt: skip
