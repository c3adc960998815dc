"""Releases of OpenDP: measurements, queries of the Context API, summaries of Polars queries.

OpenDP itself is never imported: all that is read hangs on the objects that the user passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_dp import mechanisms as own
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    Mechanism,
    RandomizedResponse,
)
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.tables import keyed

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
_SELECTIONS = {"ExponentialMin": "MaxDivergence", "GumbelMin": "ZeroConcentratedDivergence"}
_INSTEAD = "write dp.Release(value, mechanism) with the mechanism that was used"
_COMPOSED = ("make_composition", "make_basic_composition")


def read(
    made_by: Any,
    value: Any,
    *,
    d_in: Any = None,
    sensitivity: Any = None,
    groups: Any = None,
    **fields: Any,
) -> dict[str, Any] | list:
    """Read the noise of a released value; see `Release.from_opendp`.

    Of a composition, return a list with what each of its measurements released.
    """
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
    function, arguments, d_mid = _noise_of(measurement, d_in)
    if function in _COMPOSED:
        return _composed(arguments["measurements"], value, d_mid, sensitivity, groups, fields)
    privacy = None if d_in is None else _loss(measurement, d_in)
    described: dict[str, Any] = {"privacy": privacy, "source": "OpenDP"}
    if function in _ANSWERS:
        mechanism, value = _ANSWERS[function](arguments, value)
    elif function.endswith("_threshold"):
        # Groups without members are not there before the noise is added.
        if groups is None or not isinstance(value, Mapping):
            raise ValueError(
                f"from_opendp: {function} leaves groups out whose noisy value is below "
                f"{arguments['threshold']}: the value must be the dict that was released, and "
                f"groups= must name all groups that could be there, such as groups=['a', 'b']"
            )
        noisy = np.array([*value.values()]) if value else np.zeros(0, "int64")
        mechanism = _additive(function.removesuffix("_threshold"), arguments, noisy)
        mechanism = getattr(mechanism, "inner", mechanism)  # of unsigned numbers: none is below 0
        mechanism = mechanism.suppressed(below=arguments["threshold"], empty=True)
        value, found = keyed("from_opendp", {"group": [*value]}, noisy, groups)
        described |= found
    else:
        mechanism = _additive(function, arguments, np.asarray(value))
    if sensitivity is not None:
        _check_scale(mechanism, privacy, sensitivity, d_in)
    return {"value": value, "mechanism": mechanism} | described | fields


def _composed(
    parts: Any, values: Any, d_in: Any, sensitivity: Any, groups: Any, fields: dict[str, Any]
) -> list:
    if sensitivity is not None or len(parts) != len(values):
        raise ValueError(
            f"from_opendp: this is a composition of {len(parts)} measurements; write the list of "
            f"their {len(parts)} values, and leave sensitivity= out"
        )
    each = {"d_in": d_in, "groups": groups, **fields}
    return [read(part, value, **each) for part, value in zip(parts, values, strict=True)]


def _of_categories(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    """Return k-ary randomized response, whose reports become the positions of their categories."""
    labels = list(arguments["categories"])
    return RandomizedResponse(arguments["prob"], len(labels)), _positions(labels, value)


def _of_bits(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    """Return randomized response of bits: with probability f each is one that was drawn."""
    if isinstance(value, bytes):
        value = np.unpackbits(np.frombuffer(value, dtype="uint8"))
    elif all(isinstance(row, bytes) for row in np.ravel(value).tolist()):
        value = [np.unpackbits(np.frombuffer(row, dtype="uint8")) for row in value]
    return RandomizedResponse(1 - arguments["f"] / 2), np.asarray(value)


def _of_scores(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    """Return the selection of the largest of noisy scores."""
    mechanism = _selection(str(arguments["output_measure"]), float(arguments["scale"]))
    if arguments["negate"]:
        raise ValueError(
            f"from_opendp: negate=True selects the smallest score. Release -scores in the model, "
            f"and write dp.Release({value}, dp.{mechanism!r})"
        )
    return mechanism, value


def _selection(measure: str, scale: float) -> Mechanism:
    """Return the selection: OpenDP adds exponential noise, or Gumbel's under zCDP."""
    if "ZeroConcentrated" in measure:
        return own.ExponentialMechanism(1 / scale)
    return own.NoisyMax("exponential", scale)


