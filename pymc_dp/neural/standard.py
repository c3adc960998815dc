"""Standard units of the inputs of the networks, which compute in single precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_HEAVY = 20.0  # scales from the centre; Normal values never come near it
_NORMAL_IQR = 1.349


@dataclass(frozen=True, eq=False)
class Standard:
    r"""A map of each column to standard units and back, in double precision.

    Columns are centred and scaled: a large offset must be gone before single precision. A scaled
    column u with heavy tails becomes :math:`\operatorname{arsinh} u`, which is about u in the
    middle and logarithmic in the tails: otherwise a few values of thousands of scales would
    dominate the loss.

    Attributes
    ----------
    center, scale : ndarray of shape (width,)
    heavy : ndarray of bool, shape (width,)
        Columns with heavy tails.
    """

    center: np.ndarray
    scale: np.ndarray
    heavy: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Standard:
        """Find the map from values of shape (count, width): median and interquartile range."""
        low, center, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        scale = (high - low) / _NORMAL_IQR
        with np.errstate(over="ignore"):
            spread = values.std(axis=0)
        scale = np.where(scale > 0, scale, spread)  # most values may be equal
        scale = np.where(scale > 0, scale, 1.0)
        heavy = np.abs(values - center).max(axis=0) > _HEAVY * scale
        return cls(center, scale, heavy)

    def forward(self, values: np.ndarray) -> np.ndarray:
        """Map values of shape (..., width) to standard units."""
        u = (values - self.center) / self.scale
        return np.where(self.heavy, np.arcsinh(u), u)

    def back(self, standard: np.ndarray) -> np.ndarray:
        """Map standard units to values; an overflow is infinite."""
        with np.errstate(over="ignore"):
            u = np.where(self.heavy, np.sinh(standard), standard)
            return self.center + self.scale * u

    def log_slope(self, values: np.ndarray) -> np.ndarray:
        """Log derivative of `forward` in each column; their sum is the log Jacobian."""
        u = (values - self.center) / self.scale
        return np.where(self.heavy, -0.5 * np.log1p(u**2), 0.0) - np.log(self.scale)
