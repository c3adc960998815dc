"""`Mechanism`: what every mechanism provides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant

from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.html import html_table
from pymc_dp.mechanisms.law import ReleaseLaw
from pymc_dp.mechanisms.release import release_rv

if TYPE_CHECKING:
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


POSTPROCESSED: Registry[str, Callable[..., Mechanism]] = Registry()
"""Subclasses that methods of `Mechanism` return, by the name of the method."""


class Mechanism(ReleaseLaw):
    r"""A randomised release of a statistic, with noise of a public and known law.

    A mechanism turns a confidential statistic :math:`s` into a release :math:`Z` with density or
    mass function :math:`\eta(z \mid s)`. Subclasses are frozen dataclasses; their noise
    parameters are tensors, so that everything broadcasts and `pm.Data` can be used.

    To add a mechanism, write one module with a subclass that names its parameter fields in
    `parameter_names`, implements `noise_sample`, `logp` and `log_interval` (and `icdf` where it
    exists, which may draw as well), and calls `register_mechanism`. No existing file changes; the
    conformance tests then cover it.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.LaplaceMechanism(2.0).clipped(lower=0.0).rounded()
    >>> mechanism
    LaplaceMechanism(scale=2.0).clipped(lower=0.0).rounded(0)
    >>> mechanism.logp([0.0, 1.0], 3.0).eval().round(4)
    array([-1.9431, -2.3759])
    >>> mechanism.log_interval(0.0, 1.0, 3.0).eval().round(4)
    np.float64(-1.4431)
    >>> mechanism.dist(pt.zeros(5)).eval().shape
    (5,)
    """

    is_channel: ClassVar[bool] = False
    """Whether each entry is the category of one record, changed at random."""

    @property
    def takes_whole(self) -> bool:
        """Whether whole-number releases need a whole-number statistic."""
        return False

    @property
    def outcomes(self) -> np.ndarray | None:
        """All values that can be published, if they are few, else None."""
        return None

    @property
    def log_concave(self) -> bool:
        """Whether the probability of every release and interval is log-concave in the statistic.

        For a mechanism that takes whole numbers, log-concavity on the whole numbers is meant.
        Additive noise with a log-concave density or mass has this property. Exact draws rely on
        it; where it is False, the default, all values of a count are listed.
        """
        return False

    @property
    def has_gap(self) -> bool:
        """Whether values between two values that can be published are withheld."""
        return False

    def work(self, candidates: int) -> int:
        """Return the number of terms in one density, for a statistic of this length.

        Parameters
        ----------
        candidates : int
            Length of the statistic's last axis.
        """
        return candidates

    @property
    def rates(self) -> tuple[TensorVariable, TensorVariable] | None:
        r"""Rate and precision :math:`(\lambda, \tau)` of additive noise; None for other noise.

        The log density is :math:`c - \lambda |z - s| - \tau (z - s)^2 / 2`, where c does not depend
        on s. The noise has one parameter, a scale b, and its law depends on (z - s) / b only.
        """
        return None

    has_more_kinks: ClassVar[bool] = False  # than `kinks` returns

    @property
    def may_jump(self) -> bool:
        """Whether the density of a release may jump where the statistic moves."""
        return self.rates is None

    def kinks(self, value: TensorLike) -> Sequence[TensorVariable]:
        """Return the statistics at which the density of a release bends or jumps.

        Quadrature over the statistic begins and ends there. Others are found, at a cost.

        Parameters
        ----------
        value : tensor_like
            Released value.
        """
        return [as_float(value)] if self.rates is not None and has_kink(self) else []

    def is_withheld(self, value: TensorLike) -> TensorVariable:
        """Whether a value says that the entry was withheld.

        Parameters
        ----------
        value : tensor_like
            Released value.
        """
        return pt.zeros_like(as_float(value), dtype="bool")

    @classmethod
    def from_fields(cls, **fields: Any) -> Self:
        """Build the mechanism from the values of its dataclass fields, as a file holds them.

        A mechanism whose fields are not the arguments of its constructor overrides this.

        Parameters
        ----------
        **fields
            Numbers, arrays, mechanisms or None, by field. They are validated as the user's are.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.LaplaceMechanism.from_fields(scale=2.0)
        LaplaceMechanism(scale=2.0)
        """
        return cls(**fields)

    def wrong_parameter(self) -> str | None:
        """Name the first parameter with an invalid value, as far as values are known.

        `pm.set_data` may have changed them after the mechanism was built. Scales are finite and
        positive; a mechanism with parameters of another kind overrides this.
        """
        return wrong_scales(self, self.parameter_names)

    def stated_epsilon(self, shape: tuple[int | None, ...]) -> float | None:
        """Return the total pure-DP loss of a release of this shape, where the user stated one.

        The losses of the entries add up, which is an upper bound where one loss was stated for
        the whole release.

        Parameters
        ----------
        shape : tuple of int or None
            Shape of the release; None is a length that is not known.
        """
        return None

    def attainable(self, value: TensorLike) -> TensorVariable:
        """Whether some statistic can lead to this release.

        The statistic that is tried is `typical_statistic`.

        Parameters
        ----------
        value : tensor_like
            Released value.
        """
        return self.logp(value, self.typical_statistic(value)) > -np.inf

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return a statistic that can lead to this release, if any can.

        By default this is the release itself, which is right for additive noise. A mechanism
        whose releases are on another scale than the statistic overrides this.

        Parameters
        ----------
        value : tensor_like
            Released value.
        """
        return as_float(value)

    def check_released(self, name: str, value: np.ndarray, length: int | None) -> None:
        """Refuse a value that is no release of a statistic with this many entries.

        Parameters
        ----------
        name : str
            Name of the release.
        value : array
            What was released.
        length : int or None
            Length of the statistic's last axis, if it is known.
        """

    def why_unattainable(self, value: float) -> str:
        """Explain why no statistic can lead to this release, for an error message.

        Parameters
        ----------
        value : float
            Released value, one that is not `attainable`.
        """
        return (
            "check the mechanism's arguments (limits, thresholds, digits, categories, population), "
            "or the observed value"
        )

    def dist(self, statistic: TensorLike, **kwargs: Any) -> TensorVariable:
        """Random variable of the release, not registered with any model.

        `pm.draw`, `pm.logp`, `pm.logcdf` and `pm.icdf` work on it.

        Parameters
        ----------
        statistic : tensor_like
            Confidential statistic: a number, an array or an expression of random variables.
        **kwargs
            Passed to `pymc_dp.mechanisms.release.release_rv`.

        Returns
        -------
        TensorVariable
            The release, of the shape to which the statistic and the parameters broadcast.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> z = dp.GeometricMechanism(2.0).dist([10, 20, 30])
        >>> pm.logp(z, [12, 20, 30]).eval().round(4)
        array([-2.4068, -1.4068, -1.4068])
        """
        return release_rv(statistic, self, **kwargs)

    def clipped(
        self, lower: TensorLike | None = None, upper: TensorLike | None = None
    ) -> Mechanism:
        """Return the mechanism whose release is afterwards clipped to [lower, upper].

        Parameters
        ----------
        lower, upper : tensor_like, optional
            Clipping bounds; None leaves that side alone.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> clipped = dp.LaplaceMechanism(2.0).clipped(lower=0.0)
        >>> np.exp(clipped.logp(0.0, 3.0).eval()).round(4)  # all of the noise below -3
        np.float64(0.1116)
        """
        return self._afterwards("clipped", lower, upper)

    def rounded(self, digits: int = 0, base: float | None = None) -> Mechanism:
        """Return the mechanism whose release is afterwards rounded, as by `round(z, digits)`.

        Parameters
        ----------
        digits : int, default 0
            Decimal places; negative ones round to tens, hundreds, ...
        base : float, optional
            Step in the place of digits: 5 rounds to multiples of five.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> rounded = dp.LaplaceMechanism(2.0).rounded(base=5)
        >>> np.exp(rounded.logp([0, 5, 7], 3.0).eval()).round(4)
        array([0.3574, 0.5579, 0.    ])
        """
        return self._afterwards("rounded", digits, base)

    def truncated(self, base: float = 1) -> Mechanism:
        """Return the mechanism whose release is afterwards cut toward zero, as by `int(z)`.

        Parameters
        ----------
        base : float, default 1
            Step of the values that are left.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> np.exp(dp.LaplaceMechanism(2.0).truncated().logp([0, 1], 0.0).eval()).round(4)
        array([0.3935, 0.1193])
        """
        return self._afterwards("truncated", base)

    def floored(self, base: float = 1) -> Mechanism:
        """Return the mechanism whose release is afterwards rounded down.

        Parameters
        ----------
        base : float, default 1
            Step of the values that are left.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> np.exp(dp.LaplaceMechanism(2.0).floored().logp([-1, 0], 0.0).eval()).round(4)
        array([0.1967, 0.1967])
        """
        return self._afterwards("floored", base)

    def ceiled(self, base: float = 1) -> Mechanism:
        """Return the mechanism whose release is afterwards rounded up.

        Parameters
        ----------
        base : float, default 1
            Step of the values that are left.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> np.exp(dp.LaplaceMechanism(2.0).ceiled().logp([0, 1], 0.0).eval()).round(4)
        array([0.1967, 0.1967])
        """
        return self._afterwards("ceiled", base)

    def suppressed(
        self,
        below: TensorLike | None = None,
        above: TensorLike | None = None,
        where: TensorLike | None = None,
        *,
        by: Mechanism | None = None,
        empty: bool = False,
        sentinel: float | None = None,
    ) -> Mechanism:
        """Return the mechanism whose release is afterwards withheld where a rule says so.

        A withheld entry is published as NaN, and the likelihood includes the probability of
        withholding it. Each argument is a separate reason; see `SuppressedMechanism`.

        Parameters
        ----------
        below, above : tensor_like, optional
            Withheld if the noisy value is strictly below `below` or strictly above `above`; with
            ``above < below``, if it lies strictly between the two.
        where : tensor_like of bool, optional
            Entries that a public rule withholds, whatever their values are.
        by : Mechanism, optional
            Mechanism of a second, unpublished value of the same statistic, which decides.
        empty : bool, default False
            A statistic of zero is withheld for sure: groups without members have no row.
        sentinel : float, optional
            Number that was printed in the place of a withheld value, if any.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> kept = dp.GeometricMechanism(2.0).suppressed(below=5)
        >>> np.exp(kept.logp([6.0, np.nan], 7).eval()).round(4)  # published, and withheld
        array([0.1486, 0.1389])
        """
        return self._afterwards("suppressed", below, above, where, by, empty, sentinel)

    def thresholded(self, threshold: TensorLike) -> Mechanism:
        """Return the mechanism that publishes only whether the noisy value reaches a threshold.

        Parameters
        ----------
        threshold : tensor_like
            The release is 1 where the noisy value is at least this, else 0.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> reaches = dp.LaplaceMechanism(2.0).thresholded(10.0)
        >>> np.exp(reaches.logp([0, 1], 10.0).eval()).round(4)
        array([0.5, 0.5])
        """
        return self._afterwards("thresholded", threshold)

    def _repr_html_(self) -> str:
        """Return parameters, privacy loss and what was done afterwards, as Jupyter shows them."""
        return html_table(type(self).__name__, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        """Return headings and texts of `_repr_html_`."""
        if type(self).__repr__ is ReleaseLaw.__repr__:
            rows = list(self._shown().items())
        else:  # its fields are not what the user wrote
            rows = [("written", repr(self))]
        for loss in ("epsilon", "rho", "delta"):
            # Staircase noise has epsilon as a parameter. A loss that needs another argument than
            # the sensitivity, such as a Gaussian's delta, is left out.
            quantity: Any = getattr(self, loss, None)
            takes = set(signature(quantity).parameters) if callable(quantity) else {loss}
            if takes - {"sensitivity", "monotone"}:
                continue
            arguments, when = ([1.0], " at sensitivity 1") if takes else ([], "")
            with suppress(ValueError):  # a parameter is symbolic
                text = np.array2string(np.asarray(quantity(*arguments)), precision=4, threshold=8)
                rows.append((f"{loss}{when}", text))
        return rows

    def _afterwards(self, how: str, *arguments: Any) -> Any:
        """Return the mechanism with a step after the release; see `POSTPROCESSED`."""
        return POSTPROCESSED[how](self, *arguments)


def kind_of(mechanism: Mechanism) -> Any:
    """Return what mechanisms share that differ in their parameters only.

    A parameter that is None is not there: ``below=`` is another kind than ``above=``.
    """
    parameters = {*mechanism.parameter_names, "further"}
    parts = {k: v for k, v in vars(mechanism).items() if k not in parameters or v is None}
    return type(mechanism), *(
        (k, kind_of(v) if isinstance(v, Mechanism) else id(v)) for k, v in sorted(parts.items())
    )


def has_continuous_rates(mechanism: Mechanism) -> bool:
    """Whether a mechanism adds noise with a density and `rates`."""
    return mechanism.rates is not None and not mechanism.is_discrete


def has_kink(mechanism: Mechanism) -> bool:
    """Whether the noise of a mechanism with `rates` is Laplace's: its precision is 0."""
    assert mechanism.rates is not None
    _, tau = mechanism.rates
    return isinstance(tau, Constant) and not np.any(tau.data)


def wrong_scales(mechanism: Mechanism, names: Sequence[str]) -> str | None:
    """Name the first of the parameters that is not finite and positive, if values are known."""
    for name in names:
        value = known_value(getattr(mechanism, name))
        if value is not None and not np.all((value > 0) & np.isfinite(value)):
            return f"{name}={value} is not finite and positive"
    return None
