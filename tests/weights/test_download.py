"""Processes, disks and signals around one download (rows D7 to D11 and D14)."""

import errno
import fcntl
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from fault_server import EMPTY_PACKAGES, NAME, PART, FaultServer, child

from keras_vit.files import file_sha256
from keras_vit.weights.download import DownloadError, OfflineError, RemoteFile, cache_dir, fetch


@pytest.fixture
def server():
    with FaultServer() as server:
        yield server


def wait_for(condition):
    while not condition():
        time.sleep(0.01)


def begun():
    part = cache_dir() / PART
    return part.exists() and part.stat().st_size > 0


def test_processes_at_once_make_one_download(server):  # D7
    server.faults = 1
    with child(server.url("slow"), cache_dir()) as first, child(server.url("slow"), cache_dir()) as second:
        outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert all(output.split()[-1] == str(cache_dir() / NAME) for output in outputs)
    assert file_sha256(cache_dir() / NAME) == server.sha256
    assert len(server.log) == 1


def test_threads_at_once_make_one_download(server):  # D7
    server.faults, paths = 1, []
    file = RemoteFile(server.url("slow"), NAME)
    threads = [threading.Thread(target=lambda: paths.append(fetch(file))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [file.place] * 3
    assert len(server.log) == 1


def test_waiting_for_another_process_says_so(server, caplog):  # D7
    (cache_dir() / NAME).parent.mkdir(parents=True)
    with open(cache_dir() / f"{NAME}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        timer = threading.Timer(1.2, fcntl.flock, (lock, fcntl.LOCK_UN))
        timer.start()
        fetch(RemoteFile(server.url("ok"), NAME))
        timer.join()
    assert re.search("another process.* tiny.npz", caplog.text)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_without_locks_parts_have_names_of_their_own(server, monkeypatch, number):  # D7
    def flock(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    other = cache_dir() / PART
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another process")
    assert fetch(RemoteFile(server.url("ok"), NAME)).read_bytes() == server.content
    with pytest.raises(DownloadError):
        fetch(RemoteFile(server.url("cut"), "second.npz"))
    assert other.read_bytes() == b"of another process"
    assert [path.name for path in cache_dir().rglob("*.part*")] == [other.name]


def test_killed_download_is_resumed(server):  # D8
    server.faults = 1
    with child(server.url("slow"), cache_dir()) as process:
        wait_for(begun)
        process.kill()
    assert not (cache_dir() / NAME).exists()
    path = fetch(RemoteFile(server.url("slow"), NAME, sha256=server.sha256))
    assert path.read_bytes() == server.content
    assert server.ranges[1].startswith("bytes=")


def test_killed_holder_of_the_lock_holds_nobody_up(server):  # D7
    with child(server.url("hang"), cache_dir()) as process:
        wait_for(lambda: server.log)
        process.kill()
    fetch(RemoteFile(server.url("ok"), NAME))  # the server never answers the killed one


def test_file_too_large_for_the_disk_is_refused_with_both_numbers(server, monkeypatch):  # D9
    usage = shutil.disk_usage(cache_dir().parent)._replace(free=100_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match=r"0.3 MB.* 0.1 MB.*KERAS_VIT_CACHE"):
        fetch(RemoteFile(server.url("ok"), NAME))


@pytest.mark.skipif(not shutil.which("unshare"), reason="mounting a small disk needs unshare")
@pytest.mark.parametrize("check_space", [True, False])
def test_disk_that_is_full_leaves_no_part(server, check_space, tmp_path):  # D9
    server.content *= 14  # 4.2 MB into 2 MB
    script = "mount -t tmpfs -o size=2m small {cache} && {python} -c {code} {url} x.npz; code=$?; ls {cache}"
    code = (
        f"import shutil{EMPTY_PACKAGES}"
        "from keras_vit.weights.download import RemoteFile, fetch\n"
        f"if not {check_space}:\n"
        "    real, calls = shutil.disk_usage, []\n"
        "    shutil.disk_usage = lambda path: calls.append(path) or real(path)._replace(\n"
        "        free=1 << 40 if len(calls) == 1 else real(path).free)\n"
        "fetch(RemoteFile(sys.argv[1], sys.argv[2]))\n"
    )
    words = {"cache": tmp_path, "python": sys.executable, "code": code, "url": server.url("ok")}
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script.format(**{key: shlex.quote(str(word)) for key, word in words.items()})],
        capture_output=True,
        text=True,
        env=os.environ | {"KERAS_VIT_CACHE": str(tmp_path)},
        timeout=30,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert re.search("4.2 MB.* 2.1 MB" if check_space else "No space left on device(.|\n)*KERAS_VIT_CACHE", done.stderr)
    assert done.stdout.split() == ["x.npz.lock"]


def test_missing_cache_is_made_for_this_user_only(server, monkeypatch, tmp_path):  # D10
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "a" / "b"))
    fetch(RemoteFile(server.url("ok"), NAME))
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_cache_that_is_a_file_is_an_error_that_names_the_variable(server, monkeypatch, tmp_path):  # D10
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"folder(.|\n)*KERAS_VIT_CACHE"):
        fetch(RemoteFile(server.url("ok"), NAME))
    assert server.log == []


