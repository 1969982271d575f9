"""Vision Transformers of arXiv:2010.11929 for Keras 3: the official model, its checkpoints, its numbers."""

import os
import sys
from pathlib import Path

from keras_vit.version import __version__ as __version__
from keras_vit.version import is_installed_script


def _is_the_command() -> bool:
    """Whether this import is that of the installed command or of `python -m keras_vit`, which need no Keras."""
    if sys.argv[:1] == ["-m"]:  # Python is about to run a module by its name, and has not got further than its package
        return sys.orig_argv[-len(sys.argv)] in ("keras_vit", "-mkeras_vit")
    script = os.path.realpath(sys.argv[0]) if sys.argv else ""  # a link to the command may have any name
    return Path(script).stem == "keras-vit" and is_installed_script(script)


# Layers register with Keras as they are imported, so that a saved model reloads after `import keras_vit`. That
# takes seconds and the backend's log lines, which a command line that prints a table should not.
if not _is_the_command():
    from keras_vit.api import *  # noqa: F403
    from keras_vit.api import __all__

    def __dir__() -> list[str]:
        return sorted([*__all__, "__version__"])  # and neither the rooms nor what stands above
