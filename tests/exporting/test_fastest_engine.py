"""Which engine `keras_vit.accelerate` takes, by a clock that the tests set, and what measures and answers with one."""

import json
import re

import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from photos import make_photos
from pictures import picture

import keras_vit
from keras_vit.exporting import verification
from keras_vit.exporting.engines import accelerate as module
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.verification import Reference

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]


@pytest.fixture(scope="module")
def model():
    return make_tiny(num_layers=1, classes=3)


class Clock:
    """In place of `time`: engines that cost what the tests say, and answer as Keras does, but for what is spoiled.

    Attributes:
        cost: seconds of a call by engine.
        spoil: what is added to the logits by engine.
        sizes: of the batches that an engine was given.
    """

    def __init__(self, model):
        self.reference = Reference(model, "softmax")
        self.cost = {"tensorflow": 5.0, "xla": 4.0, "openvino": 2.0, "onnxruntime": 3.0}
        self.spoil, self.sizes, self.now = {}, [], 0.0

    def perf_counter(self):
        return self.now

    def opened(self, engine, spec, threads, store=None):
        def run(images):
            self.now += self.cost[engine]
            self.sizes.append(len(images))
            answers = self.reference.run_prepared(images)
            return answers | {"logits": answers["logits"] + np.float32(self.spoil.get(engine, 0))}

        return Runtime(f"fake {engine}", run)


@pytest.fixture
def clock(model, monkeypatch):
    clock = Clock(model)
    monkeypatch.setattr(verification, "time", clock)
    monkeypatch.setattr(module, "open_engine", clock.opened)
    return clock


def accelerated(model, engine="auto", *asked, **options):
    return keras_vit.accelerate(model, engine, *asked, images=PHOTOS, cache=None, **options)


def test_fastest_is_taken_and_all_are_reported(model, clock):
    engine = accelerated(model)
    assert engine.engine == "openvino"
    assert engine.report.seconds == {**clock.cost, "model": 0.0}  # Keras itself costs this clock nothing
    assert list(engine.report.seconds) == ["tensorflow", "xla", "openvino", "onnxruntime", "model"]
    assert "fake openvino" in engine.report.line()
    clock.cost["xla"] = 1.0
    assert accelerated(model).engine == "xla"


def test_second_call_takes_what_was_fastest_then(model, clock):
    clock.cost["tensorflow"], clock.spoil["openvino"] = 1.0, 0.01
    first = keras_vit.accelerate(model, images=PHOTOS)
    clock.cost["xla"], clock.sizes = 0.5, []
    again = keras_vit.accelerate(model, images=PHOTOS)
    assert (first.engine, again.engine) == ("tensorflow", "tensorflow")
    assert (again.report.seconds, again.report.left_out) == (first.report.seconds, first.report.left_out)
    assert clock.sizes == [1]  # a photo that is looked at anew
    clock.spoil["tensorflow"] = 0.01
    with pytest.warns(UserWarning, match="does not compute what the model computes"):
        assert keras_vit.accelerate(model, images=PHOTOS).engine == "xla"


def test_seconds_are_those_of_an_image_in_batches_as_asked(model, clock):
    engine = accelerated(model, batch_size=8)
    assert clock.sizes[-1] == 8
    assert (engine.report.batch_size, engine.report.seconds["openvino"]) == (8, 2.0 / 8)


def test_engines_are_timed_in_turn(model, clock, monkeypatch):
    """So that a machine that gets slower in between slows all of them."""
    order, opened = [], clock.opened

    def noted(engine, spec, threads, store=None):
        run = opened(engine, spec, threads).run
        return Runtime(engine, lambda images: order.append(engine) or run(images))

    monkeypatch.setattr(module, "open_engine", noted)
    accelerated(model)
    assert order[-8:] == ["tensorflow", "xla", "openvino", "onnxruntime"] * 2


def test_engine_beyond_its_bounds_is_left_out_with_its_figures(model, clock):
    clock.spoil["openvino"] = 0.01
    report = accelerated(model).report
    assert report.engine == "onnxruntime"
    assert "openvino" not in report.seconds
    assert "logits differ by 0.01 (0.01 in the mean)" in report.left_out["openvino"]
    assert "| openvino | left out: " in report.table()


def test_engine_beyond_its_bounds_is_refused_if_it_was_asked_for(model, clock):
    clock.spoil["xla"] = 0.01
    with pytest.raises(ExportError, match=r'engine="xla", precision="float32": logits differ by 0.01'):
        accelerated(model, "xla")