@pytest.fixture
def read_only_cache():
    """A cache that its user cannot write, and the prefix that binds root to the modes of files as well."""
    prefix = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    if prefix and (not shutil.which("setpriv") or subprocess.run([*prefix, sys.executable, "-c", ""]).returncode):
        pytest.skip("root cannot give up its right to write everywhere here")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folder is closed to other users
        cache = Path(folder) / "cache"
        (cache / NAME).parent.mkdir(parents=True)
        os.chmod(folder, 0o755)
        yield cache, prefix
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def close(cache):
    subprocess.run(["chmod", "-R", "a-w,a+rX", cache], check=True)


def shared_folder_state():
    shared = Path("/tmp/.keras")
    return shared.exists() and sorted((path, path.stat().st_mtime_ns) for path in shared.rglob("*"))


def test_read_only_cache_is_an_error_that_names_the_variable(server, read_only_cache):  # D10
    cache, prefix = read_only_cache
    close(cache)
    before = shared_folder_state()
    with child(server.url("ok"), cache, prefix=prefix) as process:
        message = process.communicate(timeout=20)[1]
    assert re.search(r"DownloadError: (.|\n)*KERAS_VIT_CACHE", message)
    assert shared_folder_state() == before
    assert server.log == []


@pytest.mark.parametrize("noted", [True, False])
def test_sound_file_of_a_read_only_cache_is_used(server, read_only_cache, monkeypatch, noted):  # D10
    cache, prefix = read_only_cache
    if noted:
        monkeypatch.setenv("KERAS_VIT_CACHE", str(cache))
        os.utime(fetch(RemoteFile(server.url("ok"), NAME)))  # so that it is hashed again
    else:
        (cache / NAME).write_bytes(server.content)
    close(cache)
    before = sorted(cache.rglob("*"))
    with child("http://127.0.0.1:1/x", cache, server.sha256, prefix=prefix) as process:
        assert process.communicate(timeout=20)[0].split()[-1] == str(cache / NAME)
    assert sorted(cache.rglob("*")) == before


