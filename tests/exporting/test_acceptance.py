"""What is served equals what was trained: every kind of model, every format, in processes that know neither.

The default run takes a few models of two layers; `-m slow` all of them, the published ones, and a model that has
learnt the digits.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import run_python
from exporting.lively import KINDS, answers, lively
from pictures import encoded, picture

import keras_vit
from keras_vit.exporting.export import export
from keras_vit.images.decode import decode_image, grey
from keras_vit.silence import silence

# A SavedModel as a server has it: TensorFlow alone, through the new loader and the session loader.
SERVE = """
import sys
sys.modules["keras_vit"] = sys.modules["keras"] = None
import numpy as np, tensorflow as tf
path, asked, answered = sys.argv[1:]
given = np.load(asked)
values = {"pixels": given["pixels"]}
if "sizes" in given:
    bounds = np.cumsum([0, *given["sizes"]])
    values["image_bytes"] = [given["files"][start:end].tobytes() for start, end in zip(bounds, bounds[1:])]
found, loaded = {}, tf.saved_model.load(path)
session = tf.compat.v1.Session(graph=tf.Graph())
with session.graph.as_default():
    signatures = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def
for name, function in loaded.signatures.items():
    (key,) = function.structured_input_signature[1]
    for output, tensor in function(**{key: tf.constant(values[key])}).items():
        found[f"load/{name}/{output}"] = tensor.numpy()
    fetched = {output: info.name for output, info in signatures[name].outputs.items()}
    for output, array in session.run(fetched, {signatures[name].inputs[key].name: values[key]}).items():
        found[f"session/{name}/{output}"] = array
