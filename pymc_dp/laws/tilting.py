r"""Marginal laws of a statistic seen through Laplace noise, as differentiable PyTensor graphs.

A statistic :math:`s` with density :math:`f` is released as :math:`z = s + e`, with Laplace noise
:math:`e` of rate :math:`\lambda`, the inverse of its scale. Both sides of :math:`z` are
exponential tilts of :math:`f`, so that

.. math::

    p(z) = \tfrac{\lambda}{2} \left\{
        \int_{-\infty}^{z} f(s) e^{\lambda (s - z)} ds
        + \int_{z}^{\infty} f(s) e^{-\lambda (s - z)} ds \right\} .

A law registers its `log_tilted_mass`, dispatched on the op of its random variable, with the
parameters of the op. All else is computed from that. For the Gamma law it is the normalising
constant of the truncated gamma mixture of Kazan and Reiter [1]_, without their restriction that the
rate exceeds :math:`\lambda`.

References
----------
.. [1] Kazan, Z. and Reiter, J. P. (2024). Bayesian inference under differential privacy with
   bounded data. arXiv:2405.13801.
"""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import ExponentialRV, GammaRV, NormalRV
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.ops import KernelOp
from pymc_dp.graphs.registry import ability
from pymc_dp.kernels.functions import tilting as kernels
from pymc_dp.laws import Pair, register_pair
from pymc_dp.mechanisms import LaplaceMechanism


class TiltedMass(KernelOp):
    r"""Anchored tilted mass of a law with two parameters, and its partial derivatives.

    Inputs are the tilt t, the ends lo and hi, and the two parameters. The first output is
    :math:`\log \int_{lo}^{hi} f(s) e^{t (s - A)} ds` with the anchor A = hi for t > 0 and A = lo
    for t < 0; the others are its derivatives with respect to the five inputs.
    """

    nin = 5


class NormalTiltedMass(TiltedMass):
    """Tilted mass of the Normal law, with parameters mean and variance."""

    kernel = staticmethod(kernels.normal_tilted_parts)


class GammaTiltedMass(TiltedMass):
    """Tilted mass of the Gamma law, with parameters shape and rate."""

    kernel = staticmethod(kernels.gamma_tilted_parts)


normal_tilted_mass = Elemwise(NormalTiltedMass(name="normal_tilted_mass"))
gamma_tilted_mass = Elemwise(GammaTiltedMass(name="gamma_tilted_mass"))


def _double(x):
    """Return x as a double: PyTensor computes with small integers in single precision."""
    return pt.cast(pt.as_tensor(x), "float64")


def elementwise_mass(mass, t, z, lo, hi, *params):
    """Apply a `TiltedMass`; move its anchor from the end of the interval to z, unless z is None."""
    t, lo, hi = (_double(x) for x in (t, lo, hi))
    params = tuple(_double(x) for x in params)
    anchored = mass(t, lo, hi, *params)[0]
    if z is None:
        return anchored
    z = _double(z)
    anchor = pt.switch(pt.gt(t, 0.0), hi, pt.switch(pt.lt(t, 0.0), lo, z))
    return anchored + pt.switch(pt.gt(hi, lo), t * (anchor - z), 0.0)


@ability
def log_tilted_mass(op, t, z, lo, hi, *params):
    r"""Return :math:`\log \int_{lo}^{hi} f(s) e^{t (s - z)} ds` for the law of an RV op.

    Parameters
    ----------
    op : RandomVariable
        The op of the law; implementations are registered for its class.
    t : tensor_like
        Tilt.
    z : tensor_like or None
        Anchor. None anchors at the end where the tilt is largest, ``hi`` for t > 0 and ``lo`` for
        t < 0. That is how to ask for the mass up to z: two derivatives of size \|t\|, by z as the
        anchor and by z as the end, then cancel inside the kernel and not in the graph.
    lo, hi : tensor_like
        Ends of the interval. ``hi`` must be finite where t > 0 and ``lo`` where t < 0; the other
        end may be infinite. An empty interval gives ``-inf``, with zero gradients.
    *params : tensor_like
        The parameters of the op, in its own parametrisation.

    Returns
    -------
    TensorVariable
    """
    known = sorted(cls.__name__ for cls in log_tilted_mass.registry if cls is not object)
    raise Declined(
        f"No tilted mass is registered for {op} ({type(op).__name__}); known: {', '.join(known)}."
    )


