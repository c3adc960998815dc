"""Gibbs for Normal statistics under Laplace noise through the scale mixture of normals."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.basic import MvNormalRV, NormalRV

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import as_row
from pymc_dp.kernels.draws.scale_mixture import draw_independent, draw_joint
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.model import children, release_statistic
from pymc_dp.step_methods.base import point_function, unusable
from pymc_dp.step_methods.registry import STEPS
from pymc_dp.step_methods.two_sided import released_entries
from pymc_dp.step_methods.weave import WeavingStep


@STEPS.register(order=90)
class LaplaceScaleMixtureGibbs(WeavingStep):
    r"""Draw a Normal or jointly Normal statistic under Laplace noise by augmentation [1]_ [2]_.

    Each call draws :math:`1/\omega_j^2 \mid s_j` from its inverse Gaussian, then
    :math:`s \mid \omega, z \sim N(A^{-1} h, A^{-1})`,
    :math:`A = V^{-1} + \mathrm{diag}(\omega^{-2})`,
    :math:`h = V^{-1} m + \omega^{-2} z`.
    For one statistic at a time `TwoSidedGibbs` needs no
    augmentation and mixes better; this step is for statistics that are correlated a priori.

    Parameters
    ----------
    vars : list of TensorVariable
        Normal or MvNormal statistics, each the content of one release under Laplace noise.
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
    .. [1] T. Park, G. Casella (2008). The Bayesian lasso. Journal of the American Statistical
       Association 103, 681-686.
    .. [2] G. Bernstein, D. Sheldon (2019). Differentially private Bayesian linear regression.
       NeurIPS 32.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> with pm.Model() as model:
    ...     s = pm.MvNormal("s", [0.0, 1.0], [[2.0, 1.2], [1.2, 1.0]])
    ...     z = dp.PrivateObservation("z", s, dp.LaplaceMechanism([0.6, 1.0]), observed=[1.5, -0.5])
    >>> step = dp.LaplaceScaleMixtureGibbs([s], model=model, rng=1)
    >>> point, _ = step.step(model.initial_point())
    >>> point["s"].shape
    (2,)
    """

    name = "dp_scale_mixture"

    def _read(self, reading, rv, initial_point):
        law = rv.owner.op
        if not isinstance(law, NormalRV | MvNormalRV):
            raise ValueError(
                f"LaplaceScaleMixtureGibbs cannot update {rv.name!r}, which follows {law}: it "
                f"updates Normal and MvNormal variables; write TwoSidedGibbs for others"
            )
        fed = children(reading, rv)
        if len(fed) != 1 or not isinstance(fed[0].owner.op, PrivateReleaseRV):
            raise Declined(
                f"it must feed one release and nothing else, and feeds {[c.name for c in fed]}"
            )
        [release] = fed
        mechanism, _, moments = release.owner.op.split(release.owner.inputs)
        if type(mechanism) is not LaplaceMechanism or moments is not None:
            raise Declined(
                f"the release {release.name!r} must carry Laplace noise, without bounds; write "
                f"TwoSidedGibbs"
            )
        joint = isinstance(law, MvNormalRV)
        if reading.model.rvs_to_transforms[rv] is not None or (joint and rv.type.ndim > 1):
            raise Declined(
                "it must be a plain variable without transform=, an MvNormal one of them a single "
                "vector"
            )
        if joint and release_statistic(release) is not rv:
            raise Declined(f"the statistic of {release.name!r} must be {rv.name!r} itself")
        z, noise, factor, constant = released_entries(reading.model, rv, release, mechanism)
        mean, spread = law.dist_params(rv.owner)
        z, noise = (z - constant) / factor, noise / pt.abs(factor)
        if joint:
            outputs, draw = [as_row(z, noise, mean), spread], draw_joint
        else:
            outputs, draw = [as_row(z, noise, mean, spread)], draw_independent
        return point_function(reading.model, outputs), draw

    def _draw(self, name, point, parts_at, draw):
        (rows, *cov), old = parts_at(point), point[name]
        if np.isnan(rows).any() or not (rows[1] > 0).all():
            raise unusable(name)
        return draw(self.rng, old.ravel().copy(), *rows, *cov).reshape(old.shape)
