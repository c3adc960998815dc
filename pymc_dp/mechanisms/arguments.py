"""Arguments of mechanisms: checked, and turned into tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import TrueDiv
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant

from pymc_dp.graphs.held import held
from pymc_dp.graphs.values import known_value

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


_NOISY_THRESHOLD = (
    " A noisy threshold belongs to the statistic: thr = pm.Laplace('thr', T, b), then "
    "PrivateObservation('passed', x - thr, noise.thresholded(0.0))"
)


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
        if random is not None and not _is_divided(tensor):
            raise TypeError(
                f"{mechanism}: {name} depends on the random variable {random}. The noise of a "
                "release is public and known, never estimated: pass the number that the curator "
                "used, or a pm.Data that holds it." + _NOISY_THRESHOLD * (name == "threshold")
            )
    else:
        try:
            entries = held(value)
        except TypeError as error:
            raise TypeError(
                f"{mechanism}: {name} must be a number, an array or a tensor, got {value!r}"
            ) from error
        return as_number(entries)
    floatx = pytensor.config.floatX
    if isinstance(tensor, Constant):
        return as_number(tensor.data, tensor.name)
    return tensor if tensor.dtype == floatx else tensor.astype(floatx)


def as_number(value: Any, name: str | None = None) -> Number:
    """Make a constant of numbers with their labels, which `alignment.placed` puts in order."""
    entries = held(value)
    data = np.asarray(entries.numbers, dtype=pytensor.config.floatX)
    tensor = Number(TensorType(pytensor.config.floatX, data.shape), data, name)
    if entries.is_labelled:
        tensor.tag.held = entries
    return tensor


def checked_parameter(
    value: Any,
    good: Callable[[np.ndarray], np.ndarray],
    rule: str,
    *,
    mechanism: str,
    name: str,
    instead: str = "",
) -> TensorVariable:
    """Convert a noise parameter; refuse a known value that is not good.

    Parameters
    ----------
    value : tensor_like
        What the user wrote.
    good : callable
        Returns which of the numbers it is given are acceptable.
    rule : str
        What a value must be.
    mechanism, name : str
        The mechanism's class and the parameter, for error messages.
    instead : str
        What to write instead of a bad value, as a sentence.
    """
    tensor = as_parameter(value, mechanism=mechanism, name=name)
    known = known_value(tensor)
    if known is not None:
        refuse_unless(good(known), known, mechanism, name, rule, instead)
    return tensor


def positive_parameter(value: Any, **texts: str) -> TensorVariable:
    """Convert a noise parameter that must be finite and > 0; see `checked_parameter`."""
    return checked_parameter(value, _finite_and_positive, "finite and > 0", **texts)


def _finite_and_positive(x: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & (x > 0)


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
        raw = held(value).numbers
        array = raw.astype(np.float64)
    except TypeError as error:
        raise TypeError(
            f"{mechanism}: {name} must be a number or an array, got {value!r}"
        ) from error
    if raw.dtype.kind == "b":  # NumPy converts booleans to numbers
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
    where, place = first_bad(good)
    raise ValueError(
        f"{mechanism}: {name} must be {rule}, got {np.asarray(values)[where]!s}{place}. "
        f"{instead}".rstrip()
    )


def first_bad(good: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Return the index of the first value that is not good, and its text for a message."""
    where = tuple(int(i) for i in np.argwhere(~np.asarray(good))[0])
    return where, f" at index {where if len(where) > 1 else where[0]}" if where else ""


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


def probability_rows(name: str, value: ArrayLike, of: str, *, least: int) -> np.ndarray:
    """Return a matrix whose rows are probabilities, for reading only; refuse another.

    Parameters
    ----------
    name : str
        Mechanism and argument, for error messages.
    value : array_like
        What the user wrote.
    of : str
        What a row has, with the number of the row for {}.
    least : int
        Least number of rows and of columns.
    """
    matrix = np.array(value, dtype="float64")
    if matrix.ndim != 2 or min(matrix.shape) < least:
        raise ValueError(
            f"{name} has the shape {matrix.shape}: write a matrix, {least} rows and {least} "
            f"columns or more. A row has {of.format('a number, its own')}"
        )
    matrix[(matrix < 0) & (matrix > -1e-12)] = 0.0  # as rounded
    wrong = ~np.isfinite(matrix) | (matrix < 0)
    if wrong.any():
        k, z = np.argwhere(wrong)[0]
        raise ValueError(f"{name}[{k}, {z}] is {matrix[k, z]}: write a probability")
    [rows] = np.nonzero(np.abs(matrix.sum(axis=1) - 1.0) > 1e-8)
    if rows.size:
        raise ValueError(
            f"{name}: row {rows[0]} adds up to {matrix[rows[0]].sum():.6g}, not to 1: a row has "
            f"{of.format(rows[0])}"
        )
    total = matrix.sum(axis=1, keepdims=True)
    matrix /= np.where(np.abs(total - 1.0) < 1e-12, 1.0, total)  # the same when it is read back
    matrix.flags.writeable = False
    return matrix


def _is_divided(tensor: Variable) -> bool:
    """Whether a known number is divided: `PrivateObservation` judges what it is divided by."""
    op = None if tensor.owner is None else tensor.owner.op
    return isinstance(getattr(op, "scalar_op", None), TrueDiv) and (
        _random_variable_of(tensor.owner.inputs[0]) is None
    )


def _random_variable_of(tensor: Variable) -> str | None:
    """Name of a random variable among the ancestors, or None."""
    nearest = None
    for variable in ancestors([tensor]):
        # Draws inside a Scan show by their random generator only.
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


def show(tensor: Any) -> str:
    """Short text of a field: the value of a parameter where it has one, else its name."""
    if not isinstance(tensor, Variable):
        return repr(tensor)
    if not isinstance(tensor, Constant) and tensor.name:
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


def in_unit(x: Any) -> Any:
    """Whether numbers, or entries of a tensor, are in [0, 1]."""
    return (x >= 0) & (x <= 1)


def nan_outside_unit(expression: TensorVariable, p: TensorVariable) -> TensorVariable:
    """Return the expression, and NaN where the probability p is not in [0, 1]."""
    return pt.switch(in_unit(p), expression, np.nan)


def just_met(p: TensorVariable) -> TensorVariable:
    """Log of a probability less rounding error: a computed log probability this large reaches p."""
    log_p = pt.log(p)
    return log_p - 4.0 * np.finfo(np.float64).eps * (1.0 + pt.abs(log_p))
