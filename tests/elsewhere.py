"""Checks that need a process of their own: on another backend, or on two devices.

`python elsewhere.py KIND FOLDER CHECK...` runs checks of one kind and writes as JSON what each found or its traceback.
A check is a function of the test module that looks at its result, as `test_fused.differences`, and `mark.elsewhere`
names it. One process serves all checks of a kind, and `start` begins them all beside the tests.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
BACKENDS = {"jax": "jax", "two devices": "tensorflow", "torch": "torch", "openvino": "openvino"}
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
LONGEST = 2000  # seconds that all checks of a kind may take


def start(folder, checks):
    """Starts a process that runs the checks, a list by kind, one kind after the other."""
    code = f"import elsewhere; [elsewhere.run_all(kind, {str(folder)!r}, each) for kind, each in {checks!r}.items()]"
    environment = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}", "KERAS_VIT_CACHE": str(folder / "cache")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True, **quiet)


def result_of(check, kind, folder, checks):
    """What a check found, as soon as it is there: whoever asks first runs all checks of its kind."""
    path = Path(folder) / kind / f"{check}.json"
    while not path.exists():
        if not run_all(kind, folder, checks):
            time.sleep(0.2)
    return json.loads(path.read_text())


def run_all(kind, folder, checks):
    """Runs the checks of a kind, once; whether they have been run, and are not running now."""
    results = Path(folder) / kind
    results.mkdir(exist_ok=True)
    with (results / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        missing = [check for check in checks if not (results / f"{check}.json").exists()]
        if missing:
            environment = os.environ | {
                "PYTHONPATH": f"{HERE.parent}:{HERE}",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "KERAS_BACKEND": BACKENDS[kind],
                "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {TWO_DEVICES}",
            }
            command = [sys.executable, __file__, kind, str(results), *missing]
            with (results / "log").open("w") as log, contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=LONGEST)
            for check in missing:
                if not (results / f"{check}.json").exists():  # the process died, or took too long: asked for once
                    write(results / f"{check}.json", {"error": (results / "log").read_text()[-3000:] or "too slow"})
    return True


def write(path, result):
    """Whoever waits for the file finds all of it."""
    path.with_suffix(".part").write_text(json.dumps(result))
    path.with_suffix(".part").rename(path)


def run(path):
    """What a check finds, from the same seed whichever ran before it.

    Keras collects garbage each time that it quantises a layer, and looks through all graphs of the checks before.
    """
    import keras

    gc.collect()
    gc.freeze()
    module, name = path.split(".")
    keras.utils.set_random_seed(7)
    try:
        return {"found": getattr(importlib.import_module(module), name)()}
    except Exception:
        return {"error": traceback.format_exc()}


def main(kind, out, *checks):
    sys.path[:0] = [str(HERE), *(str(path) for path in HERE.rglob("*") if path.is_dir() and "__" not in path.name)]
    from mirrored import logical_devices

    if kind == "two devices":
        logical_devices(3)
    for check in checks:
        write(Path(out) / f"{check}.json", run(check))


if __name__ == "__main__":
    main(*sys.argv[1:])
