"""Releases of OpenDP's measurements, and of queries of its Context API.

OpenDP itself is never imported: everything is read from the objects that the user passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pymc_dp import mechanisms
from pymc_dp.mechanisms import Mechanism
from pymc_dp.published.marginals import of_contingency_table
from pymc_dp.published.opendp_noise import INSTEAD, NOISE, check_noisy, selection
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.tables import keyed, positions
from pymc_dp.published.value import Published

_WHO = "from_opendp"
# Combinators that leave the noise as it is, with the argument that holds the measurement.
_AROUND = {
    "make_chain_mt": "measurement1",
    "make_approximate": "measurement",
    "make_fix_delta": "measurement",
    "make_pureDP_to_zCDP": "measurement",
    "make_zCDP_to_approxDP": "measurement",
}
# Law of the noise, by the constructor of the measurement or by its measure.
_LAWS = {
    "make_laplace": "Laplace",
    "make_geometric": "Laplace",
    "make_gaussian": "Gaussian",
    "MaxDivergence": "Laplace",
    "ZeroConcentratedDivergence": "Gaussian",
}


def from_opendp(
    cls: type[Published],
    made_by: Any,
    value: ArrayLike,
    *,
    d_in: Any = None,
    sensitivity: Any = None,
    groups: Sequence[Any] | None = None,
    **described: Any,
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
    the standard deviation. Of a composition, the list of releases is returned, and of a
    `ContingencyTable`, behind synthetic data, that of its marginals, as of `from_mbi`, with the
    table's keys as labels; what AIM or MST told by the choice of marginals is left out.

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
        A measurement with another kind of noise, with post-processing, with noise on a coarse
        grid, or with a scale that is negligible beside the value; a scale that contradicts the
        sensitivity; a value of another kind.
    TypeError
        Not a query or measurement of OpenDP.

    Examples
    --------
    >>> import opendp.prelude as od
    >>> import pymc_dp as dp
    >>> od.enable_features("contrib")
    >>> numbers = od.atom_domain(T=float, nan=False), od.absolute_distance(T=float)
    >>> measurement = od.m.make_laplace(*numbers, scale=2.0)
    >>> release = dp.Release.from_opendp(measurement, 12.3, d_in=1.0)  # measurement(data) gave 12.3
    >>> release.mechanism, release.privacy.epsilon
    (LaplaceMechanism(scale=2.0), 0.5)
    """
    if hasattr(made_by, "summarize"):
        raise TypeError(
            f"{_WHO}: this is a Polars query; write dp.Release.from_opendp_summary("
            f"query.summarize(), query.release().collect(), column)"
        )
    measurement = made_by.resolve() if hasattr(made_by, "resolve") else made_by
    d_in = getattr(made_by, "_d_in", None) if d_in is None else d_in
    if not (hasattr(measurement, "output_measure") and hasattr(measurement, "map")):
        raise TypeError(
            f"{_WHO}: a measurement or a query of OpenDP is needed, got {type(made_by).__name__}; "
            f"{INSTEAD}"
        )
    if hasattr(value, "marginals"):
        if sensitivity is not None or groups is not None:
            raise ValueError(f"{_WHO}: leave sensitivity= and groups= out of a ContingencyTable")
        return of_contingency_table(cls, str(measurement.output_measure), value, **described)
    function, arguments, d_mid = _noise_of(measurement, d_in)
    if function in ("make_composition", "make_basic_composition"):
        parts: Any = arguments["measurements"]
        if sensitivity is not None or len(parts) != len(value):  # type: ignore[arg-type]
            raise ValueError(
                f"{_WHO}: this is a composition of {len(parts)} measurements; write the list of "
                f"their {len(parts)} values, and leave sensitivity= out"
            )
        each = {"d_in": d_mid, "groups": groups, **described}
        return [from_opendp(cls, *pair, **each) for pair in zip(parts, value, strict=True)]  # type: ignore[arg-type]
    privacy = None if d_in is None else _loss(measurement, d_in)
    attributes: dict[str, Any] = {"privacy": privacy, "source": "OpenDP"}
    if function in _ANSWERS:
        mechanism, value = _ANSWERS[function](arguments, value)
    elif function.endswith("_threshold"):
        # Groups without members are not there before the noise is added.
        if groups is None or not isinstance(value, Mapping):
            raise ValueError(
                f"{_WHO}: {function} leaves groups out whose noisy value is below "
                f"{arguments['threshold']}: the value must be the dict that was released, and "
                f"groups= must name all groups that could be there, such as groups=['a', 'b']"
            )
        noisy = np.array([*value.values()]) if value else np.zeros(0, "int64")
        mechanism = _additive(function.removesuffix("_threshold"), arguments, noisy)
        mechanism = getattr(mechanism, "inner", mechanism)  # not clipped
        mechanism = mechanism.suppressed(below=arguments["threshold"], empty=True)
        value, labels = keyed(_WHO, {"group": [*value]}, noisy, groups)
        attributes |= labels
    else:
        mechanism = _additive(function, arguments, np.asarray(value))
    if sensitivity is not None:
        _check_scale(mechanism, privacy, sensitivity, d_in)
    return cls(**{"value": value, "mechanism": mechanism} | attributes | described)


