"""The command line as a process: signals, closed streams, and what it imports (row C1)."""

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import GOLDEN, ROOT, assert_one_line
from fault_server import FaultServer, child_environment

from keras_vit.weights.download import cache_dir

OFFICIAL = GOLDEN / "token.npz"


@pytest.fixture
def server():
    with FaultServer() as server:
        server.content = OFFICIAL.read_bytes()
        yield server


def start(*arguments, **streams):
    """The command in a process of its own, started as the installed script starts it."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, "-m", "keras_vit", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, env=child_environment(cache_dir()), **streams)


@pytest.mark.parametrize(("signal_sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_is_one_line_and_keeps_the_part(server, signal_sent, code):  # D14
    server.piece, server.pause = 1 << 12, 0.2
    with start("weights", "fetch", f"{server.address}/slow/x.npz") as process:
        try:
            while not any(part.stat().st_size for part in cache_dir().rglob("*.part")):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal_sent)
            output, error = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, output) == (code, "")
    assert_one_line(error.splitlines(), "(interrupted|terminated)$")
    assert list(cache_dir().rglob("*.part"))
    assert not list(cache_dir().rglob("*.npz"))


@pytest.mark.parametrize(("signal_sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_during_the_first_imports_is_one_line(tmp_path, signal_sent, code):  # D14
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(name, path, target=None):\n"
        "        if name == 'keras_vit.cli': print('ready', flush=True); time.sleep(200)\n"
        "sys.meta_path.insert(0, Slow)\n"
    )
    environment = child_environment(cache_dir(), PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    command = [sys.executable, "-m", "keras_vit", "models"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **streams) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal_sent)
            _, error = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == code
    assert_one_line(error.splitlines(), "(interrupted|terminated)$")


def test_predict_leaves_at_once_and_other_commands_as_python_does(tmp_path):
    """With its code and all that it had to say."""
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'freed')")
    environment = child_environment(cache_dir(), PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    for command, output in (("predict x.jpg --model nowhere", ""), ("recipes nothing", "freed\n")):
        command = [sys.executable, "-m", "keras_vit", *command.split()]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=environment)
        assert (done.returncode, done.stdout) == (1, output)
        assert_one_line(done.stderr.splitlines(), "(nowhere|nothing)")


def test_installed_script_is_the_one_that_answers_signals():
    assert "keras-vit = keras_vit.__main__:main" in (ROOT / "setup.cfg").read_text()


def test_output_in_ascii_escapes_what_it_cannot_say(tmp_path):
    path = shutil.copy(OFFICIAL, tmp_path / "ä.npz")
    environment = child_environment(cache_dir(), PYTHONIOENCODING="ascii:strict")
    command = [sys.executable, "-m", "keras_vit", "weights", "verify", path]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xe4.npz" in done.stdout


def test_closed_output_is_one_line():
    command = ["sh", "-c", '"$0" -m keras_vit models >&-', sys.executable]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 1
    assert_one_line(done.stderr.splitlines(), "output is closed")


def test_closed_pipe_is_silent():
    with start("weights", "list", "--json") as process:
        assert process.stdout.readline() == "[\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_list_of_weights_fits_a_terminal_and_has_one_line_a_file_elsewhere():
    command = [sys.executable, "-m", "keras_vit", "weights", "list", "--family", "sbb"]
    piped = subprocess.run(command, cwd=ROOT, text=True, capture_output=True).stdout.splitlines()
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, stdout=theirs, env=os.environ | {"COLUMNS": "80"}):
        os.close(theirs)
        shown = "".join(iter(lambda: _read(ours), "")).splitlines()
    os.close(ours)
    assert max(map(len, shown)) < 80 < max(map(len, piped))
    names = {line.split()[0] for line in piped[1:]}
    assert len(piped) == len(names) + 1 == 1 + sum(line.split()[0] in names for line in shown)


def _read(terminal):
    with contextlib.suppress(OSError):  # which Linux raises at the end
        return os.read(terminal, 1 << 16).decode()
    return ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_full_disk_behind_the_output_is_one_line():
    with open("/dev/full", "w") as full, start("models", stdout=full) as process:
        assert_one_line(process.stderr.read().splitlines(), "No space left")
    assert process.returncode == 1


def test_command_starts_without_keras():
    command = [sys.executable, "-X", "importtime", "-m", "keras_vit", "models"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "keras_vit.cli" in imported
    assert not imported & {"keras", "tensorflow", "jax", "torch"}


@pytest.mark.parametrize(("backend", "extra"), [("jax", "jax"), ("tensorflow", "tensorflow-cpu,train")])
def test_missing_backend_is_named_with_its_own_extra(tmp_path, backend, extra):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(name, path, target=None):\n"
        f"        if name == {backend!r}: raise ModuleNotFoundError('no such module', name=name)\n"
        "sys.meta_path.insert(0, Missing)\n"
    )
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    environment = child_environment(cache_dir(), PYTHONPATH=path, KERAS_BACKEND=backend)
    command = [sys.executable, "-m", "keras_vit", "finetune", "--data", "digits", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=environment)
    assert done.returncode == 1
    told = {"jax": "Keras is set to jax", "tensorflow": "need TensorFlow"}[backend]
    assert_one_line(done.stderr.splitlines(), f"{told}.*Received: no such module. Run pip install")
    assert f'".[{extra}]"' in done.stderr


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_closed_error_stream_sends_nothing_to_the_output(debug):
    command = ["sh", "-c", '"$0" -m keras_vit "$@" 2>&-', sys.executable, "weights", "inspect", "/nowhere", *debug]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_closed_streams_are_filled_so_that_no_file_takes_their_number():
    code = "import os, runpy; runpy.run_path('keras_vit/__main__.py')['_fill_closed_descriptors'](); print(os.fstat(2))"
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, code], cwd=ROOT, capture_output=True)
    assert done.returncode == 0
