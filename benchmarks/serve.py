"""How long an exported model takes to answer, against every way to call the same model inside Python.

    python -m benchmarks.serve [--variant B/16] [--precision float32] [--batch-sizes 1 8] [--rounds 20] [--threads 2]

All get the same photos as NumPy and give the scores as NumPy, in turn, forth and back, in one process, so that a
drifting machine touches all alike; ratios are medians over rounds. The SavedModel's `predict_pixels` (through
`tf.saved_model.load`, and through the session that TensorFlow Serving runs it in) is held against the fastest
TensorFlow path of the process; `serving_default`, which reads files, against the same with `tf.io` before it.
One exported with `jit_compile=True` is held against all paths, one without against those that XLA does not compile.
Other runtimes, where they are installed, stand below. `--threads` limits the cores of all of them.
"""

import argparse
import functools
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
PAUSE = 0.02  # seconds, for the threads of the call before to fall asleep
PHOTO = (256, 320)  # H, W of the files that `serving_default` reads
OTHERS = {"onnx": "onnxruntime", "litert": "ai_edge_litert", "openvino": "openvino"}


def main():
    arguments = parse()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    original, model = make_models(arguments)
    with tempfile.TemporaryDirectory() as folder:
        served = {
            "SavedModel": serve(original, Path(folder) / "plain", arguments.precision, jit_compile=False),
            "SavedModel, XLA": serve(original, Path(folder) / "compiled", arguments.precision, jit_compile=True),
        }
        others = {} if arguments.tensorflow_only else open_others(original, Path(folder), arguments.precision)
        for batch_size in arguments.batch_sizes:
            pixels, files = photos(model, batch_size)
            calls = pixel_calls(model, served, pixels)
            calls |= {name: functools.partial(scores_of, run, pixels) for name, run in others.items()}
            compare(f"pixels, batch of {batch_size}", calls, arguments.rounds)
            compare(f"files, batch of {batch_size}", file_calls(model, served, files), arguments.rounds)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16", "int8"), default="float32")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tensorflow-only", action="store_true", help="leave out the other runtimes")
    return parser.parse_args()


def make_models(arguments):
    """The model in float32, from which files are written, and in the precision.

    Weights are random, the head's too, which would be zeros, so that the scores tell whether paths agree.
    """
    import numpy as np

    import keras_vit
    from keras_vit.model.precision import in_precision

    side = arguments.image_size
    model = keras_vit.build(arguments.variant, input_shape=(side, side, 3), classes=1000)
    head, rng = model.get_layer("head"), np.random.default_rng(0)
    head.set_weights([rng.normal(0, 0.05, weight.shape) for weight in head.get_weights()])
    return model, in_precision(model, arguments.precision)


def photos(model, count):
    """Pixels uint8 `(B, H, W, 3)` at the model's size, and as many JPEG files."""
    import tensorflow as tf

    from keras_vit.exporting.sample_photos import load_photos, resize_photos

    found = load_photos(None, count)
    jpegs = [tf.io.encode_jpeg(photo).numpy() for photo in resize_photos(found, PHOTO)]
    return resize_photos(found, model.input_shape[1:3]), jpegs


def serve(model, folder, precision, jit_compile):
    """The SavedModel in two hands: signatures, and a session with its graph as the server makes it.

    Both are functions from the signature's name and the value of its input to the scores.
    """
    import tensorflow as tf

    import keras_vit

    tf.get_logger().setLevel("ERROR")  # it advises against the loader that the server uses
    path = str(
        keras_vit.export(model, folder, precision=precision, verify=False, options={"jit_compile": jit_compile}).path
    )
    loaded = tf.saved_model.load(path)
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def

    def in_session(name, value):
        (given,) = signatures[name].inputs.values()
        return session.run(signatures[name].outputs["scores"].name, {given.name: value})

    def loaded_here(name, value):
        signature = loaded.signatures[name]
        (given,) = signature.structured_input_signature[1]
        return signature(**{given: tf.constant(value)})["scores"].numpy()

    return {"": loaded_here, ", session": in_session}


