"""A run says how it is getting on, with the time that is left."""

import io
import re
import time

import pytest

from keras_vit.config.progressive_resizing import growing_stages
from keras_vit.runs.progress import Heartbeat, Progress, _bar, heartbeat


class Plan:
    epochs, steps, batch_size = 2, 10, 4


def test_progress_says_one_line_for_each_epoch_with_the_time_left(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("keras_vit.runs.progress.time.monotonic", lambda: next(clock))
    said = []
    progress = Progress(Plan, said.append, metrics=("accuracy",))
    progress.on_train_begin()
    for epoch in range(2):
        progress.on_epoch_begin(epoch)
        for batch in range(5):
            progress.on_train_batch_end(batch)
        progress.on_epoch_end(epoch, {"loss": 1.25, "accuracy": 0.5, "val_loss": 2.0, "val_accuracy": 0.25})
    assert said[1:] == [
        "             loss  accuracy  val_loss  val_accuracy  images/s     left",
        "epoch 1/2  1.2500    0.5000    2.0000        0.2500         3  0:00:05",
        "epoch 2/2  1.2500    0.5000    2.0000        0.2500         3",
    ]
    assert progress.seconds_left() == 0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_what_compiles_is_said_and_left_out_of_the_time_left(monkeypatch):
    """The first step takes 60 s, and the first batch of the first evaluation 600; all later ones take 1."""
    clock, said = Clock(), []
    monkeypatch.setattr("keras_vit.runs.progress.time.monotonic", clock)
    plan = Plan()
    plan.epochs, plan.steps = 3, 9
    progress = Progress(plan, said.append)
    progress.on_train_begin()
    assert said == ["compiling the first step; then the time left is known"]
    for epoch in range(3):
        progress.on_epoch_begin(epoch)
        for batch in range(3):
            clock.now += 60 if (epoch, batch) == (0, 0) else 1
            progress.on_train_batch_end(batch)
        progress.on_test_begin()
        for batch in range(3):
            progress.on_test_batch_begin(batch)
            clock.now += 600 if (epoch, batch) == (0, 0) else 1
        progress.on_epoch_end(epoch, {"loss": 1.25})
    epochs = [line for line in said if line.startswith("epoch")]
    assert [re.findall(r"\d:\d\d:\d\d", line) for line in epochs] == [["0:00:12"], ["0:00:06"], []]


def test_first_epoch_that_is_too_short_to_measure_says_no_time(monkeypatch):
    clock, printed = Clock(), []
    monkeypatch.setattr("keras_vit.runs.progress.time.monotonic", clock)
    progress = Progress(Plan, printed.append)
    progress.on_train_begin()
    progress.on_epoch_begin(0)
    for batch in range(5):
        clock.now += 0.1
        progress.on_train_batch_end(batch)
    progress.on_epoch_end(0, {"loss": 1.25})
    assert printed[-1] == "epoch 1/2  1.2500        40"


def test_long_run_says_early_what_it_will_take_and_a_line_each_minute(monkeypatch):
    """Steps of 20 s: from the third on a line about every third, with the time that is left."""
    clock, said = Clock(), []
    monkeypatch.setattr("keras_vit.runs.progress.time.monotonic", clock)
    plan = Plan()
    plan.epochs, plan.steps = 1, 10
    progress = Progress(plan, said.append)
    progress.on_train_begin()
    progress.on_epoch_begin(0)
    for batch in range(8):
        clock.now += 20
        progress.on_train_batch_end(batch, {"loss": 1.5})
    assert re.fullmatch(r"a step takes 20.00 s: 0:02:40 left, until .*\d\d:\d\d, and evaluations", said[1])
    assert said[2] == "step 5/10  epoch 1/1  loss 1.5000  0:01:40 left"
    assert [line[:7] for line in said[3:]] == ["step 8/"]


def test_run_that_goes_on_counts_steps_once(monkeypatch):
    """Whenever `Checkpoints` hands the state back: before the steps that are passed over, and behind them."""
    progress = Progress(Plan, lambda line: None)
    progress.on_train_begin()
    state = {"done": 8, "of_epoch": 3}
    progress.set_state(state)
    progress.on_epoch_begin(1)
    for batch in range(3):
        progress.on_train_batch_end(batch)
    progress.set_state(state)
    progress.on_train_batch_end(3)
    assert progress.get_state() == {"done": 9, "of_epoch": 4}


def test_bar_fits_into_a_terminal_of_80_columns():
    console = pytest.importorskip("rich.console").Console(width=80, file=io.StringIO())
    bar = _bar()
    fields = {"epoch": "epoch 100/100", "figures": "loss 12.3456  accuracy 0.8312", "left": "10:12:31 left"}
    bar.add_task("", total=9, **fields)
    console.print(bar.get_renderable())
    (line,) = console.file.getvalue().splitlines()
    assert all(text in line for text in fields.values())
    assert len(line.rstrip()) <= 80


def test_time_left_knows_that_later_images_are_larger(monkeypatch):
    """Epochs of 10 steps, a second each at first; twice the sides take four times as long."""
    clock = Clock()
    monkeypatch.setattr("keras_vit.runs.progress.time.monotonic", clock)
    plan = Plan()
    plan.epochs, plan.steps, plan.steps_per_epoch = 2, 20, 10
    progress = Progress(plan, lambda line: None, growing_stages((8, 8), (16, 16), 2, 4))
    progress.on_train_begin()
    progress.on_epoch_begin(0)
    for batch in range(6):
        clock.now += 1
        progress.on_train_batch_end(batch)
    assert abs(progress.seconds_left() - (4 * 1 + 10 * 4)) < 1e-9


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("keras_vit.runs.progress.MINUTE", 0.05)


def waited_for(lines, count):
    until = time.monotonic() + 10
    while len(lines) < count and time.monotonic() < until:
        time.sleep(0.01)
    return lines


def test_silence_is_broken_by_what_is_going_on():
    said = []
    with Heartbeat(said.append).running() as lines:
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
    monkeypatch.setattr("keras_vit.runs.progress.MINUTE", 0.2)
    tried = []

    def closed(line):
        tried.append(line)
        raise OSError(28, "No space left on device")

    with Heartbeat(closed).running():
        time.sleep(0.5)
    assert 1 <= len(tried) <= 5  # and not thousands


def test_only_print_without_a_terminal_gets_lines(monkeypatch):
    def given(print_fn=print):
        with heartbeat(print_fn) as lines:
            return lines

    assert isinstance(given(), Heartbeat)  # pytest's output is none
    assert given(str) is str

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert given() is print
    monkeypatch.setenv("TERM", "dumb")  # cannot write a line anew
    assert isinstance(given(), Heartbeat)
