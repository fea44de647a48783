"""One writer per corpus: the second is refused by name, another corpus is free, and death releases the lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from georag_assets.corpus.writer import writing
from georag_assets.errors import GeoragError, WriterBusyError
from georag_assets.home import Home
from georag_assets.settings import Settings
from georag_assets_tests.conftest import REPOSITORY

_HOLD = """
import sys, time
from pathlib import Path
from georag_assets.corpus.writer import writing
from georag_assets.home import Home
from georag_assets.settings import Settings
with writing(Home(Settings(home=Path(sys.argv[1]))), "a"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_told_who_the_first_is_and_a_killed_one_leaves_no_lock(home: Home) -> None:
    command = [sys.executable, "-c", _HOLD, str(home.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(WriterBusyError, match=f"corpus a is being written by pid {other.pid}"), writing(home, "a"):
            pass
        with writing(home, "b"):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        with writing(home, "a"):
            assert home.lock_file("a").read_text() == str(os.getpid())


def test_the_lock_is_free_after_an_error(home: Home) -> None:
    with pytest.raises(ZeroDivisionError), writing(home, "a"):
        raise ZeroDivisionError
    with writing(home, "a"):
        pass


def test_a_home_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    home = Home(Settings(home=tmp_path / "file"))
    with pytest.raises(GeoragError, match="home folder cannot be written"), writing(home, "a"):
        pass
