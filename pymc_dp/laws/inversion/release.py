r"""Releases of sums over iid records, the records integrated out by Fourier inversion.

Records :math:`x_i \sim f(\cdot \mid \theta)`, i = 1..n, are released through a sum
:math:`s = a + \sum_i h(x_i)` plus noise. With :math:`\varphi_\theta(w) = E\, e^{i w h(x)}`,

.. math::

    p(z \mid \theta) = \frac{1}{2 \pi} \int e^{i w (a - z)}\, \varphi_\theta(w)^n\,
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

from collections.abc import Callable
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
    contribution,
    law_of_sum,
    log_density_of_sum,
    panel_counts,
    starts_at_zero,
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
class InvertedSum(Integrated):
    """A sum over iid records; a draw draws n records.

    Parameters are those of the records' law and the public variables in the statistic. For these
    `public` stand in `statistic` and in `summand`, and `records` for the records.
    """

    law: RandomVariable
    n: int
    statistic: TensorVariable
    records: TensorVariable
    column: int
    summand: Summand
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
        return {"inverted sum": 1.0}

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
        """Return the law of one record and the summand."""
        own, public = self._split(parameters)
        rng = pt.random.shared_rng(seed=None)  # of a draw that nothing makes
        _, law = self.law(*own, rng=rng, return_next_rng=True)
        # `clone_replace` would copy what these are computed from.
        return law, _rewritten(self.summand, lambda g: graph_replace(g, public, strict=False))

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        law, summand, *noisy = self._noisy(value, mechanism, parameters)
        return log_density_of_sum(law, self.n, self.n, summand, self.record, *noisy)

    def _noisy(self, value, mechanism, parameters):
        """Return the law of one record, the summand, and the released sum with its noise."""
        law, summand = self._given(parameters)
        z = pt.broadcast_to(value.astype("float64"), (1,)) - summand.offset
        laplace, gaussian = (
            pt.broadcast_to(part.astype("float64"), (1,)) for part in noise_parts(mechanism)
        )
        return law, summand, z, laplace, gaussian

    def support_point(self, rv, *parameters):
        """See `Integrated.support_point`."""
        law, summand = self._given(parameters)
        x = _support_point(law.owner.op, law, *law.owner.inputs).astype("float64")
        point = summand.offset + self.n * contribution(summand, self.record, x)
        return point if rv.type.ndim else point[0]


def sums_given(name: str, rng, log_weight, h, cut, n, z, laplace, gaussian) -> np.ndarray:
    """Draw a sum of n records given its release, of this name; see `kernels.inversion.draws`.

    It is a sum of quadrature nodes. An expectation of a draw has the error of the density that
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
def _recover_sum(law: InvertedSum, rv, value, posterior, rng):
    mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
    record_law, summand, *noisy = law._noisy(value, mechanism, parameters)
    counts = panel_counts(law.n)[-1:]
    nodes = law_of_sum(record_law, law.n, counts, summand, law.record, *noisy)
    _, factor, constant = law.shown
    found = [
        (at - constant + sums_given(law.names[0], rng, *of_nodes, law.n, z, b, sd)) / factor
        for at, *of_nodes, z, b, sd in each_draw(posterior, [summand.offset, *nodes, *noisy])
    ]
    return in_results(posterior, law.names[0], np.reshape(found, (-1, *[1] * value.type.ndim)))


def characteristic_marginal(
    records: TensorVariable, n: int, column: int, releases: list[TensorVariable]
) -> dict[TensorVariable, TensorVariable]:
    """Integrate iid records out of the release of a sum over them.

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
            f"dependent: only one release, of one sum, can be inverted"
        )
    [release] = releases
    return {release: _release(release, records, n, column, parameters, positive)}


def found_in_bulk(release: TensorVariable, name: str) -> None:
    """Decline a release, its records of this name integrated out, that `require_found` declines."""
    mechanism, parameters = release.owner.op.split(release.owner.inputs)
    law = release.owner.op.law

    def found_at(times):
        one, summand, _, *noise = law._noisy(release, mechanism, at_start(parameters, times))
        require_found(name, one, law.n, summand, law.record, *at_start(noise))

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
    shape = statistic.type.shape
    if shape not in ((), (1,)):
        raise Declined(
            f"the release {name!r} has shape {shape}: one sum over all records {records.name!r} "
            f"can be integrated out, given as a scalar or a list",
            near=1,
        )
    try:
        entry = statistic[0] if shape else statistic
        summand = read_summand(entry, records, n, record, column=column, positive=positive)
    except Declined as error:
        instead = "Release sums of functions of single records, or sample with rung='records'"
        raise Declined(
            f"the statistic of the release {name!r} of {records.name!r}: {error}",
            instead="" if error.near else instead,
            near=error.near,
        ) from None
    with about(f"the release {name!r}"):
        require_smooth(records, mechanism, summand, record)
    shown = _shown(release, records, n, column, summand, record)
    return _build(records, n, column, parameters, statistic, mechanism, summand, record, shown)


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


def _shown(release, records, n, column, summand, record) -> Shown:
    """Return what stands in results of a release of a sum."""
    found = multiple_of(summand, record)
    offset = known_value(summand.offset, fixed=True)
    if found is None or offset is None:
        return as_released(release, 1)
    factor, added = np.array(found).reshape(2, 1)
    several = records.type.ndim > 1 and width_of(records) > 1
    of = f"{records.name}_{column}" if several else str(records.name)
    constant = n * added + offset.astype("float64")
    return of_multiples(of, records.owner.op, np.array(n), factor, constant)


def require_smooth(records, mechanism, summand: Summand, record) -> None:
    """Decline counts that are discrete but for noise whose density has a kink."""
    if has_kink(mechanism) and _steps(summand, record) > 2:
        raise Declined(
            f"it counts the records {records.name!r} in more than two classes, which makes it "
            f"discrete but for Laplace noise: release one count, or use GaussianMechanism"
        )


def _steps(summand: Summand, record) -> int:
    """Count the values of a summand that is constant between breakpoints; 0 for others."""
    points = [known_value(p) for p in summand.breakpoints]
    if not points or any(p is None for p in points):
        return 0
    known = np.array([float(np.squeeze(p)) for p in points if p is not None])
    edges = np.unique(known[np.isfinite(known)])
    if edges.size == 0:
        return 0
    edges = np.concatenate([[edges[0] - 1.0], edges, [edges[-1] + 1.0]])
    inner = np.concatenate([edges[:-1] + s * np.diff(edges) for s in (0.3, 0.6)])
    given = {record: pt.as_tensor(inner)}
    value = known_value(clone_replace(summand.h, given, rebuild_strict=False))
    if value is None:
        return 0  # it depends on a parameter, or on data without a value
    first, second = np.split(np.broadcast_to(value, inner.shape), 2)
    return np.unique(first).size if np.array_equal(first, second) else 0


def _build(
    records, n, column, parameters, statistic, mechanism, summand, record, shown
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
    summand = _rewritten(summand, lambda g: clone_replace(g, own, rebuild_strict=False))
    kept = tuple(own.values())
    op = readable_law(records)
    law = InvertedSum(op, n, statistic, drawn, column, summand, record, kept, shown)
    return integrated_release(law, mechanism, *parameters, *public)


def _rewritten(summand: Summand, rewrite: Callable) -> Summand:
    """Return a summand of rewritten graphs; all graphs are rewritten at once."""
    h, offset, *breakpoints = rewrite([summand.h, summand.offset, *summand.breakpoints])
    return Summand(h, offset, tuple(breakpoints))
