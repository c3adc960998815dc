"""A release as JSON text, and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import positive_argument, show
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import registered_mechanisms
from pymc_dp.published.privacy import Privacy

FORMAT, VERSION = "pymc_dp release", 1

# Spellings of a variance, none of which is the parameter of a mechanism.
_VARIANCES = {
    *("variance", "var", "noise_variance"),
    *("sigma2", "sigma_2", "sigma_sq", "sigma_squared", "scale2", "scale_squared"),
}
_STATED = "stated_epsilon"


def encode(release: Any) -> str:
    """Return a release as JSON text; see `Release.to_json`."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": release.name,
        "value": _written(release.value),
        "mechanism": _written_mechanism(release.mechanism),
        "dims": release.dims,
        "coords": release.coords,
        "privacy": None if release.privacy is None else _present(asdict(release.privacy)),
        "source": release.source,
    }
    document = _present(document) | {"value": document["value"]}  # null for withheld entries
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def decode(text: str, known: list[str]) -> dict[str, Any]:
    """Read the fields of a release, whose names are `known`; see `Release.from_json`."""
    if not isinstance(text, str):
        raise TypeError(f"from_json: JSON text is needed, got {type(text).__name__}")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"from_json: this is no JSON text ({error}). A file is read with Path(file).read_text()"
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f'from_json: this is no release: it has no "format": "{FORMAT}"')
    version = document.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise ValueError(
            f"from_json: the release is of version {version!r}; this package reads version "
            f"{VERSION}"
        )
    del document["format"], document["version"]
    # A value may be null: a single entry that was withheld.
    required = ("mechanism", *(("value",) if "value" not in document else ()))
    _check_fields("release", document, known, required)
    document["value"] = _number("value", document["value"], or_null=True)
    document["mechanism"] = _mechanism("mechanism", document["mechanism"])
    if document.get("privacy") is not None:
        privacy = _mapping("privacy", document["privacy"])
        _check_fields("privacy", privacy, [field.name for field in fields(Privacy)])
        document["privacy"] = Privacy(**privacy)
    return document


def _present(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


def _written(array: np.ndarray) -> Any:
    """Return numbers as nested lists, infinite ones as text and NaN as null."""
    if array.ndim:
        return [_written(entry) for entry in array]
    number = array.item()
    if np.isnan(number):
        return None
    return str(number) if np.isinf(number) else number


def _written_mechanism(mechanism: Mechanism) -> dict[str, Any]:
    cls = type(mechanism)
    if cls not in registered_mechanisms():
        raise TypeError(
            f"to_json: {cls.__name__} is not registered, so that no reader would know it: call "
            f"register_mechanism"
        )
    document: dict[str, Any] = {"class": cls.__name__}
    for field in fields(cls):  # type: ignore[arg-type]
        value = getattr(mechanism, field.name)
        if isinstance(value, Mechanism):
            document[field.name] = _written_mechanism(value)
        elif isinstance(value, int | str) or value is None:
            document[field.name] = value
        else:
            tensor = pt.as_tensor_variable(value)
            known = known_value(tensor)
            if known is None:
                raise ValueError(
                    f"to_json: {cls.__name__}: {field.name} is symbolic ({show(tensor)}); build "
                    f"the mechanism from numbers to write it"
                )
            document[field.name] = _written(known)
    stated = getattr(mechanism, "stated_loss", None)
    if stated is not None:
        document[_STATED] = _written(stated)
    return _present(document)


def _mechanism(where: str, document: Any) -> Mechanism:
    document = dict(_mapping(where, document))
    classes = {cls.__name__: cls for cls in registered_mechanisms()}
    if "class" not in document:
        raise ValueError(f"from_json: {where}: the field 'class' is missing; {_one_of(classes)}")
    name = document.pop("class")
    cls = classes.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"from_json: {where}: unknown mechanism {name!r}; {_one_of(classes)}")
    declared = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    variances = _VARIANCES & document.keys() - declared.keys()
    if variances:
        advice = (
            "write sigma = sqrt(variance)"
            if "sigma" in declared
            else f"write {', '.join(declared)}; the scale of Laplace noise is sqrt(variance / 2)"
        )
        raise ValueError(
            f"from_json: {where}: {sorted(variances)[0]!r} is a variance, which is no parameter of "
            f"{name}: {advice}"
        )
    states = cls.stated_epsilon is not Mechanism.stated_epsilon
    required = [n for n, field in declared.items() if field.default is MISSING]
    _check_fields(
        f"{where} {name}", document, [*declared, *([_STATED] if states else [])], required
    )
    stated = document.pop(_STATED, None)
    values = {
        field: _mechanism(f"{where}.{field}", value)
        if isinstance(value, dict)
        else value
        if declared[field].type in ("str", "bool") and type(value).__name__ == declared[field].type
        else _number(f"{where}: {name}: {field}", value)
        for field, value in document.items()
        if value is not None
    }
    mechanism = cls.from_fields(**values)
    if stated is not None:
        epsilon = positive_argument(
            _number(f"{where}: {name}: {_STATED}", stated), mechanism=name, name=_STATED
        )
        object.__setattr__(mechanism, "stated_loss", epsilon)
    return mechanism


def _number(where: str, value: Any, *, or_null: bool = False) -> Any:
    """Return a number, or an array of numbers; integers stay integers."""
    if value is None and or_null:  # an entry that was withheld
        return np.nan
    if isinstance(value, list):
        try:
            return np.asarray([_number(where, entry, or_null=or_null) for entry in value])
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            raise ValueError(f"from_json: {where}: rows of different length") from None
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"from_json: {where} must be a number or a list of numbers ('inf' and '-inf' among "
            f"them), got {value!r}"
        )
    return value


def _mapping(where: str, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise TypeError(f"from_json: {where} must be an object {{...}}, got {document!r}")
    return document


def _check_fields(
    where: str, document: Mapping[str, Any], known: Sequence[str], required: Collection[str] = ()
) -> None:
    unknown = [name for name in document if name not in known]
    if unknown:
        raise ValueError(
            f"from_json: {where}: unknown field{'s' * (len(unknown) > 1)} "
            f"{', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        )
    missing = [name for name in required if document.get(name) is None]
    if missing:
        raise ValueError(
            f"from_json: {where}: the field{'s' * (len(missing) > 1)} "
            f"{', '.join(map(repr, missing))} {'are' if len(missing) > 1 else 'is'} missing"
        )


def _one_of(classes: Collection[str]) -> str:
    return f"known are {', '.join(classes)}"


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"from_json: the field {twice!r} is there twice")
    return document


def _no_constant(constant: str) -> Any:
    raise ValueError(
        f"from_json: {constant} is no JSON number. A published value is finite; leave entries that "
        f"were not published out. Write an infinite clipping bound as the text 'inf' or '-inf'"
    )
