"""Writing a checkpoint in any dialect, and from one dialect to another; no model and no Keras needed."""

import dataclasses
import os
import warnings
from pathlib import Path

import numpy as np

from keras_vit.variants import VARIANTS, check_choice
from keras_vit.weights import sidecar
from keras_vit.weights.checkpoint import PATCH_KERNEL, TABLE, Checkpoint, read_checkpoint
from keras_vit.weights.dialects import DIALECTS, to_theirs
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.writer import write_json, write_npz, write_safetensors

SAFETENSORS_NAME = "model.safetensors"  # what timm and transformers look for in a folder


def convert_checkpoint(source, destination, dialect, *, num_heads=None) -> Path:
    """Writes the weights of a checkpoint in another layout.

    Args:
        source: a file of any layout that `read_checkpoint` knows.
        destination: as for `save_checkpoint`.
        dialect: `"official"`, `"linen"`, `"big_vision"`, `"timm"` or `"huggingface"`.
        num_heads: A, where neither the file nor its shapes tell it.

    Returns:
        The file that was written.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if the file cannot be read, or the layout has no place for a weight.
    """
    checkpoint = read_checkpoint(source)
    if num_heads is None and checkpoint.num_heads is None and checkpoint.variant():
        num_heads = VARIANTS[checkpoint.variant()].num_heads
    if num_heads is not None:
        checkpoint = dataclasses.replace(checkpoint, num_heads=num_heads)
    _check_whole(checkpoint)
    return write_checkpoint(checkpoint, destination, dialect)


def write_checkpoint(checkpoint: Checkpoint, destination, dialect) -> Path:
    """Writes tensors by our paths in a dialect; see `save_checkpoint` for the destination."""
    check_choice("dialect", dialect, DIALECTS)
    destination = Path(os.fspath(destination))
    suffix = DIALECTS[dialect].suffix
    folder = suffix == ".safetensors" and not destination.suffix
    if not folder and destination.suffix != suffix:
        also = f", or be a folder for {SAFETENSORS_NAME} and its config.json" if suffix == ".safetensors" else ""
        raise ValueError(
            f"the path of a checkpoint in the {dialect} layout must end in {suffix}{also}.\nReceived: {destination}"
        )
    tensors = checkpoint.tensors
    if dialect == "big_vision" and checkpoint.fields.get("position_embedding") == "sincos2d":
        tensors = {path: tensors[path] for path in tensors if path != TABLE}  # computed there, never stored
    arrays = to_theirs(dialect, tensors, checkpoint.num_heads)
    _warn_of_differences(checkpoint, dialect, folder)
    arrays = ((name, np.asarray(array, "float32")) for name, array in arrays)
    note = sidecar.note_of(checkpoint.fields, checkpoint.num_heads, checkpoint.preprocessing)
    if checkpoint.grid is not None:
        note["position_grid"] = list(checkpoint.grid)
    if folder:
        return _write_folder(checkpoint, destination, dialect, arrays, note)
    write = write_npz if suffix == ".npz" else write_safetensors
    write(destination, arrays, note)
    return destination


def _check_whole(checkpoint):
    unknown = [path for path in checkpoint.tensors if "/" not in path or path.split("/")[0] in ("Transformer", "opt")]
    unknown += [path for path in checkpoint.tensors if path.endswith((".weight", ".bias"))]
    if unknown or PATCH_KERNEL not in checkpoint.tensors:
        raise CheckpointError(
            "every tensor must have a place in a Vision Transformer of ours to be written in another layout.\n"
            f"Received: {checkpoint.path} with {', '.join(unknown[:5]) or 'no patch embedding'}."
        )


def _write_folder(checkpoint, folder, dialect, arrays, note):
    files = sidecar.folder_of(dialect, _facts(checkpoint), checkpoint.preprocessing or sidecar.Preprocessing())
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / SAFETENSORS_NAME, arrays, note)
    for name, content in files.items():
        write_json(folder / name, content)
    return folder / SAFETENSORS_NAME


def _facts(checkpoint):
    """The architecture in numbers, as the JSON of timm and transformers wants it."""
    patch, hidden_size, num_layers, mlp_dim, stages = checkpoint.measured()
    if None in (checkpoint.grid, checkpoint.num_heads):
        raise CheckpointError(
            "a folder says the image size and the number of heads, so both must be known.\n"
            f"Received: position grid {checkpoint.grid}, num_heads={checkpoint.num_heads}. "
            "Write a .safetensors file instead of a folder, or pass `num_heads=`."
        )
    stride = patch if stages is None else patch * 4 * 2 ** max(len(stages) - 1, 0)
    first = PATCH_KERNEL if stages is None else "resnet_root/conv/kernel"
    return {
        "patch_size": patch,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": checkpoint.num_heads,
        "mlp_dim": mlp_dim,
        "resnet_stages": stages,
        "image_size": tuple(side * stride for side in checkpoint.grid),
        "channels": checkpoint.tensors[first].shape[2],
        "classes": checkpoint.classes or 0,
        "class_token": checkpoint.has_class_token,
        **{name: checkpoint.fields[name] for name in ("pooling", "distilled", "activation", "layer_norm_epsilon")},
    }


def _warn_of_differences(checkpoint, dialect, folder):
    """Says where the dialect's own software would compute something else from these weights."""
    software, fields = DIALECTS[dialect], checkpoint.fields
    if fields["activation"] != software.activation and not folder:
        ours, theirs = ({"gelu": "exact", "gelu_tanh": "tanh"}[a] for a in (fields["activation"], software.activation))
        _warn(f"{software.software} computes the {theirs} GELU unless told otherwise, this model the {ours} one.")
    if fields["pooling"] != "gap":
        return
    if checkpoint.has_class_token and software.suffix == ".npz":
        _warn(f"{software.software} has no class token beside mean pooling, this model has one.")
    if dialect == "timm" and not folder:
        _warn("timm normalises after mean pooling unless built with `fc_norm=False`, this model before it.")
    if dialect == "huggingface":
        raise CheckpointError("transformers' ViT has no mean pooling. Save as official, big_vision or timm.")


def _warn(message):
    warnings.warn(message, stacklevel=5)
