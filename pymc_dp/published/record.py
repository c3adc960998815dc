"""`Release`, the record of what a curator published."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.graphs.questions import known_value
from pymc_dp.mechanisms.arguments import refuse_unless
from pymc_dp.mechanisms.base import Mechanism, check_attainable
from pymc_dp.published import census, diffprivlib, encoding, opendp
from pymc_dp.published.privacy import Privacy, check_text

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Labels = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Release:
    """A published value together with the mechanism that produced it.

    Pass it to `PrivateObservation` in the place of the mechanism; `observed=` is then left out.

    Parameters
    ----------
    value : array_like
        What was published: finite numbers. Whole numbers stay whole; True and False become 1, 0.
    mechanism : Mechanism
        The mechanism whose noise it carries, with `.clipped` and `.rounded` where the curator
        clipped or rounded. Its parameters broadcast against the value.
    name : str, optional
        What the release is called.
    dims : str or tuple of str, optional
        A name for each dimension of the value.
    coords : mapping, optional
        Labels (texts or numbers) of some of these dimensions, one for each entry.
    privacy : Privacy, optional
        The privacy loss that was stated.
    source : str, optional
        Where the release is from.

    Raises
    ------
    ValueError
        A value that is empty or not finite, parameters that do not broadcast against it, or dims
        and coords that do not fit it.
    TypeError
        A value that is not numeric, or an argument of the wrong kind.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> release = dp.Release([34, -1], dp.GeometricMechanism(2.0), name="cases", dims="town")
    >>> text = release.to_json()
    >>> dp.Release.from_json(text).value
    array([34, -1])
    """

    value: np.ndarray
    mechanism: Mechanism
    name: str | None = None
    dims: tuple[str, ...] | None = None
    coords: Labels | None = None
    privacy: Privacy | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        """Validate the fields, and keep the value as an array of int64 or float64."""
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(
                f"Release: mechanism must be a mechanism such as dp.LaplaceMechanism(scale); got "
                f"{type(self.mechanism).__name__}"
            )
        value = _numbers(self.value)
        for parameter in self.mechanism.parameters:
            known = known_value(parameter)
            shape = parameter.type.shape if known is None else known.shape
            if not _broadcasts(shape, value.shape):
                raise ValueError(
                    f"Release: a parameter of shape {shape} of {self.mechanism!r} does not "
                    f"broadcast against the value of shape {value.shape}: write one number for "
                    f"all, or one per entry"
                )
        check_attainable(self.name or "Release", self.mechanism, value)
        value.flags.writeable = False
        for name in ("name", "source"):
            check_text("Release", name, getattr(self, name))
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise TypeError(
                f"Release: privacy must be a dp.Privacy, got {type(self.privacy).__name__}"
            )
        dims = _dims(self.dims, value.shape)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "coords", _coords(self.coords, dims, value.shape))

    def __eq__(self, other: object) -> bool:
        """Whether two releases say the same."""
        if not isinstance(other, Release):
            return NotImplemented
        return self._said() == other._said()

    def __hash__(self) -> int:
        """Hash what the release says."""
        return hash(self._said())

    def _said(self) -> str | int:
        """Return what is compared: the text or, if a parameter is symbolic, the object's own id."""
        try:
            return self.to_json()
        except ValueError:
            return id(self)

    def to_json(self) -> str:
        """Return the release as JSON text, with everything that `from_json` reads back.

        Numbers keep all their digits. See `from_json` for the layout.

        Raises
        ------
        ValueError
            A parameter of the mechanism is symbolic, so that no number can be written.
        TypeError
            The mechanism is of a class that is not registered.
        """
        return encoding.encode(self)

    @classmethod
    def from_json(cls, text: str) -> Release:
        """Read a release from JSON text.

        ::

            {"format": "pymc_dp release", "version": 1,
             "value": [34, -1],
             "mechanism": {"class": "GeometricMechanism", "scale": 2.0},
             "name": "cases", "dims": ["town"], "coords": {"town": ["Aa", "Bo"]},
             "privacy": {"unit": "one person", "epsilon": 0.5}, "source": "..."}

        All but the first four may be left out. The fields of a mechanism are those of its class; a
        clipped or rounded one holds another as `inner`. Infinite clipping bounds are written
        "inf" and "-inf". Nothing that is not known is skipped: a misspelt field is an error.

        Parameters
        ----------
        text : str
            The text itself; read a file with ``Path(file).read_text()``.

        Raises
        ------
        ValueError
            Text that is no JSON or no release of version 1; an unknown, missing or repeated
            field, or an unknown mechanism; a variance where a scale is meant; NaN.
        TypeError
            A field of the wrong kind.
        """
        return cls(**encoding.decode(text, [field.name for field in fields(cls)]))

    @classmethod
    def from_opendp(
        cls,
        made_by: Any,
        value: ArrayLike,
        *,
        d_in: Any = None,
        sensitivity: Any = None,
        **described,
    ) -> Release:
        r"""Read the noise of a value that OpenDP released.

        Laplace and Gaussian noise are read, on numbers (`LaplaceMechanism`, `GaussianMechanism`)
        or, for integers, on whole numbers (`GeometricMechanism`, `DiscreteGaussianMechanism`); and
        `RandomizedResponse` of a bool. Unsigned integers saturate at zero, so that their noise is
        ``.clipped(lower=0)``. OpenDP's `scale` is b, and for Gaussian noise the standard
        deviation.

        Parameters
        ----------
        made_by : opendp query or measurement
            The query of the Context API that was released (`query.release()` may have been called
            or not), or the measurement that was invoked. For a Polars query take
            `from_opendp_summary`.
        value : array_like
            What it released.
        d_in : optional
            Distance of neighbouring data sets, for the privacy loss that is kept with the release.
            A query knows its own.
        sensitivity : float or opendp transformation, optional
            Sensitivity of the statistic, only to check by: with it, the scale must be
            :math:`\Delta_1 / \varepsilon` or :math:`\Delta_2 / \sqrt{2 \rho}` within a relative
            1e-6 (OpenDP relaxes the sensitivity of floats by less), which it is not where `d_in`
            is not the distance that the loss was meant for. Needs `d_in`.
        **described
            `name`, `dims`, `coords`, `privacy` and `source` of the release.

        Raises
        ------
        ValueError
            A measurement whose noise is not among these, is followed by post-processing, or is
            coarse; a scale that contradicts the sensitivity; a value of another kind.
        TypeError
            Not a query or measurement of OpenDP.

        Examples
        --------
        >>> import opendp.prelude as od  # doctest: +SKIP
        >>> query = context.query().clamp((0.0, 100.0)).sum().laplace()  # doctest: +SKIP
        >>> release = dp.Release.from_opendp(query, query.release())  # doctest: +SKIP
        """
        found = opendp.read(made_by, value, d_in=d_in, sensitivity=sensitivity, **described)
        return cls(**found)

    @classmethod
    def from_opendp_summary(
        cls, summary: Any, frame: Any, column: str | None = None, **described
    ) -> Release:
        """Read one column of a data frame that an OpenDP Polars query released.

        Columns of unsigned integers, such as those of ``dp.len()`` by default, are clamped at zero,
        and their noise is ``.clipped(lower=0)``. In a grouped query the other columns label the
        entries, in the order of the frame's rows: they become dims and coords.

        Parameters
        ----------
        summary : polars or pandas data frame
            ``query.summarize()``.
        frame : polars or pandas data frame
            ``query.release().collect()``.
        column : str, optional
            Which column; may be left out where there is only one.
        **described
            `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

        Raises
        ------
        ValueError
            No such column; one that is computed from several noisy numbers (a mean), or by
            another mechanism (a median); groups that were dropped because their noisy count was
            below a threshold.
        TypeError
            A frame that is none, or was not collected.
        """
        return cls(**opendp.read_summary(summary, frame, column, **described))

    @classmethod
    def from_diffprivlib(cls, mechanism: Any, value: ArrayLike, **described) -> Release:
        r"""Read the noise of a value that a mechanism object of diffprivlib released.

        ======================  ===================================================================
        `Laplace`               `LaplaceMechanism`, :math:`b = \Delta / (\varepsilon -
                                \log(1 - \delta))`
        `Geometric`             `GeometricMechanism`, :math:`b = \Delta / \varepsilon`
        `Gaussian`,             `GaussianMechanism`, with the standard deviation that the object
        `GaussianAnalytic`      found for :math:`(\varepsilon, \delta)`
        `GaussianDiscrete`      `DiscreteGaussianMechanism`, likewise
        `LaplaceTruncated`,     the same, ``.clipped(lower, upper)``
        `GeometricTruncated`
        `Binary`                `RandomizedResponse`; its labels become 0 and 1
        ======================  ===================================================================

        Parameters
        ----------
        mechanism : object of diffprivlib.mechanisms
            What `randomise` was called on. Functions of `diffprivlib.tools` return bare numbers:
            for these, state the mechanism yourself.
        value : array_like
            What it returned, or an array of what several calls returned.
        **described
            `name`, `dims`, `coords`, `privacy` (by default the object's epsilon and delta) and
            `source` of the release.

        Raises
        ------
        ValueError
            Another mechanism, or one without noise.
        """
        return cls(**diffprivlib.read(mechanism, value, **described))

    @classmethod
    def from_nmf(
        cls,
        rows: str | Path | Any,
        *,
        value: str = "value",
        variance: str = "variance",
        label: str | None = None,
        **described,
    ) -> Release:
        r"""Read rows of a Census noisy measurement file: counts with discrete Gaussian noise.

        The file gives the **variance** of the noise; the mechanism is
        ``DiscreteGaussianMechanism(sigma)`` with :math:`\sigma = \sqrt{\text{variance}}`. (The
        variance of the discrete Gaussian is :math:`\sigma^2` within a relative 1e-6 from
        :math:`\sigma = 1` on.) Noisy measurements are what the statistic plus noise gave, negative
        ones included. Published census tables are not: they were made consistent and non-negative,
        and are no releases.

        Parameters
        ----------
        rows : path, or polars or pandas data frame
            A parquet file or folder, or the rows themselves. Pass a data frame to take some rows of
            a file: one query at one level of geography, say.
        value, variance : str
            Columns of the noisy count and of the variance of its noise, as your file names them.
            Where a row holds the counts of a whole query, they must be as many in every row; the
            value then has one row for each.
        label : str, optional
            Column that labels the rows. It becomes the first dimension.
        **described
            `name`, `dims`, `coords`, `privacy` and `source` of the release.

        Raises
        ------
        ValueError
            No such column, no rows, a count that is not whole, or a variance that is not positive:
            a variance of zero marks an invariant, which was published without noise.
        ImportError
            A path without pandas and pyarrow, the extra ``[parquet]``.
        """
        found = census.read(rows, value=value, variance=variance, label=label, **described)
        return cls(**found)


