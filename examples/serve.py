"""Serves a trained model by TensorFlow Serving's REST and gRPC calls on this machine, and classifies photos.

    python examples/serve.py served                     serve an exported folder (keras-vit export runs/mine served)
    python examples/serve.py model.keras                export a model to a temporary folder, and serve that
    python examples/serve.py served --ask photo.jpg     ask the running server; more photos go a few at a time
    python examples/serve.py --demo                     all of it with a small model of handwritten digits

If tensorflow_model_server is on the PATH it serves; otherwise a stand-in that answers the same calls on 127.0.0.1.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HOST = "127.0.0.1"
SERVER = "tensorflow_model_server"
SECONDS = 60  # that a client waits for an answer
AT_ONCE = 4  # photos in a request; of 8 MB each, the most that an exported model takes by default, they make 43 MB
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def main():
    arguments = parse_arguments()
    try:
        if arguments.demo:
            return demo()
        if arguments.ask:
            return ask(arguments)
        with exported(arguments.folder) as folder:
            return serve(folder, arguments)
    except KeyboardInterrupt:
        return 130
    except ImportError as error:
        print(
            f"{error}. It comes with: pip install '.[serve,tensorflow-cpu]' in the checkout of keras_vit",
            file=sys.stderr,
        )
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
    return 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="an exported folder, or a model that is to be exported")
    parser.add_argument(
        "--ask", nargs="+", type=Path, metavar="PHOTO", help="JPEG or PNG files to ask the server about"
    )
    parser.add_argument("--demo", action="store_true", help="trains, exports, serves, classifies and stops")
    parser.add_argument("--protocol", choices=("rest", "grpc"), default="rest", help="how to ask (default: rest)")
    parser.add_argument("--name", help="of the served model (default: as the folder's config.pbtxt has it)")
    parser.add_argument("--rest-port", type=int, default=8501, help="0 takes a free one (default: 8501)")
    parser.add_argument("--grpc-port", type=int, default=8500, help="0 takes a free one (default: 8500)")
    parser.add_argument("--stand-in", action="store_true", help=f"even if {SERVER} is on the PATH")
    parser.add_argument("--xla", action="store_true", help=f"let {SERVER} compile a model exported with --jit-compile")
    arguments = parser.parse_args()
    if not arguments.demo and arguments.folder is None and not (arguments.ask and arguments.name):
        parser.error("give the exported folder (or with --ask the served model's --name), or --demo")
    return arguments


def model_name(folder, given=None):
    """Name of the served model: as given, or in the folder's config, or the folder's own."""
    config = Path(folder) / "config.pbtxt"
    found = re.search(r'^\s*name: "([^"]+)"', config.read_text(), re.MULTILINE) if config.is_file() else None
    return given or (found[1] if found else Path(folder).resolve().name)


@contextlib.contextmanager
def exported(path):
    """The folder if it is an exported one; otherwise `keras-vit export` makes one, which is gone in the end."""
    if any(path.glob("[0-9]*/saved_model.pb")):
        yield path
        return
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}. Export a model: keras-vit export MODEL {path} --format saved_model"
        )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem)
        print(f"{path} is no exported folder, so it is exported first", flush=True)
        done = subprocess.run([sys.executable, "-m", "keras_vit", "export", path, target, "--format", "saved_model"])
        if done.returncode:
            raise RuntimeError(f"{path} could not be exported")
        yield target


def serve(folder, arguments):
    """Serves until SIGINT or SIGTERM."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    name = model_name(folder, arguments.name)
    asked = arguments.rest_port, arguments.grpc_port
    free = list(map(free_port, asked))  # before half a minute is spent on a model that then has nowhere to listen
    binary = None if arguments.stand_in else shutil.which(SERVER)
    if binary:
        return serve_with_binary(binary, folder, name, *free, stop, arguments.xla)
    from serving_stand_in import ServedModel, StandIn

    why = "as asked" if arguments.stand_in else f"as {SERVER} is not on the PATH"
    print(f"A stand-in serves, {why}. It starts TensorFlow, which takes some seconds", flush=True)
    import_tensorflow()
    model = ServedModel(folder, name)
    print(f"{model.warm_up(folder)} warm-up requests answered", flush=True)
    with StandIn(model, *asked) as running:
        announce(folder, name, running.rest_port, running.grpc_port)
        if "image_bytes" not in model.signature("").inputs:
            print("This model takes no files, so --ask cannot ask it: send it `pixels`", flush=True)
        while not stop.wait(1):
            if not running.alive:
                raise RuntimeError("the server has ended by itself")
        print("Stopping", flush=True)
    return 0


