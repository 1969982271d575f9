"""Files at hand: used without a socket, never used when they changed (rows D10 to D12)."""

import hashlib
import json
import os
import re
import shutil

import pytest
from fault_server import NAME, FaultServer

from keras_vit.cache import cache_dir
from keras_vit.files import file_sha256
from keras_vit.weights.download import DownloadError, OfflineError, RemoteFile, fetch
from keras_vit.weights.download.cache import find_local, is_noted, verify_cache, verify_file


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.fixture
def cached():
    """A file that came from a server, and the record to ask for it."""
    with FaultServer(size=1000) as server:
        file = RemoteFile(server.url("ok"), NAME, size=1000)
        fetch(file)
        return file


def note_of(file):
    return file.place.with_name("tiny.npz.json")


def flip_byte(path, keep_time):
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_cached_file_opens_no_socket(cached, monkeypatch, no_network):  # D11
    assert fetch(cached) == find_local(cached) == cached.place
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert fetch(cached) == cached.place


def test_offline_mode_opens_no_socket_for_a_missing_file(monkeypatch, no_network):  # D11
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(OfflineError, match="KERAS_VIT_OFFLINE"):
        fetch(RemoteFile("https://example.org/x", NAME))


def test_note_holds_hash_size_url_and_path(cached):
    facts = {"sha256": file_sha256(cached.place), "size": 1000, "url": cached.url, "path": str(cached.place)}
    assert json.loads(note_of(cached).read_text()) == facts


@pytest.mark.parametrize("keep_time", [False, True])
def test_changed_file_is_refused_with_both_hashes_and_the_remedy(cached, keep_time):  # D12
    before = file_sha256(cached.place)
    flip_byte(cached.place, keep_time=keep_time)
    for ask in (fetch, find_local):
        with pytest.raises(DownloadError, match=f"{before}.*{file_sha256(cached.place)}\n.*`rm -f "):
            ask(cached)


def test_verify_finds_rot_that_kept_size_and_time(cached):  # D12
    assert [(each.path, each.ok) for each in verify_cache()] == [(cached.place, True)]
    before = file_sha256(cached.place)
    flip_byte(cached.place, keep_time=True)
    (found,) = verify_cache()
    assert not found.ok
    assert re.search(rf"sha256 differs: expected {before}, got {file_sha256(cached.place)}.*`rm -f ", found.reason)


def test_moved_cache_is_used_with_its_notes(cached, monkeypatch, tmp_path, no_network):  # D12
    shutil.copytree(cache_dir(), tmp_path / "elsewhere")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "elsewhere"))
    assert find_local(cached) == cached.place == tmp_path / "elsewhere" / NAME
    assert is_noted(cached.place)
    cached.place.write_bytes(b"short")
    assert not is_noted(cached.place)


def test_pinned_hash_is_compared_with_the_bytes_and_not_with_the_note(cached):  # D12
    pinned = RemoteFile(cached.url, cached.path, sha256=file_sha256(cached.place))
    assert find_local(pinned) == cached.place
    flip_byte(cached.place, keep_time=True)
    with pytest.raises(DownloadError, match=f"{pinned.sha256}.*{file_sha256(cached.place)}"):
        find_local(pinned)


def test_another_pinned_hash_is_refused(cached):
    pinned = RemoteFile(cached.url, cached.path, sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"{'0' * 64}.*\n.*`sha256`"):
        find_local(pinned)


def put_by_hand(content=b"weights", **facts):
    file = RemoteFile("https://example.org/x.npz", NAME, **facts)
    file.place.parent.mkdir(parents=True)
    file.place.write_bytes(content)
    return file


def test_file_put_by_hand_is_verified_once_and_noted(no_network):  # D11
    file, checked = put_by_hand(size=7, sha256=hashlib.sha256(b"weights").hexdigest()), []
    assert fetch(file, check=checked.append) == fetch(file, check=checked.append) == find_local(file) == file.place
    assert checked == [file.place]


@pytest.mark.parametrize("facts", [{"size": 8}, {"sha256": "0" * 64}])
def test_wrong_file_put_by_hand_is_refused_and_kept(facts, no_network):
    file = put_by_hand(**facts)
    with pytest.raises(DownloadError, match=next(iter(facts))):
        fetch(file)
    assert file.place.read_bytes() == b"weights"
    assert not note_of(file).exists()


def test_damaged_file_put_by_hand_is_refused_with_the_words_of_the_check(no_network):
    def check(path):
        raise ValueError(f"not a zip archive.\nReceived: {path}")

    with pytest.raises(DownloadError, match="not a zip archive"):
        fetch(put_by_hand(), check=check)


