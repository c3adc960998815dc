r"""Releases of sums over iid records, the records integrated out by Fourier inversion.

Records :math:`x_i \sim f(\cdot \mid \theta)`, i = 1..n, are released through one or two sums
:math:`s_j = a_j + \sum_i h_j(x_i)` plus noise. With
:math:`\varphi_\theta(w) = E\, e^{i w \cdot h(x)}`,

.. math::

    p(z \mid \theta) = (2 \pi)^{-d} \int e^{i w \cdot (a - z)}\, \varphi_\theta(w)^n\,
        \varphi_{\text{noise}}(w)\, dw .

The expectation is Gauss-Legendre quadrature of f on panels between the breakpoints of h, where h is
constant a single atom; the integral is the midpoint rule on the contour through the saddlepoint
[1]_, with the poles of the Laplace noise taken out exactly (see `kernels.inversion.line`). Neither
has a cost that grows with n, and the density keeps its relative accuracy in the tails.

**Error.** The kernels estimate their relative error: a density or statistic that the panels do not
resolve, mass where an unbounded law was cut, frequencies beyond the nodes, cancellation. Where the
estimate exceeds 1e-5 the log density is NaN, which a sampler rejects and an initial evaluation
reports; nothing less accurate is returned. Usually the error is below 1e-11, that of the gradient
below 1e-9. What is NaN in the bulk where a model starts is declined, see `trial`.
NaN is met under Laplace noise where few records are at work, so that the sum has no
smooth density itself: n < 5, or nearly all records clipped at the released value; under Gaussian
noise only where it is far narrower than what one record contributes; and where few records
(n < 100) would have to lie dozens of standard deviations out, log densities below -500. Sums of
Student t records of four degrees of freedom or fewer have to be clamped: their tails reach too far.

References
----------
.. [1] Daniels, H. E. (1954). Saddlepoint approximations in statistics. Annals of Mathematical
   Statistics 25, 631-650.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.draws import each_draw
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import known_value, nearest_rvs, public_data
from pymc_dp.kernels.inversion.draws import draw_sums
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release, recovered
from pymc_dp.laws.inversion.breakpoints import Summand, read_summand
from pymc_dp.laws.inversion.quadrature import (
    law_of_sums,
    log_density_of_sums,
    panel_counts,
    starts_at_zero,
    statistics,
)
from pymc_dp.laws.inversion.readable import readable_law
from pymc_dp.laws.inversion.trial import require_found, require_somewhere
from pymc_dp.laws.shown import Shown, as_released, of_multiples
from pymc_dp.mechanisms.base import has_continuous_rates, has_kink
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.bounds import at_start
from pymc_dp.reading.columns import column_parameters, width_of

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


def noise_parts(mechanism: Mechanism) -> tuple[TensorVariable, TensorVariable]:
    r"""Laplace scale b and Gaussian standard deviation :math:`\sigma` of a mechanism's noise.

    The noise has the characteristic function :math:`e^{-\sigma^2 w^2 / 2} / (1 + b^2 w^2)`; one of
    them is zero.
    """
    if not has_continuous_rates(mechanism):
        raise Declined(
            f"no characteristic function is known of {type(mechanism).__name__}: LaplaceMechanism "
            f"and GaussianMechanism have one, and others with continuous noise and `rates`"
        )
    assert mechanism.rates is not None
    lam, tau = mechanism.rates
    if has_kink(mechanism):
        return 1.0 / lam, pt.zeros_like(lam)
    return pt.zeros_like(tau), tau**-0.5


@dataclass(frozen=True, eq=False)
class InvertedSums(Integrated):
    """One or two sums over iid records; a draw draws n records.

    Parameters are those of the records' law and the public variables in the statistic. For these
    `public` stand in `statistic` and in `summands`, and `records` for the records.
    """

    law: RandomVariable
    n: int
    statistic: TensorVariable
    records: TensorVariable
    column: int
    summands: tuple[Summand, ...]
    record: TensorVariable
    public: tuple[TensorVariable, ...]
    shown: Shown
    by_entry = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return (self.shown.name,)

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"inverted sum" if len(self.summands) == 1 else "inverted pair of sums": 1.0}

    def _split(self, parameters):
        count = len(parameters) - len(self.public)
        return parameters[:count], dict(zip(self.public, parameters[count:], strict=True))

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        own, public = self._split(parameters)
        # Everything is drawn here; nothing of size n is built where only the density is wanted.
        rng, records = self.law(*own, size=(self.n,), rng=rng, return_next_rng=True)
        if self.records.type.ndim > 1:  # the statistic is of one of the columns
            rows = pt.zeros((self.n, self.records.type.shape[1]), dtype=records.dtype)
            records = rows[:, self.column].set(records)
        replace = {self.records: records, **public}
        return rng, graph_replace([self.statistic], replace, strict=False)[0]

    def _given(self, parameters):
        """Return the law of one record and the summands."""
        own, public = self._split(parameters)
        rng = pt.random.shared_rng(seed=None)  # of a draw that nothing makes
        _, law = self.law(*own, rng=rng, return_next_rng=True)
        # `clone_replace` would copy what these are computed from.
        return law, _rewritten(self.summands, lambda g: graph_replace(g, public, strict=False))

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        law, summands, *noisy = self._noisy(value, mechanism, parameters)
        return log_density_of_sums(law, self.n, self.n, summands, self.record, *noisy)

    def _noisy(self, value, mechanism, parameters):
        """Return the law of one record, the summands, and the released sums with their noise."""
        law, summands = self._given(parameters)
        dim = len(summands)
        z = pt.broadcast_to(value.astype("float64"), (dim,)) - pt.stack(
            [s.offset for s in summands]
        )
        laplace, gaussian = (
            pt.broadcast_to(part.astype("float64"), (dim,)) for part in noise_parts(mechanism)
        )
        return law, summands, z, laplace, gaussian

    def support_point(self, rv, *parameters):
        """See `Integrated.support_point`."""
        law, summands = self._given(parameters)
        x = _support_point(law.owner.op, law, *law.owner.inputs).astype("float64")
        offset = pt.stack([s.offset for s in summands])
        point = offset + self.n * statistics(summands, self.record, x)
        return point if rv.type.ndim else point[0]


def sums_given(name: str, rng, log_weight, h, cut, n, z, laplace, gaussian) -> np.ndarray:
    """Draw sums of n records given their release, of this name; see `kernels.inversion.draws`.

    They are sums of quadrature nodes. An expectation of a draw has the error of the density that
    is integrated out: usually below 1e-11, and estimated to be below 1e-5.
    """
    drawn = draw_sums(rng, log_weight, h, cut, float(n), z, laplace, gaussian)
    if np.isnan(drawn).any():
        raise Declined(
            f"{name!r} cannot be drawn at a draw of the parameters: the density of the "
            f"sums has no accurate value there, or the noise is too narrow to be met by a sum of "
            f"records. Sample the model itself with rung='records'"
        )
    return drawn


@recovered.register
def _recover_sums(law: InvertedSums, rv, value, posterior, rng):
    mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
    record_law, summands, *noisy = law._noisy(value, mechanism, parameters)
    dim = len(summands)
    counts = panel_counts(dim, law.n)[-1:]
    nodes = law_of_sums(record_law, law.n, counts, summands, law.record, *noisy)
    offset = pt.stack([s.offset for s in summands])
    _, factor, constant = law.shown
    found = [
        (at - constant + sums_given(law.names[0], rng, *of_nodes, law.n, z, b, sd)) / factor
        for at, *of_nodes, z, b, sd in each_draw(posterior, [offset, *nodes, *noisy])
    ]
    return in_results(posterior, law.names[0], np.reshape(found, (-1, *[dim] * value.type.ndim)))


def characteristic_marginal(
    records: TensorVariable, n: int, column: int, releases: list[TensorVariable]
) -> dict[TensorVariable, TensorVariable]:
    """Integrate iid records out of the release of one or two sums over them.

    Parameters
    ----------
    records : TensorVariable
        The n records: identically distributed random variables, a vector or columns of them.
    n : int
        Their number.
    column : int
        The number of the column that the releases are of.
    releases : list of TensorVariable
        Every release of the records.

    Returns
    -------
    dict
        The release, and the unregistered random variable that replaces it.

    Raises
    ------
    NotImplementedError, ValueError
        Where this does not apply; the message names the variable and says why.
    """
    law_of_records = readable_law(records)
    # Small integers and floats in the graph would be computed with in single precision.
    parameters = [p.astype("float64") for p in column_parameters(records, column)]
    rng = pt.random.shared_rng(seed=None)
    _, law = law_of_records(*parameters, rng=rng, return_next_rng=True)
    positive = starts_at_zero(law, records.name)
    if len(releases) != 1:
        names = ", ".join(repr(r.name) for r in releases)
        raise Declined(
            f"the records {records.name!r} have {len(releases)} releases ({names}), which are "
            f"dependent: only one release, of one sum or of a list of two, can be inverted"
        )
    [release] = releases
    return {release: _release(release, records, n, column, parameters, positive)}


def found_in_bulk(release: TensorVariable, name: str) -> None:
    """Decline a release, its records of this name integrated out, that `require_found` declines."""
    mechanism, parameters = release.owner.op.split(release.owner.inputs)
    law = release.owner.op.law

    def found_at(times):
        one, summands, _, *noise = law._noisy(release, mechanism, at_start(parameters, times))
        require_found(name, one, law.n, summands, law.record, *at_start(noise))

    require_somewhere(found_at)


def _release(release, records, n, column, parameters, positive) -> TensorVariable:
    rv_op, name = release.owner.op, release.name
    assert isinstance(rv_op, PrivateReleaseRV)
    if rv_op.bounds is not None:
        raise Declined(
            f"the release {name!r} has bounds=, which tie the records {records.name!r} together"
        )
    statistic, mechanism, _ = rv_op.split(release.owner.inputs)
    with about(f"the release {name!r}"):
        noise_parts(mechanism)
    others = [rv for rv in nearest_rvs([statistic]) if rv is not records]
    if others:
        raise Declined(
            f"the release {name!r} mixes the records {records.name!r} with "
            f"{', '.join(repr(o.name) for o in others)}: write what does not depend on "
            f"{records.name!r} behind the release"
        )
    record = pt.vector("record", dtype="float64")
    summands = []
    for entry in _entries(release, statistic):
        try:
            summands.append(
                read_summand(entry, records, n, record, column=column, positive=positive)
            )
        except Declined as error:
            instead = "Release sums of functions of single records, or sample with rung='records'"
            raise Declined(
                f"the statistic of the release {name!r} of {records.name!r}: {error}",
                instead="" if error.near else instead,
                near=error.near,
            ) from None
    with about(f"the release {name!r}"):
        require_smooth(records, mechanism, summands, record)
    shown = _shown(release, records, n, column, summands, record)
    return _build(records, n, column, parameters, statistic, mechanism, summands, record, shown)


def multiple_of(summand: Summand, record: TensorVariable) -> tuple[float, float] | None:
    """Return a and b where a x + b is what is summed of each record x; None of another function."""
    two = record.type.clone(shape=(2,))("two")
    [h] = clone_replace([summand.h], {record: two}, rebuild_strict=False)
    try:
        slopes = linear_map(h, two).toarray()
        [at_zero] = clone_replace([h], {two: pt.zeros(2)}, rebuild_strict=False)
    except Declined:
        return None
    added = known_value(at_zero, fixed=True)
    if public_data([h]) or added is None or not np.isfinite([*slopes.flat, *added]).all():
        return None
    a, b = float(slopes[0, 0]), float(added[0])
    return (a, b) if a and np.array_equal(slopes, a * np.eye(2)) else None


def _shown(release, records, n, column, summands, record) -> Shown:
    """Return what stands in results of a release of one or two sums."""
    found = [multiple_of(summand, record) for summand in summands]
    offset = [known_value(summand.offset, fixed=True) for summand in summands]
    if None in found or any(value is None for value in offset):
        return as_released(release, len(summands))
    factor, added = np.array(found).T
    several = records.type.ndim > 1 and width_of(records) > 1
    of = f"{records.name}_{column}" if several else str(records.name)
    constant = n * added + np.array(offset, dtype="float64")
    return of_multiples(of, records.owner.op, np.array(n), factor, constant)


def require_smooth(records, mechanism, summands: Sequence[Summand], record) -> None:
    """Decline counts that are discrete but for noise whose density has a kink."""
    if has_kink(mechanism) and _steps(summands, record) > 2:
        raise Declined(
            f"it counts the records {records.name!r} in more than two classes, which makes it "
            f"discrete but for Laplace noise: release one count, or use GaussianMechanism"
        )


def _entries(release, statistic) -> list[TensorVariable]:
    if statistic.type.ndim == 0:
        return [statistic]
    shape = statistic.type.shape
    if shape not in ((1,), (2,)):
        raise Declined(
            f"the release {release.name!r} has shape {shape}: one or two statistics of the same "
            f"records can be integrated out, given as a scalar or a list",
            near=1,
        )
    return [statistic[j] for j in range(shape[0])]


def _steps(summands: Sequence[Summand], record) -> int:
    """Count the values of statistics that are constant between breakpoints; 0 for others."""
    points = [known_value(p) for s in summands for p in s.breakpoints]
    if not points or any(p is None for p in points):
        return 0
    known = np.array([float(np.squeeze(p)) for p in points if p is not None])
    edges = np.unique(known[np.isfinite(known)])
    if edges.size == 0:
        return 0
    edges = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
    inner = np.concatenate([edges[:-1] + s * np.diff(edges) for s in (0.3, 0.6)])
    values = [
        known_value(clone_replace(s.h, {record: pt.as_tensor(inner)}, rebuild_strict=False))
        for s in summands
    ]
    if any(v is None for v in values):
        return 0  # it depends on a parameter, or on data without a value
    h = np.stack([np.broadcast_to(v, inner.shape) for v in values if v is not None])
    first, second = np.split(h, 2, axis=1)
    return len(np.unique(first, axis=1).T) if np.array_equal(first, second) else 0


def _build(
    records, n, column, parameters, statistic, mechanism, summands, record, shown
) -> TensorVariable:
    public = [
        v
        for v in graph_inputs([statistic], blockers=[records])
        if v is not records and not isinstance(v, Constant)
    ]
    # What the law keeps is no part of the model.
    own = {v: v.type() for v in public}
    drawn = records.type()
    [statistic] = graph_replace([statistic], {records: drawn, **own}, strict=False)
    summands = _rewritten(summands, lambda g: clone_replace(g, own, rebuild_strict=False))
    kept = tuple(own.values())
    op = readable_law(records)
    law = InvertedSums(op, n, statistic, drawn, column, summands, record, kept, shown)
    return integrated_release(law, mechanism, *parameters, *public)


def _rewritten(summands: Sequence[Summand], rewrite: Callable) -> tuple[Summand, ...]:
    """Return summands of rewritten graphs; all graphs are rewritten at once."""
    rest = iter(rewrite([g for s in summands for g in (s.h, s.offset, *s.breakpoints)]))
    return tuple(
        Summand(next(rest), next(rest), tuple(next(rest) for _ in s.breakpoints)) for s in summands
    )