@log_tilted_mass.register(NormalRV)
def _normal_log_tilted_mass(op, t, z, lo, hi, mu, sigma):
    return elementwise_mass(normal_tilted_mass, t, z, lo, hi, mu, pt.sqr(_double(sigma)))


@log_tilted_mass.register(GammaRV)
def _gamma_log_tilted_mass(op, t, z, lo, hi, shape, scale):
    return elementwise_mass(gamma_tilted_mass, t, z, lo, hi, shape, pt.reciprocal(_double(scale)))


@log_tilted_mass.register(ExponentialRV)
def _exponential_log_tilted_mass(op, t, z, lo, hi, scale):
    return _gamma_log_tilted_mass(op, t, z, lo, hi, 1.0, scale)


def logaddexp(x, y):
    """Return log(exp(x) + exp(y)) with correct gradients at ties and where a term is -inf."""
    above = pt.gt(x, y)
    big = pt.switch(above, x, y)
    small = pt.switch(above, y, x)
    # Below -700 softplus is zero to double precision, and its derivative in JAX is NaN.
    gap = pt.switch(pt.isinf(big), 0.0, pt.maximum(small - big, -700.0))
    return big + pt.softplus(gap)


def laplace_log_marginal(op, z, lam, *params, lo=None, hi=None):
    r"""Log density of a statistic of known law, released with Laplace noise.

    Parameters
    ----------
    op : RandomVariable
        The op of the law of the statistic.
    z : tensor_like
        The released value.
    lam : tensor_like
        The rate of the noise, 1 / scale.
    *params : tensor_like
        The parameters of the op, in its own parametrisation.
    lo, hi : tensor_like, optional
        Confine the statistic to [lo, hi], without normalising its law again: what remains is the
        joint density of z and of the event that the statistic lies there.

    Returns
    -------
    TensorVariable
        Elementwise, by broadcasting.
    """
    z = _double(z)
    lam = _double(lam)
    low = _double(-np.inf if lo is None else lo)
    high = _double(np.inf if hi is None else hi)
    left_end = z if hi is None else pt.minimum(z, high)
    right_end = z if lo is None else pt.maximum(z, low)
    left = log_tilted_mass(op, lam, None, low, left_end, *params)
    right = log_tilted_mass(op, -lam, None, right_end, high, *params)
    if hi is not None:
        left -= lam * pt.maximum(z - high, 0.0)
    if lo is not None:
        right -= lam * pt.maximum(low - z, 0.0)
    return pt.log(0.5 * lam) + logaddexp(left, right)


def register_laplace(law: type[RandomVariable], draw: Callable, examples: tuple) -> None:
    """Register the `Pair` of a law that has a `log_tilted_mass` with the Laplace mechanism."""

    def log_marginal(mechanism, value, *parameters):
        return laplace_log_marginal(law(), value, 1.0 / mechanism.scale, *parameters)

    register_pair(Pair(law, LaplaceMechanism, log_marginal, draw, examples))


def gamma_logpdf(value, alpha, beta):
    r"""Log density of the Gamma law at value > 0, accurate for every shape.

    With :math:`\mu = (\beta s - \alpha) / \alpha`, the density is written around its peak, as
    :math:`-\alpha (\mu - \log(1 + \mu)) - \log s + \alpha \log \alpha - \alpha
    - \log\Gamma(\alpha)`, and the last three terms by Stirling's series once they cancel.
    """
    large = pt.gt(alpha, 10.0)
    a = pt.switch(large, alpha, 20.0)
    q = 1.0 / pt.sqr(a)
    tail = 1.0 / 1260.0 - q * (
        1.0 / 1680.0 - q * (1.0 / 1188.0 - q * (691.0 / 360360.0 - q / 156.0))
    )
    stirling = (1.0 / 12.0 - q * (1.0 / 360.0 - q * tail)) / a
    b = pt.switch(large, 5.0, alpha)
    peak = pt.switch(
        large,
        0.5 * pt.log(a / (2.0 * np.pi)) - stirling,
        b * pt.log(b) - b - pt.gammaln(b),
    )
    mu = (beta * value - alpha) / alpha
    near = pt.lt(pt.abs(mu), 0.5)
    log_ratio = pt.switch(
        near, pt.log1p(pt.switch(near, mu, 0.0)), pt.log(beta) + pt.log(value) - pt.log(alpha)
    )
    return peak - alpha * (mu - log_ratio) - pt.log(value)
