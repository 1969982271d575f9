"""From a model to a checkpoint file that other software opens."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import FilePath, Variable
from keras_vit.checks import check_choice
from keras_vit.layers import AddPositionEmbs, BiTRoot
from keras_vit.model.freezing import merge_lora
from keras_vit.model.layer_access import (
    HEADS,
    UNITS,
    encoder_blocks,
    has_unit_length,
    inferred_fields,
    is_quantized,
    layer_named,
    lora_layers,
    position_layers,
    stem_positions,
    user_operations,
    weight_paths,
)
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.renamed import accepts_old_arguments
from keras_vit.weights.checkpoint import PATCH_KERNEL, TABLE, Checkpoint
from keras_vit.weights.convert import check_architecture, write_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.read import CheckpointError


@accepts_old_arguments
def save_checkpoint(
    model: keras.Model, path: FilePath, format: str | None = None, *, labels: Sequence[str] | None = None
) -> Path:
    """Writes the weights for the official code, big_vision, timm, transformers or BiT's code.

    The file appears under its name only when it is whole. What the layout has no place for is kept in a note, which
    other readers pass over: the grid of a position table, the activation and the preprocessing.

    Example:
        >>> keras_vit.save_checkpoint(model, "model.npz").name
        'model.npz'
        >>> names = ["disc", "stripes", "tiles"]
        >>> file = keras_vit.save_checkpoint(model, "for_timm", "timm", labels=names)
        >>> sorted(path.name for path in file.parent.iterdir())
        ['PREPROCESSING.md', 'README.md', 'config.json', 'model.safetensors']

    Args:
        model: a model of `keras_vit`, or a `keras.Model` made of its layers.
        path: destination, ending in `.npz`, or `.safetensors` for `"timm"` and `"huggingface"`. For those two
            it may be a folder. `timm.create_model("local-dir:folder", pretrained=True)` or transformers'
            `from_pretrained("folder")` open it. It holds `model.safetensors`, the JSON of that software, and the model
            card, `README.md`. A card that a user has written or edited stays.
        format: `"official"`, names as published, the default; `"linen"`, names of today's official code;
            `"big_vision"`; `"timm"`; or `"huggingface"`, ViT or, for a distilled model, DeiT. Of a `ResNet` `"bit"`,
            names as published, the default; or `"bit_paper"`, big_vision's.
        labels: names of the K classes in the order of the logits, each once, for the JSON of a folder: `id2label` and
            `label2id` of transformers, `label_names` of timm. By default `model.class_names`, which a single file
            keeps in its note.

    Returns:
        The file that was written.

    Raises:
        CheckpointError: if the layout has no place for a weight, as the official one for attention pooling, and every
            one for layers of your own; if that software has no such model; if a weight is not finite. Nothing is
            written then.
        ValueError: for another format or ending; for `labels` that are not K names, or for a single file.
        FileNotFoundError: if the folder to write into does not exist.
        FileExistsError: if something else than a checkpoint of this package is at `path`.

    Warns:
        UserWarning: if that software computes something else from these weights by itself: another GELU,
            another epsilon of LayerNorm, or pooling in another place; and of a folder, if a card stays, or if its image
            processor cannot do what `model.preprocessing` does. That folder has a `PREPROCESSING.md` with the
            differences in grey levels.
    """
    _check_end(model)
    if isinstance(model, VisionTransformer) and lora_layers(model):
        model = merge_lora(model)  # no layout has a place for factors
    is_resnet = any(isinstance(layer, BiTRoot) for layer in model.layers)
    layout = ("bit" if is_resnet else "official") if format is None else format
    check_choice("format", layout, LAYOUTS)
    check_architecture(layout, is_resnet, repr(model.name))
    if is_quantized(model):
        raise CheckpointError(
            "no checkpoint has a place for the rounded kernels of a quantised model.\n"
            f"Received: {model.name!r}. Save it as .keras, or the model that it was made from here."
        )
    variables = weight_paths(model)
    _check_own_operations(model, variables)
    if is_resnet:
        return write_checkpoint(_resnet_checkpoint(model, layout), path, layout, labels)
    block, positions = next(iter(encoder_blocks(model)), None), stem_positions(model)
    if block is None or PATCH_KERNEL not in variables:
        raise CheckpointError(
            f"a checkpoint needs the whole encoder, from `patch_embedding` on.\nReceived: {model.name}"
        )
    if others := [layer.name for layer in position_layers(model) if layer is not positions]:
        raise CheckpointError(
            "no checkpoint has a place for positions that blocks add.\n"
            f"Received: {model.name!r} with {others[0]!r}. Save it as .keras."
        )
    if getattr(block, "merged_tokens", 0):
        raise CheckpointError(
            "no checkpoint says that tokens are merged, so other software would compute something else from it.\n"
            f"Received: {model.name!r} with merged_tokens={block.merged_tokens}. Save it as .keras, or the model that "
            "it was made from."
        )
    checkpoint = Checkpoint(
        path=Path(model.name),
        layout=layout,
        tensors=_LazyWeights(variables, positions),
        num_heads=block.num_heads,
        recorded_grid=None if positions is None else positions.grid,
        recorded_fields=inferred_fields(model),
        preprocessing=getattr(model, "preprocessing", None),
        recorded_names=getattr(model, "class_names", None),
        provenance=getattr(model, "provenance", {}),
    )
    return write_checkpoint(checkpoint, path, layout, labels)


def _check_end(model: keras.Model) -> None:
    if layer_named(model, UNITS):
        raise CheckpointError(
            "no checkpoint says in which unit the numbers of a head are.\n"
            f"Received: {model.name!r}, which answers in that of its training data. Save it as .keras."
        )
    if has_unit_length(model):
        raise CheckpointError(
            "no checkpoint says that an embedding is divided by its length, as before the logits of `zero_shot`.\n"
            f"Received: {model.name!r}. Save it as .keras, or the image tower that it was made from here."
        )


def _check_own_operations(model: keras.Model, variables: Mapping[str, Variable]) -> None:
    """Raises for a user's layers without weights, or with the name of a head.

    Those with weights of other names are listed where no layout has a place for one.
    """
    have_weights = {path.split("/")[0] for path in variables} - {*HEADS}
    own = [name for name in user_operations(model) if name not in have_weights]
    if own:
        raise CheckpointError(
            "no checkpoint has a place for layers of your own, and without them it would compute something else.\n"
            f"Received: {model.name!r} with {', '.join(map(repr, own))}. Save it as .keras, or pass the model that "
            "they were put on: it shares its weights."
        )


def _resnet_checkpoint(model: keras.Model, layout: str) -> Checkpoint:
    return Checkpoint(
        path=Path(model.name),
        layout=layout,
        tensors=_LazyWeights(weight_paths(model), None),
        num_heads=None,
        preprocessing=getattr(model, "preprocessing", None),
        recorded_names=getattr(model, "class_names", None),
    )


class _LazyWeights(Mapping):
    """The weights of a model by path, each brought to NumPy only when it is read."""

    def __init__(self, variables: Mapping[str, Variable], positions: AddPositionEmbs | None) -> None:
        self._variables = variables
        self._positions = positions
        self._paths = [path for path in variables if path != TABLE]
        self._paths += [] if positions is None else [TABLE]

    def __getitem__(self, path: str) -> np.ndarray:
        if path == TABLE and self._positions is not None:
            return np.asarray(self._positions.table_at(self._positions.grid), "float32")
        return np.asarray(ops.convert_to_numpy(self._variables[path]), "float32")

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
