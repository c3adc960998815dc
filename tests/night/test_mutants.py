"""The day suite sees the faults that it is there for."""

import pytest

from tests.mutants import MUTANTS, ROOT, run


@pytest.mark.parametrize("name", MUTANTS)
def test_every_fault_can_be_put_in(name):
    mutant = MUTANTS[name]
    assert (ROOT / mutant.file).read_text().count(mutant.right) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_the_day_suite_sees(name):
    # That they pass without the fault, the rest of the run shows.
    assert run(MUTANTS[name]).failed is not None
