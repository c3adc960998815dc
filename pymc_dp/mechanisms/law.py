"""The law of a release: what its random variable asks of a mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.mechanisms.arguments import as_float, positive_argument, required_value, show

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


_TAKEN_NAMES = ("Binomial", "Exponential", "Geometric", "StudentT", "Uniform")
"""Names of PyMC distributions, whose arguments differ: a printed model shows the full name."""


class ReleaseLaw(ABC):
    r"""The law of a release :math:`Z` given a statistic :math:`s`, with tensors for parameters."""

    parameter_names: ClassVar[tuple[str, ...]] = ()
    """Fields that hold the noise parameters, in the order of `parameters`."""

    statistic_ndim: ClassVar[int] = 0
    """Number of last axes of the statistic that one draw is made of; 0 for noise of each entry."""

    @property
    def release_ndim(self) -> int:
        """Number of last axes of the release that are one draw."""
        return 0

    @property
    def one_release(self) -> str:
        """What has to be given as the published value, for error messages."""
        if self.statistic_ndim:
            return "one release of all entries of the statistic"
        return "one published value for each entry of the statistic"

    @property
    def spacing(self) -> float | None:
        """Distance between neighbouring atoms of a discrete release; None if it has a density."""
        return None

    @property
    def is_discrete(self) -> bool:
        """Whether the release takes values on a lattice only, so that `logp` is a log mass."""
        return self.spacing is not None

    @property
    def withholds(self) -> bool:
        """Whether an entry may be published as withheld, which is NaN or a sentinel."""
        return False

    @property
    def reads_outside(self) -> bool:
        """Whether the law calls a user's functions, which may read values that change."""
        parts = (part for part in vars(self).values() if isinstance(part, ReleaseLaw))
        ours = type(self).__module__.partition(".")[0] == __package__.partition(".")[0]
        return not ours or any(part.reads_outside for part in parts)

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """The noise parameters as tensors, in a fixed order."""
        return tuple(getattr(self, name) for name in self.parameter_names)

    def with_parameters(self, *parameters: TensorLike) -> Self:
        """Return the same mechanism with other parameters, which are not validated.

        Parameters
        ----------
        *parameters : tensor_like
            One for each of `parameters`, in that order. Any symbolic variable will do.

        Raises
        ------
        ValueError
            Another number of parameters than the mechanism has.
        """
        if len(parameters) != len(self.parameters):
            raise ValueError(
                f"{type(self).__name__} has {len(self.parameters)} parameters, "
                f"got {len(parameters)}"
            )
        return self._with(parameters)

    def _with(self, parameters: Sequence[TensorLike]) -> Self:
        return self._rebuilt(**dict(zip(self.parameter_names, parameters, strict=True)))

    def _keep(self, name: str, convert: Callable[..., TensorVariable], **rule: Any) -> None:
        """Validate a parameter that the user wrote, and keep it as a tensor."""
        tensor = convert(getattr(self, name), mechanism=type(self).__name__, name=name, **rule)
        object.__setattr__(self, name, tensor)

    @classmethod
    def _argument(cls, name: str, value: Any, **rule: Any) -> np.ndarray:
        """Validate one number of a privacy calculation; see `positive_argument`."""
        return positive_argument(value, mechanism=cls.__name__, name=name, **rule)

    @classmethod
    def _arguments(cls, **values: Any) -> list[np.ndarray]:
        """Validate numbers that must be finite and positive, by name."""
        return [cls._argument(name, value) for name, value in values.items()]

    def _value(self, name: str) -> np.ndarray:
        """Value of a parameter for a privacy calculation."""
        return required_value(getattr(self, name), mechanism=type(self).__name__, name=name)

    def _rebuilt(self, **fields: Any) -> Self:
        """Copy with some fields replaced, past `__init__` and so past the user's validation."""
        new = object.__new__(type(self))
        for name in self.parameter_names:
            if fields.get(name) is not None:
                fields[name] = pt.as_tensor_variable(fields[name])
        new.__dict__.update(self.__dict__ | fields)
        return new

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release given the statistic, as a graph; by `icdf`, if it is not overridden.

        Parameters
        ----------
        rng : RandomGeneratorVariable
            Symbolic random generator.
        statistic : tensor_like
            Confidential statistic.

        Returns
        -------
        next_rng, draw
            The generator after the draw, and a release of the shape to which the statistic and
            the parameters broadcast.
        """
        shape = sum((pt.zeros_like(p) for p in self.parameters), pt.zeros_like(as_float(statistic)))
        next_rng, p = pt.random.uniform(shape, 1.0, rng=rng, return_next_rng=True)
        return next_rng, self.icdf(p, statistic)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        r"""Log density or log mass :math:`\log \eta(z \mid s)` of a release.

        Parameters
        ----------
        value : tensor_like
            Released value :math:`z`.
        statistic : tensor_like, default 0
            Confidential statistic :math:`s`.

        Returns
        -------
        TensorVariable
            Of the shape to which the value, the statistic and the parameters broadcast.
        """
        return self.log_interval(value, value, statistic)  # if every release is an atom

    @abstractmethod
    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        r"""Log probability of a closed interval, :math:`\log P(l \le Z \le u \mid s)`.

        It is computed from the nearer tail, so it keeps its digits far out, for narrow intervals
        and for nearly certain ones. The ends may be infinite; an interval with `lower > upper`
        has probability zero.

        Parameters
        ----------
        lower, upper : tensor_like
            Ends of the interval.
        statistic : tensor_like, default 0
            Confidential statistic.
        """

    def logcdf(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        r"""Log of the distribution function, :math:`\log P(Z \le z \mid s)`.

        Parameters
        ----------
        value : tensor_like
            Released value.
        statistic : tensor_like, default 0
            Confidential statistic.
        """
        return self.log_interval(-np.inf, value, statistic)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        r"""Quantile function, :math:`\min\{z : P(Z \le z \mid s) \ge p\}`.

        Parameters
        ----------
        p : tensor_like
            Probability; NaN comes back outside [0, 1].
        statistic : tensor_like, default 0
            Confidential statistic.

        Raises
        ------
        NotImplementedError
            A mechanism without a quantile function.
        """
        raise NotImplementedError(f"{type(self).__name__} has no quantile function")

    def support_point(self, statistic: TensorLike) -> TensorVariable:
        """Return a possible release, the initial value of an unobserved one.

        Parameters
        ----------
        statistic : tensor_like
            Confidential statistic.
        """
        return pt.as_tensor(statistic)

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        """Assert inside the graph what could not be verified when the mechanism was built."""
        return expression

    def __repr__(self) -> str:
        """Class and fields, or parameters; one without a fixed value shows as its name."""
        shown = (f"{name}={value}" for name, value in self._shown().items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def _shown(self) -> dict[str, str]:
        """Return the values of fields, or parameters, as text; see `__repr__`."""
        names = [field.name for field in fields(self)] if is_dataclass(self) else ()
        return {name: show(getattr(self, name)) for name in names or self.parameter_names}

    @property
    def label(self) -> str:
        """Name of the law where a model is printed."""
        name = type(self).__name__
        short = name.removesuffix("Mechanism")
        return name if short in _TAKEN_NAMES else short
