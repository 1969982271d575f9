"""Checks that need a process of their own: on another backend, or on two devices.

`python elsewhere.py KIND FILE CHECK...` runs checks of one kind and writes what each found as JSON, or its traceback.
A check is a function of the test module that looks at its result, as `test_fused.differences`, and `mark.elsewhere`
names it. One process serves all checks of a kind.
"""

import gc
import importlib
import json
import sys
import traceback
from pathlib import Path

HERE = Path(__file__).parent


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
    results = {check: run(check) for check in checks}
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
