"""Constructors of `Release` from what producers hand out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pymc_dp.published import census, diffprivlib, opendp, pipelinedp, smartnoise, tumult

if TYPE_CHECKING:
    from collections.abc import Sequence
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
        groups: Sequence[Any] | None = None,
        **described,
    ) -> Any:
        r"""Read the noise of a value that OpenDP released.

        Laplace and Gaussian noise are read, on numbers (`LaplaceMechanism`, `GaussianMechanism`)
        or, for integers, on whole numbers (`GeometricMechanism`, `DiscreteGaussianMechanism`);
        `RandomizedResponse` of a bool, of categories, whose reports become their positions, and of
        bits, packed or not; canonical noise (`TulapMechanism`); and the index of the largest of
        noisy scores (`make_noisy_max`), or of a quantile among its candidates (see
        `from_opendp_summary` for its statistic).
        Unsigned integers saturate at zero, so that their noise is ``.clipped(lower=0)``; a
        threshold is ``.suppressed(below=threshold)``. OpenDP's `scale` is b, and for Gaussian noise
        the standard deviation. Of a composition, the list of releases is returned.

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
        groups : sequence, optional
            Where a threshold left groups out: all groups that could be there. The value is in their
            order, NaN where one is not.
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
        found = opendp.read(
            made_by, value, d_in=d_in, sensitivity=sensitivity, groups=groups, **described
        )
        return cls._made(found)

    @classmethod
    def _made(cls, found: Any) -> Any:
        """Return the release of these fields, or the list of those of each."""
        return [cls._made(one) for one in found] if isinstance(found, list) else cls(**found)

    @classmethod
    def from_opendp_summary(
        cls,
        summary: Any,
        frame: Any,
        column: str | None = None,
        *,
        groups: Sequence[Any] | None = None,
        lengths: ArrayLike | None = None,
        candidates: Sequence[Any] | None = None,
        **described,
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
        groups : sequence, optional
            Where groups were left out whose noisy count was below a threshold: all groups that
            could be there. The value is in their order, NaN where one is not.
        lengths : array_like, optional
            Of a mean over a public number of records, that number, for each row. The release is
            then that of the **sum** of the records.
        candidates : sequence, optional
            Of a median or quantile, the candidates of the query. The release is the position among
            them; its statistic is, for each candidate c, ``-abs((1 - alpha) * (x < c).sum() - alpha
            * (x > c).sum())``.
        **described
            `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

        Raises
        ------
        ValueError
            No such column; one that is computed from several noisy numbers (a mean), by another
            mechanism (a median), or without noise; groups that were left out because a noisy
            count, of this column or another, was below a threshold.
        TypeError
            A frame that is none, or was not collected.
        """
        return cls(
            **opendp.read_summary(
                summary,
                frame,
                column,
                groups=groups,
                lengths=lengths,
                candidates=candidates,
                **described,
            )
        )

    @classmethod
    def from_diffprivlib(cls, mechanism: Any, value: ArrayLike, **described) -> Self:
        r"""Read the noise of a value that a mechanism object or a tool of diffprivlib released.

        ======================  ===================================================================
        `Laplace`               `LaplaceMechanism`, :math:`b = \Delta / (\varepsilon -
                                \log(1 - \delta))`
        `Geometric`             `GeometricMechanism`, :math:`b = \Delta / \varepsilon`
        `Gaussian`,             `GaussianMechanism`, with the standard deviation that the object
        `GaussianAnalytic`      found for :math:`(\varepsilon, \delta)`
        `GaussianDiscrete`      `DiscreteGaussianMechanism`, likewise
        `LaplaceTruncated`,     the same, ``.clipped(lower, upper)``
        `GeometricTruncated`
        `LaplaceFolded`         `FoldedLaplaceMechanism`
        `LaplaceBoundedDomain`  `BoundedLaplaceMechanism`, with the larger scale that it needs
        `Staircase`             `StaircaseMechanism`
        `Snapping`              `SnappingMechanism`
        `Uniform`               `UniformMechanism`, half as wide as :math:`\Delta / \delta`
        `Exponential`,          `ExponentialMechanism`, `NoisyMax`; the candidate becomes its
        `PermuteAndFlip`        position
        `Binary`                `RandomizedResponse`; its labels become 0 and 1
        `ExponentialCateg...`,  ``RandomizedResponse(matrix=...)``; the labels become their
        `ExponentialHier...`    positions among the object's
        ======================  ===================================================================

        By name of a function of `diffprivlib.tools`, with the arguments it was called with:

        ======================  ===================================================================
        ``"mean"``              mean of the records clipped to the bounds; `LaplaceMechanism`,
                                clipped to the bounds
        ``"var"``               variance (over n) of the clipped records; `BoundedLaplaceMechanism`
                                on :math:`[0, (u - l)^2 / 4]`
        ``"sum"``               sum of the clipped records; `LaplaceMechanism` clipped to
                                :math:`[n l, n u]`, or `GeometricMechanism` with an integer `dtype`
        ``"count_nonzero"``     number of records; `GeometricMechanism` clipped to [0, n]
        ``"histogram"``,        numbers of records; `GeometricMechanism`, clipped at 0
        ``"histogramdd"``
        ``"median"``,           the records themselves, in a vector, or in a row for each of several
        ``"quantile"``,         quantiles; `PrivateQuantile`
        ``"percentile"``
        ======================  ===================================================================

        Parameters
        ----------
        mechanism : object of diffprivlib.mechanisms, or str
            What `randomise` was called on, or the name of the function of `diffprivlib.tools`.
        value : array_like
            What it returned, or an array of what several calls returned. Of a function that was
            given an axis, pass all that it returned at once: it splits epsilon among the entries.
        **described
            Of a function: `epsilon`, `bounds`, `n` (the number of records of each entry),
            `quant` or `percent`, and `dtype`. `name`, `dims`, `coords`, `privacy` (by default the
            epsilon and delta) and `source` of the release.

        Raises
        ------
        ValueError
            Another mechanism or function, or one without noise.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.Release.from_diffprivlib("mean", 4.5, epsilon=0.5, bounds=(0, 10), n=50).mechanism
        LaplaceMechanism(scale=0.4).clipped(lower=0.0, upper=10.0)
        """
        return cls(**diffprivlib.read(mechanism, value, **described))

    @classmethod
    def from_smartnoise(
        cls,
        reader: Any,
        query: str,
        rows: Any,
        column: str | None = None,
        *,
        groups: Sequence[Any] | None = None,
        **described,
    ) -> Self:
        """Read one column of a query that SmartNoise SQL executed.

        COUNT and SUM are read, under Laplace or Gaussian noise; what comes out as an integer was
        cut toward zero by ``int()``, ``.truncated()``. The columns that were grouped by label the
        entries. Where the metadata have `censor_dims`, as by default, rows with a noisy number of
        individuals below tau were left out: ``.suppressed(below=tau)``; with `clamp_counts` counts
        are ``.clipped(lower=0)``.

        Parameters
        ----------
        reader : private reader of snsql
            What ``snsql.from_df`` or ``from_connection`` returned, of version 1.0.
        query : str
            The query.
        rows : list or data frame
            ``reader.execute(query)`` or ``reader.execute_df(query)``.
        column : str, optional
            Which column; may be left out where only one is noisy.
        groups : sequence, optional
            All groups that could be there. The value is in their order, NaN where one is not:
            groups without records have no row either. Needed with `censor_dims`.
        **described
            `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

        Raises
        ------
        ValueError
            A column computed from several (AVG), rows that were left out because of another column,
            by HAVING or LIMIT, groups that are not named.
        TypeError
            Another reader, or rows without a header.

        Examples
        --------
        >>> reader = snsql.from_df(frame, metadata=metadata, privacy=privacy)  # doctest: +SKIP
        >>> query = "SELECT COUNT(*) AS n FROM S.T"  # doctest: +SKIP
        >>> dp.Release.from_smartnoise(reader, query, reader.execute(query))  # doctest: +SKIP
        """
        return cls(**smartnoise.read(reader, query, rows, column, groups=groups, **described))

    @classmethod
    def from_pipelinedp(
        cls,
        results: Any,
        metric: str,
        noise: Any,
        *,
        partitions: Sequence[Any] | None = None,
        **described,
    ) -> Self:
        r"""Read one metric of what PipelineDP aggregated over public partitions.

        Its noise is Laplace or Gaussian. The results give a **standard deviation**, of which the
        scale of Laplace noise is :math:`\text{sd} / \sqrt 2`; the report gives the scale itself. A
        mean is middle + noisy sum / max(1, noisy count), where what was summed is (value - middle)
        for the middle of the bounds. It is read as the release of that sum,
        ``(x.clip(lower, upper) - middle).sum()`` in the model, and so needs the count beside it.

        Parameters
        ----------
        results : list or dict
            ``list(engine.aggregate(...))``.
        metric : {"count", "privacy_id_count", "sum", "mean"}
            Which metric.
        noise : report, or {"laplace", "gaussian"}
            ``pipeline_dp.ExplainComputationReport``, its text, or, where the results have
            ``output_noise_stddev``, the `noise_kind`.
        partitions : sequence, optional
            The public partitions, in the order that the entries shall have.
        **described
            `name`, `dims`, `coords`, `privacy` and `source` of the release.

        Raises
        ------
        ValueError
            A metric without noise of its own (a variance, a percentile, a sum beside a mean),
            without a count, or without its deviation; partitions that were selected privately.
        TypeError
            Results of another kind.
        """
        return cls(**pipelinedp.read(results, metric, noise, partitions=partitions, **described))

    @classmethod
    def from_tumult(
        cls,
        noise_info: Any,
        value: Any,
        column: str | None = None,
        *,
        groups: Sequence[Any] | None = None,
        below: float | None = None,
        **described,
    ) -> Self:
        """Read the answer of a query of Tumult Analytics.

        Its parameter is a scale for Laplace and geometric noise, and the **variance** for Gaussian
        and discrete Gaussian noise.

        Parameters
        ----------
        noise_info : list of dict
            ``session._noise_info(query, budget)``, asked before the query is evaluated, or the same
            written down: ``[{"noise_mechanism": "GEOMETRIC", "noise_parameter": 2.0}]``.
        value : array_like or data frame
            The answer, of Spark or pandas, or the number in it.
        column : str, optional
            The noisy column; the others label the entries. May be left out where it is alone.
        groups : sequence, optional
            All groups of the KeySet, in the order that the entries shall have.
        below : float, optional
            Threshold of ``suppress(column, threshold)``, under which rows were left out.
        **described
            `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

        Raises
        ------
        ValueError
            An average, a variance or a quantile, which are no noisy numbers of their own.
        TypeError
            Another kind of noise information.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> noise = [{"noise_mechanism": "GAUSSIAN", "noise_parameter": 9.0}]
        >>> dp.Release.from_tumult(noise, 285.2).mechanism
        GaussianMechanism(sigma=3.0)
        """
        return cls(
            **tumult.read(noise_info, value, column, groups=groups, below=below, **described)
        )

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
