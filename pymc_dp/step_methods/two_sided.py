"""Exact draws of a latent statistic given its noisy release."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.random.basic import GammaRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.draws import as_row
from pymc_dp.graphs.shapes import known_shape, require_entry_each
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import depends_on, is_itself, is_whole, known_value, nearest_rvs
from pymc_dp.laws import find_pair, require_pair, row_piece, row_sampler
from pymc_dp.laws.count_sums import COUNT_LAWS, count_draw, noise_of
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.postprocessed import layers
from pymc_dp.mechanisms.release import FeasibleMoments, PrivateReleaseRV, mean_range, variance_cap
from pymc_dp.reading.counts import MOST_APART, possible_counts
from pymc_dp.reading.model import Reading, children, mechanism_of, release_statistic
from pymc_dp.reading.sums.polynomials import is_linear
from pymc_dp.step_methods.base import LoopDraw, infeasible, point_function, unusable
from pymc_dp.step_methods.registry import STEPS, accepted, concerned
from pymc_dp.step_methods.weave import WeavingStep


@STEPS.register(order=50)
class TwoSidedGibbs(WeavingStep):
    r"""Draw a latent statistic s exactly from its full conditional given a release.

    For Laplace noise of rate :math:`\lambda` around a statistic with law f,

    .. math::

        p(s \mid z) \propto f(s)\, e^{-\lambda |z - s|}

    is f tilted by :math:`+\lambda` left of z and by :math:`-\lambda` right of it; both pieces stay
    in the law's family, so that s is drawn in O(1) without augmentation and without the restriction
    on :math:`\lambda` of [1]_. Gaussian noise on a Normal or Gamma statistic is drawn exactly, too.

    Given s, its parameters move by its sampling error only. So after each draw the continuous
    parameters above it move by random walks, s along with them with the noise behind it held fixed,
    as `RecordMetropolis` moves them; steps and their number are tuned during warm-up.

    Parameters
    ----------
    vars : list of TensorVariable
        Latent statistics with a registered law (Normal, Gamma, Exponential, and counts), each the
        affine content of one entry of one release and of nothing else.
    interweave : bool, default True
        Whether to move the parameters along.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming the variable that cannot be drawn, and why.

    References
    ----------
    .. [1] Z. Kazan, J. P. Reiter (2024). Bayesian inference under differential privacy with bounded
       data. arXiv:2405.13801.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     s = pm.Normal("s", 30, 2)
    ...     z = dp.PrivateObservation("z", s, dp.LaplaceMechanism(9.3), observed=34.3)
    >>> step = dp.TwoSidedGibbs([s], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> bool(abs(point["s"] - 30) < 10 * 2)
    True
    """

    name = "dp_two_sided"
    laws: tuple[type, ...] | None = None
    mechanisms: tuple[type[Mechanism], ...] | None = None

    @classmethod
    def claims(cls, reading, left):
        """Claim latents of one released statistic each."""
        latents = [
            rv
            for rv in concerned(reading, left)
            if (cls.laws is None or isinstance(rv.owner.op, cls.laws))
            and all(map(is_release, children(reading, rv)))
        ]
        return [accepted(partial(latent_conditional, cls, reading), latents)]

    def _read(self, reading, rv, initial_point):
        columns, n_noise, draw = latent_conditional(type(self), reading, rv)
        withholds = any(mechanism_of(c).withholds for c in children(reading, rv))
        rows = point_function(reading.model, as_row(*columns))
        return rows, n_noise, int(withholds), row_sampler(draw, len(columns))

    def _draw(self, name, point, rows_at, n_noise, first, sample):
        rows = rows_at(point)
        if np.isnan(rows[first:]).any():  # the published value may be withheld
            raise unusable(name)
        if not (rows[n_noise + 1] < rows[n_noise + 2]).all():
            raise infeasible(name)
        drawn = sample(self.rng, rows).reshape(point[name].shape)
        if np.isnan(drawn).any():
            raise unusable(name)
        return drawn

    @classmethod
    def loop_draws(cls, reading, group):
        """See `DPStep.loop_draws`."""
        draws = []
        for rv in group:
            columns, n_noise, draw = latent_conditional(cls, reading, rv)
            rows = as_row(*columns)
            feasible = pt.all(rows[n_noise + 1] < rows[n_noise + 2])
            rows = pt.switch(feasible, rows, np.nan)
            draws.append(LoopDraw((rv,), [rows], row_piece(draw, len(columns))))
        return draws


@STEPS.register(order=40)
class TruncatedGammaMixtureGibbs(TwoSidedGibbs):
    r"""Draw a latent variance from its truncated gamma mixture [1]_.

    The conditional of :math:`S^2 \sim \mathrm{Gamma}(a, \beta)` under a release z with Laplace
    noise of rate :math:`\lambda` is :math:`\mathrm{TGM}(a, \beta, \lambda, z)`, see
    `TruncatedGammaMixture`, cut to the feasible range where the records are bounded. No restriction
    :math:`\beta > \lambda`, which the paper needs.

    Parameters
    ----------
    vars : list of TensorVariable
        Gamma variances, each the affine content of one entry of one release with Laplace noise.
    interweave : bool, default True
        Whether to move the parameters along.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Naming the variable that cannot be drawn, and why.

    References
    ----------
    .. [1] Z. Kazan, J. P. Reiter (2024). Bayesian inference under differential privacy with bounded
       data. arXiv:2405.13801.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     s2 = pm.Gamma("s2", 21.0, 0.01)
    ...     z = dp.PrivateObservation("z", s2, dp.LaplaceMechanism(50.0), observed=2224.8)
    >>> step = dp.TruncatedGammaMixtureGibbs([s2], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> bool(abs(np.exp(point["s2_log__"]) - 2224.8) < 20 * 50.0)  # near what was released
    True
    """

    name = "dp_tgm"
    laws = (GammaRV,)
    mechanisms = (LaplaceMechanism,)


def is_release(variable: Variable) -> bool:
    """Whether a variable is a release whose statistic is part of the model."""
    return isinstance(getattr(variable.owner, "op", None), PrivateReleaseRV)


def latent_conditional(step: type[TwoSidedGibbs], reading: Reading, rv: TensorVariable):
    """Return (z, *noise, lo, hi, *law parameters) as graphs, how many `noise`, and the draw."""
    law = rv.owner.op
    if step.laws is not None and not isinstance(law, step.laws):
        raise ValueError(
            f"{step.__name__} cannot update {rv.name!r}, which follows {law}: it updates "
            f"{', '.join(t.__name__.removesuffix('RV') for t in step.laws)} variables; write "
            f"TwoSidedGibbs for others"
        )
    child_rvs = children(reading, rv)
    wrong = [c for c in child_rvs if not is_release(c)]
    if wrong:
        raise Declined(f"{wrong[0].name!r} depends on it too, and is not a release. {_instead(rv)}")
    entries = [c for c in child_rvs if depends_on(release_statistic(c), rv)]
    if len(entries) > 1 or not child_rvs:
        raise Declined(
            f"it must feed exactly one release, and feeds {[c.name for c in entries]}. "
            f"{_instead(rv)}"
        )
    low, high = _feasible_range(rv, child_rvs)
    parameters = law.dist_params(rv.owner)
    if not entries:  # bounded records whose other moment was released: no noise on this one
        pair = find_pair(law, LaplaceMechanism(1.0), closed=True)
        zero = pt.zeros(reading.model.rvs_to_values[rv].shape)
        columns = (zero, zero + np.inf, low, high, *pair.parameters(*parameters))
        return columns, 1, pair.draw
    [release] = entries
    mechanism = mechanism_of(release)
    if step.mechanisms is not None and type(mechanism) not in step.mechanisms:
        raise Declined(
            f"its release {release.name!r} uses {type(mechanism).__name__}; write TwoSidedGibbs"
        )
    try:
        pair = require_pair(law, mechanism, parameters, closed=True)
    except NotImplementedError as error:
        raise Declined(str(error)) from None
    if is_itself(release_statistic(release), rv):
        z, noise = reading.model.rvs_to_values[release], _positive(mechanism)
    elif mechanism.rates is not None:
        z, scale, factor, constant = released_entries(reading.model, rv, release, mechanism)
        possible = _possible(rv, release, mechanism, factor, constant)
        if (
            mechanism.is_discrete and possible is None
        ):  # with other data, coefficients may not be whole
            whole = [pt.eq(c, pt.round(c)).all() for c in (factor, constant)]
            z = pt.switch(pt.and_(*whole), z, np.nan)
        scale = pt.switch(scale > 0, scale, np.nan)
        z, noise = (z - constant) / factor, (scale / pt.abs(factor),)
        if possible is not None:
            family = COUNT_LAWS[type(law)]
            draw = count_draw(family.law, noise_of(mechanism), 1, spaced=True).function
            columns = (z, *noise, low, high, *family.theta(*parameters), *possible)
            return columns, 1, draw
    else:
        raise Declined(
            f"under {type(mechanism).__name__} it must be released as it is, with nothing added, "
            f"multiplied or stacked"
        )
    columns = (z, *noise, low, high, *pair.parameters(*parameters))
    return columns, len(noise), pair.draw


def _positive(mechanism: Mechanism) -> tuple[TensorVariable, ...]:
    """Return the parameters, NaN where the noise that is added has no positive scale."""
    added = layers(mechanism)[-1]
    scales = added.parameters if added.rates is not None else ()
    return tuple(
        pt.switch(p > 0, p, np.nan) if any(p is scale for scale in scales) else p
        for p in mechanism.parameters
    )


def _possible(rv, release, mechanism, factor, constant):
    """Return (step, rest) of the counts that whole-number noise allows; None where all are.

    A statistic that is not whole cannot have been released.
    """
    if not mechanism.is_discrete or all(is_whole(pt.as_tensor(c)) for c in (factor, constant)):
        return None
    slopes, starts = (known_value(pt.as_tensor(c), fixed=True) for c in (factor, constant))
    lattices: list[tuple[int, int] | None] = [None]
    if type(rv.owner.op) in COUNT_LAWS and slopes is not None and starts is not None:
        factors, constants = np.broadcast_arrays(slopes, starts)
        pairs, alike = np.unique(
            np.stack([factors.ravel(), constants.ravel()]), axis=1, return_inverse=True
        )
        lattices = [possible_counts(*map(float, pair)) for pair in pairs.T]
    if None in lattices:
        now = all(known_value(pt.as_tensor(c)) is not None for c in (factor, constant))
        data = ": pm.Data may change" if now and (slopes is None or starts is None) else ""
        raise Declined(
            f"{type(mechanism).__name__} releases whole numbers, and the statistic of "
            f"{release.name!r} is not known to be one for every count, nor is it a count times a "
            f"ratio of whole numbers of at most {MOST_APART}{data}. {_instead(rv)}"
        )
    return tuple(np.array(lattices, dtype=float).T[:, alike].reshape(2, *factors.shape))


def _instead(rv: TensorVariable) -> str:
    """Say what samples a latent without an exact draw: `pm.sample` may have chosen this step."""
    if rv.dtype.startswith("float"):
        return "Leave it to NUTS: pm.sample(step=pm.NUTS())"
    other = "dp.RecordMetropolis" if rv.type.ndim else "pm.Metropolis"
    return f"Write pm.sample(step={other}([{rv.name}]))"


def is_exact_count(reading: Reading, rv: TensorVariable) -> bool:
    """Whether a count has an exact draw given its one release, which is of nothing else.

    `TwoSidedGibbs` draws such a count. It checks again, since the model may grow.
    """
    if rv.dtype.startswith("float"):
        return False
    try:
        columns, _, _ = latent_conditional(TwoSidedGibbs, reading, rv)
    except (Declined, ValueError):
        return False
    return not nearest_rvs(list(columns[:2]))


def released_factor(reading: Reading, rv: TensorVariable):
    """Return the factor that a variable is multiplied by in its one release."""
    [release] = children(reading, rv)
    return released_entries(reading.model, rv, release, mechanism_of(release))[2]


def released_entries(model, rv, release, mechanism):
    """Find the entry of a release that is ``factor * rv + constant`` and its value and noise."""
    statistic = release_statistic(release)
    value = model.rvs_to_values[release]
    [noise] = mechanism.parameters
    if statistic.type.ndim == 0 or statistic.type.ndim == rv.type.ndim:
        entry = statistic
        with about(f"the statistic of {release.name!r}"):
            require_entry_each(statistic, [rv])
    else:
        node = statistic.owner
        listed = node is not None and isinstance(node.op, MakeVector | Join)
        parts = node.inputs if listed else []
        touched = [j for j, part in enumerate(parts) if depends_on(part, rv)]
        if len(touched) != 1 or any(p.type.shape not in ((), (1,)) for p in parts):
            raise Declined(
                f"it must be one entry of the statistic of {release.name!r}, written as a list "
                f"[..., {rv.name}, ...]"
            )
        [j] = touched
        entry, value = parts[j].squeeze(), value[j]
        noise = pt.broadcast_to(noise, (len(parts),))[j]
    known = known_shape(rv)
    shape = model.rvs_to_values[rv].shape if None in known else known
    at = [substitute(entry, {rv: pt.full(shape, np.array(x, dtype=rv.dtype))}) for x in (0, 1)]
    if entry is not rv and not is_linear(entry, rv):
        raise Declined(f"the statistic of {release.name!r} is not linear in it")
    return value, noise, at[1] - at[0], at[0]


def _feasible_range(rv, releases):
    """Range of a sample moment that bounds of the records impose."""
    low, high = -math.inf if isinstance(rv.owner.op, NormalRV) else 0.0, math.inf
    for release in releases:
        op = release.owner.op
        if op.bounds is None:
            continue
        _, _, moments = op.split(release.owner.inputs)
        low, high = _moment_range(rv, release, moments, op.n, *op.bounds)
    return pt.as_tensor(low), pt.as_tensor(high)


def _moment_range(rv, release, moments, n, lower, upper):
    match moments:
        case FeasibleMoments(_, _, mean, variance):
            if rv is mean and not depends_on(variance, rv):
                return mean_range((n - 1) / n * variance, lower, upper)
            if rv is variance and not depends_on(mean, rv):
                return pt.as_tensor(0.0), n / (n - 1) * variance_cap(mean, lower, upper)
    raise Declined(
        f"the bounds of {release.name!r} depend on it in another way than through a sample mean or "
        f"variance"
    )
