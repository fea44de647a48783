"""One writer per corpus or shard: the second is refused by name, what it does not touch is free, death releases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from georag_assets.corpus.shards import Shard, shards_of
from georag_assets.corpus.writer import is_busy, writing
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


def test_shards_are_written_side_by_side_and_nothing_else_meanwhile(home: Home) -> None:
    first, second = shards_of(2)
    with writing(home, "a", first):
        with writing(home, "a", second):
            assert is_busy(home, "a")
        with pytest.raises(WriterBusyError, match="shard 1-of-2 of corpus a is being"), writing(home, "a", first):
            pass
        whole = rf"corpus a is being written by pid {os.getpid()}; where: .*a\.1-of-2\.lock"
        with pytest.raises(WriterBusyError, match=whole), writing(home, "a"):
            pass
        assert is_busy(home, "a")
        assert is_busy(home, "a", first)
        assert not is_busy(home, "a", second)
        with writing(home, "b"):
            pass
    assert not is_busy(home, "a")
    with writing(home, "a"):
        assert is_busy(home, "a", second)
        with pytest.raises(WriterBusyError, match="corpus a is being written"), writing(home, "a", second):
            pass


def test_shares_of_another_number_overlap_and_are_refused(home: Home) -> None:
    with writing(home, "a", Shard(1, 2)):
        other = pytest.raises(WriterBusyError, match="another sharding of corpus a is being")
        with other, writing(home, "a", Shard(3, 3)):
            pass
        with writing(home, "a", Shard(2, 2)):
            pass
    with writing(home, "a", Shard(3, 3)):
        pass


_HOLD_SHARD = _HOLD.replace('"a")', '"a", Shard.named(sys.argv[2]))').replace(
    "from georag_assets.home", "from georag_assets.corpus.shards import Shard\nfrom georag_assets.home"
)


def test_a_killed_shard_leaves_no_lock(home: Home) -> None:
    command = [sys.executable, "-c", _HOLD_SHARD, str(home.root), "2-of-2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(WriterBusyError, match=f"corpus a is being written by pid {other.pid}"), writing(home, "a"):
            pass
        with writing(home, "a", Shard(1, 2)):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with writing(home, "a"):
        pass
