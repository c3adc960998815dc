"""The law of a whole number plus a mechanism's whole-number noise."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.distributions.shape_utils import implicit_size_from_params, maybe_resize, rv_size_is_none
from pymc.logprob.abstract import _icdf, _logcdf, _logprob
from pytensor.tensor.random.utils import normalize_size_param

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.lattice import LARGEST, IntegerNoise


class IntegerNoiseRV(SymbolicRandomVariable):
    """Random variable of a whole number plus the noise of a mechanism (location, noise scale).

    A subclass names the mechanism, which does the computing. Its parameter may be random, and is
    not validated here: it belongs to a model, and is no public noise.
    """

    extended_signature = "[rng],[size],(),()->[rng],()"
    noise: ClassVar[IntegerNoise]

    @classmethod
    def rv_op(cls, mu, scale, *, size=None, rng=None):
        """Build the variable."""
        mu, scale = pt.as_tensor(mu), as_float(scale)
        rng = pt.random.shared_rng(seed=None) if rng is None else rng
        size = normalize_size_param(size)
        shape = (
            implicit_size_from_params(mu, scale, ndims_params=cls.ndims_params)
            if rv_size_is_none(size)
            else size
        )
        next_rng, draws = cls.noise.with_parameters(scale).noise_sample(
            rng, pt.broadcast_to(mu, shape)
        )
        return cls([rng, size, mu, scale], [next_rng, draws])(rng, size, mu, scale)

    @classmethod
    def of_mechanism(cls, function: str, value, mu, scale):
        """Evaluate a function of the mechanism, and let the graph check the parameters."""
        scale = as_float(scale)
        expression = getattr(cls.noise.with_parameters(scale), function)(value, mu)
        mu = as_float(mu)
        whole = pt.eq(mu, pt.round(mu)) & (pt.abs(mu) <= LARGEST)
        message = f"mu whole, 0 < {cls.noise.parameter_names[0]} < inf"
        return check_parameters(expression, whole, scale > 0, pt.lt(scale, np.inf), msg=message)


@_logprob.register(IntegerNoiseRV)
def _integer_noise_logp(op, values, rng, size, mu, scale, **kwargs):
    return maybe_resize(op.of_mechanism("logp", values[0], mu, scale), size)


@_logcdf.register(IntegerNoiseRV)
def _integer_noise_logcdf(op, value, rng, size, mu, scale):
    return maybe_resize(op.of_mechanism("logcdf", value, mu, scale), size)


@_icdf.register(IntegerNoiseRV)
def _integer_noise_icdf(op, value, rng, size, mu, scale):
    return maybe_resize(op.of_mechanism("icdf", value, mu, scale), size)


@_support_point.register(IntegerNoiseRV)
def _integer_noise_support_point(op, rv, rng, size, mu, scale):
    point, _ = pt.broadcast_arrays(pt.cast(mu, "int64"), scale)
    return maybe_resize(point, size)


class IntegerNoiseLaw(Discrete):
    """Law of a whole number plus the noise of a mechanism, that of its `rv_type`."""

    _on_the_real_line: ClassVar[str]

    @classmethod
    def _around(cls, mu, scale, **kwargs):
        """Create an unregistered variable; refuse a location that is known to be not whole."""
        mu = pt.as_tensor(mu)
        value = known_value(mu)
        if value is not None and not np.all(
            (value == np.round(value)) & (np.abs(value) <= LARGEST)
        ):
            raise ValueError(
                f"{cls.__name__}: mu must be a whole number of at most 2**53, got {value}; use "
                f"{cls._on_the_real_line} for a law on the real line"
            )
        return super().dist([mu, as_float(scale)], **kwargs)

    @classmethod
    def support_point(cls, rv, size, mu, scale):
        """Return the location."""
        return _integer_noise_support_point(None, rv, None, size, mu, scale)

    @classmethod
    def mean(cls, mu, scale):
        """Return the mean as a tensor."""
        return as_float(mu) + pt.zeros_like(as_float(scale))

    @classmethod
    def variance(cls, mu, scale):
        """Return the variance as a tensor."""
        noise = cls.rv_type.noise.with_parameters(as_float(scale))
        return noise.noise_variance + pt.zeros_like(as_float(mu))

    @classmethod
    def logp(cls, value, mu, scale):
        """Return the log mass."""
        return cls.rv_type.of_mechanism("logp", value, mu, scale)

    @classmethod
    def logcdf(cls, value, mu, scale):
        """Return the log of the distribution function."""
        return cls.rv_type.of_mechanism("logcdf", value, mu, scale)

    @classmethod
    def icdf(cls, value, mu, scale):
        """Return the quantile."""
        return cls.rv_type.of_mechanism("icdf", value, mu, scale)
