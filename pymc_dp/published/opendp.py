"""Releases of OpenDP: measurements, queries of the Context API, summaries of Polars queries.

OpenDP itself is never imported: all that is read hangs on the objects that the user passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    Mechanism,
    RandomizedResponse,
)
from pymc_dp.published.privacy import Privacy

# Combinators that leave the noise as it is, with the argument that holds the measurement.
_AROUND = {
    "make_chain_mt": "measurement1",
    "make_approximate": "measurement",
    "make_fix_delta": "measurement",
    "make_pureDP_to_zCDP": "measurement",
    "make_zCDP_to_approxDP": "measurement",
}
# The law of the noise, and whether it is on whole numbers.
_NOISE: dict[tuple[str, bool], type[LaplaceMechanism | GaussianMechanism | Any]] = {
    ("laplace", False): LaplaceMechanism,
    ("laplace", True): GeometricMechanism,
    ("gaussian", False): GaussianMechanism,
    ("gaussian", True): DiscreteGaussianMechanism,
}
_LAWS = {"MaxDivergence": "laplace", "ZeroConcentratedDivergence": "gaussian"}
_DISTRIBUTIONS = {
    f"{kind} {law.capitalize()}": _NOISE[law, kind == "Integer"]
    for kind in ("Integer", "Float")
    for law in _LAWS.values()
}
_INSTEAD = "write dp.Release(value, mechanism) with the mechanism that was used"


def read(
    made_by: Any, value: Any, *, d_in: Any = None, sensitivity: Any = None, **fields: Any
) -> dict[str, Any]:
    """Read the noise of a released value; see `Release.from_opendp`."""
    if hasattr(made_by, "summarize"):
        raise TypeError(
            "from_opendp: this is a Polars query; write dp.Release.from_opendp_summary("
            "query.summarize(), query.release().collect(), column)"
        )
    measurement = made_by
    if hasattr(made_by, "resolve"):
        measurement = made_by.resolve()
        d_in = getattr(made_by, "_d_in", None) if d_in is None else d_in
    if not (hasattr(measurement, "output_measure") and hasattr(measurement, "map")):
        raise TypeError(
            f"from_opendp: a measurement or a query of OpenDP is needed, got "
            f"{type(made_by).__name__}; {_INSTEAD}"
        )
    function, arguments = _noise_of(measurement)
    if function == "make_randomized_response_bool":
        mechanism: Mechanism = RandomizedResponse(arguments["prob"])
    else:
        mechanism = _additive(function, arguments, np.asarray(value))
    privacy = None if d_in is None else _loss(measurement, d_in)
    if sensitivity is not None:
        _check_scale(mechanism, privacy, sensitivity, d_in)
    own = {"value": value, "mechanism": mechanism, "privacy": privacy, "source": "OpenDP"}
    return own | fields


def _noise_of(measurement: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the constructor of the noise, and its arguments.

    Every object of OpenDP keeps both, for `opendp.prelude.serialize`.
    """
    while True:
        made = getattr(measurement, "__opendp_dict__", None)
        if made is None:
            raise ValueError(
                f"from_opendp: this version of OpenDP does not say how the measurement was made; "
                f"{_INSTEAD}, whose scale is sensitivity / epsilon for Laplace noise and "
                f"sensitivity / sqrt(2 rho) for Gaussian noise"
            )
        function, arguments = made["__function__"], made["__kwargs__"]
        if function not in _AROUND:
            return function, arguments
        measurement = arguments[_AROUND[function]]