def _of_measure(arguments: Mapping[str, Any]) -> Mechanism:
    kind, scale = str(arguments["output_measure"]), float(arguments["scale"])
    return selection(f"{_WHO}: the selection", kind, scale)


def _of_scores(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    """Return the selection of the largest of noisy scores."""
    mechanism = _of_measure(arguments)
    if arguments["negate"]:
        raise ValueError(
            f"{_WHO}: negate=True selects the smallest score. Release -scores in the model, and "
            f"write dp.Release({value}, dp.{mechanism!r})"
        )
    return mechanism, value


def _bits(value: Any) -> np.ndarray:
    """Return reports of bits, which may be packed in bytes."""
    if isinstance(value, bytes):
        return np.unpackbits(np.frombuffer(value, dtype="uint8"))
    return np.array([_bits(row) if isinstance(row, bytes) else row for row in value])


# Measurements that add no noise to numbers: the mechanism, and the value with labels as positions.
# Of a bit vector each bit is replaced, with probability f, by a fair coin.
_ANSWERS: dict[str, Callable[[Mapping[str, Any], Any], tuple[Mechanism, Any]]] = {
    "make_randomized_response_bool": lambda a, z: (mechanisms.RandomizedResponse(a["prob"]), z),
    "make_randomized_response": lambda a, z: (
        mechanisms.RandomizedResponse(a["prob"], len(a["categories"])),
        positions(_WHO, a["categories"], z),
    ),
    "make_randomized_response_bitvec": lambda a, z: (
        mechanisms.RandomizedResponse(1 - a["f"] / 2),
        _bits(z),
    ),
    "make_noisy_max": _of_scores,
    "make_private_quantile": lambda a, z: (_of_measure(a), positions(_WHO, a["candidates"], z)),
    "make_canonical_noise": lambda a, z: (mechanisms.TulapMechanism(*a["d_out"], a["d_in"]), z),
}


def _noise_of(measurement: Any, d_in: Any) -> tuple[str, Mapping[str, Any], Any]:
    """Return the constructor of the noise, its arguments, and the distance of its inputs.

    Every object of OpenDP keeps its constructor and arguments, for `opendp.prelude.serialize`.
    """
    while True:
        made = getattr(measurement, "__opendp_dict__", None)
        if made is None:
            raise ValueError(
                f"{_WHO}: this version of OpenDP does not say how the measurement was made; "
                f"{INSTEAD}, whose scale is sensitivity / epsilon for Laplace noise and "
                f"sensitivity / sqrt(2 rho) for Gaussian noise"
            )
        function, arguments = made["__function__"], made["__kwargs__"]
        if function not in _AROUND:
            return function, arguments, d_in
        if function == "make_chain_mt" and d_in is not None:
            d_in = arguments["transformation0"].map(d_in)
        measurement = arguments[_AROUND[function]]


def _additive(function: str, arguments: Mapping[str, Any], value: np.ndarray) -> Mechanism:
    law = _LAWS.get(str(arguments.get("output_measure")) if function == "make_noise" else function)
    if law is None:
        changed = (
            ": the noisy value was changed afterwards. If it was only clipped or rounded, use "
            "mechanism.clipped(lower, upper) or .rounded(digits)"
        )
        why = changed if function == "make_chain_pm" else ""
        raise ValueError(f"{_WHO}: {function} is not read{why}; {INSTEAD}, if there is one")
    atom = str(arguments["input_domain"].type).rstrip(">").split("<")[-1]
    whole, scale, k = atom[0] in "iu", float(arguments["scale"]), arguments.get("k")
    if value.dtype.kind not in ("iu" if whole else "f"):
        numbers = "whole numbers" if whole else "floats"
        raise ValueError(
            f"{_WHO}: the measurement releases {numbers} ({atom}); got the value {value}: pass "
            f"what was released, as it is"
        )
    check_noisy(f"{_WHO}: the value", scale, value)
    if k is not None and (k > 0 if whole else 2.0**k > 1e-6 * scale):
        raise ValueError(
            f"{_WHO}: the noise is on multiples of 2**{k}, a grid too coarse to be left out; "
            f"{INSTEAD}, if there is one"
        )
    mechanism: Mechanism = NOISE[f"{'Integer' if whole else 'Float'} {law}"](scale)
    if arguments.get("bounds") is not None:
        lower, upper = arguments["bounds"]
        raise ValueError(
            f"{_WHO}: {function} with bounds clamps the count before the noise is added, and "
            f"after. Write dp.Release(value, {mechanism!r}.clipped({lower}, {upper})), and in the "
            f"model release statistic.clip({lower}, {upper})"
        )
    return mechanism.clipped(lower=0) if atom[0] == "u" else mechanism


def _loss(measurement: Any, d_in: Any) -> Privacy:
    """Return the loss at this distance of neighbouring data."""
    measure, loss = str(measurement.output_measure), measurement.map(d_in)
    loss, delta = loss if isinstance(loss, tuple) else (loss, None)
    which = "rho" if "ZeroConcentrated" in measure else "epsilon"
    stated = {which: loss, "delta": delta}
    metric = str(measurement.input_metric).removesuffix("()")
    return Privacy(
        neighbouring=f"{metric} <= {d_in}",
        measure=measure,
        # `Privacy` takes no loss of zero or infinity.
        **{name: x for name, x in stated.items() if x is not None and 0 < x < math.inf},
    )


def _check_scale(mechanism: Mechanism, privacy: Privacy | None, sensitivity: Any, d_in: Any):
    if privacy is None:
        raise ValueError(f"{_WHO}: sensitivity= is checked against the loss at d_in; give d_in")
    if privacy.delta is not None or (privacy.epsilon is None and privacy.rho is None):
        raise ValueError(
            f"{_WHO}: a sensitivity can be checked under pure and zero-concentrated privacy "
            f"only; the measurement has {privacy}. Leave sensitivity= out"
        )
    size = float(sensitivity.map(d_in) if hasattr(sensitivity, "map") else sensitivity)
    rho, epsilon = privacy.rho, privacy.epsilon
    expected = size / (epsilon if rho is None else math.sqrt(2 * rho))  # type: ignore[operator]
    [scale] = (float(p.eval()) for p in getattr(mechanism, "inner", mechanism).parameters)
    if not math.isclose(scale, expected, rel_tol=1e-6):
        raise ValueError(
            f"{_WHO}: the scale is {scale:.8g}, but sensitivity {size:.8g} and the loss "
            f"{epsilon if rho is None else rho:.8g} at d_in={d_in} make it {expected:.8g}. Where "
            f"the number of records is fixed, replacing one is d_in=2 under SymmetricDistance"
        )
