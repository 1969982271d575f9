"""A run whose output is no terminal says a line each minute, whatever takes long."""

import io
import time

import pytest

from keras_vit.runs import minute_lines
from keras_vit.runs.minute_lines import MinuteLines, with_minute_lines
from keras_vit.runs.progress import Progress


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(minute_lines, "MINUTE", 0.05)


def waited_for(lines, count):
    until = time.monotonic() + 10
    while len(lines) < count and time.monotonic() < until:
        time.sleep(0.01)
    return lines


def test_silence_is_broken_by_what_is_going_on():
    said = []
    with MinuteLines(said.append).running() as lines:
        assert "preparing data and model, 0:00:0" in waited_for(said, 1)[0]

        class Plan:
            epochs, steps, batch_size = 2, 10, 4

        progress = Progress(Plan, lines)
        progress.on_train_batch_begin(0)
        count = len(said)
        assert "step 1 of 10, 0:00:0" in waited_for(said, count + 2)[-1]
    count = len(said)
    time.sleep(0.1)
    assert len(said) == count


def test_output_that_fails_is_tried_again_after_a_minute_only(monkeypatch):
    monkeypatch.setattr(minute_lines, "MINUTE", 0.2)
    tried = []

    def closed(line):
        tried.append(line)
        raise OSError(28, "No space left on device")

    with MinuteLines(closed).running():
        time.sleep(0.5)
    assert 1 <= len(tried) <= 5  # and not thousands


def test_only_print_without_a_terminal_gets_lines(monkeypatch):
    @with_minute_lines
    def run(data, out, options=None, *, say=print):
        return say

    assert isinstance(run(None, ""), MinuteLines)  # pytest's output is none
    assert run(None, "", say=str) is str

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert run(None, "") is print
    monkeypatch.setenv("TERM", "dumb")  # cannot write a line anew
    assert isinstance(run(None, ""), MinuteLines)
