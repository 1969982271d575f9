"""What many tests share: small odd sizes, golden files, and a fresh process."""

import collections
import contextlib
import errno
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from xla_flags import quick_flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HF_HUB_CACHE"] = os.devnull  # so that no test sees what its user has of the Hugging Face Hub
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # models this small keep further threads busy with waiting
os.environ.setdefault("XLA_FLAGS", quick_flags())

import elsewhere
import keras
import numpy as np
import pytest
from photos import make_photos

import keras_vit
from keras_vit import cli
from keras_vit.keras_private import drop_uninitialized_variables

# What TensorFlow is made of stays, and a full collection looks through every graph: each module ends with one. This is
# for the processes of `run_python` too.
FEW_COLLECTIONS = "import gc; gc.set_threshold(10_000, 20, 1_000_000)"
exec(FEW_COLLECTIONS)
gc.freeze()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and so would child processes
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
QUICK_XLA = os.environ["XLA_FLAGS"]


def stop_autotuning():
    """Of TensorFlow's pipelines: whoever forgets one that is autotuned may wait for half a minute.

    Its thread sleeps for longer and longer, and can miss the call that wakes it (TensorFlow 2.21: a cancellation calls
    first, and says that it is one afterwards).
    """
    import tensorflow as tf

    plain, options = tf.data.Dataset.__iter__, tf.data.Options()
    options.autotune.enabled = False
    tf.data.Dataset.__iter__ = lambda dataset: plain(dataset.with_options(options))


def compile_where_it_is_asked_for():
    """By XLA: where `jit_compile` is left out, small models are compiled for longer than they then run.

    Tests of XLA say `jit_compile=True`. Commands in processes of their own are compiled as users' are.
    """
    for kind in keras.Model.__mro__:  # of which one has it, of no public name
        if "_resolve_auto_jit_compile" in vars(kind):
            kind._resolve_auto_jit_compile = lambda model: False


if keras.backend.backend() == "tensorflow":
    stop_autotuning()
    compile_where_it_is_asked_for()


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "elsewhere(kind, function): looks at what a function of its module found by tests/elsewhere.py"
    )


# Two workers take whole files in this order (`--dist loadfile`): those that wait for processes of their own, files of
# many quick tests, the short rest, those that ask what was found elsewhere, which by then is there, and at last those
# that trace many graphs, which slow a process down.
CHILDREN = ("test_readme", "test_examples", "test_cli_training", "test_silence", "test_cli_export")
CHILDREN += ("test_serve_process", "test_acceptance", "test_hostile")
GRAPHS = ("test_golden", "test_saved_model", "test_accumulation", "test_finetune", "test_callbacks", "test_precision")
GRAPHS += (
    "test_golden_finetune",
    "test_distillation",
    "test_formats",
    "test_onnx",
    "test_openvino",
    "test_rematerialize",
)
MANY = 30  # tests


def pytest_collection_modifyitems(items):
    counts = collections.Counter(item.path for item in items)
    asking = {item.path for item in items if item.get_closest_marker("elsewhere")}

    def place(item):
        name, count = item.path.stem, counts[item.path]
        if name in CHILDREN:
            return (0, CHILDREN.index(name))
        if name in GRAPHS:
            return (4, GRAPHS.index(name))
        return (3 if item.path in asking else 1 if count >= MANY else 2, -count)

    items.sort(key=place)  # which keeps the order within a file
    for item in items:
        if item.get_closest_marker("elsewhere"):
            item.add_marker(pytest.mark.timeout(2100))  # the first one waits for the checks of all


def check_of(item):
    """The kind of process that a test looks at, and the function of its module that runs there."""
    mark = item.get_closest_marker("elsewhere")
    return (mark.args[0], f"{item.module.__name__}.{mark.args[1]}") if mark else (None, None)


def checks_by_kind(session):
    """Names of all checks of the session, by kind."""
    marked = {check_of(item) for item in session.items} - {(None, None)}
    return {kind: sorted(check for other, check in marked if other == kind) for kind in elsewhere.BACKENDS}


def shared_folder(tmp_path_factory):
    """One for all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session", autouse=True)
def checks_beside(request, tmp_path_factory):
    """The first of several workers starts the long checks of other processes, so that no worker waits for them."""
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw0":
        yield
        return
    checks = checks_by_kind(request.session)
    long = {kind: checks[kind] for kind in ("jax", "two devices") if len(checks[kind]) > 1}
    process = elsewhere.start(shared_folder(tmp_path_factory), long)
    yield
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def found(request, tmp_path_factory):
    """What this test's check found elsewhere, in one process for all checks of its kind."""
    kind, check = check_of(request.node)
    pytest.importorskip(elsewhere.BACKENDS[kind])
    if kind == "openvino" and importlib.util.find_spec("keras.src.backend.openvino") is None:
        pytest.importorskip("keras_openvino")  # Keras 3.16 has this backend in a package of its own
    checks = checks_by_kind(request.session)[kind]
    result = elsewhere.result_of(check, kind, shared_folder(tmp_path_factory), checks)
    assert "error" not in result, result["error"]
    return result["found"]