def test_following_the_recipe_of_the_error_works(server):  # D11
    file = RemoteFile(server.url("range"), NAME, size=len(server.content))
    port, server.server_port = server.server_port, 1
    with pytest.raises(OfflineError) as caught:
        fetch(RemoteFile(server.url("range"), NAME, size=len(server.content), sha256=server.sha256))
    server.server_port = port
    assert server.sha256 in str(caught.value)
    lines = [line.strip() for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert len(lines) == 2
    if not shutil.which("curl"):
        pytest.skip("the recipe needs curl")
    recipe = "\n".join(lines).replace("127.0.0.1:1/", f"127.0.0.1:{port}/")
    subprocess.run(["sh", "-ec", recipe], check=True, capture_output=True, timeout=20)
    server.log.clear()
    assert fetch(file).read_bytes() == server.content
    assert server.log == []


def test_bar_is_drawn_on_demand_only(server, capfd):
    fetch(RemoteFile(server.url("ok"), "silent.npz"))
    assert capfd.readouterr() == ("", "")
    fetch(RemoteFile(server.url("ok"), "shown.npz", size=len(server.content)), progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "shown.npz" in err
    assert "300.0/300.0 kB" in err


def test_fetching_imports_neither_keras_nor_tensorflow(server):
    code = (
        f"{EMPTY_PACKAGES}import keras_vit.weights.download as weights\n"
        f"weights.fetch(weights.RemoteFile({server.url('ok')!r}, {NAME!r}))\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'keras', 'tensorflow', 'numpy', 'jax', 'torch'})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


IN_THE_WAY = [  # faults that are not those of the cache folder, each with what is named
    (lambda cache: (cache / PART).mkdir(), r"tiny\.npz\.part"),
    (lambda cache: (cache / f"{NAME}.lock").symlink_to(cache / "elsewhere"), r"tiny\.npz"),
]


@pytest.mark.parametrize(("put", "name"), IN_THE_WAY, ids=["directory", "lock"])
def test_what_stands_in_the_way_is_named_and_the_cache_not_blamed(server, put, name):  # D10
    (cache_dir() / NAME).parent.mkdir(parents=True)
    put(cache_dir())
    with pytest.raises(DownloadError, match=rf"cache folder: .*\n.*{name}"):
        fetch(RemoteFile(server.url("ok"), NAME))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(20)
def test_pipes_in_place_of_a_part_and_its_note_hold_nobody_up(server):
    (cache_dir() / NAME).parent.mkdir(parents=True)
    for name in (PART, f"{PART}.json"):
        os.mkfifo(cache_dir() / name)
    assert fetch(RemoteFile(server.url("ok"), NAME)).read_bytes() == server.content


@pytest.mark.parametrize(
    "note", ["[" * 50_000, '{"url": 3}', None], ids=["nested", "other keys", "values of another kind"]
)
def test_damaged_note_of_a_part_begins_it_afresh(server, note):  # D8
    (cache_dir() / NAME).parent.mkdir(parents=True)
    (cache_dir() / PART).write_bytes(server.content[:1000])
    whole = {"url": server.url("ok"), "etag": 7, "date": {}, "size": 10**400, "md5": [], "sha256": "x"}
    (cache_dir() / f"{PART}.json").write_text(json.dumps(whole) if note is None else note)
    assert fetch(RemoteFile(server.url("ok"), NAME)).read_bytes() == server.content
    assert server.ranges == [None]


@pytest.mark.slow
def test_forty_killed_downloads_leave_no_bad_file_and_all_succeed_later(tmp_path, monkeypatch):  # D8
    moments, bad, finished, resumed = random.Random(7), 0, 0, 0
    with FaultServer(size=2_000_000) as server:
        server.piece, server.pause = 1 << 15, 0.005  # about 0.4 s for the file
        for number in range(40):
            monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / str(number)))
            with child(server.url("slow"), cache_dir()) as process:
                process.stdout.readline()  # it has imported
                time.sleep(moments.uniform(0, 0.6))
                process.kill()
            final = cache_dir() / NAME
            bad += final.exists() and file_sha256(final) != server.sha256
            before = len(server.log)
            path = fetch(RemoteFile(server.url("slow"), NAME, size=len(server.content), sha256=server.sha256))
            finished += file_sha256(path) == server.sha256
            resumed += any(server.ranges[before:])
    print(f"40 kills: {bad} bad, {finished} finished, {resumed} resumed")
    assert (bad, finished) == (0, 40)
    assert resumed >= 1
