"""Networks that are kept for the next call: kills, other processes, full disks, damage, other users and links."""

import concurrent.futures
import contextlib
import errno
import json
import os
import shutil
import signal
import stat

import pytest
from forks import forked

from keras_vit.exporting.engines import artifact_cache
from keras_vit.exporting.engines.artifact_cache import ArtifactCache, max_bytes_kept
from keras_vit.exporting.engines.cache import _read_note

ONE, TWO, THREE = (letter * 64 for letter in "abc")
FILES = {"network.bin": b"weights" * 100, "network.xml": b"<graph/>"}
WHOLE = [ONE, *(f"{ONE}/{name}" for name in ("kept.json", *FILES))]
SIZE = 1_100  # bytes of a network with its note, at most


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "engines"


def write(folder):
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def keep(folder, name=ONE, most=10**6):
    """Keeps a network and a note."""
    networks = ArtifactCache(folder, most)
    networks.put_note(name, name.encode())
    with networks.staging(name) as give:
        give(write)
    return networks


def assert_kept(networks, name=ONE):
    found = networks.get(name)
    assert {path.name: path.read_bytes() for path in found.iterdir() if path.name != "kept.json"} == FILES
    assert networks.get_note(name, bytes) == name.encode()


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_network_and_note_are_found_again_and_the_folder_is_ours_alone(folder):
    networks = keep(folder)
    assert networks.fault is None
    assert_kept(ArtifactCache(folder, 1))
    assert networks.get(TWO) is None
    assert networks.get_note(TWO, bytes) is None
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / ONE)] == [0o700, 0o700]


def test_what_is_raised_while_a_network_is_made_leaves_nothing(folder):
    with contextlib.suppress(RuntimeError), ArtifactCache(folder, 10**6).staging(ONE) as give:
        give(write)
        raise RuntimeError("beyond the bounds")
    assert everything_in(folder) == []


def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def half(folder):
    (folder / "network.bin").write_bytes(b"weig")
    killed()


# What a process is killed in, by the name that `artifact_cache` knows it by; and whether the network had its name.
KILLS = {"write": False, "_digest": False, "flush": False, "_last_used": True, "removal": False}


@pytest.mark.parametrize("place", KILLS)
def test_killed_process_leaves_nothing_that_is_read_and_no_rubbish(folder, place):
    def dies():
        if place == "removal":
            keep(folder)
            shutil.rmtree = killed
            artifact_cache.remove(folder / ONE)
        if place != "write":
            setattr(artifact_cache, place, killed)
        with ArtifactCache(folder, 10**6).staging(ONE) as give:
            give(half if place == "write" else write)

    assert forked(dies) == -signal.SIGKILL
    assert len(everything_in(folder)) > 1
    networks = ArtifactCache(folder, 10**6)
    left = [path for path in everything_in(folder) if not path.endswith(".note")]
    assert left == (WHOLE if KILLS[place] else [])
    assert (networks.get(ONE) is not None) == KILLS[place]
    keep(folder)
    assert_kept(networks)


def test_killed_process_leaves_no_half_note(folder):
    def dies():
        networks = ArtifactCache(folder, 10**6)
        os.replace = killed
        networks.put_note(ONE, b"new")

    assert forked(dies) == -signal.SIGKILL
    networks = ArtifactCache(folder, 10**6)
    assert networks.get_note(ONE, bytes) is None
    (part,) = folder.iterdir()
    os.utime(part, (0, 0))  # an hour ago, after which it is nobody's
    networks.put_note(ONE, b"newer")
    assert networks.get_note(ONE, bytes) == b"newer"
    assert everything_in(folder) == [f"{ONE}.note"]


def test_of_two_that_make_the_same_at_once_both_are_right(folder):
    first, second = ArtifactCache(folder, 10**6), ArtifactCache(folder, 10**6)
    with first.staging(ONE) as give, second.staging(ONE) as give_too:
        assert give(write) != give_too(write)
    assert (first.fault, second.fault) == (None, None)
    assert everything_in(folder) == WHOLE
    assert second.get(ONE) is not None


