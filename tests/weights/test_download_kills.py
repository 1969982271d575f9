"""Rows D7 and D8 in full: eight processes on one file, and forty that are killed at random moments."""

import contextlib
import random
import time

import pytest
from fault_server import NAME, FaultServer, child

from keras_vit.weights.download import RemoteFile, cache_dir, fetch
from keras_vit.weights.download.cache import file_sha256

pytestmark = pytest.mark.slow


def test_eight_processes_make_one_download():  # D7
    with FaultServer(size=4_000_000) as server:
        server.piece = 1 << 16
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(child(server.url("slow"), cache_dir())) for _ in range(8)]
            outputs = [process.communicate(timeout=120)[0] for process in processes]
        assert [output.split()[-1] for output in outputs] == [str(cache_dir() / NAME)] * 8
        assert file_sha256(cache_dir() / NAME) == server.sha256
        assert server.ranges == [None]


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
