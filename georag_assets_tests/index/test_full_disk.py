"""Full disks, on file systems made for it: the engine's mapped writes kill a process there, and must not kill ours."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from georag_assets.errors import DiskSpaceError, GeoragError
from georag_assets.home import Home
from georag_assets.index import engine_writer, folders, manifest
from georag_assets.index.builds import build_index, open_build
from georag_assets.index.embedding import Embedder
from georag_assets.index.live import live_build, promote
from georag_assets.index.models import LexicalQuery, SearchFilter
from georag_assets.settings import Settings
from georag_assets_tests.index.small_corpus import declaration, embedder, run_upstream, write_corpus

MIB = 2**20


def run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(params=["tmpfs", "ext4"])
def file_system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 700 MiB that a test may fill; skipped loudly where this machine cannot mount one."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    if request.param == "tmpfs":
        mounted = run("mount", "-t", "tmpfs", "-o", "size=700m", "tmpfs", str(folder))
    else:
        image = tmp_path / "image"
        with image.open("wb") as stream:
            stream.truncate(700 * MIB)
        mounted = run("mkfs.ext4", "-q", "-m", "0", str(image)) and run("mount", "-o", "loop", str(image), str(folder))
    if not mounted:
        pytest.skip(f"{request.param} cannot be mounted here: what a full disk does was NOT tested on it")
    try:
        yield folder
    finally:
        run("umount", str(folder)) or run("umount", "-l", str(folder))


def home_on(file_system: Path, tmp_path: Path) -> Home:
    """A home whose builds lie on the file system, and whose tables lie elsewhere so that only builds are at stake."""
    tables = tmp_path / "tables"
    tables.mkdir()
    return Home(
        Settings(
            home=file_system / "home",
            catalog_uri=f"sqlite:///{tables / 'catalog.db'}?timeout=60",
            warehouse=(tables / "warehouse").as_uri(),
        )
    )


def fill(folder: Path, *, leave: int) -> Path:
    """Write a file that leaves so much free space, to the last block for 0."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as stream, suppress(OSError):
        while True:
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            wanted = free - leave if leave else max(min(free, MIB), 512)
            if wanted <= 0:
                break
            stream.write(b"\1" * min(wanted, 8 * MIB))
    return ballast


def answers(home: Home, count: int) -> None:
    name = live_build(home, "small")
    assert name is not None
    manifest.verify(folders.build_folder(home, "small", name))
    with open_build(home, "small") as opened:
        assert opened.columns.count == count
        assert opened.search(LexicalQuery("weir"), SearchFilter(), 3).hits


def wide_embedder(dimension: int) -> Embedder:
    """An embedder whose vectors are cheap to make: what they say does not matter here."""
    made, backend = embedder(dimension=dimension)
    random = np.random.default_rng(0)
    backend.run = lambda texts, batch, advance: random.normal(size=(len(texts), dimension)).astype(np.float32)  # type: ignore[method-assign]
    return made


@pytest.mark.slow
def test_case_o27_a_full_disk_ends_a_build_with_an_error(
    file_system: Path, tmp_path: Path, case, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = case("o27")["expected"]
    dimension = case("o27")["input"]["dim"]
    home = home_on(file_system, tmp_path)
    made = wide_embedder(dimension)
    write_corpus(home, 30)
    run_upstream(home, made)
    promote(home, "small", str(build_index(home, declaration(), embedder=made).metadata["build"]))
    pointer = home.live_pointer("small").read_bytes()
    write_corpus(home, 12_000, seed=1)
    run_upstream(home, made)
    ballast = fill(file_system, leave=24 * MIB)

    with pytest.raises(DiskSpaceError) as refused:
        build_index(home, declaration(), embedder=made)
    message = str(refused.value)
    assert "free space" in message and "MiB" in message and str(home.builds_folder("small")) in message
    assert expected["partial_folder_visible_as_build"] is False

    # The disk fills after the check: the writer dies in its own process and this one says so.
    monkeypatch.setattr(engine_writer, "check_space", lambda *_, **__: None)
    with pytest.raises(GeoragError) as died:
        build_index(home, declaration(), embedder=made)
    assert "killed by SIGBUS" in str(died.value) or "space" in str(died.value).lower()
    monkeypatch.undo()
    assert home.live_pointer("small").read_bytes() == pointer
    assert len(list(home.builds_folder("small").iterdir())) == 1
    answers(home, 30)

    ballast.unlink()
    promote(home, "small", str(build_index(home, declaration(), embedder=made).metadata["build"]))
    answers(home, 12_030)


ASK = """
import sys
from pathlib import Path
from georag_assets.errors import GeoragError
from georag_assets.home import Home
from georag_assets.index.builds import open_build
from georag_assets.index.models import LexicalQuery, SearchFilter
from georag_assets.settings import Settings
try:
    with open_build(Home(Settings(home=Path(sys.argv[1]))), "small") as opened:
        print(opened.columns.count, len(opened.search(LexicalQuery("weir"), SearchFilter(), 5).hits))
except GeoragError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def ask_elsewhere(home: Home) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ASK, str(home.root)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_case_o28_a_full_disk_ends_an_opening_with_an_error(file_system: Path, tmp_path: Path, case) -> None:
    given, expected = case("o28")["input"]["build"], case("o28")["expected"]
    home = home_on(file_system, tmp_path)
    made = wide_embedder(given["dim"])
    write_corpus(home, given["points"])
    run_upstream(home, made)
    promote(home, "small", str(build_index(home, declaration(), embedder=made).metadata["build"]))
    name = str(live_build(home, "small"))
    with open_build(home, "small") as reader:
        ballast = fill(file_system, leave=0)
        assert os.statvfs(file_system).f_bavail * os.statvfs(file_system).f_frsize < 64 * 1024
        assert bool(reader.search(LexicalQuery("weir"), SearchFilter(), 5).hits) == expected["A_answers"]
        other = ask_elsewhere(home)
        assert other.returncode == 1, other
        assert "disk full" in other.stderr and str(file_system) in other.stderr
        assert "Traceback" not in other.stderr
        assert other.stdout == ""  # neither an empty nor an older index instead
        ballast.unlink()
        again = ask_elsewhere(home)
        assert again.stdout.split() == [str(given["points"]), "5"]
    manifest.verify(folders.build_folder(home, "small", name))


def test_case_o28_a_private_copy_goes_to_no_small_tmpfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from georag_assets.index import builds

    home = Home(Settings(home=tmp_path / "home"))
    made, _ = embedder()
    write_corpus(home, 30)
    run_upstream(home, made)
    promote(home, "small", str(build_index(home, declaration(), embedder=made).metadata["build"]))
    private = tmp_path / "small"
    private.mkdir()
    if not run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(private)):
        pytest.skip("tmpfs cannot be mounted here: a private copy on a small one was NOT tested")
    try:
        monkeypatch.setattr(builds.tempfile, "tempdir", str(private))
        monkeypatch.setattr(builds.os, "access", lambda path, mode: mode != os.W_OK)
        with pytest.raises(DiskSpaceError, match="disk full"):
            open_build(home, "small")
        assert list(private.iterdir()) == []
    finally:
        run("umount", str(private))


def test_a_manifest_on_a_full_disk_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from georag_assets.index import files

    path = tmp_path / "live.json"
    files.write_json(path, {"build": "one"})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DiskSpaceError, match="disk full"):
        files.write_json(path, {"build": "two"})
    assert path.read_text() == '{\n "build": "one"\n}'
    assert [each.name for each in tmp_path.iterdir()] == ["live.json"]