def _of_candidates(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    """Return the selection of a quantile, whose value becomes the position of the candidate."""
    mechanism = _selection(str(arguments["output_measure"]), float(arguments["scale"]))
    return mechanism, _positions(arguments["candidates"], value)


def _of_canonical_noise(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    epsilon, delta = arguments["d_out"]
    return own.TulapMechanism(epsilon, delta, arguments["d_in"]), value


def _positions(labels: Any, value: Any) -> np.ndarray:
    labels, found = list(labels), np.asarray(value)
    at = {label: k for k, label in enumerate(labels)}
    strange = [label for label in found.ravel().tolist() if label not in at]
    if strange:
        raise ValueError(f"from_opendp: {strange[0]!r} is none of {labels}")
    return np.array([at[label] for label in found.ravel().tolist()]).reshape(found.shape)


def _of_bool(arguments: Mapping[str, Any], value: Any) -> tuple[Mechanism, Any]:
    return RandomizedResponse(arguments["prob"]), value


# What adds no noise to numbers, with the mechanism and the value as it is published here.
_ANSWERS = {
    "make_randomized_response_bool": _of_bool,
    "make_randomized_response": _of_categories,
    "make_randomized_response_bitvec": _of_bits,
    "make_noisy_max": _of_scores,
    "make_private_quantile": _of_candidates,
    "make_canonical_noise": _of_canonical_noise,
}


def _noise_of(measurement: Any, d_in: Any) -> tuple[str, Mapping[str, Any], Any]:
    """Return the constructor of the noise, its arguments, and the distance of what it is given.

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
            return function, arguments, d_in
        if function == "make_chain_mt" and d_in is not None:
            d_in = arguments["transformation0"].map(d_in)
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
    summary: Any,
    frame: Any,
    column: str | None = None,
    *,
    groups: Any = None,
    lengths: Any = None,
    candidates: Any = None,
    **fields: Any,
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
    thresholds = {  # None where there is none, NaN in pandas
        row["column"]: cut
        for row in rows
        if (cut := row.get("threshold")) is not None and cut == cut
    }
    for decides, cut in thresholds.items():
        if groups is None:
            raise ValueError(
                f"from_opendp_summary: groups whose noisy count was below {cut} were left out, and "
                f"which ones are there depends on the data. Name all that could be there, with "
                f"groups=[...], or state them in the query, with .with_keys(...) or "
                f"Margin(by=..., invariant='keys')"
            )
        if column not in thresholds:
            raise ValueError(
                f"from_opendp_summary: whether a row of {column!r} is there was decided by "
                f"{decides!r}, another statistic. Read {decides!r}, and write dp.Release(values, "
                f"mechanism.suppressed(where=np.isnan(values))) for {column!r}, NaN where absent"
            )
    parts = [row for row in rows if row["column"] == column]
    aggregates = " and ".join(str(row.get("aggregate")) for row in parts)
    what = f"from_opendp_summary: column {column!r} ({aggregates})"
    noise = " and ".join(str(row["distribution"]) for row in parts)
    value, selected = np.asarray(frame[column].to_numpy()), noise in _SELECTIONS
    if not selected and any(row["distribution"] not in _DISTRIBUTIONS for row in parts):
        raise ValueError(f"{what} has {noise} noise, which is not read; {_INSTEAD}")
    if selected and candidates is None:
        raise ValueError(
            f"{what} is a quantile, selected among candidates: candidates= must be those of the "
            f"query. The release is the position of the published one among them, of the "
            f"statistic -abs((1 - alpha) * (number below) - alpha * (number above)) of each"
        )
    scales = {row["aggregate"]: float(row["scale"]) for row in parts}
    if selected:
        noisy: Mechanism = _selection(_SELECTIONS[noise], *scales.values())
        value = _positions(candidates, value)
    else:
        _check_noisy(what, max(scales.values()), value)
        noisy = _DISTRIBUTIONS[noise.split(" and ")[0]](float(parts[0]["scale"]))
    if len(parts) > 1:
        if list(scales) != ["Sum", "Length"] or scales["Length"] > 0:
            raise ValueError(
                f"{what} is a ratio of numbers with {noise} noise, which is no release with "
                f"additive noise. Of a mean, release the sum and the length"
            )
        if lengths is None:
            exact = [row["column"] for row in rows if row["scale"] == 0 and row["column"] != column]
            length = f"frame[{exact[0]!r}]" if exact else "..."
            raise ValueError(
                f"{what} is (sum + noise) / n for a public number n of records. Release the sum of "
                f"the records in the model, and say the number of records of each row: "
                f"lengths={length}"
            )
        value = np.asarray(lengths) * value
        value = np.round(value).astype("int64") if noisy.is_discrete else value
    elif lengths is not None:
        raise ValueError(f"{what} is no mean: leave lengths= out")
    if column in thresholds:
        # Counts are kept above the threshold, unlike those of make_laplace_threshold.
        noisy = noisy.suppressed(below=thresholds[column] + 1, empty=True)
    elif value.dtype.kind == "u":
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
        labels = {key: frame[key].to_list() for key in keys}
        value, found = keyed("from_opendp_summary", labels, value, groups)
        described |= found
    elif len(value) == 1:
        value = value[0]
    else:
        raise ValueError(
            f"from_opendp_summary: the frame has {len(value)} rows and no column that labels them"
        )
    if "dims" in fields and "coords" not in fields:
        described.pop("coords", None)
    return {"value": value, "mechanism": noisy, **(described | fields)}