def test_engines_that_cannot_are_left_out_with_the_reason(model, clock, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    report = accelerated(model, "auto", "float32", 2).report
    assert report.engine == "openvino"
    assert report.threads == 2
    assert list(report.left_out) == ["tensorflow", "xla", "onnxruntime"]
    assert "process" in report.left_out["xla"]
    assert 'onnxruntime: pip install ".[export]"' in report.left_out["onnxruntime"]


def test_every_reason_is_told_if_none_is_left(model, clock):
    clock.spoil = dict.fromkeys(clock.cost, 0.01)
    with pytest.raises(ExportError, match="(?s)" + ".*0.01.*".join(clock.cost)):
        accelerated(model)


def test_xla_compiles_no_batch_for_the_rest(model, clock):
    engine = accelerated(model, "xla")
    clock.sizes.clear()
    x = images(7, 20, 28, 3)
    assert np.abs(engine.predict(x, batch_size=3) - numpy(model(x, training=False))).max() < 1e-5
    assert clock.sizes == [3, 3, 3]


# What measures and answers with an engine


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos") / "set", per_class=4)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.keras"
    model.save(path)
    return path


def test_evaluation_of_an_engine_is_that_of_the_model(model, photos):
    found = keras_vit.evaluate(accelerated(model, "tensorflow"), photos, "train+test", batch_size=5)
    expected = keras_vit.evaluate(model, photos, "train+test")
    assert isinstance(found, keras_vit.Evaluation)
    assert found.loss == pytest.approx(expected.loss, abs=1e-5)
    assert np.array_equal(found.confusion, expected.confusion)


def test_engine_without_classes_is_refused_by_an_evaluation(photos):
    engine = accelerated(make_tiny(num_layers=1, include_top=False, classes=None), "tensorflow")
    with pytest.raises(ValueError, match="softmax"):
        keras_vit.evaluate(engine, photos)


def test_command_predicts_in_an_engine_and_says_in_which(run, file, photos):
    photo = photos / "disc" / "0.jpg"
    code, lines, error = run("predict", photo, "--model", file, "--engine", "openvino", "--threads", 1)
    assert (code, error) == (0, [])
    assert lines.pop(1) == "opening openvino in float32, and comparing it with the model"
    assert lines.pop(1) == "timing openvino, model"
    assert re.match(r"engine openvino \(OpenVINO .*\) in float32, .* ms an image; model .* ms$", lines[1])
    assert lines[2:] == run("predict", photo, "--model", file)[1][1:]
    asked = ("predict", photo, "--model", file, "--engine", "openvino", "--threads", 1)
    again = run(*asked)[1]
    assert again[1].startswith(f"{lines[1]}; as measured on 20")
    assert again[2:] == lines[2:]
    assert "; as measured on " not in run(*asked, "--no-cache")[1][3]
    code, _, error = run("predict", photo, "--model", file, "--no-cache")
    assert (code, len(error)) == (1, 1)
    assert "`--no-cache` goes with `--engine`" in error[0]


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_command_opens_an_engine_with_photos_of_the_user(run, file, photos, monkeypatch, command):
    seen = []

    def select_photos(given, *of_model):
        seen.append(given)
        return PHOTOS, np.stack([np.zeros((20, 28, 3), "uint8")] * len(PHOTOS))

    monkeypatch.setattr(module, "select_photos", select_photos)
    asked = {"predict": (photos / "disc" / "0.jpg", "--model", file), "evaluate": (file, "--data", photos)}
    code, _, error = run(command, *asked[command], "--engine", "tensorflow", "--images", photos)
    assert (code, error) == (0, [])
    assert set(seen) == {photos}


def test_command_evaluates_in_an_engine(run, file, photos):
    evaluate = ("evaluate", file, "--data", photos, "--split", "train", "--json")
    code, lines, error = run(*evaluate, "--engine", "tensorflow", "--precision", "bfloat16")
    assert code == 0, error
    found, plain = (json.loads("\n".join(told)) for told in (lines, run(*evaluate)[1]))
    assert found.pop("engine") == "tensorflow"
    assert found["loss"] == pytest.approx(plain["loss"], rel=0.05)  # logits of bfloat16 have 8 bits
    assert found["count"] == plain["count"] == 6


def test_command_says_which_engines_were_left_out(run, file, photos, clock):
    clock.spoil["openvino"] = 0.01
    _, lines, _ = run("predict", photos / "disc" / "0.jpg", "--model", file, "--engine", "auto")
    names = ("tensorflow", "xla", "openvino", "onnxruntime")
    assert lines[1:5] == [f"opening {name} in float32, and comparing it with the model" for name in names]
    assert lines[5] == "timing tensorflow, xla, onnxruntime, model"
    lines = lines[5:]
    assert lines[1].startswith("engine onnxruntime (fake onnxruntime) in float32, ")
    assert lines[2].startswith("left out openvino: ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--precision", "int8"), "`--precision`"),
        (("--threads", "2"), "`--threads`"),
        (("--images", "photos"), "`--images`"),
        (("--engine", "openvino", "--images", "nowhere"), "nowhere"),
        (("--engine", "openvino", "--threads", "0"), "--threads 0"),
        (("--engine", "xla", "--threads", "2"), '--threads 2, --engine "xla"'),
        (("--engine", "openvino", "--probe", "knn"), "`--probe`"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, file, photos, options, words):
    code, _, error = run("evaluate", file, "--data", photos, *options)
    assert code == 1
    assert len(error) == 1
    assert words in error[0]
