"""A ready model: Poisson factorization of a table of counts, observed or released with noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm

from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.observation import PrivateObservation
from pymc_dp.published import Release

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def poisson_factorization(
    observed: ArrayLike | Release,
    components: int,
    mechanism: Mechanism | None = None,
    *,
    theta_shape: ArrayLike = 1.0,
    theta_rate: ArrayLike = 1.0,
    phi_shape: ArrayLike = 1.0,
    phi_rate: ArrayLike = 1.0,
    dims: tuple[str, ...] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> pm.Model:
    r"""Write the model of a Poisson factorization, of counts or of a private release of them.

    .. math::

        \theta_{dk} \sim \mathrm{Gamma}(a_\theta, b_\theta), \quad
        \phi_{kv} \sim \mathrm{Gamma}(a_\phi, b_\phi), \quad
        y_{dv} \sim \mathrm{Poisson}\Bigl(\sum_{k=1}^K \theta_{dk} \phi_{kv}\Bigr), \quad
        z_{dv} \sim \eta(\cdot \mid y_{dv}).

    Without a mechanism the counts y are observed. With one, z is, and the counts are integrated
    out: `pm.sample` runs NUTS on both factors, ``pm.sample(step=dp.steps(model))`` runs
    `FactorizationGibbs`, and `recover` draws the confidential counts. The model of locally
    private counts is that of [1]_.

    Parameters
    ----------
    observed : array_like (D, V), or Release
        Counts, or the released table. A `Release` carries its mechanism, and its dims and coords
        stand in for those that are not given.
    components : int
        Number K of components.
    mechanism : Mechanism, optional
        The noise of the release, `GeometricMechanism` or `LaplaceMechanism`; None if `observed`
        are the counts themselves.
    theta_shape, theta_rate : array_like, default 1
        Shape and rate (not scale) of the Gamma prior of theta; they broadcast to (D, K).
    phi_shape, phi_rate : array_like, default 1
        The same for phi; they broadcast to (K, V).
    dims : tuple of str, optional
        Dimension names of the table's rows and columns; that of the components is "component".
    coords : mapping, optional
        Labels of the dimensions.

    Returns
    -------
    pm.Model
        With the variables ``theta`` (D, K), ``phi`` (K, V) and ``counts`` or ``release``.

    Raises
    ------
    ValueError
        `observed` is no table, or holds what are no counts; `components` is no positive whole
        number; `dims` are not two names; a mechanism beside a `Release`.
    NotImplementedError
        A mechanism under which Poisson counts cannot be integrated out.

    References
    ----------
    .. [1] A. Schein, Z. S. Wu, A. Schofield, M. Zhou, H. Wallach (2019). Locally private Bayesian
       inference for count models. ICML.

    Examples
    --------
    >>> import numpy as np, pymc_dp as dp
    >>> release = np.array([[3, -1, 12], [0, 4, 2], [7, 1, 25], [-2, 0, 3]])
    >>> model = dp.poisson_factorization(release, 2, dp.GeometricMechanism.from_epsilon(1.0))
    >>> [variable.name for variable in model.free_RVs]
    ['theta', 'phi']
    """
    if isinstance(observed, Release):
        if mechanism is not None:
            raise ValueError("the Release already carries its mechanism; leave mechanism out")
        mechanism, table = observed.mechanism, observed.value
        if dims is None:
            dims, coords = observed.dims, {**(observed.coords or {}), **(coords or {})}
    else:
        table = np.asarray(observed)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"observed has shape {table.shape}: a table of counts, or the release of one, with "
            f"rows and columns is needed"
        )
    if mechanism is None and not np.all((table >= 0) & (table == np.floor(table))):
        raise ValueError(
            "observed holds what are no counts: leave the mechanism out only if the table was not "
            "noised, and write poisson_factorization(observed, components, "
            "dp.GeometricMechanism(scale)) if it was"
        )
    if not isinstance(components, int | np.integer) or components < 1:
        raise ValueError(f"components={components!r}: write a whole number, at least 1")
    if dims is not None and (isinstance(dims, str) or len(dims) != 2):
        raise ValueError(f"dims={dims!r}: write the names of rows and columns, ('row', 'column')")
    row, column = dims or (None, None)
    lengths = {"component": components, row: table.shape[0], column: table.shape[1]}
    named = {d: np.arange(n) for d, n in lengths.items() if d is not None} if dims else {}
    with pm.Model(coords={**named, **(coords or {})}) as model:
        theta = pm.Gamma(
            "theta",
            theta_shape,
            theta_rate,
            shape=(table.shape[0], components),
            dims=(row, "component") if dims else None,
        )
        phi = pm.Gamma(
            "phi",
            phi_shape,
            phi_rate,
            shape=(components, table.shape[1]),
            dims=("component", column) if dims else None,
        )
        if mechanism is None:
            pm.Poisson("counts", theta @ phi, observed=table.astype("int64"), dims=dims)
        else:
            released = pm.Poisson.dist(theta @ phi)
            PrivateObservation("release", released, mechanism, observed=table, dims=dims)
    return model
