"""This package's own runners, in this process: what a benchmark's processes do, without their imports."""

import dataclasses
import importlib
import json

import keras
import numpy as np
import pytest
from conftest import ROOT

import keras_vit
from benchmarks.measure import LOGITS_BOUNDS, cross_entropy, logits_difference
from benchmarks.request import Benchmark, Case
from benchmarks.workers import worker_of
from keras_vit.config.variants import VARIANTS


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def peers(patch):
    """The modules that lie beside each other in the processes' folder."""
    patch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    found = {name: importlib.import_module(name) for name in ("answering", "keras_models", "own")}
    patch.setattr(found["keras_models"].KerasRunner, "bring_packages", lambda self: None)  # all are here
    return found


@pytest.fixture(scope="module")
def session(peers, patch, tmp_path_factory):
    """A session of a runner, with the job that its process would get; the files are written once."""
    patch.setitem(VARIANTS, "Ti/16", dataclasses.replace(VARIANTS["Ti/16"], num_layers=2))  # a sixth of the work
    folder, jobs = tmp_path_factory.mktemp("files"), []
    names = ("images.npy", "labels.npy", "logits.npy", "official.npz", "timm.safetensors")
    files = {name.partition(".")[0]: str(folder / name) for name in names}

    def keep(name, python, file, job, environment):
        jobs.append(json.loads(json.dumps(job)))

    patch.setattr("benchmarks.workers.Worker", keep)

    def session(runner, task="inference", precision="float32", **asked):
        case = Case("Ti/16", 32, 3, precision, task)
        worker_of(runner, Benchmark(**asked), case, files, layouts=["timm"])
        return peers["answering"].Session(peers["own"].RUNNERS[runner](jobs.pop()))

    session.files = files
    preparation = session("prepare")
    preparation.start()
    preparation.check(files["logits"])
    return session


def test_files_hold_one_model_without_zeros_and_its_logits(session):
    images, wanted = np.load(session.files["images"]), np.load(session.files["logits"])
    assert images.shape == (3, 32, 32, 3)
    assert -1 <= images.min() < images.max() <= 1
    for file in ("official", "timm"):
        model = keras_vit.build("Ti/16", input_shape=(32, 32, 3), weights=session.files[file], activation="gelu_tanh")
        assert logits_difference(np.asarray(model(images)), wanted) < 1e-5  # another order of sums
    assert all(np.abs(weight).max() > 0 for weight in model.get_weights())
    assert wanted.std() > 0.1


@pytest.mark.filterwarnings("ignore:.*was quantised by Keras:UserWarning")
@pytest.mark.parametrize(
    ("runner", "precision"), [("ours-model", "float32"), ("ours-model", "bfloat16"), ("ours-model", "int8")]
)
def test_runner_answers_with_the_logits_of_these_weights(session, tmp_path, runner, precision):
    ours = session(runner, precision=precision)
    started = ours.start()
    assert min(started[name] for name in ("import_s", "build_s", "load_s")) >= 0
    assert "keras" in started["versions"]
    assert ours.check(str(tmp_path / "found.npy"))["first_s"] > 0
    found, wanted = np.load(tmp_path / "found.npy"), np.load(session.files["logits"])
    difference = logits_difference(found, wanted)
    assert found.dtype == "float32"
    assert (0 <= difference < 5e-5) if precision == "float32" else (1e-3 < difference < LOGITS_BOUNDS[precision])
    assert ours.step()["seconds"] > 0
    assert ours.memory()["peak_memory"] > 1e8


@pytest.mark.parametrize("task", ["inference", "train"])
@pytest.mark.parametrize(("runner", "by_xla"), [("ours-model", False), ("ours-xla", True)])
def test_model_is_compiled_by_xla_where_that_is_asked_only(session, monkeypatch, tmp_path, runner, task, by_xla):
    import tensorflow as tf

    asked, function = [], tf.function

    def keep(*args, jit_compile=None, **given):
        if args and args[0].__name__.startswith("one_step_on_data"):  # Keras' step; others are small parts of it
            asked.append(bool(jit_compile))
        return function(*args, jit_compile=jit_compile, **given)

    monkeypatch.setattr(tf, "function", keep)
    started = session(runner, task)
    started.start()
    started.check(str(tmp_path / "found.npy"))
    assert asked
    assert any(asked) == by_xla


def test_engine_of_accelerate_answers_with_them_too(session, tmp_path):
    ours = session("ours-tensorflow")
    ours.start()
    ours.check(str(tmp_path / "found.npy"))
    assert logits_difference(np.load(tmp_path / "found.npy"), np.load(session.files["logits"])) < 5e-5
    assert ours.memory()["engine"] == "tensorflow"


def test_engine_that_has_not_the_precision_is_left_out_with_the_reason(session, peers):
    ours = session("ours-onnxruntime", precision="bfloat16")
    assert "ONNX Runtime has no bfloat16" in peers["answering"].answer(ours, ["start"])["left_out"]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_first_loss_is_that_of_the_logits_and_steps_lower_it(session, optimizer):
    ours = session("ours-model", "train", optimizer=optimizer)
    ours.start()
    logits, labels = np.load(session.files["logits"]), np.load(session.files["labels"])
    assert ours.check("")["loss"] == pytest.approx(cross_entropy(logits, labels), rel=1e-5)
    losses = [ours.step()["loss"] for _ in range(3)]
    assert losses[-1] < losses[0] < cross_entropy(logits, labels)


def test_loading_gives_the_model_of_the_file(session, peers):
    images, wanted = np.load(session.files["images"]), np.load(session.files["logits"])
    for runner in ("ours-model", "np.load"):
        ours = session(runner, "load")
        assert ours.start()["load_s"] > 0
        assert logits_difference(np.asarray(ours.runner.from_file()(images)), wanted) < 5e-5


def test_runner_without_the_gpu_that_it_should_have_is_left_out(session, peers, monkeypatch):
    on_gpu, on_cpu = (session("ours-model", device=device).runner for device in ("gpu", "cpu"))
    monkeypatch.setattr(peers["keras_models"], "gpus_of", lambda backend: [])
    on_cpu.check_device("tensorflow")
    with pytest.raises(peers["answering"].LeftOutError, match="no GPU"):
        on_gpu.check_device("tensorflow")
    monkeypatch.setattr(peers["keras_models"], "gpus_of", lambda backend: ["one"])
    on_gpu.check_device("tensorflow")


def test_gpus_are_those_that_keras_sees(peers):
    assert len(peers["keras_models"].gpus_of(keras.backend.backend())) == len(keras.distribution.list_devices("gpu"))


def test_failure_is_an_answer_of_one_line(peers):
    class Broken:
        def start(self):
            raise OSError("first\nsecond")

    assert peers["answering"].answer(Broken(), ["start"]) == {"left_out": "failed: OSError: first"}
