"""The noise of mechanisms that release whole numbers, as a law of its own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.distributions.shape_utils import (
    implicit_size_from_params,
    maybe_resize,
    rv_size_is_none,
)
from pymc.logprob.abstract import _icdf, _logcdf, _logprob
from pytensor.tensor.random.utils import normalize_size_param

from pymc_dp.graphs.questions import known_value
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.lattice import LARGEST, IntegerNoise


class IntegerNoiseRV(SymbolicRandomVariable):
    """Random variable of a whole number plus the noise of a mechanism (location, noise scale).

    The mechanism has the mathematics; a subclass names it. Its parameter is not validated here, and
    may be random: this is no public noise but part of a model.
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

    def of_mechanism(self, function: str, value, size, mu, scale):
        """Evaluate a function of the mechanism, and let the graph check the parameters."""
        found = getattr(self.noise.with_parameters(scale), function)(value, mu)
        mu = as_float(mu)
        whole = pt.eq(mu, pt.round(mu)) & (pt.abs(mu) <= LARGEST)
        message = f"mu whole, 0 < {self.noise.parameter_names[0]} < inf"
        found = check_parameters(found, whole, scale > 0, pt.lt(scale, np.inf), msg=message)
        return maybe_resize(found, size)


@_logprob.register(IntegerNoiseRV)
def _integer_noise_logp(op, values, rng, size, mu, scale, **kwargs):
    return op.of_mechanism("logp", values[0], size, mu, scale)


@_logcdf.register(IntegerNoiseRV)
def _integer_noise_logcdf(op, value, rng, size, mu, scale):
    return op.of_mechanism("logcdf", value, size, mu, scale)


@_icdf.register(IntegerNoiseRV)
def _integer_noise_icdf(op, value, rng, size, mu, scale):
    return op.of_mechanism("icdf", value, size, mu, scale)


@_support_point.register(IntegerNoiseRV)
def _integer_noise_support_point(op, rv, rng, size, mu, scale):
    point, _ = pt.broadcast_arrays(pt.cast(mu, "int64"), scale)
    return maybe_resize(point, size)


class IntegerNoiseLaw(Discrete):
    """Law of a whole number plus the noise of a mechanism, that of its `rv_type`."""

    on_the_real_line: ClassVar[str]

    @classmethod
    def around(cls, mu, scale, **kwargs):
        """Create an unregistered variable; refuse a location that is known to be not whole."""
        mu = pt.as_tensor(mu)
        value = known_value(mu)
        if value is not None and not np.all(
            (value == np.round(value)) & (np.abs(value) <= LARGEST)
        ):
            raise ValueError(
                f"{cls.__name__}: mu must be a whole number of at most 2**53, got {value}; use "
                f"{cls.on_the_real_line} for a law on the real line"
            )
        return super().dist([mu, as_float(scale)], **kwargs)

    @classmethod
    def mean(cls, *args, **kwargs):
        """Return the mean as a tensor, given what `dist` takes."""
        *_, mu, scale = cls.dist(*args, **kwargs).owner.inputs
        return as_float(mu) + pt.zeros_like(scale)

    @classmethod
    def variance(cls, *args, **kwargs):
        """Return the variance as a tensor, given what `dist` takes."""
        *_, mu, scale = cls.dist(*args, **kwargs).owner.inputs
        noise = cls.rv_type.noise.with_parameters(scale)
        return noise.noise_variance + pt.zeros_like(as_float(mu))
