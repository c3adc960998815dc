"""Every release that a reader makes in these tests is written and read again."""

import numpy as np
import pytest

import pymc_dp as dp

READERS = [name for name in dir(dp.Release) if name.startswith("from_") and name != "from_json"]


def read_again(read):
    def checked(*arguments, **options):
        made = read(*arguments, **options)
        for one in made if isinstance(made, list) else [made]:
            again = dp.Release.from_json(one.to_json())
            # Two releases are equal if their texts are, which may both lack something.
            for field in ("name", "dims", "coords", "privacy", "source"):
                assert getattr(again, field) == getattr(one, field), field
            assert repr(again.mechanism) == repr(one.mechanism)
            np.testing.assert_array_equal(again.value, one.value, strict=True)
        return made

    return checked


@pytest.fixture(autouse=True)
def _round_trip(monkeypatch):
    for name in READERS:
        monkeypatch.setattr(dp.Release, name, read_again(getattr(dp.Release, name)))
