"""A study on disk: a manifest, and one file for each batch of replicates, written at once."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pymc_dp.studies.summaries import FIELDS

_MANIFEST = "study.json"
_FORMAT = "pymc_dp study"
_VERSION = 1
_NAME = re.compile(r"cell(\d+)-(\d+)-(\d+)\.npz")


@dataclass(frozen=True)
class Batch:
    """Replicates ``start`` to ``stop`` of a cell of the grid.

    Attributes
    ----------
    cell, start, stop : int
    rows : ndarray of shape (replicates, parameters, fields)
        NaN where a replicate failed.
    errors : list of str
        The error of each replicate, empty if there was none.
    labels : list of str
        The parameters.
    fingerprint : str
        Fingerprint of the cell's model.
    """

    cell: int
    start: int
    stop: int
    rows: np.ndarray
    errors: list[str]
    labels: list[str]
    fingerprint: str


class Checkpoint:
    """The folder of one study.

    A file appears under its name only when it is whole, so that a killed study leaves whole batches
    and files of another name, which are ignored.

    Parameters
    ----------
    folder : path
        Made if it does not exist.
    manifest : mapping
        Description of the study, in JSON values.

    Raises
    ------
    ValueError
        If the folder holds another study, or a file that cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], manifest: Mapping[str, Any]):
        self.folder = Path(folder)
        wanted = {"format": _FORMAT, "version": _VERSION, **manifest}
        wanted = json.loads(json.dumps(wanted))  # as JSON reads it back
        path = self.folder / _MANIFEST
        if path.exists():
            self._compare(path, wanted)
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"path={str(self.folder)!r} is a file: name a folder")
        present = self.folder.iterdir() if self.folder.exists() else ()
        if any(not p.name.endswith(".partial") for p in present):
            raise ValueError(
                f"path={str(self.folder)!r} holds other files and no study: name a new folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with _whole(path) as file:
            file.write(json.dumps(wanted, indent=1).encode())

    def _compare(self, path: Path, wanted: dict[str, Any]) -> None:
        try:
            stored = json.loads(path.read_text())
            assert stored["format"] == _FORMAT
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise ValueError(
                f"{str(path)!r} is no description of a study ({error or 'another format'}): it was "
                f"damaged; name a new folder, or delete this one"
            ) from None
        stored, wanted = (d | d.pop("settings", {}) for d in (stored, dict(wanted)))
        for key in sorted({*stored, *wanted}):
            if stored.get(key) != wanted.get(key):
                raise ValueError(
                    f"path={str(self.folder)!r} holds another study: its {key} is "
                    f"{stored.get(key)!r}, that of this one {wanted.get(key)!r}. Name a new folder"
                )

    def batches(self) -> list[Batch]:
        """Read all batches."""
        return [
            self._read(path, *map(int, match.groups()))
            for path in sorted(self.folder.iterdir())
            if (match := _NAME.fullmatch(path.name))
        ]

    @staticmethod
    def _read(path: Path, cell: int, start: int, stop: int) -> Batch:
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
                rows, errors, labels, fingerprint = (
                    stored[name] for name in ("rows", "errors", "labels", "fingerprint")
                )
            wanted = (stop - start, len(labels), len(FIELDS))
            if rows.shape != wanted or len(errors) != wanted[0]:
                raise ValueError(f"an array of shape {rows.shape} in the place of {wanted}")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"the checkpoint {str(path)!r} is damaged ({error}): delete this file, and its "
                f"replicates {start} to {stop - 1} run again"
            ) from None
        return Batch(cell, start, stop, rows, errors.tolist(), labels.tolist(), str(fingerprint))

    def write(self, batch: Batch) -> None:
        """Store a batch; a name that exists is refused."""
        path = self.folder / f"cell{batch.cell:05d}-{batch.start:08d}-{batch.stop:08d}.npz"
        if path.exists():
            raise ValueError(f"{str(path)!r} exists: does another process run this study?")
        with _whole(path) as file:
            np.savez(
                file,
                rows=batch.rows,
                errors=np.array(batch.errors, dtype=str),
                labels=np.array(batch.labels, dtype=str),
                fingerprint=np.array(batch.fingerprint),
            )


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name when it is written."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with open(partial, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
