"""What goes on is told, so that nobody waits for what they do not know."""

import logging
import re
import time
from contextlib import nullcontext

import numba
import pytest
from rich.console import Console

from pymc_dp.graphs.compiled import said_when_compiling
from pymc_dp.graphs.stages import Stages, stage


def go_on():
    stage("Reading")
    with said_when_compiling():
        for k in range(2):
            assert numba.njit(lambda x: x + 1)(k) == k + 1
    stage()
    stage("Drawing")


@pytest.mark.parametrize(("options", "stages"), [
    ({"progressbar": False, "quiet": False}, ["Reading", "Compiling", "Drawing"]),
    ({"progressbar": True, "quiet": False}, ["Reading", "Compiling", "Drawing"]),  # a script
    ({"progressbar": True, "quiet": True}, []),
])  # fmt: skip
def test_each_stage_is_a_line_of_the_log(options, stages, caplog):
    with caplog.at_level(logging.INFO, logger="pymc.dp"), Stages(**options):
        go_on()
    said = [r.message for r in caplog.records]
    assert [line.split(",")[0] for line in said] == stages
    assert all(re.fullmatch(r"\w+, \d+\.\d s so far", line) for line in said)


def test_a_terminal_has_one_line_that_moves(monkeypatch, capsys):
    monkeypatch.setattr(Console, "is_terminal", True)
    with Stages(progressbar=True, quiet=False):
        stage("Reading")
        time.sleep(0.5)
        logging.getLogger("pymc.dp").warning("a message")
        stage("Drawing")
    lines = capsys.readouterr().err.split("\r\x1b[K")
    shown = [line for line in lines if line and "message" not in line]
    assert len(shown) >= 3
    assert shown[0] == "Reading, 0.0 s so far"
    assert shown[-1].startswith("Drawing, 0.")
    assert lines[-1] == ""


def test_nothing_is_said_elsewhere(caplog, capsys):
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        go_on()
    assert not caplog.records
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("inside", [True, False])
def test_a_rewrite_that_is_left_out_shows_no_traceback(caplog, inside):
    """While we sample; what is logged for other models is theirs."""
    rewriting = logging.getLogger("pytensor.graph.rewriting.basic")
    with Stages(progressbar=False, quiet=False) if inside else nullcontext():
        for error in (OverflowError("Python integer 2 out of bounds for int8"), ValueError("news")):
            try:
                raise error
            except Exception:
                rewriting.error("%s", error)
    assert caplog.messages == ["Python integer 2 out of bounds for int8", "news"][inside:]
