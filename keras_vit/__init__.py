"""Vision Transformers of arXiv:2010.11929 for Keras 3: the official model, its checkpoints, its numbers."""

import sys
from pathlib import Path

__version__ = "0.4.0"


def _runs_as_a_command():
    """Whether this process is `keras-vit` or `python -m keras_vit`, which needs no Keras."""
    started = zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return Path(sys.argv[0]).stem == "keras-vit" or ("-m", "keras_vit") in started


# Layers register with Keras as they are imported, so that a saved model reloads after `import keras_vit`. That
# takes seconds and the backend's log lines, which a command line that prints a table should not.
if not _runs_as_a_command():
    from keras_vit.api import *  # noqa: F403
    from keras_vit.api import __all__  # noqa: F401
