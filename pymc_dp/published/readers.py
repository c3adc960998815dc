"""Constructors of `Release` from what producers hand out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pymc_dp.published import census, diffprivlib, opendp

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import ArrayLike


class Readers:
    """What `Release` can be read from: one constructor for each kind of thing."""

    @classmethod
    def from_opendp(
        cls,
        made_by: Any,
        value: ArrayLike,
        *,
        d_in: Any = None,
        sensitivity: Any = None,
        **described,
    ) -> Self:
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
            A measurement whose noise is not among these, is followed by post-processing, is coarse
            or is none, of a scale below 1e-9 of the value; a scale that contradicts the
            sensitivity; a value of another kind.
        TypeError
            Not a query or measurement of OpenDP.

        Examples
        --------
        >>> import opendp.prelude as od  # doctest: +SKIP
        >>> query = context.query().clamp((0.0, 100.0)).sum().laplace()  # doctest: +SKIP
        >>> release = dp.Release.from_opendp(query, query.release())  # doctest: +SKIP
        """
        return cls(**opendp.read(made_by, value, d_in=d_in, sensitivity=sensitivity, **described))

    @classmethod
    def from_opendp_summary(
        cls, summary: Any, frame: Any, column: str | None = None, **described
    ) -> Self:
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
            No such column; one that is computed from several numbers (a mean: of one over a public
            number of records the error says how the sum is read), by another mechanism (a median),
            or without noise; groups that were dropped because their noisy count was below a
            threshold.
        TypeError
            A frame that is none, or was not collected.
        """
        return cls(**opendp.read_summary(summary, frame, column, **described))

    @classmethod
    def from_diffprivlib(cls, mechanism: Any, value: ArrayLike, **described) -> Self:
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
    ) -> Self:
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
        return cls(**census.read(rows, value=value, variance=variance, label=label, **described))