DAMAGED = [
    b"",
    b"[]",
    b"{}",
    b"\xff",
    b'{"sha256": 1}',
    b'{"sha256": "abc"}',
    b"[" * 50_000,
    b'{"sha256": "' + b"0" * 64 + b'"}' + b" " * 70_000,
]


@pytest.mark.parametrize("note", DAMAGED, ids=lambda note: f"{note[:16]!r}-{len(note)}")
def test_damaged_note_makes_the_file_a_new_one(cached, note, no_network):
    note_of(cached).write_bytes(note)
    checked = []
    assert fetch(cached, check=checked.append) == find_local(cached, checked.append)
    assert checked == [cached.place]


def test_file_of_another_by_the_name_of_a_note_stays(cached, no_network):
    note_of(cached).write_bytes(b'{"index": []}')
    assert fetch(cached) == cached.place
    assert note_of(cached).read_bytes() == b'{"index": []}'


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(20)
def test_pipes_in_the_cache_hold_nobody_up(cached, no_network):
    note_of(cached).unlink()
    os.mkfifo(note_of(cached))
    os.mkfifo(cached.place.with_name("pipe.npz"))
    assert [(each.path.name, each.ok) for each in verify_cache()] == [("tiny.npz", True)]
    assert fetch(cached) == find_local(cached) == cached.place


@pytest.mark.timeout(20)
def test_a_pipe_with_a_note_is_not_read_by_verify(cached):
    cached.place.unlink()
    os.mkfifo(cached.place)
    assert "no sha256 noted" in verify_file(cached.place).reason  # that it is a pipe, the check says


def test_verify_names_files_without_note_and_passes_over_parts(cached):
    for name in ("x.part", "x.part.json", "x.lock", "gone.npz.json"):
        cached.place.with_name(name).write_bytes(b"")
    cached.place.with_name("other.npz").write_bytes(b"")
    assert [(each.path.name, each.reason) for each in verify_cache()] == [
        ("other.npz", "valid, with no sha256 noted yet"),
        ("tiny.npz", "sha256 as noted"),
    ]


def test_verify_runs_the_check_on_every_file(cached):
    def check(path):
        raise ValueError(f"invalid {path.name}")

    assert [each.reason for each in verify_cache(check)] == ["invalid tiny.npz"]


def test_verify_of_no_cache_is_empty():
    assert verify_cache() == []


@pytest.fixture
def mirrored(monkeypatch, tmp_path):
    file = RemoteFile("https://example.org/x.npz", NAME, size=7)
    path = tmp_path / "mirror" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    return file, path


def test_mirror_directory_is_used_in_place(mirrored, no_network, caplog):
    file, path = mirrored
    assert fetch(file) == find_local(file) == path
    assert not cache_dir().exists()
    assert list(path.parent.iterdir()) == [path]
    assert caplog.records == []


def test_mirror_directory_comes_before_the_cache(cached, mirrored):
    file, path = mirrored
    assert cached.place.exists()
    assert fetch(file) == path


def test_mirrored_file_of_another_size_is_used_with_a_warning(mirrored, caplog):
    _, path = mirrored
    assert fetch(RemoteFile("https://example.org/x.npz", NAME, size=9)) == path
    assert re.search("7 bytes.* 9 bytes", caplog.text)


def test_mirrored_file_of_another_hash_is_refused(mirrored):
    _, path = mirrored
    with pytest.raises(DownloadError, match=f"{path}.*{'0' * 64}.*\n.*KERAS_VIT_MIRROR"):
        fetch(RemoteFile("https://example.org/x.npz", NAME, sha256="0" * 64))


def test_file_that_the_mirror_directory_lacks_is_never_downloaded(cached, mirrored, no_network, monkeypatch):
    _, path = mirrored
    lacking = RemoteFile("https://example.org/x.npz", "another.npz", size=9)
    expected = path.parents[2] / "another.npz"
    with pytest.raises(DownloadError, match=rf"{expected}\n.*9 bytes.*KERAS_VIT_MIRROR"):
        fetch(lacking)
    path.unlink()
    assert fetch(cached) == cached.place


def test_url_prefix_takes_the_place_of_the_url(monkeypatch):
    with FaultServer() as server:
        monkeypatch.setenv("KERAS_VIT_MIRROR", f"{server.address}/ok/mirror")
        fetch(RemoteFile("https://192.0.2.1/x.npz", NAME, sha256=server.sha256))
        assert [path for path, _ in server.log] == [f"/ok/mirror/{NAME}"]
