"""Arguments of mechanisms: checked, and turned into tensors."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant

from pymc_dp.graphs.questions import known_value

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


class Number(TensorConstant):
    """A parameter that is a constant: ``float(mechanism.scale)`` is its value."""

    def __float__(self) -> float:
        """Return the value of a scalar."""
        return float(self.data)


def as_parameter(value: Any, *, mechanism: str, name: str) -> TensorVariable:
    """Convert a user's parameter to a float tensor; refuse one that depends on a random variable.

    Parameters
    ----------
    value : tensor_like
        What the user wrote.
    mechanism, name : str
        The mechanism's class and the parameter, for error messages.
    """
    if isinstance(value, Variable) or (
        isinstance(value, list | tuple) and any(isinstance(v, Variable) for v in value)
    ):
        tensor = pt.as_tensor_variable(value)
        random = _random_variable_of(tensor)
        if random is not None:
            raise TypeError(
                f"{mechanism}: {name} depends on the random variable {random}. The noise of a "
                "release is public and known, never estimated: pass the number that the curator "
                "used, or a pm.Data that holds it."
            )
    else:
        try:
            tensor = pt.as_tensor_variable(np.asarray(value, dtype=pytensor.config.floatX))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{mechanism}: {name} must be a number, an array or a tensor, got {value!r}"
            ) from error
    floatx = pytensor.config.floatX
    if isinstance(tensor, Constant):
        data = np.asarray(tensor.data, dtype=floatx)
        return Number(TensorType(floatx, data.shape), data, tensor.name)
    return tensor if tensor.dtype == floatx else tensor.astype(floatx)


def positive_parameter(value: Any, *, mechanism: str, name: str, instead: str) -> TensorVariable:
    """Convert a noise parameter that must be finite and greater than zero.

    Parameters
    ----------
    value : tensor_like
        What the user wrote.
    mechanism, name : str
        The mechanism's class and the parameter, for error messages.
    instead : str
        What to write instead of a bad value, as a sentence.
    """
    tensor = as_parameter(value, mechanism=mechanism, name=name)
    known = known_value(tensor)
    if known is not None:
        refuse_unless(
            np.isfinite(known) & (known > 0), known, mechanism, name, "finite and > 0", instead
        )
    return tensor


def positive_argument(
    value: ArrayLike, *, mechanism: str, name: str, below: float = np.inf, zero_ok: bool = False
) -> np.ndarray:
    """Convert an argument of a privacy loss calculation; it is never symbolic.

    Parameters
    ----------
    value : array_like
        What the user wrote.
    mechanism, name : str
        The mechanism's class and the argument, for error messages.
    below : float, default infinity
        The value must be smaller than this.
    zero_ok : bool, default False
        Whether zero is allowed.
    """
    if isinstance(value, Variable):
        raise TypeError(f"{mechanism}: {name} must be a number or an array, not a tensor: {value}")
    try:
        raw = np.asarray(value)
        array = raw.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{mechanism}: {name} must be a number or an array, got {value!r}"
        ) from error
    if raw.dtype.kind not in "iuf":  # "1" and True are numbers for numpy
        raise TypeError(f"{mechanism}: {name} must be a number or an array, got {value!r}")
    bound = ">= 0" if zero_ok else "> 0"
    rule = f"finite and {bound}" if np.isinf(below) else f"{bound} and < {below:g}"
    good = np.isfinite(array) & ((array >= 0) if zero_ok else (array > 0)) & (array < below)
    refuse_unless(good, array, mechanism, name, rule, "")
    return array


def refuse_unless(
    good: np.ndarray, values: np.ndarray, mechanism: str, name: str, rule: str, instead: str
) -> None:
    """Raise a ValueError that names the first of the values that is not good.

    Parameters
    ----------
    good : ndarray of bool
        Which values are acceptable.
    values : ndarray
        What the user wrote.
    mechanism, name : str
        The mechanism's class and the parameter.
    rule : str
        What a value must be.
    instead : str
        What to write instead, as a sentence.
    """
    if np.size(values) == 0:
        raise ValueError(f"{mechanism}: {name} is empty. {instead}".rstrip())
    if np.all(good):
        return
    where = tuple(int(i) for i in np.argwhere(~np.asarray(good))[0])
    at = f" at index {where if len(where) > 1 else where[0]}" if where else ""
    raise ValueError(
        f"{mechanism}: {name} must be {rule}, got {np.asarray(values)[where]!s}{at}. "
        f"{instead}".rstrip()
    )


def as_integer(value: Any, *, mechanism: str, name: str) -> int:
    """Convert an argument that must be a whole number.

    Parameters
    ----------
    value : int
        What the user wrote.
    mechanism, name : str
        The mechanism's class and the argument, for error messages.
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{mechanism}: {name} must be an integer, got {value!r}") from None