def test_processes_that_keep_read_and_remove_at_once_see_whole_networks(folder):
    def busy(seed):
        for turn in range(40):
            name = (ONE, TWO, THREE)[(turn * seed) % 3]
            networks = keep(folder, name, most=2 * SIZE)
            if (found := networks.get(name)) is not None:
                for file in FILES:
                    try:
                        assert (found / file).read_bytes() == FILES[file]
                    except FileNotFoundError:  # removed by another to make room
                        break
            assert networks.get_note(name, bytes) in (None, name.encode())
            assert networks.fault is None

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda seed: forked(busy, seed), (1, 2, 4))) == [0, 0, 0]


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replaced(path, content="a file"):
    shutil.rmtree(path)
    path.write_text(content)


def linked(path):
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


DAMAGE = {
    "flipped": lambda network: flipped(network / "network.bin"),
    "flipped graph": lambda network: flipped(network / "network.xml"),
    "cut": lambda network: (network / "network.bin").write_bytes(FILES["network.bin"][:-1]),
    "empty": lambda network: (network / "network.bin").write_bytes(b""),
    "more": lambda network: (network / "other.bin").write_bytes(b""),
    "fewer": lambda network: (network / "network.bin").unlink(),
    "record": lambda network: flipped(network / "kept.json"),
    "other record": lambda network: (network / "kept.json").write_text(json.dumps(dict.fromkeys(FILES, 3))),
    "record is a folder": lambda network: ((network / "kept.json").unlink(), (network / "kept.json").mkdir()),
    "pipe": lambda network: ((network / "network.bin").unlink(), os.mkfifo(network / "network.bin")),
    "file": replaced,
    "linked file": lambda network: linked(network / "network.bin"),
    "linked folder": linked,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_network_is_told_and_made_anew(folder, damage):
    networks = keep(folder)
    DAMAGE[damage](folder / ONE)
    with pytest.warns(UserWarning, match="the engine is made anew, as .* is of no use: "):
        assert networks.get(ONE) is None
    assert not os.path.lexists(folder / ONE)
    keep(folder)
    assert_kept(networks)


@pytest.mark.parametrize("moment", ["_check_own", "json_object"])
def test_network_that_another_process_puts_in_that_place_stays(folder, moment, monkeypatch):
    networks = ArtifactCache(folder, 10**6) if moment == "_check_own" else keep(folder)

    def another(*_):
        artifact_cache.remove(folder / ONE)
        keep(folder)
        raise FileNotFoundError(errno.ENOENT, "what was there before")

    with monkeypatch.context() as patch:
        patch.setattr(artifact_cache, moment, another)
        assert networks.get(ONE) is None  # and warns of nothing
    assert_kept(networks)


@pytest.mark.parametrize("damage", [flipped, linked, lambda note: note.write_bytes(b""), lambda note: note.chmod(0)])
def test_damaged_note_is_told_and_made_anew(folder, damage, monkeypatch):
    networks = keep(folder)
    damage(folder / f"{ONE}.note")
    if not (folder / f"{ONE}.note").stat().st_mode & 0o777:
        monkeypatch.setattr(artifact_cache, "read_regular", lambda *_: refused())  # root may read all
    with pytest.warns(UserWarning, match=r"the engine is made anew, as .*\.note is of no use: "):
        assert networks.get_note(ONE, bytes) is None
    assert not os.path.lexists(folder / f"{ONE}.note")


def test_note_of_a_right_digest_and_something_else_is_made_anew(folder):
    networks = keep(folder)
    for content in (b"{}", b"", b"PK\x03\x04"):
        networks.put_note(ONE, content)
        with pytest.warns(UserWarning, match=r"is of no use: it holds something else"):
            assert networks.get_note(ONE, _read_note) is None


@pytest.mark.parametrize("gigabytes", ["1e300", "inf", "nan", "-1", "many"])
def test_limit_that_is_no_number_of_bytes_is_refused(monkeypatch, gigabytes):
    monkeypatch.setenv("KERAS_VIT_ENGINES_GB", gigabytes)
    with pytest.raises(ValueError, match=f"KERAS_VIT_ENGINES_GB={gigabytes}"):
        artifact_cache.max_bytes_kept()


def refused():
    raise PermissionError(errno.EACCES, "Permission denied")


def test_folder_where_others_may_write_is_not_trusted(folder, tmp_path, monkeypatch):
    keep(folder)
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match=r"others may write into .*engines"):
        ArtifactCache(folder, 10**6)
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match=r"link is a link"):
        ArtifactCache(tmp_path / "link", 10**6)
    networks, mine = ArtifactCache(folder, 10**6), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    with pytest.raises(PermissionError, match=r"engines is another user's"):
        ArtifactCache(folder, 10**6)
    with pytest.warns(UserWarning, match="another user's"):
        assert networks.get(ONE) is None


