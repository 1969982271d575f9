"""What an export of a text tower has in place of photos: ids to compare on, its precision, and its tokenizer's file.

The file takes ids, int32 `(B, T)`, since no format has all tokenizers. The tokenizer is written next to it.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.checks import ArgumentError
from keras_vit.exporting.report import ExportReport
from keras_vit.model.copies import initialize_variables, uninitialized_variables
from keras_vit.model.freezing import merge_lora
from keras_vit.model.layer_access import lora_layers
from keras_vit.model.precision import layer_dtypes
from keras_vit.model.two_towers.text_tower import TextTransformer, build_text_graph, check_tokenizer
from keras_vit.pages.cards import FACTS, USE, Card, facts_section, licence_words
from keras_vit.text.templates import DEFAULT_TEMPLATES, imagenet_classes, prompts
from keras_vit.version import __version__

EXTRA = "assets.extra"  # folder of a SavedModel's version for what the server does not read
TOKENIZER = "tokenizer.json"  # its name there; next to a file after that of the file
PROMPTS = "prompts of ImageNet's class names"
_DRAWN = "random ids"


def check_text_tower(model: TextTransformer, of_images: Mapping[str, Any]) -> None:
    """Raises for a text tower without one vector for a text, of another tokenizer, or with options of images."""
    if given := [name for name, value in of_images.items() if value is not None]:
        raise ArgumentError(
            f"`{given[0]}` is for models of images.\nReceived: {given[0]}, and {model.name!r}, a text tower.",
            parameters=(given[0],),
        )
    if len(model.output_shape) != 2:
        raise ValueError(
            "an exported text tower gives one row for each text, (B, E).\n"
            f'Received: {model.name!r} with {model.output_shape}. Build it with another `pooling` than "none".'
        )
    if model.tokenizer is None:
        return
    if check_tokenizer(model).max_length != model.config.max_length:
        raise ValueError(
            "the tokenizer of an exported text tower must make as many ids as its file takes.\n"
            f"Received: a tokenizer of {model.tokenizer.max_length} ids, and a tower of {model.config.max_length}. Set "
            "another `model.tokenizer`, or `None`."
        )


def text_in_precision(model: TextTransformer, precision: str) -> TextTransformer:
    """The tower with the same weights that computes in another precision; itself where it does so already.

    Args:
        model: is not changed.
        precision: `"float32"`, `"bfloat16"` or `"float16"`.
    """
    model = merge_lora(model) if lora_layers(model) else model
    if layer_dtypes(model) == {precision}:
        return model
    values = {variable.path: keras.ops.convert_to_numpy(variable.value) for variable in model.variables}
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        with uninitialized_variables():
            copy = build_text_graph(model.config, "projection/kernel" in values, model.name)
    finally:
        keras.config.set_dtype_policy(before)
    initialize_variables({variable.path: variable for variable in copy.variables}, values)
    copy.tokenizer, copy.provenance = model.tokenizer, model.provenance
    copy.logit_scale, copy.logit_bias = model.logit_scale, model.logit_bias
    return copy


def sample_ids(model: TextTransformer, count: int) -> tuple[np.ndarray, str]:
    """int32 `(N, T)` to compare on, and what they are: prompts where there is a tokenizer, else random ids.

    In one of four rows the end stands again behind the first one, as transformers pads CLIP's texts: runtimes must then
    take the first place of the largest id.
    """
    config = model.config
    if model.tokenizer is not None:
        names = imagenet_classes()[:: len(imagenet_classes()) // count][:count]
        ids, what = model.tokenizer(prompts(names, DEFAULT_TEMPLATES)), PROMPTS
    else:
        rng = np.random.default_rng(0)
        ids, what = rng.integers(0, config.vocabulary_size, (count, config.max_length)).astype("int32"), _DRAWN
    if config.pooling == "argmax":
        for row in ids[::4]:
            row[row.argmax() + 1 :] = row.max()
    return ids, what


def text_card(spec: Any, report: ExportReport, comparison: str) -> Card:
    """The card of a served text tower's folder, about its newest version.

    Args:
        spec: the `ExportSpec` of the version.
        report: of the export; its path is that of the version.
        comparison: how far the version is from the model, in Markdown.
    """
    model, version = spec.model, report.path.name
    ids = f"tf.zeros((1, {model.config.max_length}), tf.int32)"
    if model.tokenizer is not None:
        place = f"{version}/{EXTRA}/{TOKENIZER}"
        ids = f'keras_vit.tokenizer("{place}")(["a photo of a cat."])'
    imports = "import keras_vit\nimport tensorflow as tf" if model.tokenizer is not None else "import tensorflow as tf"
    sections = {
        "Model": f"A SavedModel of {model.name}, a text tower, version {version}, in {spec.precision}: int32 ids "
        f"(B, {model.config.max_length}) to embeddings (B, {model.output_shape[-1]}), which are not of length 1. "
        f"Written by keras_vit {__version__}. TensorFlow Serving takes this folder; TensorFlow alone loads a version.",
        USE: f"""```python
{imports}

served = tf.saved_model.load("{version}").signatures["serving_default"]
ids = {ids}
print(served(ids=tf.constant(ids)))
```""",
        "Compared": comparison,
        FACTS: facts_section({name: (str(value), source) for name, (value, source) in model.provenance.items()}),
    }
    licence, task = licence_words(model.provenance), {"pipeline_tag": "feature-extraction"}
    return Card(spec.name, "tensorflow", sections, "text-tower", licence=licence, metadata=task)
