"""Facts as data: the config of a model in parts, published variants, recipes, data sets, and position tables.

Nothing here imports Keras.
"""

import importlib
from typing import Any

from keras_vit.renamed import warn_renamed


def __getattr__(name: str) -> Any:
    """The module of an old name, which version 0.6 had."""
    if name in ("posembed", "relative_tables"):
        warn_renamed(f"keras_vit.config.{name}", "keras_vit.config.position_tables")
        return importlib.import_module("keras_vit.config.position_tables")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
