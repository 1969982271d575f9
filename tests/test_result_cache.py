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

from keras_vit import cache
from keras_vit.cache import Cache, list_entries
from keras_vit.exporting.engines.cache import _read_report

ONE, TWO, THREE = (letter * 64 for letter in "abc")
FILES = {"network.bin": b"weights" * 100, "network.xml": b"<graph/>"}
WHOLE = [ONE, *(f"{ONE}/{name}" for name in ("kept.json", *FILES))]
SIZE = 1_000  # bytes of a network, at most


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "engines"


def write(folder):
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def keep(folder, name=ONE, most=10**6):
    networks = Cache(folder, most, is_private=True)
    networks.put(name, write)
    return networks


def assert_kept(networks, name=ONE):
    found = networks.get(name)
    assert {path.name: path.read_bytes() for path in found.iterdir() if path.name != "kept.json"} == FILES


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_network_is_found_again_and_the_folder_is_private(folder):
    networks = keep(folder)
    assert networks.fault is None
    assert_kept(Cache(folder, 1))
    assert networks.get(TWO) is None
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / ONE)] == [0o700, 0o700]


def test_what_is_raised_while_a_network_is_made_leaves_nothing(folder):
    with contextlib.suppress(RuntimeError), Cache(folder, 10**6, is_private=True).staging(ONE) as give:
        give(write)
        raise RuntimeError("beyond the bounds")
    assert everything_in(folder) == []


def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def half(folder):
    (folder / "network.bin").write_bytes(b"weig")
    killed()


# What a process is killed in, by the name that `cache` knows it by; and whether the network had its name.
KILLS = {"write": False, "file_sha256": False, "flush": False, "_last_used": True, "removal": False}


@pytest.mark.parametrize("place", KILLS)
def test_killed_process_leaves_nothing_that_is_read_and_no_rubbish(folder, place):
    def dies():
        if place == "removal":
            keep(folder)
            shutil.rmtree = killed
            cache.remove(folder / ONE)
        if place != "write":
            setattr(cache, place, killed)
        with Cache(folder, 10**6, is_private=True).staging(ONE) as give:
            give(half if place == "write" else write)

    assert forked(dies) == -signal.SIGKILL
    assert len(everything_in(folder)) > 1
    networks = Cache(folder, 10**6, is_private=True)
    assert everything_in(folder) == (WHOLE if KILLS[place] else [])
    assert (networks.get(ONE) is not None) == KILLS[place]
    keep(folder)
    assert_kept(networks)


def test_of_two_that_make_the_same_at_once_both_are_right(folder):
    first, second = Cache(folder, 10**6, is_private=True), Cache(folder, 10**6, is_private=True)
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
    with pytest.warns(UserWarning, match=r"is of no use and is made anew: .*(kept\.json|network|another|a link)"):
        assert networks.get(ONE) is None
    assert not os.path.lexists(folder / ONE)
    keep(folder)
    assert_kept(networks)


def test_network_that_another_process_puts_in_that_place_stays(folder, monkeypatch):
    networks = keep(folder)

    def another(*_):
        cache.remove(folder / ONE)
        keep(folder)
        raise FileNotFoundError(errno.ENOENT, "what was there before")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "json_object", another)
        assert networks.get(ONE) is None  # and warns of nothing
    assert_kept(networks)


def test_entry_that_its_reader_refuses_is_made_anew(folder):
    networks = keep(folder)
    with pytest.warns(UserWarning, match=r"is of no use and is made anew: .*report\.json"):
        assert networks.get(ONE, lambda folder: _read_report(folder, 3)) is None
    assert everything_in(folder) == []


def fault_of(folder):
    """Of a cache that is not trusted: nothing is kept or found."""
    networks = keep(folder)
    assert networks.get(ONE) is None
    return str(networks.fault)


def test_folder_where_others_may_write_is_not_trusted(folder, tmp_path, monkeypatch):
    networks, mine = keep(folder), os.getuid()
    folder.chmod(0o770)
    assert_kept(Cache(folder))  # what is not run
    assert "others may write into " in fault_of(folder)
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(folder)
    assert "link is a link" in fault_of(tmp_path / "link")
    (tmp_path / "file").touch()
    assert Cache(tmp_path / "file", is_private=True).fault_reason == f"{tmp_path / 'file'}: File exists"
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert "engines is another user's" in fault_of(folder)
    with pytest.warns(UserWarning, match="another user's"):
        assert networks.get(ONE) is None


@pytest.mark.parametrize("place", ["files", "mkdir", "file_sha256", "flush"])
def test_full_disk_is_noted_and_leaves_nothing(folder, place, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    networks = Cache(folder, 10**6, is_private=True)
    if place == "mkdir":
        monkeypatch.setattr(cache, "staging", full)
    elif place != "files":
        monkeypatch.setattr(cache, place, full)
    with networks.staging(ONE) as give:
        given = give(full if place == "files" else write)
    assert (given is None) == (place in ("files", "mkdir"))
    assert networks.fault.errno == errno.ENOSPC
    assert everything_in(folder) == []


def test_what_was_last_used_longest_ago_goes_first(folder):
    for name, day in ((ONE, 1), (TWO, 2), (THREE, 3)):
        networks = keep(folder, name, most=3 * SIZE)
        os.utime(folder / name, (day, day))
    (folder / "mine.txt").write_text("of the user")
    assert_kept(networks, ONE)  # which makes it the last that was asked for
    keep(folder, "d" * 64, most=3 * SIZE)
    assert {path.name[0] for (path,) in list_entries(folder)} == {"a", "c", "d"}
    assert (folder / "mine.txt").exists()


def test_network_above_the_limit_is_not_kept(folder, monkeypatch):
    networks = keep(folder, most=SIZE // 2)
    assert "the limit is 5e-07 GB" in str(networks.fault)
    assert everything_in(folder) == []
    for size, shown in ((4_600_000, "4.6 MB"), (1_234_000_000, "1.23 GB")):
        monkeypatch.setattr(cache, "disk_size", lambda path, size=size: size)
        assert f"it has {shown}, and the limit is 0.001 GB" in str(keep(folder, most=10**6).fault)


def test_lowered_limit_holds_for_what_was_kept_before(folder):
    keep(folder, TWO)
    keep(folder, ONE, most=SIZE // 2)  # too large, and so is the other
    assert not (folder / TWO).exists()
    assert sum(map(cache.disk_size, folder.iterdir())) <= SIZE // 2