def _random_variable_of(tensor: Variable) -> str | None:
    """Name of a random variable among the ancestors, or None."""
    nearest = None
    for variable in ancestors([tensor]):
        # A random generator among the ancestors also gives away draws inside a Scan.
        random = isinstance(variable.type, RandomType) or (
            variable.owner is not None and isinstance(variable.owner.op, RNGConsumerOp)
        )
        if random:
            nearest = nearest or str(variable)
            if variable.name is not None and not isinstance(variable.type, RandomType):
                return repr(variable.name)
    return nearest


def required_value(tensor: Variable, *, mechanism: str, name: str) -> np.ndarray:
    """Value of a parameter for a calculation with numbers; refuse a symbolic one.

    Parameters
    ----------
    tensor : TensorVariable
        The parameter.
    mechanism, name : str
        The mechanism's class and the parameter, for error messages.
    """
    value = known_value(tensor)
    if value is None:
        raise ValueError(
            f"{mechanism}: the privacy loss is a number, but {name} is symbolic "
            f"({show(tensor)}). Build the mechanism from numbers or pm.Data to ask for it."
        )
    return value


def check_positive(
    expression: TensorVariable, parameter: TensorVariable, name: str
) -> TensorVariable:
    """Let the graph check a parameter that can still change; a constant was checked before."""
    if isinstance(parameter, Constant):
        return expression
    return check_parameters(
        expression, parameter > 0, pt.lt(parameter, np.inf), msg=f"0 < {name} < inf"
    )


def show(tensor: Variable) -> str:
    """Short text of a parameter: its value where it has one, else its name."""
    if isinstance(tensor, Variable) and not isinstance(tensor, Constant) and tensor.name:
        return str(tensor.name)
    value = known_value(tensor)
    if value is None:
        return "<symbolic>"
    if value.ndim == 0:
        return repr(float(value))
    return np.array2string(value, separator=", ", threshold=8, floatmode="unique")


def as_float(x: TensorLike) -> TensorVariable:
    """Convert to a float tensor of at least PyTensor's precision.

    Integer releases can then be infinite interval ends, and single precision data do not lower
    the precision of the arithmetic.
    """
    x = pt.as_tensor_variable(x)
    floatx = pytensor.config.floatX
    return x if x.dtype in ("float64", floatx) else x.astype(floatx)


@dataclass(frozen=True, eq=False)
class StandardInterval:
    """An interval in units of the noise scale, every field of it finite.

    Parameters
    ----------
    lower, upper : TensorVariable
        Standardised ends; an infinite end is a number of which the square is still finite.
    width : TensorVariable
        Their distance, positive, found from the ends themselves so that it does not cancel.
    possible : TensorVariable
        Whether the interval has any mass; the other fields are a harmless (-1, 1) where not.
    """

    lower: TensorVariable
    upper: TensorVariable
    width: TensorVariable
    possible: TensorVariable


def standard_interval(
    lower: TensorLike, upper: TensorLike, location: TensorLike, scale: TensorVariable
) -> StandardInterval:
    """Standardise an interval under a location-scale law with a density.

    Whatever is not finite is replaced before it meets any arithmetic, because the gradient of
    `switch` multiplies the unused branch by zero and 0 * inf is NaN.
    """
    lower, upper, location = as_float(lower), as_float(upper), as_float(location)
    possible = lower < upper
    open_lower, open_upper = pt.isinf(lower), pt.isinf(upper)
    floatx = np.dtype(pytensor.config.floatX)
    big = pt.constant(np.asarray(1e-4 * np.sqrt(np.finfo(floatx).max), dtype=floatx))
    low = pt.switch(open_lower, location, lower)
    high = pt.switch(open_upper, location, upper)
    # An end at the wrong infinity makes the interval impossible, so the signs can be taken as read.
    a = pt.switch(open_lower, -big, (low - location) / scale)
    b = pt.switch(open_upper, big, (high - location) / scale)
    width = pt.switch(open_lower | open_upper, big, (high - low) / scale)
    # Ends may differ by less than the scale can show.
    possible = possible & (width > 0)
    return StandardInterval(
        pt.switch(possible, a, -1.0),
        pt.switch(possible, b, 1.0),
        pt.switch(possible, width, 2.0),
        possible,
    )


def nan_outside_unit(expression: TensorVariable, p: TensorVariable) -> TensorVariable:
    """Quantiles exist for probabilities in [0, 1] only."""
    return pt.switch((p >= 0) & (p <= 1), expression, np.nan)
