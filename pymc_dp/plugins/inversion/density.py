r"""Releases of sums over iid records, the records integrated out by Fourier inversion.

Records :math:`x_i \sim f(\cdot \mid \theta)`, i = 1..n, are released through a sum
:math:`s = \sum_i h(x_i)` plus noise. With :math:`\varphi_\theta(w) = E\, e^{i w h(x)}`,

.. math::

    p(z \mid \theta) = \frac{1}{2 \pi} \int e^{-i w z}\, \varphi_\theta(w)^n\,
        \varphi_{\text{noise}}(w)\, dw .

A release of several groups has such a density in each entry, with the parameters and the size of
its group. One graph is written for one group and vectorised over all.

The expectation is Gauss-Legendre quadrature of f on panels between the breakpoints of h (a panel on
which h is constant is one atom); the integral is the midpoint rule on the contour through the
saddlepoint [1]_, with the poles of the Laplace noise taken out exactly (see
`inversion.kernels.line`). Neither has a cost that grows with n, and the density keeps its relative
accuracy in the tails.

**Error.** The kernels estimate their relative error: a density or statistic that the panels do not
resolve, mass where an unbounded law was cut, frequencies beyond the nodes, cancellation. Where the
estimate exceeds 1e-5 the log density is NaN, which a sampler rejects and an initial evaluation
reports; nothing less accurate is returned. Usually the error is below 1e-11, that of the gradient
below 1e-9. A model is declined if the density is NaN in the bulk at its start, see `trial`.
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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import each_draw
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.laws.parts import of_each
from pymc_dp.laws.shown import Shown
from pymc_dp.plugins.inversion.lattice import excess
from pymc_dp.plugins.inversion.summand import Summand

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable


def log_densities(
    law, parameters, sizes, summand, z, laplace, gaussian, *, log_number=None, added=None
) -> TensorVariable:
    """Log densities of noisy sums over groups of these sizes, each as `Summand.log_density`.

    Vectors with a number for each group; parameters and noise may be scalars, for all. With
    `log_number`, rows of log weights of consecutive sizes, z and noise are rows, too: of one number
    for all sizes, or of one for each. `added` is added to the summand of each record.
    """
    if log_number is None:
        log_number = pt.constant(np.zeros((1, 1)))
        z, laplace, gaussian = (pt.atleast_1d(part)[:, None] for part in (z, laplace, gaussian))
    added = np.zeros(1) if added is None else added
    least = typical(sizes, log_number)
    added, *noisy = summand.in_steps(sizes, added, log_number, z, laplace, gaussian)

    def density(parts, n, *ones):
        return summand.log_density(parts, n, least, *ones)

    return of_each(density, law, parameters, sizes, added, log_number, *noisy)


def typical(sizes, log_number) -> int:
    """Return a number of records that the quadrature is to be fine enough for."""
    return int(sizes.min() + log_number.type.shape[1] // 3) if sizes.size else 1


@dataclass(frozen=True, eq=False)
class Inverted(Integrated):
    """Multiples of sums over groups of iid records, ``factor * sum + constant`` in each entry.

    Parameters are those of the records' law in each group, then the values of `public`, data in
    the summand that are the same for all groups.
    """

    law: RandomVariable
    sizes: np.ndarray
    factor: np.ndarray
    constant: np.ndarray
    summand: Summand
    public: tuple[TensorVariable, ...]
    shown: Shown
    by_entry = True
    by_inversion = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return (self.shown.name,)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        """See `Integrated`."""
        return not self.public

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        name = "inverted group" if entries > 1 else "inverted sum"
        return {self.summand.priced_as or name: entries}

    def split(self, parameters) -> tuple[list[TensorVariable], Summand]:
        """Return the parameters of the records' law, and the summand."""
        count = len(parameters) - len(self.public)
        public = dict(zip(self.public, parameters[count:], strict=True))
        # `clone_replace` would copy the variables that these are computed from.
        return parameters[:count], self.summand.rewritten(
            lambda graphs: graph_replace(graphs, public, strict=False)
        )

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        record_parameters, summand = self.split(parameters)
        like = pt.broadcast_arrays(*record_parameters, pt.zeros(self.sizes.shape))[-1]
        rng, sums = summand.draw(
            rng, self.law, record_parameters, pt.broadcast_to(self.sizes, like.shape)
        )
        return rng, self.factor * sums + self.constant

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`: by quantiles of the records' law."""
        record_parameters, summand = self.split(parameters)
        mean, variance = summand.mean_variance(self.law, record_parameters)
        scale = self.sizes * self.factor
        return self.constant + scale * mean, scale * self.factor * variance

    @property
    def filled(self) -> np.ndarray:
        """The entries, raveled, of groups that are not empty."""
        return np.flatnonzero(self.sizes)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        shape, filled = self.sizes.shape, self.filled
        sizes, noisy, record_parameters, summand = self.standardised(value, mechanism, parameters)
        logp = log_densities(self.law, record_parameters, sizes, summand, *noisy)
        logp = logp - np.log(abs(self.factor.ravel()[filled]))
        logp = logp + pt.broadcast_to(excess(mechanism, value), shape).ravel()[filled]
        if filled.size == self.sizes.size:
            return logp.reshape(shape)
        # Empty groups are kept out of the gradient of the inversion, where it may be NaN.
        alone = mechanism.logp(value, self.constant).ravel()
        return pt.set_subtensor(alone[filled], logp).reshape(shape)

    def standardised(self, value, mechanism, parameters):
        """Return sizes, release and noise, and parameters of the `filled` groups; and the summand.

        Release and noise are those of sums with factor 1 and no constant.
        """
        record_parameters, summand = self.split(parameters)
        shape, filled = self.sizes.shape, self.filled
        sizes, factor, constant = (
            x.ravel()[filled].astype("float64") for x in (self.sizes, self.factor, self.constant)
        )
        released, b, sd, *filled_parameters = (
            pt.broadcast_to(p.astype("float64"), shape).ravel()[filled]
            for p in (value, *summand.noise_parts(mechanism), *record_parameters)
        )
        scale = abs(factor)
        noisy = (released - constant) / factor, b / scale, sd / scale
        return sizes, noisy, filled_parameters, summand

    def support_point(self, rv, *parameters):
        """See `Integrated.support_point`."""
        record_parameters, summand = self.split(parameters)
        record = summand.support_point(self.law, record_parameters)
        of_each = pt.broadcast_to(record, self.sizes.shape)
        return pt.broadcast_to(self.sizes * self.factor * of_each + self.constant, rv.shape)

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        sizes, noisy, record_parameters, summand = self.standardised(value, mechanism, parameters)
        n = np.broadcast_to(sizes, (posterior.sizes["chain"] * posterior.sizes["draw"], sizes.size))
        sums = draw_sums(
            self.names[0], rng, posterior, self.law, record_parameters, summand, n, noisy
        )
        drawn = np.broadcast_to(self.constant.ravel(), (len(n), self.constant.size)).copy()
        drawn[:, self.filled] += self.factor.ravel()[self.filled] * sums
        _, times, added = self.shown
        drawn = ((drawn - added) / times).reshape(-1, *self.sizes.shape)
        return in_results(posterior, self.names[0], drawn)


def sum_given(name: str, rng, summand: Summand, law, n, *noisy) -> float:
    """Draw a sum of n records given its release, of this name; see `inversion.kernels.draws`.

    It is a sum of quadrature nodes. An expectation of a draw has the error of the density that
    is integrated out: usually below 1e-11, and estimated to be below 1e-5.
    """
    n, z, laplace, gaussian = (float(x) for x in (n, *noisy))
    drawn = summand.draw_given(rng, law, n, z, laplace, gaussian)
    if np.isnan(drawn):
        raise Declined(
            f"{name!r} cannot be drawn at a draw of the parameters: the density of the "
            f"sums has no accurate value there, or the noise is too narrow to be met by a sum of "
            f"records. Sample the model itself with rung='records'"
        )
    return drawn


def draw_sums(name: str, rng, posterior, law, parameters, summand, n, noisy, fixed=None):
    """Draw sums over records given their releases, see `sum_given`; sums of no records are zero.

    `n`, and the result, have a row for each draw of the posterior and a column for each group.
    `fixed` has values of other variables in the graphs, see `each_draw`.
    """
    size = pt.vector(dtype="float64", shape=n.shape[1:])
    laws = of_each(summand.nodes, law, parameters, size, *noisy)
    sums, fixed = np.zeros(n.shape), {size: np.maximum(n, 1.0), **(fixed or {})}
    for i, of_all in enumerate(each_draw(posterior, [*laws, *noisy], fixed)):
        for j, (*of_one, z, b, sd) in enumerate(zip(*of_all, strict=True)):
            if n[i, j]:
                sums[i, j] = sum_given(name, rng, summand, of_one, n[i, j], z, b, sd)
    return sums
