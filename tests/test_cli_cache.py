"""`keras-vit cache`: it shows what is in the cache folder, and removes what this package has written there alone."""

import json
import os
import re

import numpy as np
import pytest
from conftest import assert_one_line
from fault_server import NAME, FaultServer

from keras_vit import cli
from keras_vit.cache import Cache, cache_dir
from keras_vit.cli import cache_command
from keras_vit.files import staging
from keras_vit.weights.download import RemoteFile, fetch

PARTS = ["downloads", "features", "shards", "compiled", "engines"]


def put(path, content=b"x" * 500):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def ours():
    """One thing of ours in each part, and two in some."""
    with FaultServer(size=1_000_000) as server:
        fetch(RemoteFile(server.url("ok"), NAME, size=len(server.content)))
    part = put(cache_dir() / ".keras_vit-broken.npz.part")
    put(cache_dir() / ".keras_vit-broken.npz.part.json")
    os.utime(part, (0, 0))
    for folder, digits in ((cache_dir("features"), 64), (cache_dir("shards"), 32)):
        folder.mkdir()
        np.savez(folder / f"{'a' * digits}.npz", features=np.zeros(3))
    for end in ("cache", "atime", "sha256"):
        put(cache_dir("compiled") / ("0" * 16) / f"jit_step-{end}")
    kept = Cache(cache_dir("engines"), 10**6)
    kept.put("b" * 64, lambda folder: put(folder / "network.xml"))
    put(cache_dir("engines") / f"{'c' * 64}.note", b"0" * 64)  # of 0.6


@pytest.fixture
def theirs(tmp_path):
    """What others have put there, under names that are like ours."""
    outside = put(tmp_path / "outside" / f"{'d' * 64}.npz", b"PK\x03\x04")
    files = [
        put(cache_dir() / "mine.npz"),  # without a note
        put(cache_dir() / ".keras_vit-young.npz.part"),
        put(cache_dir() / "browser.npz.part"),
        put(cache_dir("features") / f"{'e' * 64}.npz", b"no archive"),
        put(cache_dir("features") / "mine.npz", b"PK\x03\x04"),
        put(cache_dir("compiled") / "mine" / "jit_step-cache"),
        put(cache_dir("engines") / ("f" * 64) / "mine.txt"),
        put(cache_dir("engines") / f"{'f' * 64}.note", b"Dear diary"),
        outside,
    ]
    changed = put(cache_dir() / "changed.npz")
    put(cache_dir() / "changed.npz.json", json.dumps({"sha256": "0" * 64, "size": 7}).encode())
    (cache_dir() / "linked").symlink_to(outside.parent)
    return [*files, changed]


def test_cache_is_shown_by_its_parts(run, ours, theirs):
    code, lines, error = run("cache")
    assert (code, error) == (0, [])
    rows = [line.split() for line in lines[1:-1]]
    assert [row[0] for row in rows] == PARTS
    assert [row[1] for row in rows] == ["2", "1", "1", "1", "2"]
    assert rows[0][2:4] == ["1.0", "MB"]
    assert rows[0][4] == "1970-01-01"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", rows[4][4])
    assert lines[-1] == f"in {cache_dir()}"


@pytest.mark.parametrize("part", [*PARTS, "all"])
def test_what_is_removed_is_ours_alone(run, ours, theirs, part):
    code, lines, error = run("cache", "--empty", part)
    assert (code, error) == (0, [])
    assert [line.split(":")[0] for line in lines] == (PARTS if part == "all" else [part])
    assert all(" removed 0," not in line for line in lines)
    counts = [int(line.split()[1]) for line in run("cache")[1][1:-1]]
    assert [count == 0 for count in counts] == [part in (name, "all") for name in PARTS]
    assert all(path.exists() for path in theirs)
    if part == "all":
        left = {path for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock"}
        assert left == {path for path in theirs if path.is_relative_to(cache_dir())} | {
            cache_dir() / "changed.npz.json"
        }


def test_empty_cache_is_shown_and_emptied(run):
    lines = run("cache")[1]
    assert all(line.split()[1:5] == ["0", "0.0", "MB", "-"] for line in lines[1:-1])
    assert run("cache", "--empty", "all") == (0, [f"{part}: removed 0, 0.0 MB" for part in PARTS], [])
    assert not cache_dir().exists()


def test_network_that_is_being_made_stays_and_that_of_a_killed_process_goes(run, ours):
    left = put(cache_dir("engines") / ".keras_vit-export-abcdefgh" / "network" / "network.xml")
    with staging(cache_dir("engines")) as place:  # which removes the other
        put(left)
        assert run("cache", "--empty", "engines")[0] == 0
        assert place.exists()
        assert not left.parent.parent.exists()


def test_folders_behind_links_are_left_alone(run, ours, tmp_path):
    for folder in (cache_dir("features"), cache_dir("engines"), cache_dir("compiled")):
        folder.rename(tmp_path / folder.name)
        folder.symlink_to(tmp_path / folder.name)
    before = sorted(tmp_path.rglob("*"))
    for part in ("features", "engines", "compiled"):
        assert run("cache", "--empty", part) == (0, [f"{part}: removed 0, 0.0 MB"], [])
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_removed_is_named(run, ours, monkeypatch):
    monkeypatch.setattr(cache_command, "remove", lambda path: None)
    code, _, error = run("cache", "--empty", "features")
    assert code == 1
    assert_one_line(error, f"could not be removed: .*{'a' * 64}.npz")


def test_wrong_part_is_told(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["cache", "--empty", "engine"])
    assert "Did you mean 'engines'?" in capsys.readouterr().err
