"""`Privacy`, the loss that was stated with a release."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pymc_dp.mechanisms.html import html_table


@dataclass(frozen=True)
class Privacy:
    r"""The privacy loss that was stated with a release.

    It is provenance: inference needs the noise alone, which the mechanism holds.

    Parameters
    ----------
    unit : str, optional
        Whose contribution is protected, "one person" say.
    neighbouring : str, optional
        When two data sets are neighbours: "add or remove one record", "replace one record", or the
        producer's own word, "SymmetricDistance" say.
    measure : str, optional
        What the loss is measured by, "pure", "approximate" or "zero-concentrated" say.
    epsilon : float, optional
        Loss :math:`\varepsilon > 0` of (approximate) differential privacy.
    rho : float, optional
        Loss :math:`\rho > 0` of zero-concentrated differential privacy.
    delta : float, optional
        Probability :math:`0 < \delta < 1` beside one of the two losses.

    Raises
    ------
    ValueError
        A loss that is not finite and positive, a `delta` that is not in (0, 1) or stands alone.
    TypeError
        A loss that is no number, or a text that is none.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> dp.Privacy(unit="one person", measure="pure", epsilon=0.5).epsilon
    0.5
    """

    unit: str | None = None
    neighbouring: str | None = None
    measure: str | None = None
    epsilon: float | None = None
    rho: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        """Validate the texts and the losses."""
        for name in ("unit", "neighbouring", "measure"):
            check_text("Privacy", name, getattr(self, name))
        for name, below in (("epsilon", np.inf), ("rho", np.inf), ("delta", 1.0)):
            loss = getattr(self, name)
            if loss is None:
                continue
            if isinstance(loss, bool) or not isinstance(loss, int | float | np.number):
                raise TypeError(f"Privacy: {name} must be a number, got {loss!r}")
            if not 0 < loss < below:
                rule = "finite and > 0" if np.isinf(below) else "> 0 and < 1"
                raise ValueError(
                    f"Privacy: {name} must be {rule}, got {loss!r}. Leave it out where none was "
                    f"stated."
                )
            object.__setattr__(self, name, float(loss))
        if self.delta is not None and self.epsilon is None and self.rho is None:
            raise ValueError(
                f"Privacy: delta={self.delta} belongs to a loss: write epsilon= or rho= beside it"
            )

    def _rows(self) -> list[tuple[str, str]]:
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        return [(name, str(value)) for name, value in stated.items() if value is not None]

    def _repr_html_(self) -> str:
        """Return what was stated, as Jupyter shows it."""
        return html_table("Privacy", self._rows() or [("stated", "nothing")])


def check_text(owner: str, name: str, text: Any) -> None:
    """Refuse a field that is neither text nor None."""
    if text is not None and not isinstance(text, str):
        raise TypeError(f"{owner}: {name} must be text, got {text!r}")