@pytest.mark.parametrize("place", ["files", "mkdir", "_digest", "flush"])
def test_full_disk_is_noted_and_leaves_nothing(folder, place, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    networks = ArtifactCache(folder, 10**6)
    if place == "mkdir":
        monkeypatch.setattr(artifact_cache, "staging", full)
    elif place != "files":
        monkeypatch.setattr(artifact_cache, place, full)
    with networks.staging(ONE) as give:
        given = give(full if place == "files" else write)
    assert (given is None) == (place in ("files", "mkdir"))
    assert networks.fault.errno == errno.ENOSPC
    assert everything_in(folder) == []
    monkeypatch.setattr(artifact_cache, "atomic_write", full)
    networks.put_note(ONE, b"note")
    assert everything_in(folder) == []


def test_what_was_last_used_longest_ago_goes_first(folder):
    for name, day in ((ONE, 1), (TWO, 2), (THREE, 3)):
        networks = keep(folder, name, most=3 * SIZE)
        for path in (folder / name, folder / f"{name}.note"):
            os.utime(path, (day, day))
    (folder / "mine.txt").write_text("of the user")
    assert_kept(networks, ONE)  # which makes it the last that was asked for
    keep(folder, "d" * 64, most=3 * SIZE)
    kept = {path.name[0] for path in filter(artifact_cache.is_artifact_name, folder.iterdir())}
    assert kept == {"a", "c", "d"}
    assert (folder / "mine.txt").exists()


def test_network_above_the_limit_is_not_kept(folder, monkeypatch):
    networks = keep(folder, most=SIZE // 2)
    assert "KERAS_VIT_ENGINES_GB" in str(networks.fault)
    assert everything_in(folder) == [f"{ONE}.note"]
    for size, shown in ((4_600_000, "4.6 MB"), (1_234_000_000, "1.23 GB")):
        monkeypatch.setattr(artifact_cache, "disk_size", lambda path, size=size: size)
        assert f"it has {shown}, above KERAS_VIT_ENGINES_GB=0.001" in str(keep(folder, most=10**6).fault)


def test_lowered_limit_holds_for_what_was_kept_before(folder):
    keep(folder, TWO)
    keep(folder, ONE, most=SIZE // 2)  # too large, and so is the other
    assert not (folder / TWO).exists()
    assert sum(map(artifact_cache.disk_size, folder.iterdir())) <= SIZE // 2


def test_limit_is_a_number_of_gigabytes(monkeypatch):
    assert max_bytes_kept() == 4 * 10**9
    for text, expected in (("0", 0), ("", 4 * 10**9), ("0.5", 5 * 10**8)):
        monkeypatch.setenv("KERAS_VIT_ENGINES_GB", text)
        assert max_bytes_kept() == expected
    for text in ("four", "-1", "nan", "inf"):
        monkeypatch.setenv("KERAS_VIT_ENGINES_GB", text)
        with pytest.raises(ValueError, match=f"KERAS_VIT_ENGINES_GB={text}"):
            max_bytes_kept()