def _numbers(value: Any) -> np.ndarray:
    """Return the published value as int64 or float64, all of it finite."""
    if np.ma.is_masked(value):
        raise ValueError(
            "Release: value has masked entries; leave unpublished entries out of the release, and "
            "of the statistic. That one was withheld because it was below a threshold is news, too"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    kind = array.dtype.kind
    if kind not in "biuf":
        raise TypeError(f"Release: value must be a number or an array of numbers; got {value!r}")
    if kind == "u" and np.any(array > np.iinfo("int64").max):
        raise ValueError("Release: value has integers over 2**63 - 1; write it as float64")
    array = np.array(array, dtype="float64" if kind == "f" else "int64")
    refuse_unless(
        np.isfinite(array),
        array,
        "Release",
        "value",
        "finite",
        "Leave unpublished entries (NaN) out of the release.",
    )
    return array


def _broadcasts(shape: tuple[int | None, ...], onto: tuple[int, ...]) -> bool:
    return len(shape) <= len(onto) and all(
        a is None or a in (b, 1) for a, b in zip(reversed(shape), reversed(onto), strict=False)
    )


def _dims(dims: Any, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if dims is None:
        return None
    dims = (dims,) if isinstance(dims, str) else dims
    if not isinstance(dims, list | tuple) or not all(isinstance(dim, str) for dim in dims):
        raise TypeError(f"Release: dims must be texts, got {dims!r}")
    dims = tuple(dims)
    if len(set(dims)) != len(dims):
        raise ValueError(f"Release: dims={dims} names a dimension twice")
    if len(dims) != len(shape):
        raise ValueError(
            f"Release: dims={dims} names {len(dims)} dimensions, the value of shape {shape} has "
            f"{len(shape)}"
        )
    return dims


def _coords(coords: Any, dims: tuple[str, ...] | None, shape: tuple[int, ...]) -> Labels | None:
    if coords is None:
        return None
    if not isinstance(coords, Mapping):
        raise TypeError(f"Release: coords must map dims to labels, got {coords!r}")
    lengths = dict(zip(dims or (), shape, strict=True))
    result = {}
    for dim, labels in coords.items():
        if dim not in lengths:
            raise ValueError(f"Release: coords label {dim!r}, which is not one of dims={dims}")
        if isinstance(labels, str) or not isinstance(labels, Iterable):
            raise TypeError(f"Release: labels of {dim!r} must be a sequence, got {labels!r}")
        labels = [x.item() if isinstance(x, np.generic) else x for x in labels]
        wrong = [x for x in labels if not _is_label(x)]
        if wrong:
            raise TypeError(
                f"Release: labels of {dim!r} must be texts or finite numbers, got {wrong[0]!r}: "
                f"write str(label)"
            )
        if len(labels) != lengths[dim]:
            raise ValueError(
                f"Release: {len(labels)} labels of {dim!r}, but the value has {lengths[dim]} "
                f"entries along it"
            )
        result[dim] = tuple(labels)
    return result


def _is_label(x: Any) -> bool:
    return isinstance(x, str | int) or (isinstance(x, float) and math.isfinite(x))