np.savez(answered, **{key: array.astype("S") if array.dtype == object else array for key, array in found.items()})
"""
# Kinds, and whether they are small; digits are.
CASES = [(kind, small) for kind in KINDS for small in (True, False) if small or kind != "digits"]
LOADERS = ("load", "session")


@functools.lru_cache(maxsize=1)
def model_of(kind, small):
    return lively(kind, small)


def pixels_for(model, count=5):
    height, width, channels = model.input_shape[1:]
    return np.stack([picture(height, width, channels, seed) for seed in range(count)])


def files():
    """A JPEG, a PNG, both of odd sizes, and a grey one."""
    return [
        encoded(picture(201, 157, seed=1), "JPEG", quality=93),
        encoded(picture(83, 311, seed=2), "PNG"),
        encoded(picture(119, 97, 1, seed=3)[..., 0], "PNG"),
    ]


def prepared(model, file):
    """As training prepares a file, `(1, H, W, C)`."""
    pixels = decode_image(tf.constant(file))
    if model.input_shape[-1] == 1:
        pixels = grey(pixels)
    return np.asarray(model.preprocessing(pixels.numpy()[None]), "float32")


def served(path, pixels, folder):
    """What a fresh process answers through both loaders: `loader/signature/output` to arrays."""
    sent = files()
    whole = np.frombuffer(b"".join(sent), "uint8")
    np.savez(folder / "asked.npz", pixels=pixels, files=whole, sizes=[len(file) for file in sent])
    run_python(SERVE, path, folder / "asked.npz", folder / "answered.npz")
    with np.load(folder / "answered.npz") as found:
        return dict(found)


def check_close(found, wanted, bound=1e-5):
    assert found.shape == wanted.shape
    assert wanted.std() > 1e-4  # numbers that could be wrong
    print(f"largest difference {np.abs(found - wanted).max():.1e}, standard deviation {wanted.std():.2g}")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * max(1, wanted.std()))


@pytest.mark.parametrize(
    ("kind", "small"),
    [pytest.param(*case, marks=() if case == ("hybrid", True) else pytest.mark.slow) for case in CASES],
)
def test_saved_model_equals_keras_in_a_process_without_it(kind, small, tmp_path):
    model = model_of(kind, small)
    report = export(model, tmp_path / "served", options={"top_k": 3})
    pixels = pixels_for(model)
    found = served(report.path, pixels, tmp_path)
    wanted = answers(model, np.asarray(model.preprocessing(pixels), "float32"))
    of_files = answers(model, np.concatenate([prepared(model, file) for file in files()]))
    for loader in LOADERS:
        check_close(found[f"{loader}/predict_pixels/logits"], wanted["logits"])
        check_close(found[f"{loader}/predict_pixels/scores"], wanted["scores"])
        check_close(found[f"{loader}/features_pixels/features"], wanted["features"])
        check_close(found[f"{loader}/serving_default/scores"], of_files["scores"])
        check_close(found[f"{loader}/features/features"], of_files["features"])
        assert (found[f"{loader}/serving_default/status"] == b"ok").all()
        best = np.argsort(-of_files["scores"], axis=1)[:, :3]
        np.testing.assert_array_equal(found[f"{loader}/serving_default/classes"], best)


def by_onnxruntime(path, pixels):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    (given,), names = session.get_inputs(), [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {given.name: pixels}), strict=True))


def by_litert(path, pixels):
    with silence():
        interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path))
        interpreter.allocate_tensors()
        return interpreter.get_signature_runner()(pixels=pixels)


def by_openvino(path, pixels):
    openvino = pytest.importorskip("openvino")
    with silence():
        compiled = openvino.compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return {output.any_name: array for output, array in compiled(pixels).items()}


OPENED = {"onnx": (".onnx", by_onnxruntime), "litert": (".tflite", by_litert), "openvino": (".xml", by_openvino)}


@pytest.mark.slow
@pytest.mark.parametrize("form", OPENED)
@pytest.mark.parametrize(("kind", "small"), CASES)
def test_other_formats_equal_keras(kind, small, form, tmp_path):
    model, (extension, answer) = model_of(kind, small), OPENED[form]
    path = tmp_path / f"model{extension}"
    export(model, path, form, options={"batch_size": "any"} if form == "litert" else None)
    for count in (1, 3):
        pixels = pixels_for(model, count)
        found = answer(path, pixels)
        wanted = answers(model, np.asarray(model.preprocessing(pixels), "float32"))
        check_close(found["logits"], wanted["logits"])
        check_close(found["features"], wanted["features"])


PRECISIONS = [("saved_model", precision) for precision in ("bfloat16", "float16", "int8")]
PRECISIONS += [(form, precision) for form in OPENED for precision in ("float16", "int8")]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "precision"), PRECISIONS)
@pytest.mark.parametrize(("kind", "small"), [case for case in CASES if case == ("Ti/16", True) or not case[1]])
def test_other_precisions_stay_within_the_bounds_of_the_report(kind, small, form, precision, tmp_path):
    model = model_of(kind, small)
    extension, answer = OPENED.get(form, ("", None))
    if (form, precision) == ("openvino", "int8"):
        pytest.importorskip("nncf")
    path = tmp_path / f"model{extension}"
    report = export(model, path, form, precision=precision, options={"batch_size": "any"} if form == "litert" else None)
    pixels = pixels_for(model)
    if form == "saved_model":
        found = served(report.path, pixels, tmp_path)
        logits = found["session/predict_pixels/logits"]
        np.testing.assert_allclose(found["load/predict_pixels/logits"], logits, atol=1e-5)
    else:
        logits = answer(report.path, pixels)["logits"]
    wanted = answers(model, np.asarray(model.preprocessing(pixels), "float32"))["logits"]
    (drift,) = [drift for drift in report.drift if drift.output == "logits"]
    assert 0 < drift.max_difference <= drift.bound < 1.5 * drift.deviation
    # Smooth colours deviate less than photos do, and so do their logits: the bound is the report's, of photos.
    assert np.abs(logits - wanted).max() <= drift.bound
    assert report.top1_agreement > 0.5


@pytest.mark.slow
def test_finetuned_digits_are_served_as_they_were_trained(tmp_path):
    result = keras_vit.finetune("digits", tmp_path / "run", epochs=6, print_fn=str)
    model = keras.saving.load_model(tmp_path / "run" / "best.keras")
    source = keras_vit.open_source("digits")
    indices = range(0, source.sizes["test"], 3)
    digits = [source.pixels("test", index) for index in indices]
    report = export(model, tmp_path / "served", labels=source.class_names, images=digits)
    loaded = tf.saved_model.load(str(report.path)).signatures["serving_default"]
    found = loaded(image_bytes=tf.constant([encoded(digit[..., 0], "PNG") for digit in digits]))
    wanted = answers(model, np.asarray(model.preprocessing(np.stack(digits)), "float32"))["scores"]
    check_close(found["scores"].numpy(), wanted)
    named = [name.decode() for name in found["labels"].numpy()[:, 0]]
    labels = [source.rows("test")[index]["class"] for index in indices]
    assert np.mean([name == label for name, label in zip(named, labels, strict=True)]) > 0.6
    assert result.test_accuracy > 0.6
    for form, (extension, answer) in OPENED.items():
        path = tmp_path / f"digits{extension}"
        batch_size = "any" if form == "litert" else None
        export(model, path, form, labels=source.class_names, images=digits, options={"batch_size": batch_size})
        pixels = np.stack([keras.ops.convert_to_numpy(keras.ops.image.resize(d, (24, 24))) for d in digits[:3]])
        pixels = np.clip(np.round(pixels), 0, 255).astype("uint8")
        wanted = answers(model, np.asarray(model.preprocessing(pixels), "float32"))["logits"]
        check_close(answer(path, pixels)["logits"], wanted)
