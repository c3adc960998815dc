"""The noise of mechanisms that release whole numbers, as a law of its own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.shape_utils import implicit_size_from_params, rv_size_is_none
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


def as_location(mu, *, law: str, instead: str):
    """Convert a location, which must be a whole number; refuse another one that is known."""
    mu = pt.as_tensor(mu)
    value = known_value(mu)
    if value is not None and not np.all((value == np.round(value)) & (np.abs(value) <= LARGEST)):
        raise ValueError(
            f"{law}: mu must be a whole number of at most 2**53, got {value}; use {instead} for a "
            f"law on the real line"
        )
    return mu


def checked(expression, mu, scale, name: str):
    """Let the graph check the parameters."""
    mu = as_float(mu)
    whole = pt.eq(mu, pt.round(mu)) & (pt.abs(mu) <= LARGEST)
    message = f"mu whole, 0 < {name} < inf"
    return check_parameters(expression, whole, scale > 0, pt.lt(scale, np.inf), msg=message)


def location_point(mu, scale, size):
    """Return the location as support point."""
    point, _ = pt.broadcast_arrays(pt.cast(mu, "int64"), scale)
    return point if rv_size_is_none(size) else pt.full(size, point)
