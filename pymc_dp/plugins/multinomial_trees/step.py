"""Exact draws of Multinomial counts that are split further by Multinomials, as a step of PyMC."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import DirichletMultinomialRV
from pytensor.tensor.random.basic import DirichletRV, MultinomialRV, PoissonRV
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import coo_array, csc_array, csr_array, diags_array, vstack
from scipy.sparse.linalg import lsmr

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.kernels.draws.log_concave import TINY
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.plugins.multinomial_trees.kernels import Noise, Rows, Weights, sweep
from pymc_dp.reading.checks import leaves_gaps
from pymc_dp.reading.model import Reading, children, release_statistic
from pymc_dp.step_methods.base import (
    PointFunction,
    point_function,
    unusable,
    value_writer,
)
from pymc_dp.step_methods.registry import STEPS, exact_draw
from pymc_dp.step_methods.table_entries import (
    WITH_TOTAL,
    check_trials,
    counts_shape,
    empty_counts,
    read_sums,
    trials_of,
)
from pymc_dp.step_methods.tables import TableStep, hold_parts, released_sums, restore_totals

_log = logging.getLogger("pymc.dp")

_FAR = 25.0  # squared distance, in units of the noise, from which a start is mended
_AGREE = 10.0  # weight of the totals of rows there, in units of that of a release
_ROUNDS = 200
_LEAST = 0.5  # a count that stands for fitted ones below it


class Split(NamedTuple):
    """A variable of the tree, and the counts that its numbers of trials are.

    Attributes
    ----------
    rv : TensorVariable
    above : the variable whose counts these are; None for the first.
    map : matrix (rows of `rv`, counts above); None for the first.
    """

    rv: TensorVariable
    above: TensorVariable | None
    map: csr_array | None


@STEPS.register(order=5)
class TreeGibbs(TableStep):
    r"""Draw Multinomial counts whose counts are split further, given noisy counts at every level.

    A state's people are split into counties, the people of each county into tracts; or those of
    each income into schooling and into hours of work. The first variable is Multinomial or Poisson.
    Each other one is Multinomial, and its numbers of trials are counts of one variable above it, or
    sums of its counts. Releases are linear in the counts.

    People move from one count to another of the same row, and along with them in all that is below:
    from a county to another, and so from a tract of the one to a tract of the other. How many is
    drawn from its conditional, by a slice [1]_. Totals are kept in every draw. Vectors of
    probabilities with a Dirichlet prior and no other child, one for each row, are integrated out,
    and drawn after the counts.

    Parameters
    ----------
    vars : list of TensorVariable
        All variables of a tree, and the probabilities that are to be integrated out.
    interweave : bool, default True
        Whether to move other parameters along.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming the variable that cannot be drawn, and why.

    References
    ----------
    .. [1] R. M. Neal (2003). Slice sampling. Annals of Statistics 31, 705-767.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     county = pm.Multinomial("county", 100, [0.5, 0.5])
    ...     tract = pm.Multinomial("tract", county, [0.2, 0.3, 0.5])
    ...     noise = dp.DiscreteGaussianMechanism(3.0)
    ...     dp.PrivateObservation("z", tract, noise, observed=[[12, 20, 33], [5, 9, 18]])
    ...     step = dp.TreeGibbs([county, tract], rng=1)
    z
    >>> point, _ = step.step(model.initial_point())
    >>> bool((point["tract"].sum(1) == point["county"]).all())
    True
    """

    name = "dp_tree"
    _begins = False

    @classmethod
    def claims(cls, reading, left):
        """Claim Multinomial counts that others split, with their conjugate probabilities."""
        claimed: list[TensorVariable] = []
        for rv in left:
            drawn = None if rv in claimed else exact_draw(reading, rv)
            if drawn is not None and drawn[0] is cls:
                rvs = drawn[1]
                rvs += tuple(p for v in rvs if (p := conjugate(reading, v)) is not None)
                claimed += rvs if {*rvs} <= {*left} else ()
        return [claimed]

    @classmethod
    def draws_exactly(cls, reading, rv):
        """See `registry.exact_draw`."""
        is_split = isinstance(rv.owner.op, WITH_TOTAL | PoissonRV) and any(
            isinstance(getattr(c.owner, "op", None), WITH_TOTAL) for c in children(reading, rv)
        )
        if not is_split and not (isinstance(rv.owner.op, WITH_TOTAL) and trials_of(rv)):
            return ()
        read_entries(reading, rv)
        return tuple(split.rv for split in read_tree(reading, rv))

    def _groups(self, reading):
        groups: list[tuple[TensorVariable, ...]] = []
        for rv in self.model_rvs:
            if isinstance(rv.owner.op, DirichletRV) or any(rv in group for group in groups):
                continue
            try:
                groups.append(tuple(s.rv for s in read_tree(reading, rv)))
                read_entries(reading, rv)
            except Declined as why:
                raise ValueError(
                    f"TreeGibbs cannot update {rv.name!r}: {why}. If that has changed since its "
                    f"release was declared, write dp.sample(), which chooses again"
                ) from None
            if missing := [v.name for v in groups[-1] if v not in self.model_rvs]:
                raise ValueError(f"TreeGibbs cannot update {rv.name!r} without {missing[0]!r}")
        return groups

    def _read(self, reading, rvs, point):
        splits = read_tree(reading, rvs[0])
        releases = read_entries(reading, rvs[0])[0]
        self._hold_whole(releases)
        hold_parts(self, rvs, releases)
        integrated = [p for v in rvs if (p := conjugate(reading, v)) in self.model_rvs]
        return make_tree(reading, splits, integrated)

    def setup_chain(self, rng, tune, draws):
        """Begin a chain; counts that are far from what was released are brought near to it."""
        super().setup_chain(rng, tune, draws)
        self._begins = tune > 0

    def step(self, point):
        """Draw every tree once, and move the parameters along."""
        if self._begins:
            for tree in self._updates:
                point = {**point, **tree.near_releases(point)}
            self._begins = False
        return super().step(point)


class Tree(NamedTuple):
    """The counts of a tree, and how their law and releases are read from the point.

    Attributes
    ----------
    names, shapes : of the variables, each after the one above it.
    above : the number of the variable above each, and the map from its counts to totals.
    rows : Rows
    sums : the coefficients of all counts in the totals of rows below, and in what was released.
    read : a `PointFunction`; returns z, lam and tau of all sums, the total of each first row, and
        of each variable its probabilities, or parameters of their Dirichlet law.
    integrated : whether probabilities of each variable are integrated out.
    draws : for each variable, the name and the writer of those that are drawn afterwards.
    """

    names: list[str]
    shapes: list[tuple[int, ...]]
    above: list[tuple[int, csr_array] | None]
    rows: Rows
    sums: csr_array
    read: PointFunction
    integrated: list[bool]
    draws: list[tuple[str, Callable] | None]

    def near_releases(self, point) -> dict[str, np.ndarray]:
        """Return counts by least squares, if those of the point are far from the releases."""
        released, totals, *theta = self.read(point)
        y = np.concatenate([np.ravel(point[name]) for name in self.names]).astype(float)
        counts, number = y.size, self.rows.alone.size
        z, lam, tau = released
        sharp = np.sqrt(0.5 * lam**2 + tau)
        above, sums = self.sums[:number], self.sums[number:]
        if not np.mean((sharp * (z - sums @ y)) ** 2) > _FAR:
            return {}
        row = np.repeat(np.arange(number), np.diff(self.rows.first))
        own = coo_array((np.ones(counts), (row, np.arange(counts))), (number, counts))
        agree = diags_array((above.sum(axis=1) > 0) * np.median(sharp) * _AGREE) @ (own - above)
        aims = np.append(sharp * z, np.zeros(number))
        fitted = lsmr(vstack([diags_array(sharp) @ sums, agree]), aims, x0=y, maxiter=_ROUNDS)[0]
        shares = np.maximum(fitted, _LEAST)
        shares = np.split(shares, np.cumsum([p.size for p in theta])[:-1])
        shares = [share * (p.ravel() > 0) for share, p in zip(shares, theta, strict=True)]
        tables = [np.zeros(shape) for shape in self.shapes]
        if not totals.size:
            tables[0] += np.round(shares[0]).reshape(self.shapes[0])
        self._agree(tables, totals, shares)
        y = np.concatenate([table.ravel() for table in tables])
        if np.mean((sharp * (z - sums @ y)) ** 2) > _FAR:
            _log.warning(
                "What was released of '%s' is far from all counts with these totals: check the "
                "total and the noise", "' and '".join(self.names),
            )  # fmt: skip
        return {
            name: table.reshape(point[name].shape).astype(point[name].dtype)
            for name, table in zip(self.names, tables, strict=True)
        }

    def _agree(self, tables, totals, shares) -> None:
        """Give all rows their totals, in proportion to shares, where they have others."""
        for table, above, share in zip(tables, self.above, shares, strict=True):
            if above is not None:
                totals = above[1] @ tables[above[0]].ravel()
            if totals.size:
                width = table.shape[-1]
                restore_totals(table.reshape(-1, width), totals, share.reshape(-1, width))

    def update(self, rng, point) -> dict[str, np.ndarray]:
        """Return a new draw of each variable, and of probabilities that were integrated out."""
        released, totals, *theta = self.read(point)
        tables = [
            np.array(point[name], dtype=float).reshape(shape)
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        good = np.isfinite(released).all() and (released[1:].sum(axis=0) > 0).all()
        good = good and all(np.isfinite(t).all() and (t >= 0).all() for t in theta)
        if not good:
            raise unusable("' and '".join(self.names))
        self._agree(tables, totals, theta)
        log_p, a, of_rows = [], [], []
        for p, shape, out in zip(theta, self.shapes, self.integrated, strict=True):
            none = np.zeros(p.size)
            with np.errstate(divide="ignore"):
                log_p.append(none if out else np.log(p.ravel()))
            a.append(p.ravel() if out else none)
            of_rows.append(a[-1].reshape(-1, shape[-1]).sum(axis=1))
        weights = Weights(np.concatenate(log_p), np.concatenate([*a, *of_rows]))
        y = np.concatenate([table.ravel() for table in tables])
        if not sweep(rng, y, weights, self.rows, Noise(*released)):
            raise unusable("' and '".join(self.names))
        result, at = {}, 0
        for name, shape, draw, p in zip(self.names, self.shapes, self.draws, theta, strict=True):
            counts = y[at : at + p.size].reshape(shape)
            at += p.size
            result[name] = counts.reshape(point[name].shape).astype(point[name].dtype)
            if draw:
                drawn = np.maximum(rng.standard_gamma(p + counts), TINY)
                drawn = np.maximum(drawn / drawn.sum(axis=-1, keepdims=True), TINY)
                result[draw[0]] = draw[1](drawn / drawn.sum(axis=-1, keepdims=True))
        return result


@once
def read_tree(reading: Reading, rv: TensorVariable) -> list[Split]:
    """Return the tree that a variable is in, each variable after the one above it."""
    first = rv
    while isinstance(first.owner.op, WITH_TOTAL) and (above := trials_of(first)):
        if len(above) > 1:
            raise Declined(f"the numbers of trials of {first.name!r} are of several variables")
        if above[0] in reading.model.observed_RVs:
            check_trials(reading, first)
        first = above[0]
    if not isinstance(first.owner.op, WITH_TOTAL | PoissonRV):
        raise Declined(
            f"{first.name!r}, the first of the tree, is no Multinomial, DirichletMultinomial or "
            f"Poisson"
        )
    splits = [Split(first, None, None)]
    for split in splits:
        if split.rv not in reading.model.free_RVs:
            raise Declined(f"{split.rv.name!r} is observed as it is")
        _ = counts_shape(split.rv)
        for child in children(reading, split.rv):
            op = getattr(child.owner, "op", None)
            if isinstance(op, PrivateReleaseRV):
                continue
            if not isinstance(op, WITH_TOTAL):
                raise Declined(f"{child.name!r}, which is no release, depends on it")
            n, p = op.dist_params(child.owner)
            if split.rv in nearest_rvs([p]):
                raise Declined(f"the probabilities of {child.name!r} depend on {split.rv.name!r}")
            numbers = np.arange(math.prod(counts_shape(n))).reshape(counts_shape(n))
            each = np.broadcast_to(numbers, counts_shape(child)[:-1]).ravel()
            totals = csr_array(linear_map(n, split.rv))[each]
            totals.eliminate_zeros()
            start = known_value(substitute(n, empty_counts([split.rv])), fixed=True)
            whole = start is not None and not start.any() and (totals.data == 1).all()
            if not whole or (totals.sum(axis=0) > 1).any():
                raise Declined(
                    f"the numbers of trials of {child.name!r} are no counts of {split.rv.name!r}, "
                    f"or sums of these, each count in one at most"
                )
            splits.append(Split(child, split.rv, totals))
    if len(splits) == 1:
        raise Declined("no other variable splits its counts")
    return splits


@once
def conjugate(reading: Reading, rv: TensorVariable) -> TensorVariable | None:
    """Return the probabilities of a variable, if they can be integrated out."""
    if not isinstance(rv.owner.op, MultinomialRV):
        return None
    p = rv.owner.op.dist_params(rv.owner)[1]
    is_prior = p in reading.model.free_RVs and isinstance(p.owner.op, DirichletRV)
    fits = is_prior and known_shape(p) == counts_shape(rv) and children(reading, p) == [rv]
    return p if fits else None


@once
def read_entries(reading: Reading, rv: TensorVariable) -> tuple[list[TensorVariable], csc_array]:
    """Return the releases of a tree, and the coefficients of its counts in what was released."""
    rvs = [split.rv for split in read_tree(reading, rv)]
    found = [c for rv in rvs for c in children(reading, rv) if c not in rvs]
    releases = list(dict.fromkeys(found))
    if not releases:
        raise Declined("no release of it")
    maps = [read_sums(release, rvs) for release in releases]
    for release, slopes in zip(releases, maps, strict=True):
        if leaves_gaps(release) and (slopes.data % 1.0).any():
            raise Declined(
                f"{release.name!r} has whole-number noise, and its statistic is not whole for all "
                f"counts. Write a statistic that is, such as a sum"
            )
    return releases, csc_array(vstack(maps))


def make_tree(reading: Reading, splits: list[Split], integrated: Sequence[TensorVariable]) -> Tree:
    """Lay out a tree, and compile what is read from the point."""
    model, rvs = reading.model, [split.rv for split in splits]
    releases, coefficients_of_sums = read_entries(reading, rvs[0])
    shapes = [counts_shape(rv) if rv.type.ndim else (1,) for rv in rvs]
    lengths = [math.prod(shape[:-1]) for shape in shapes]
    starts = np.append(0, np.cumsum([math.prod(shape) for shape in shapes]))
    row_starts = np.append(0, np.cumsum(lengths))
    counts, number = starts[-1], row_starts[-1]
    totals = []  # which rows have a count
    above: list[tuple[int, csr_array] | None] = []
    for i, split in enumerate(splits):
        if split.map is None:
            above.append(None)
            continue
        j = rvs.index(split.above)
        above.append((j, split.map))
        entries = coo_array(split.map)
        place = entries.row + row_starts[i], entries.col + starts[j]
        totals.append(coo_array((entries.data, place), (number, counts)))
    below = csc_array(sum(totals[1:], totals[0]))
    targets = csc_array(vstack([below, coefficients_of_sums]))
    widths = np.repeat([shape[-1] for shape in shapes], lengths)
    # As many lines begin in each variable that is split as there are counts in the largest.
    sizes = [math.prod(shape) for shape in shapes]
    is_above = [rv in {s.above for s in splits} for rv in rvs]
    often = [max(sizes) // size if s else 1 for s, size in zip(is_above, sizes, strict=True)]
    alone = np.repeat([isinstance(rv.owner.op, PoissonRV) for rv in rvs], lengths)
    rows = Rows(
        np.append(0, np.cumsum(widths)),
        below.indptr.astype(np.int64), below.indices.astype(np.int64),
        targets.indptr.astype(np.int64), targets.indices + counts, targets.data.astype(float),
        np.repeat(np.arange(number), widths * np.repeat(often, lengths)), alone,
    )  # fmt: skip
    zeros = empty_counts(rvs)
    sums = [released_sums(reading, r, substitute(release_statistic(r), zeros)) for r in releases]
    theta, first = [], pt.zeros(0)
    draws: list[tuple[str, Callable] | None] = []
    for rv, shape in zip(rvs, shapes, strict=True):
        p = rv.owner.op.dist_params(rv.owner)[-1]
        prior = conjugate(reading, rv)
        if prior is not None and prior in integrated:
            [p] = prior.owner.op.dist_params(prior.owner)
            name = model.rvs_to_values[prior].name
            draws.append((name, value_writer(model, prior)))
        else:
            draws.append(None)
        theta.append(pt.broadcast_to(p, shape).astype("float64"))
    if isinstance(rvs[0].owner.op, WITH_TOTAL):
        n = rvs[0].owner.op.dist_params(rvs[0].owner)[0]
        first = pt.broadcast_to(n, shapes[0][:-1]).astype("float64").ravel()
    read = point_function(model, [pt.concatenate(sums, axis=1), first, *theta])
    names = [model.rvs_to_values[rv].name for rv in rvs]
    out = [bool(draw) or isinstance(v.owner.op, DirichletMultinomialRV)
           for v, draw in zip(rvs, draws, strict=True)]  # fmt: skip
    return Tree(names, shapes, above, rows, csr_array(targets), read, out, draws)