def served_calls(served, signature, value):
    return {
        f"{title}{way}": functools.partial(call, signature, value)
        for title, calls in served.items()
        for way, call in calls.items()
    }


def pixel_calls(model, served, pixels):
    import numpy as np
    import tensorflow as tf

    record = model.preprocessing
    floats = ((pixels / np.float32(255) - record.mean) / record.std).astype("float32")

    def forward(images):
        return tf.nn.softmax(tf.cast(model(images, training=False), tf.float32))

    traced, compiled = tf.function(forward), tf.function(forward, jit_compile=True)
    calls = served_calls(served, "predict_pixels", pixels) | {
        "tf.function": lambda: traced(tf.constant(floats)).numpy(),
        "tf.function, XLA": lambda: compiled(tf.constant(floats)).numpy(),
        "model(x)": lambda: forward(tf.constant(floats)).numpy(),
        "predict_on_batch": lambda: tf.nn.softmax(model.predict_on_batch(floats)).numpy(),
    }
    try:
        calls["tf.function, XLA"]()
    except tf.errors.OpError as error:
        print(f"XLA does not take this model: {error.message.splitlines()[0]}")
        del calls["tf.function, XLA"]
    return calls


def file_calls(model, served, files):
    import tensorflow as tf

    def forward(images):
        return tf.nn.softmax(tf.cast(model(images, training=False), tf.float32))

    def decoded_here(function):
        images = tf.stack([tf.io.decode_jpeg(file, channels=3) for file in files])
        return function(model.preprocessing(images)).numpy()

    return served_calls(served, "serving_default", files) | {
        "tf.io, tf.function": functools.partial(decoded_here, tf.function(forward)),
        "tf.io, tf.function, XLA": functools.partial(decoded_here, tf.function(forward, jit_compile=True)),
    }


def open_others(model, folder, precision):
    """The formats whose runtime is installed, as functions from pixels."""
    import importlib.util

    import keras_vit
    from keras_vit.exporting.formats import FORMATS

    found = {}
    for form, package in OTHERS.items():
        if importlib.util.find_spec(package) is None:
            continue
        writer = FORMATS[form]
        if precision in writer.precisions:
            path = folder / f"model{writer.extension}"
            keras_vit.export(model, path, form, precision=precision, verify=False)
            found[form] = writer.open_runtime(path).run
    return found


def scores_of(run, pixels):
    return run(pixels)["scores"]


def compare(title, calls, rounds):
    """Measures the calls in turn, and prints a table."""
    import numpy as np

    wanted = None
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(2):  # tracing, compiling, and the first allocations
            scores = call()
        wanted = scores if wanted is None else wanted
        if np.abs(scores - wanted).max() > 0.05:  # far beyond every precision's rounding
            raise SystemExit(f"{name} does not compute what the SavedModel computes")
    for number in range(rounds):
        for name in list(calls)[:: -1 if number % 2 else 1]:
            time.sleep(PAUSE)
            start = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - start)
    report(title, seconds)


def report(title, seconds):
    first = next(iter(seconds))
    print(f"{title:26}{'ms':>9}{'spread':>9}{'least':>9}{first + ' over it':>22}")
    for name, taken in seconds.items():
        quarters = statistics.quantiles(taken, n=4) if len(taken) > 1 else [taken[0]] * 3
        spread = (quarters[2] - quarters[0]) / quarters[1]
        line = f"{name:26}{quarters[1] * 1e3:9.1f}{spread:9.1%}{min(taken) * 1e3:9.1f}"
        print(line + f"{ratio(seconds[first], taken):22.3f}", flush=True)
    for name in [name for name in seconds if name.startswith("SavedModel")]:
        inside = [other for other in seconds if not other.startswith("SavedModel") and other not in OTHERS]
        inside = [other for other in inside if "XLA" in name or "XLA" not in other]
        fastest = min(inside, key=lambda other: statistics.median(seconds[other]))
        print(f"{name} over the fastest in-process path, {fastest}: {ratio(seconds[name], seconds[fastest]):.3f}")


def ratio(own, other):
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


if __name__ == "__main__":
    main()