@pytest.fixture(autouse=True)
def clean_state(request, monkeypatch, tmp_path):
    """Every test starts with the same seed, float32, channels last, and an empty cache of its own."""
    use_cache(monkeypatch, tmp_path / "cache")
    keras.utils.set_random_seed(7)
    yield
    keras.config.set_dtype_policy("float32")
    keras.config.set_image_data_format("channels_last")
    # Variables made without values would all be initialised by the next scope that is left: gigabytes of a G/14.
    # Clearing the session would look through all that the process has, which takes longer than most tests.
    drop_uninitialized_variables()
    checkpoints = sys.modules.get("keras_vit.training.checkpoints")
    if checkpoints and (listening := checkpoints.StopSignals.current):
        listening.close()  # of a `fit` that the test broke off; it would end the process at a second signal
    if request.node.get_closest_marker("slow"):
        gc.collect()  # models of full size are gigabytes, and after `gc.freeze` collections come late by themselves


@pytest.fixture(autouse=True, scope="module")
def clean_session():
    """No module leaves names and graphs behind, and what it leaves all the same no later collection looks through."""
    yield
    keras.utils.clear_session(free_memory=False)
    gc.collect()
    gc.freeze()


def use_cache(monkeypatch, cache):
    """An environment with this cache and nothing else that fetching reads."""
    for name in ("CACHE", "MIRROR", "OFFLINE", "TIMEOUT", "ALLOW_HTTP"):
        monkeypatch.delenv(f"KERAS_VIT_{name}", raising=False)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(cache))
    monkeypatch.setattr("keras_vit.weights.download.transfer.PAUSES", (0.01, 0.01, 0.01))


@pytest.fixture
def locked(monkeypatch):
    """Forbids to reach what has "locked" in its path, as a folder without rights does; also to root, who may all."""
    stat = os.stat

    def denied(path, *given, **kwargs):
        if "locked" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return stat(path, *given, **kwargs)

    monkeypatch.setattr(os, "stat", denied)


@pytest.fixture
def run(capfd):
    """Runs a command in this process, and gives exit code, output lines and error lines.

    What TensorFlow says of the processor, once a process, is none of these: a command of its own has it silent.
    """

    def run(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        lines, errors = (text.splitlines() for text in capfd.readouterr())
        return code, lines, [line for line in errors if not re.match(r"[EWI]\d{4} \d\d:\d\d:.* oneDNN ", line)]

    return run


def assert_one_line(error_lines, pattern):
    """What a command that fails says of itself (row C1)."""
    assert len(error_lines) == 1, error_lines
    assert re.match(f"keras-vit: error: .*{pattern}", error_lines[0]), error_lines


@pytest.fixture(scope="module")
def browser():
    """Chromium, for tests that use a page as a person does."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser: pip install .[test]")
    place = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if place is None:
        pytest.skip("no Chromium, in which the page would be used: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def few_photos(tmp_path_factory):
    """A folder of 30 photos in three classes."""
    return make_photos(tmp_path_factory.mktemp("photos") / "secret place", per_class=10)


@pytest.fixture(scope="session")
def finished(few_photos, tmp_path_factory):
    """A run of one epoch on `few_photos`, with images whose sides differ."""
    config = tiny_config(num_layers=1, pooling="gap", position_embedding="sincos2d")
    options = {"model": config, "image_size": (20, 24), "batch_size": 8, "epochs": 1}
    return keras_vit.finetune(
        few_photos, tmp_path_factory.mktemp("finished") / "run", print_fn=lambda _: None, **options
    )


@pytest.fixture
def tiny():
    """A model with distinct odd sizes: 20 x 28 pixels, patches of 4, width 12 in 3 heads."""
    return make_tiny()


def make_tiny(**arguments):
    arguments = {"input_shape": (20, 28, 3), "classes": 7} | arguments
    return randomise(keras_vit.build(tiny_config(), **arguments))


def tiny_config(**fields):
    sizes = {"patch_size": 4, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 17}
    return keras_vit.ViTConfig(**sizes | fields)


def randomise(model, seed=3):
    """Gives every weight a random value, so that none hides at zero or one."""
    rng = np.random.default_rng(seed)
    ones = ("gamma", "periods")
    model.set_weights([rng.normal(0, 0.2, w.shape).astype("float32") + (w.name in ones) for w in model.weights])
    return model


def images(*shape, seed=5):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def run_python(code, *arguments, backend=None, timeout=280, **variables):
    """Runs code in a fresh process, with warnings as they come, and gives what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    done = subprocess.run(
        [sys.executable, "-c", f"{FEW_COLLECTIONS}\n{code}", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