def _additive(function: str, arguments: Mapping[str, Any], value: np.ndarray) -> Mechanism:
    law = {
        "make_laplace": "laplace",
        "make_geometric": "laplace",
        "make_gaussian": "gaussian",
        "make_noise": _LAWS.get(str(arguments.get("output_measure"))),
    }.get(function)
    if law is None:
        why = (
            ": the noisy value was changed afterwards. If it was only clipped or rounded, use "
            "mechanism.clipped(lower, upper) or .rounded(digits)"
            if function == "make_chain_pm"
            else ""
        )
        raise ValueError(f"from_opendp: {function} is not read{why}; {_INSTEAD}, if there is one")
    atom = str(arguments["input_domain"].type).rstrip(">").split("<")[-1]
    whole, scale, k = atom[0] in "iu", float(arguments["scale"]), arguments.get("k")
    if whole and value.dtype.kind not in "iu":
        raise ValueError(
            f"from_opendp: the measurement releases whole numbers ({atom}); got the value {value}"
        )
    if not whole and value.dtype.kind != "f":
        raise ValueError(
            f"from_opendp: the measurement releases floats ({atom}); got the value {value}: pass "
            f"what was released, not rounded"
        )
    _check_noisy("from_opendp: the value", scale, value)
    if k is not None and (k > 0 if whole else 2.0**k > 1e-6 * scale):
        raise ValueError(
            f"from_opendp: the noise is on multiples of 2**{k}, a grid too coarse to be left out; "
            f"{_INSTEAD}, if there is one"
        )
    mechanism = _NOISE[law, whole](scale)
    if arguments.get("bounds") is not None:
        lower, upper = arguments["bounds"]
        raise ValueError(
            f"from_opendp: {function} with bounds clamps the count before the noise is added, and "
            f"after. Write dp.Release(value, {mechanism!r}.clipped({lower}, {upper})), and in the "
            f"model release statistic.clip({lower}, {upper})"
        )
    return mechanism.clipped(lower=0) if atom[0] == "u" else mechanism


def _check_noisy(what: str, scale: float, value: Any) -> None:
    """Refuse an exact number: what OpenDP adds to floats for their rounding is no noise.

    That is about 1e-14 of the largest sum that is possible. A sum over n records has noise of at
    least 1 / (n epsilon) of it.
    """
    size = np.abs(np.asarray(value, "float64")).max(initial=0.0)
    rounding = 1e-11 if np.asarray(value).dtype.kind == "f" else 0.0
    if scale <= rounding * size:
        raise ValueError(
            f"{what} is exact: noise of scale {scale:.3g} is none beside {size:.6g}, so that it is "
            f"no release: state it in the model as it is, such as shape=n for a number of records. "
            f"Where the number of records is public, no data set has one record more: one record "
            f"replaced is unit_of(contributions=2) of OpenDP"
        )


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
        # A loss of zero or infinity is none that could be stated.
        **{name: x for name, x in stated.items() if x is not None and 0 < x < math.inf},
    )


def _check_scale(mechanism: Mechanism, privacy: Privacy | None, sensitivity: Any, d_in: Any):
    if privacy is None:
        raise ValueError("from_opendp: sensitivity= is checked against the loss at d_in; give d_in")
    if privacy.delta is not None or (privacy.epsilon is None and privacy.rho is None):
        raise ValueError(
            f"from_opendp: a sensitivity can be checked under pure and zero-concentrated privacy "
            f"only; the measurement has {privacy}. Leave sensitivity= out"
        )
    size = float(sensitivity.map(d_in) if hasattr(sensitivity, "map") else sensitivity)
    rho, epsilon = privacy.rho, privacy.epsilon
    expected = size / (epsilon if rho is None else math.sqrt(2 * rho))  # type: ignore[operator]
    [scale] = (float(p.eval()) for p in getattr(mechanism, "inner", mechanism).parameters)
    if not math.isclose(scale, expected, rel_tol=1e-6):
        raise ValueError(
            f"from_opendp: the scale is {scale:.8g}, but sensitivity {size:.8g} and the loss "
            f"{epsilon if rho is None else rho:.8g} at d_in={d_in} make it {expected:.8g}. Where "
            f"the number of records is fixed, replacing one is d_in=2 under SymmetricDistance"
        )


