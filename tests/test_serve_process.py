"""`examples/serve.py` as a user runs it: started, asked, and stopped by a signal."""

import contextlib
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from conftest import ROOT
from serving_model import LABELS, expected_scores, photo, write_served

pytest.importorskip("grpc")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(ROOT / "examples"))

import serve

pytestmark = pytest.mark.docs  # an example
START = 280  # seconds that a process may take to start TensorFlow on a busy machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_served(tmp_path_factory.mktemp("served"))


def command(*arguments):
    return [sys.executable, str(ROOT / "examples" / "serve.py"), *map(str, arguments)]


def environment(**changes):
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **changes}


@contextlib.contextmanager
def running(*arguments, **changes):
    """A server process and a queue of the lines that it prints, `None` at the end."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**changes)
    ) as process:
        lines = queue.Queue()
        reader = threading.Thread(target=lambda: [lines.put(line) for line in itertools.chain(process.stdout, [None])])
        reader.start()
        try:
            yield process, lines
        finally:
            process.terminate()
            reader.join(60)
            process.kill()


def wait_for(lines, pattern):
    """The match of the first line that has the pattern, and the lines up to it."""
    seen = []
    while (line := lines.get()) is not None:
        seen.append(line)
        if found := re.search(pattern, line):
            return found, "".join(seen)
    raise AssertionError("".join(seen))


def ask(*arguments):
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), timeout=START, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_server_process_answers_and_stops_cleanly(folder, tmp_path, number):
    (tmp_path / "a.jpg").write_bytes(photo(20))
    (tmp_path / "b.txt").write_text("no photo")
    with running(folder, "--stand-in", "--rest-port", 0, "--grpc-port", 0) as (process, lines):
        (port, name), printed = (lambda found, text: (found.groups(), text))(
            *wait_for(lines, r"http://127.0.0.1:(\d+)/v1/models/(.+):predict")
        )
        assert "stand-in" in printed
        assert name == "birds"
        code, shown, _ = ask(folder, "--rest-port", port, "--ask", tmp_path / "a.jpg", tmp_path / "b.txt")
        process.send_signal(number)
        assert process.wait(60) == 0
    assert code == 1  # one of the two is no photo
    best = sorted(zip(expected_scores([20])[0], LABELS, strict=True), reverse=True)[:2]
    assert shown.splitlines() == [
        f"{tmp_path}/a.jpg",
        *(f"  {score:6.1%}  {label}" for score, label in best),
        f"{tmp_path}/b.txt",
        "  not read: not a JPEG or PNG",
    ]


@pytest.mark.slow
def test_demo_names_digits_by_both_protocols():
    code, shown, error = ask("--demo")
    assert code == 0, error[-3000:]
    result = json.loads(shown.splitlines()[-1])
    assert result["named"] == ["three", "eight", ""]
    assert result["status"] == ["ok", "ok", "damaged"]
    assert result["difference_by_grpc"] < 1e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{here}/served", "{here}/served"),
        ("--name birds --ask {here}/a.jpg --rest-port {free}", "python examples/serve.py FOLDER"),
        ("--name birds --ask {here}/b.jpg", "b.jpg"),
        ("{folder} --stand-in --rest-port {taken}", "port {taken}"),
    ],
)
def test_what_cannot_be_is_one_line_before_a_model_is_loaded(arguments, words, folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.jpg").write_bytes(photo(20))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of this process stay
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"here": tmp_path, "folder": folder, "taken": taken.getsockname()[1], "free": serve.free_port()}
        monkeypatch.setattr(sys, "argv", ["serve.py", *arguments.format(**values).split()])
        code = serve.main()
    shown, error = capsys.readouterr()
    assert (code, shown, len(error.splitlines())) == (1, "", 1)
    assert words.format(**values) in error


FAKE_BINARY = """#!{python}
import signal, sys
print("started with", *sys.argv[1:], flush=True)
signal.pause()
"""


def test_real_server_is_used_where_there_is_one(folder, tmp_path):
    """Only that it is started with the right flags: the binary itself was not run here."""
    binary = tmp_path / "tensorflow_model_server"
    binary.write_text(FAKE_BINARY.format(python=sys.executable))
    binary.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    with running(folder, "--xla", "--rest-port", 18601, "--grpc-port", 18600, PATH=path) as (process, lines):
        found, _ = wait_for(lines, r"^started with (.+)")
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert found[1].split() == [
        "--model_name=birds",
        f"--model_base_path={folder.resolve()}",
        "--rest_api_port=18601",
        "--port=18600",
        "--xla_cpu_compilation_enabled=true",
    ]
