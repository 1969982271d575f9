import logging
import os
import sys
import threading
import warnings

import pytest
from conftest import run_python

from keras_vit.silence import silence


def speak():
    print("print")
    print("print", file=sys.stderr)
    os.write(1, b"descriptor")
    os.write(2, b"descriptor")
    logging.getLogger("anybody").critical("log")
    warnings.warn("warning", stacklevel=1)


def test_nothing_is_heard_inside(capfd):
    with silence():
        speak()
    assert capfd.readouterr() == ("", "")


def test_all_is_heard_again_after_it(capfd):
    with silence():
        pass
    with pytest.warns(UserWarning, match="warning"):
        speak()
    heard = capfd.readouterr()
    for text in heard:
        assert "print" in text
        assert "descriptor" in text


def test_what_was_printed_before_is_not_lost(capfd):
    sys.stdout.write("before")
    with silence():
        pass
    assert capfd.readouterr().out == "before"


def test_errors_come_through():
    with pytest.raises(ZeroDivisionError), silence():
        raise ZeroDivisionError


def test_a_disabled_logging_stays_disabled():
    logging.disable(logging.INFO)
    try:
        with silence():
            pass
        assert logging.root.manager.disable == logging.INFO
    finally:
        logging.disable(logging.NOTSET)


def test_the_root_logger_is_left_as_it_was():
    root, foreign = logging.getLogger(), logging.StreamHandler(sys.stderr)
    own, before = logging.NullHandler(), (root.level, root.handlers[:], root.filters[:])
    root.addHandler(own)
    try:
        with silence():
            root.removeHandler(own)
            root.addHandler(foreign)
            root.addFilter(lambda record: False)
            root.setLevel(logging.CRITICAL)
        assert (root.level, root.handlers, root.filters) == (before[0], [*before[1], own], before[2])
    finally:
        root.removeHandler(own)


def test_a_closed_descriptor_is_left_closed():
    kept = os.dup(1)
    os.close(1)
    try:
        with silence():
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(1)
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_or_missing_stream_is_no_error(name, monkeypatch, tmp_path):
    with open(tmp_path / "closed", "w") as closed:
        pass
    for stream in (closed, None):
        monkeypatch.setattr(sys, name, stream)
        with silence():
            logging.getLogger("anybody").critical("log")
        assert getattr(sys, name) is stream


def test_a_logger_made_inside_speaks_outside(capsys):
    logger = logging.getLogger("made inside")
    with silence():
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.critical("inside")
    logger.critical("outside")
    assert capsys.readouterr().out == "outside\n"


def test_threads_that_overlap_restore_all(capfd):
    threads = [threading.Thread(target=silent, args=(number,)) for number in range(8)]
    streams = sys.stdout, sys.stderr, logging.root.manager.disable, warnings.filters[:]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.stdout, sys.stderr, logging.root.manager.disable, warnings.filters) == streams
    os.write(1, b"heard")
    assert capfd.readouterr() == ("heard", "")


def silent(number):
    with silence():
        threading.Event().wait(0.01 * (number % 3))
        os.write(1, b"not heard")


def test_a_silence_may_hold_another(capfd):
    with silence(), silence():
        speak()
    os.write(2, b"heard")
    assert capfd.readouterr() == ("", "heard")


EXPORT = """
import logging, os, pathlib, sys, warnings
os.environ["HOME"] = sys.argv[1]
for name in ("CI", "TF_BUILD", "JENKINS_URL"):
    os.environ.pop(name, None)
import keras_vit

def state():
    root = logging.getLogger()
    logs = root.level, root.handlers[:], root.filters[:], root.manager.disable
    return logs, sys.stdout, sys.stderr, warnings.filters[:]

folder = pathlib.Path(sys.argv[1])
sizes = {"patch_size": 4, "hidden_size": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 17}
model = keras_vit.build(keras_vit.ViTConfig(**sizes), input_shape=(20, 28, 3), classes=7)

def export(form, name):
    before = state()
    keras_vit.export(model, folder / name, form, precision="int8")
    assert state() == before, (form, before, state())

for form, name in (("saved_model", "a"), ("litert", "a.tflite"), ("onnx", "a.onnx")):
    export(form, name)
from openvino_telemetry.utils.sender import TelemetrySender
sent = []
TelemetrySender.send = lambda *message: sent.append(message)
export("openvino", "a.xml")
first = len(sent), sorted(path.name for path in (folder / "intel").iterdir())
from openvino.tools.ovc import telemetry
telemetry.consent = True
telemetry.send_event("test", "of", "their own")
theirs = len(sent)
export("openvino", "b.xml")
print("their own:", theirs - first[0], 1 + telemetry.consent)
print("ours:", first[0] + len(sent) - theirs + len(first[1]) - 1)
"""


def test_an_application_finds_its_logging_as_it_was_and_nothing_is_reported(tmp_path):
    """In a process whose root logger has no handlers yet, so that its own `basicConfig` still has an effect.

    Of OpenVINO's reports even where its user has agreed to them.
    """
    consent = tmp_path / "intel" / "openvino_telemetry"
    consent.parent.mkdir()
    consent.write_text("1")
    assert run_python(EXPORT, tmp_path) == "their own: 1 2\nours: 0\n"
    assert consent.read_text() == "1"
