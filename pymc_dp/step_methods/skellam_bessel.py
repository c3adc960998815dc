"""Gibbs for Poisson counts under two-sided geometric noise through the Skellam and Bessel laws."""

from __future__ import annotations

import numpy as np
from pytensor.tensor.random.basic import PoissonRV

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import as_row
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.kernels.counts.skellam_bessel import draw_skellam_bessel
from pymc_dp.mechanisms import GeometricMechanism
from pymc_dp.step_methods.base import point_function, unusable
from pymc_dp.step_methods.two_sided import TwoSidedGibbs, latent_conditional, released_factor


class SkellamBesselGibbs(TwoSidedGibbs):
    r"""Draw latent Poisson counts under two-sided geometric noise by augmentation [1]_.

    A release is :math:`z = y + g_1 - g_2` with geometric :math:`g_i`, which are Poisson counts of
    exponential rates :math:`\lambda_i`. Each call draws :math:`g_i, \lambda_i \mid y, z`, then
    :math:`m \sim \mathrm{Bessel}(|z|, 2 \sqrt{(\lambda_1 + \mu) \lambda_2})` and
    :math:`y \sim \mathrm{Binomial}(m + \max(z, 0), \mu / (\mu + \lambda_1))`. The auxiliary rates
    are drawn afresh given y, which leaves nothing to carry from call to call.

    `TwoSidedGibbs` draws the same counts exactly, without augmentation, and is what `dp.steps` and
    `pm.sample` choose; this step is the published method, to be asked for by name.

    Parameters
    ----------
    vars : list of TensorVariable
        Latent Poisson counts y, of any shape, each released element by element as y or -y plus a
        constant, by one `GeometricMechanism`, and used for nothing else.
    interweave : bool, default True
        Whether to move the parameters along.
    model : pm.Model, optional
        The model of the context by default.

    Raises
    ------
    ValueError
        Another law or mechanism, another factor, more than one release or another child: it names
        the variable.

    References
    ----------
    .. [1] Schein, A., Wu, Z. S., Schofield, A., Zhou, M., Wallach, H. (2019). Locally private
       Bayesian inference for count models. ICML.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     y = pm.Poisson("y", [3.0, 8.0, 20.0])
    ...     z = dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=[-1, 9, 24])
    >>> step = dp.SkellamBesselGibbs([y], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> bool((point["y"] >= 0).all())
    True
    """

    name = "dp_skellam_bessel"
    laws = (PoissonRV,)
    mechanisms = (GeometricMechanism,)

    def _read(self, reading, rv, initial_point):
        columns, _, _ = latent_conditional(type(self), reading, rv)
        factor = released_factor(reading, rv)
        point = reading.model.initial_point() if initial_point is None else initial_point
        if nearest_rvs([factor]) or not _is_unit(reading.model, factor, point):
            raise Declined(
                "it must be released as it is, without a factor other than 1 and -1; write "
                "TwoSidedGibbs"
            )
        if reading.model.rvs_to_transforms[rv] is not None:
            raise ValueError(
                f"SkellamBesselGibbs cannot update {rv.name!r}, which has a transform: leave "
                f"transform= out, or write TwoSidedGibbs"
            )
        z, noise, _, _, mu = columns
        return (point_function(reading.model, as_row(z, noise, mu)),)

    def _draw(self, name, point, rows_at, *_):
        (z, noise, mu), old = rows_at(point), point[name]
        drawn = draw_skellam_bessel(self.rng, old.ravel().astype(float), z, noise, mu)
        if np.isnan(drawn).any() or not np.array_equal(z, np.floor(z)):
            raise unusable(name)
        return drawn.reshape(old.shape)


def _is_unit(model, factor, point) -> bool:
    """Whether a factor without random variables is 1 or -1; its shape may be that of a value."""
    return bool(np.all(np.abs(point_function(model, factor)(point)) == 1.0))