def import_tensorflow():
    """Without what it says of itself, from C++, which only the number of the error stream reaches."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        import tensorflow as tf

        tf.config.list_physical_devices()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def serve_with_binary(binary, folder, name, rest_port, grpc_port, stop, xla):
    """The same by the real server. It listens on all of the machine's addresses; it has no option for that."""
    command = [binary, f"--model_name={name}", f"--model_base_path={Path(folder).resolve()}"]
    command += [f"--rest_api_port={rest_port}", f"--port={grpc_port}"]
    command += ["--xla_cpu_compilation_enabled=true"] if xla else []
    print(f"{binary} serves, on all addresses of this machine", flush=True)
    with subprocess.Popen(command) as running:
        announce(folder, name, rest_port, grpc_port)
        while running.poll() is None and not stop.wait(0.2):
            pass
        ended = running.poll()
        running.terminate()
    return ended or 0


def announce(folder, name, rest_port, grpc_port):
    """Tells where and how to ask."""
    print(f"REST at http://{HOST}:{rest_port}/v1/models/{name}:predict", flush=True)
    print(f"gRPC at {HOST}:{grpc_port}", flush=True)
    ports = "" if (rest_port, grpc_port) == (8501, 8500) else f" --rest-port {rest_port} --grpc-port {grpc_port}"
    print(f"Ask it:  python examples/serve.py {folder} --ask PHOTO{ports}    Stop it: Ctrl-C", flush=True)


def free_port(port=0):
    """The port, if it is free; for 0 one that is."""
    try:
        with socket.create_server((HOST, port)) as taken:
            return taken.getsockname()[1]
    except OSError as error:
        raise OSError(
            f"port {port}: {os.strerror(error.errno)}. Free ones are found by --rest-port 0 --grpc-port 0"
        ) from None


def ask(arguments):
    """Prints what the server says of each photo; 1 if it could not read one of them."""
    name, photos, status = arguments.name or model_name(arguments.folder), arguments.ask, 0
    by_grpc = arguments.protocol == "grpc"
    asked, port = (ask_by_grpc, arguments.grpc_port) if by_grpc else (ask_by_rest, arguments.rest_port)
    for start in range(0, len(photos), AT_ONCE):
        some = photos[start : start + AT_ONCE]
        answers = asked([photo.read_bytes() for photo in some], name, port)
        print(*map(describe, some, answers), sep="\n", flush=True)
        status |= any(answer["status"] != "ok" for answer in answers)
    return int(status)


def ask_by_rest(files, name, port):
    """One answer for each file, a dict of the outputs by name.

    Args:
        files: bytes of JPEG or PNG files, sent as one batch.
        name: of the served model.
        port: of the server's REST interface.
    """
    import requests

    instances = [{"b64": base64.b64encode(data).decode()} for data in files]
    url = f"http://{HOST}:{port}/v1/models/{name}:predict"
    try:
        answer = local_session().post(url, json={"instances": instances}, timeout=SECONDS)
        content = answer.json()
    except requests.ConnectionError:
        raise ConnectionError(f"no server answers at {url}. Start one: python examples/serve.py FOLDER") from None
    except requests.JSONDecodeError:
        raise RuntimeError(f"{url} is no TensorFlow Serving: it answers {answer.text[:80]!r}") from None
    if "error" in content:
        raise RuntimeError(f"the server refuses the request: {content['error']}")
    return content["predictions"]