def read_summary(
    summary: Any, frame: Any, column: str | None = None, **fields: Any
) -> dict[str, Any]:
    """Read one column of a released data frame; see `Release.from_opendp_summary`."""
    for name, table in (("summary", summary), ("frame", frame)):
        if not hasattr(table, "columns") or hasattr(table, "collect"):
            raise TypeError(
                f"from_opendp_summary: {name} must be a data frame, got {type(table).__name__}: "
                f"write query.summarize() for the summary and query.release().collect() for the "
                f"frame"
            )
    rows = summary.to_dicts() if hasattr(summary, "to_dicts") else summary.to_dict("records")
    if not {"column", "distribution", "scale"} <= set(summary.columns):
        raise ValueError(
            f"from_opendp_summary: the summary has the columns {list(summary.columns)}; it must be "
            f"what query.summarize() returns"
        )
    released = list(dict.fromkeys(row["column"] for row in rows))
    if column is None and len(released) == 1:
        [column] = released
    if column not in released or column not in frame.columns:
        raise ValueError(
            f"from_opendp_summary: column={column!r}: write one of the released columns "
            f"{', '.join(map(repr, released))}"
        )
    cut = [row.get("threshold") for row in rows]  # None where there is none, NaN in pandas
    thresholds = [number for number in cut if number is not None and number == number]
    if thresholds:
        raise ValueError(
            f"from_opendp_summary: groups whose noisy count was below {thresholds[0]} were left "
            f"out, and which ones are there depends on the data. State the groups in the query, "
            f"with .with_keys(...) or Margin(by=..., invariant='keys')"
        )
    own = [row for row in rows if row["column"] == column]
    aggregates = " and ".join(str(row.get("aggregate")) for row in own)
    what = f"from_opendp_summary: column {column!r} ({aggregates})"
    noise = " and ".join(str(row["distribution"]) for row in own)
    if any(row["distribution"] not in _DISTRIBUTIONS for row in own):
        median = "a median, " if aggregates == "0.5-Quantile" else ""
        raise ValueError(
            f"{what} is {median}drawn by {noise} from candidates: no release with additive noise, "
            f"and not read. Release a histogram of the column, counts by group, instead"
        )
    value = np.asarray(frame[column].to_numpy())
    scales = {row["aggregate"]: float(row["scale"]) for row in own}
    _check_noisy(what, max(scales.values()), value)
    noisy: Mechanism = _DISTRIBUTIONS[own[0]["distribution"]](float(own[0]["scale"]))
    if len(own) > 1:
        if list(scales) != ["Sum", "Length"] or scales["Length"] > 0:
            raise ValueError(
                f"{what} is a ratio of numbers with {noise} noise, which is no release with "
                f"additive noise. Of a mean, release the sum and the length"
            )
        exact = [row["column"] for row in rows if row["scale"] == 0 and row["column"] != column]
        length = f"frame[{exact[0]!r}]" if exact else "..."
        whole = ".round()" if noisy.is_discrete else ""
        raise ValueError(
            f"{what} is (sum + noise) / n for a public number n of records. Release the sum of the "
            f"records in the model, and write\n"
            f"n = {length}  # the number of records of each row\n"
            f"release = dp.Release((n * frame[{column!r}]){whole}, dp.{noisy!r})"
        )
    if value.dtype.kind == "u":
        noisy = noisy.clipped(lower=0)
    elif noisy.is_discrete and np.any(value == 0) and not np.any(value < 0):
        raise ValueError(
            f"from_opendp_summary: the zeros of {column!r} ({aggregates}) were cut there if its "
            f"numbers were unsigned, which csv files and pandas forget. Pass the Polars frame or a "
            f"parquet file of it, or say which: frame.cast({{{column!r}: pl.UInt32}}) if they "
            f"were; dp.Release(frame[{column!r}], dp.{noisy!r}) if not"
        )
    keys = [name for name in frame.columns if name not in released]
    described: dict[str, Any] = {"name": column, "source": f"OpenDP Polars: {aggregates}"}
    if keys:
        labels = list(zip(*(frame[key].to_list() for key in keys), strict=True))
        dim = "_".join(keys)
        named = [row[0] if len(keys) == 1 else ", ".join(map(str, row)) for row in labels]
        described |= {"dims": dim, "coords": {dim: named}}
    elif len(value) == 1:
        value = value[0]
    else:
        raise ValueError(
            f"from_opendp_summary: the frame has {len(value)} rows and no column that labels them"
        )
    if "dims" in fields and "coords" not in fields:
        described.pop("coords", None)
    return {"value": value, "mechanism": noisy, **(described | fields)}
