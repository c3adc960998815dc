"""`Release`: a published value with its mechanism, and the readers of producers."""

from __future__ import annotations

from dataclasses import dataclass

from pymc_dp.published import (
    census,
    diffprivlib,
    marginals,
    opendp,
    opendp_summary,
    pipelinedp,
    smartnoise,
    tumult,
)
from pymc_dp.published.value import Published


@dataclass(frozen=True, eq=False)
class Release(Published):
    """A published value together with the mechanism that produced it.

    Pass it to `PrivateObservation` in the place of the mechanism; `observed=` is then left out.

    Parameters
    ----------
    value : array_like
        What was published: finite numbers, and NaN where a mechanism with `.suppressed` withheld
        an entry, in a list, an array, a pandas or polars object, or an
        xarray, whose dims and labels are taken where none are stated and put in order where they
        are. Whole numbers stay whole; True and False become 1, 0.
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

    from_opendp = classmethod(opendp.from_opendp)
    from_opendp_summary = classmethod(opendp_summary.from_opendp_summary)
    from_diffprivlib = classmethod(diffprivlib.from_diffprivlib)
    from_smartnoise = classmethod(smartnoise.from_smartnoise)
    from_pipelinedp = classmethod(pipelinedp.from_pipelinedp)
    from_tumult = classmethod(tumult.from_tumult)
    from_nmf = classmethod(census.from_nmf)
    from_mbi = classmethod(marginals.from_mbi)