def ask_by_grpc(files, name, port):
    """As `ask_by_rest`, through `PredictionService.Predict`."""
    import grpc
    import numpy as np
    import tensorflow as tf

    from keras_vit.exporting.serving_files import SERVICE, serving_messages

    messages = serving_messages()
    request = messages.PredictRequest()
    request.model_spec.name = name
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto(np.array(files, object)))
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"{HOST}:{port}", options) as channel:
        to_bytes, from_bytes = messages.PredictRequest.SerializeToString, messages.PredictResponse.FromString
        predict = channel.unary_unary(f"/{SERVICE}/Predict", to_bytes, from_bytes)
        try:
            outputs = predict(request, timeout=SECONDS).outputs
        except grpc.RpcError as error:
            raise ConnectionError(f"{HOST}:{port}: {error.code().name}: {error.details()}") from None
    columns = {key: plain(tf.make_ndarray(tensor)) for key, tensor in outputs.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def plain(array):
    """Lists of numbers or of text."""
    import numpy as np

    return (np.char.decode(array.astype(bytes), "utf-8") if array.dtype == object else array).tolist()


def describe(path, answer):
    """Lines of a photo: its best names and their scores, or why it was not read."""
    if answer["status"] != "ok":
        return f"{path}\n  not read: {answer['status']}"
    if "labels" not in answer:
        return f"{path}\n  {len(answer['features'])} features"
    best = zip(answer["labels"], answer["top_scores"], strict=True)
    return "\n".join([str(path), *(f"  {score:6.1%}  {label}" for label, score in best)])


def local_session():
    """A session of requests without a proxy."""
    import requests

    session = requests.Session()
    session.trust_env = False
    return session


def demo():
    """Trains a small model on handwritten digits, exports and serves it, sends three photos, one of them broken."""
    from serving_stand_in import ServedModel, StandIn

    with tempfile.TemporaryDirectory() as place:
        served, photos = Path(place) / "digits", [Path(place) / f"{name}.png" for name in ("three", "eight", "broken")]
        export_digits(served, photos)
        files = [photo.read_bytes() for photo in photos]
        with StandIn(ServedModel(served, "digits")) as server:
            by_rest = ask_by_rest(files, "digits", server.rest_port)
            by_grpc = ask_by_grpc(files, "digits", server.grpc_port)
    print(*map(describe, photos, by_rest), sep="\n")
    named, status = ([answer[key] for answer in by_rest] for key in ("labels", "status"))
    result = {"named": [labels[0] for labels in named], "status": status}
    print(json.dumps(result | {"difference_by_grpc": difference(by_rest, by_grpc)}))
    return 0


def difference(answers, others):
    """The largest difference of a score; JSON has the shortest decimals that mean the same float32."""
    pairs = zip(answers, others, strict=True)
    return max(abs(a - b) for one, other in pairs for a, b in zip(one["scores"], other["scores"], strict=True))


def export_digits(served, photos):
    """Fine-tunes for some seconds, exports to `served`, and writes a three, an eight and half of a PNG to `photos`."""
    import keras
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import keras_vit

    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = np.clip(images.reshape(-1, 8, 8, 1) * 16, 0, 255).astype("uint8").repeat(2, 1).repeat(2, 2).repeat(3, 3)
    config = keras_vit.ViTConfig(patch_size=4, hidden_size=64, num_layers=2, num_heads=4, mlp_dim=128)
    model = keras_vit.build(config, input_shape=(16, 16, 3), classes=10, name="digits")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(2e-3), loss, metrics=["accuracy"])
    model.fit(model.preprocessing(images[20:]), labels[20:], batch_size=64, epochs=8, verbose=2)
    print(
        keras_vit.export(model, served, labels=DIGITS, images=list(images[20:84]), options={"top_k": 3}).table(),
        flush=True,
    )
    files = [tf.io.encode_png(images[list(labels[:20]).index(digit)]).numpy() for digit in (3, 8)]
    for photo, data in zip(photos, [*files, files[0][:60]], strict=True):
        photo.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
