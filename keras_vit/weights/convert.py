"""Writing a checkpoint in any layout, and from one layout to another; no model and no Keras needed."""

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_vit.annotations import FilePath, Pair
from keras_vit.checks import ArgumentError, check_choice, check_order, check_positive_int
from keras_vit.config.records import Positions
from keras_vit.config.variants import VARIANTS
from keras_vit.files import atomic_write, expand_path
from keras_vit.images.preprocessing import Preprocessing, check_same_order
from keras_vit.pages.cards import write_card
from keras_vit.pages.formatting import printable
from keras_vit.renamed import accepts_old_arguments
from keras_vit.weights.adapt import check_classifier, check_pre_logits, select_head
from keras_vit.weights.checkpoint import (
    PATCH_KERNEL,
    ROOT_KERNEL,
    SAFETENSORS_NAME,
    TABLE,
    Checkpoint,
    check_layers,
    read_checkpoint,
)
from keras_vit.weights.checkpoint_card import checkpoint_card
from keras_vit.weights.families import FOLDERS, LAYOUTS, is_same_epsilon, to_file
from keras_vit.weights.families.layout import UNSTORED_FIELDS
from keras_vit.weights.metadata.photo_differences import DIFFERENCES_FILE, differences, differences_text
from keras_vit.weights.metadata.reader import make_note
from keras_vit.weights.read import CheckpointError, scan
from keras_vit.weights.read.headers import NOTE_KEY


@accepts_old_arguments
def convert_checkpoint(
    source: FilePath, destination: FilePath, format: str, *, num_heads: int | None = None, grid: Pair | None = None
) -> Path:
    """Converts a checkpoint to the layout of other software, without building a model.

    Example:
        >>> path = keras_vit.save_checkpoint(model, "official.npz")
        >>> file = keras_vit.convert_checkpoint(path, "for_timm", "timm")
        >>> sorted(path.name for path in file.parent.iterdir())
        ['PREPROCESSING.md', 'README.md', 'config.json', 'model.safetensors']

    Args:
        source: a file of any layout that `read_checkpoint` knows, or a folder with a `model.safetensors`.
        destination: as for `save_checkpoint`.
        format: `"official"`, `"linen"`, `"big_vision"`, `"timm"` or `"huggingface"`; of a ResNet `"bit"` or
            `"bit_paper"`.
        num_heads: A, where neither the file nor its shapes have it.
        grid: `(h, w)` of the position table, if it is not square and the file does not say.

    Returns:
        The file that was written.

    Raises:
        FileNotFoundError: if there is no such file.
        FileExistsError: if something else than a checkpoint of this package is at `destination`.
        CheckpointError: if the file cannot be read, or the layout has no place for a weight.
        TypeError: if `num_heads` is no int.
        ValueError: if `num_heads` does not divide the width, or the file says another number.
    """
    checkpoint = read_checkpoint(source, grid=grid)
    if num_heads is not None:
        num_heads = _check_num_heads(checkpoint, num_heads)
    variant = checkpoint.variant()
    if num_heads is None and checkpoint.num_heads is None and variant in VARIANTS:
        num_heads = VARIANTS[variant].num_heads
    if num_heads is not None:
        checkpoint = dataclasses.replace(checkpoint, num_heads=num_heads)
    check_choice("format", format, LAYOUTS)
    check_architecture(format, checkpoint.is_resnet, checkpoint.path)
    _check_whole(checkpoint)
    check_layers(checkpoint)
    check_pre_logits(checkpoint, checkpoint.tensors)
    read = select_head(checkpoint, classifies=True)
    for line in read.remarks[len(checkpoint.remarks) :]:
        _warn(f"{line}, which the classifier does not read.")
    return write_checkpoint(read, destination, format)


def write_checkpoint(
    checkpoint: Checkpoint, destination: FilePath, layout: str, labels: Sequence[str] | None = None
) -> Path:
    """Writes tensors in a layout; see `save_checkpoint` for the destination and the labels."""
    check_choice("format", layout, LAYOUTS)
    destination = expand_path(destination)
    suffix = LAYOUTS[layout].suffix
    folder = layout in FOLDERS and not destination.suffix
    if not folder and destination.suffix != suffix:
        also = f", or be a folder for {SAFETENSORS_NAME} and its config.json" if layout in FOLDERS else ""
        raise ValueError(
            f"the path of a checkpoint in the {layout} layout must end in {suffix}{also}.\nReceived: {destination}"
        )
    known = checkpoint.class_names
    if labels is not None:
        labels = _check_labels(labels, checkpoint.classes or 0, folder, destination)
        check_same_order(known, labels, "labels")
    tensors = checkpoint.tensors
    if checkpoint.fields.get("position_embedding", "") == LAYOUTS[layout].position_embedding != "":
        tensors = {path: tensors[path] for path in tensors if path != TABLE}  # computed there, never stored
    arrays = to_file(layout, tensors, checkpoint.num_heads)
    if not checkpoint.is_resnet:
        _check_parts(checkpoint, layout)
        _check_unstored(checkpoint, layout, folder)
        _warn_differences(checkpoint, layout, folder)
    arrays = ((name, _finite(name, np.asarray(array, "float32"))) for name, array in arrays)
    stored = {} if checkpoint.is_resnet else LAYOUTS[layout].write_metadata(checkpoint.fields)
    arrays = itertools.chain(arrays, ((LAYOUTS[layout].prefix + name, array) for name, array in stored.items()))
    note = make_note(
        *(checkpoint.fields, checkpoint.tensors, checkpoint.num_heads),
        *(checkpoint.preprocessing, checkpoint.grid, layout),
        class_names=None if folder else known,
    )
    if folder:
        return _write_folder(checkpoint, destination, layout, arrays, note, labels or known)
    check_replaceable(destination)
    write = write_npz if suffix == ".npz" else write_safetensors
    write(destination, arrays, note)
    return destination


def check_replaceable(file: Path, *others: Path) -> None:
    """Raises a `FileExistsError` unless this package wrote `file`, and so `others`, or nothing is there."""
    there = [path for path in (file, *others) if os.path.lexists(path)]
    with contextlib.suppress(OSError, ValueError):
        if not there or scan(file).note:
            return
    raise FileExistsError(
        "a checkpoint replaces only files that keras_vit has written.\n"
        f"Received: {printable(there[0])}, which is something else. Move it away, or pass another path."
    )


def check_architecture(layout: str, is_resnet: bool, received: FilePath) -> None:
    """Raises for a layout of another kind of model, since units of other ResNets have the same names in several."""
    if LAYOUTS[layout].is_resnet == is_resnet:
        return
    wanted, other = ("a ResNet baseline", "Vision Transformers") if is_resnet else ("a ViT", "ResNet baselines")
    layouts = ", ".join(repr(name) for name, known in LAYOUTS.items() if known.is_resnet == is_resnet)
    raise CheckpointError(
        f"the {layout} layout is one of {other}.\nReceived: {received}, {wanted}, whose layouts are {layouts}."
    )


def _check_labels(labels: Sequence[str], classes: int, folder: bool, destination: Path) -> list[str]:
    """The names as a list; raises unless there is one for each class and a folder to write them into."""
    if not folder:
        raise ValueError(
            "`labels` are written into the config.json of a folder; a single file has no place for them.\n"
            f"Received: labels for {destination}. Pass a folder as the path, or leave `labels` out."
        )
    check_order("labels", labels)
    labels = list(labels)
    if not all(isinstance(name, str) for name in labels):
        raise TypeError(f"`labels` must be a list of names, which are strings.\nReceived: labels={labels!r:.80}.")
    twice = [name for name, count in collections.Counter(labels).items() if count > 1]
    if len(labels) != classes or twice or "" in labels:
        raise ValueError(
            "`labels` must have one name for each class, in the order of the logits, each once and none "
            "empty.\n"
            f"Received: {len(labels)} names for {classes} classes"
            f"{f', {twice[0]!r} {labels.count(twice[0])} times' if twice else ''}."
        )
    return labels


def _check_num_heads(checkpoint: Checkpoint, num_heads: int) -> int:
    num_heads = check_positive_int("num_heads", num_heads)
    width = checkpoint.measured()[1]
    if width and width % num_heads:
        raise ArgumentError(
            "`num_heads` must divide the width, so that every head has the same.\n"
            f"Received: num_heads={num_heads}, width {width} in {checkpoint.path}."
        )
    if checkpoint.num_heads not in (None, num_heads):
        raise ArgumentError(
            "`num_heads` must be that of the file, where the file has one.\n"
            f"Received: num_heads={num_heads}, {checkpoint.num_heads} in {checkpoint.path}."
        )
    return num_heads


def _finite(name: str, array: np.ndarray) -> np.ndarray:
    """`array`; raises if a value is not finite, which else only a reader of the file would notice."""
    if not np.isfinite(array).all():
        raise CheckpointError(
            "weights must be finite to be saved. A training that diverged or a damaged file leaves others.\n"
            f"Received: {np.size(array) - np.isfinite(array).sum()} NaN or infinite values in {name!r}."
        )
    return array


def _check_whole(checkpoint: Checkpoint) -> None:
    unknown = [path for path in checkpoint.tensors if "/" not in path or path.split("/")[0] in ("Transformer", "opt")]
    unknown += [path for path in checkpoint.tensors if path.endswith((".weight", ".bias"))]
    first = ROOT_KERNEL if checkpoint.is_resnet else PATCH_KERNEL
    if unknown or first not in checkpoint.tensors:
        raise CheckpointError(
            "every tensor must have a place in a model here to be written in another layout.\n"
            f"Received: {checkpoint.path} with {', '.join(unknown[:5]) or 'no patch embedding'}."
        )


def _write_folder(
    checkpoint: Checkpoint,
    folder: Path,
    layout: str,
    arrays: Iterable[tuple[str, np.ndarray]],
    note: dict,
    labels: Sequence[str] | None,
) -> Path:
    record, facts = (
        checkpoint.preprocessing or Preprocessing(),
        _facts(checkpoint) | {"labels": labels and list(labels)},
    )
    files = FOLDERS[layout].files(facts, record)
    software, lines = LAYOUTS[layout].software, differences(layout, record, checkpoint.image_size)
    if lines:
        _warn(
            f"{software} prepares photos otherwise than `preprocessing` of this model, as {DIFFERENCES_FILE} in the "
            f"folder says. {' '.join(lines)}"
        )
    check_replaceable(folder / SAFETENSORS_NAME, *(folder / name for name in (*files, DIFFERENCES_FILE)))
    with _new_folder(folder):
        write_safetensors(folder / SAFETENSORS_NAME, arrays, note)
        for name, content in files.items():
            write_json(folder / name, content)
        if lines:
            write_text(folder / DIFFERENCES_FILE, differences_text(software, lines))
        else:
            (folder / DIFFERENCES_FILE).unlink(missing_ok=True)  # of what was written here before
        write_card(folder, checkpoint_card(checkpoint, layout, folder.name, labels))
    return folder / SAFETENSORS_NAME


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Makes a folder, and removes it after a fault if it is new."""
    if not folder.parent.is_dir():
        raise FileNotFoundError(f"the folder of the destination must exist.\nReceived: {folder}")
    new = False
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
        new = True
    try:
        yield
    except BaseException:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


_FOLDER_FIELDS = (  # fields that a folder's JSON says
    *("pooling", "distilled", "activation", "layer_norm_epsilon", "registers", "pre_norm", "patch_bias", "qkv_bias"),
    *("gated_mlp", "layer_scale", "final_norm", "attention_norm", "mlp_norm", "norm", "proj_bias", "mlp_bias"),
)


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """The architecture in numbers, as the JSON of timm and transformers wants it."""
    patch, hidden_size, num_layers, mlp_dim, stages = checkpoint.measured()
    missing = {"the number of heads": "num_heads"} if checkpoint.num_heads is None else {}
    missing |= {"the image size": "grid"} if checkpoint.image_size is None else {}
    if missing:
        raise CheckpointError(
            f"the config.json of a folder needs {' and '.join(missing)}.\n"
            f"Received: {checkpoint.path}, which does not have it. Write a .safetensors file instead of a folder, or "
            f"pass {' and '.join(f'`{name}=`' for name in missing.values())}."
        )
    return {
        "patch_size": patch,
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": checkpoint.num_heads,
        "mlp_dim": mlp_dim,
        "resnet_stages": stages,
        "root_channels": None if stages is None else checkpoint.tensors[ROOT_KERNEL].shape[3],
        "image_size": checkpoint.image_size,
        "channels": checkpoint.channels,
        "classes": checkpoint.classes or 0,
        "class_token": checkpoint.has_class_token,
        "positions": checkpoint.has_positions,
        "fields": checkpoint.fields,
        "norm_position": checkpoint.fields.get("norm_position", UNSTORED_FIELDS["norm_position"]),
        **{name: checkpoint.fields[name] for name in _FOLDER_FIELDS},
    }


_GELUS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}


def _warn_differences(checkpoint: Checkpoint, layout: str, folder: bool) -> None:
    """Warns where the layout's own software computes something else from these weights."""
    software, fields = LAYOUTS[layout], checkpoint.fields
    if fields["activation"] != software.activation and not folder:
        here, there = (_GELUS[activation] for activation in (fields["activation"], software.activation))
        _warn(f"{software.software} computes the {there} GELU unless set otherwise, this model the {here} one.")
    epsilon = fields["layer_norm_epsilon"]
    is_stored = folder and (FOLDERS[layout].stores_epsilon or epsilon in FOLDERS[layout].epsilons)
    if not is_same_epsilon(epsilon, software.layer_norm_epsilon) and not is_stored:
        _warn(
            f"{software.software} adds {software.layer_norm_epsilon} in its LayerNorms unless set otherwise, "
            f"this model {epsilon}."
        )
    pooling = fields["pooling"]
    if checkpoint.has_class_token and software.suffix == ".npz" and pooling in ("gap", "map"):
        kind = {"gap": "mean", "map": "attention"}[pooling]
        _warn(f"{software.software} has no class token with {kind} pooling, this model has one.")
    if pooling == "gap" and fields["final_norm"] == "tokens" and software.normalizes_means and not folder:
        name = software.software
        _warn(f"{name} normalises after mean pooling unless built with `fc_norm=False`, this model before it.")


def _check_parts(checkpoint: Checkpoint, layout: str) -> None:
    """Raises for a model that the software would silently build otherwise."""
    pooling, row = checkpoint.fields["pooling"], LAYOUTS[layout]
    parts = {
        "mean pooling with a class token": pooling == "gap" and checkpoint.has_class_token,
        "head on all tokens": pooling == "none" and bool(checkpoint.classes),
        "model without positions": not checkpoint.has_positions,
    }
    _check_summary(checkpoint, layout)
    check_classifier(checkpoint, row)
    for part in row.unsupported:
        if parts[part]:
            raise CheckpointError(
                f"{LAYOUTS[layout].software} has no {part} in this layout, and would build another model.\n"
                f"Received: {checkpoint.path} for {layout!r}. Save as official, big_vision or timm."
            )


def _check_summary(checkpoint: Checkpoint, layout: str) -> None:
    """Raises for several class tokens that the software would pool otherwise, or pixels that it would not normalise."""
    row, count = LAYOUTS[layout], checkpoint.fields["class_tokens"]
    if checkpoint.fields.get("pixel_statistics") is not None and not row.metadata_arrays:
        raise CheckpointError(
            f"the layout must have a place for the pixels' statistics, or {row.software} would leave them out.\n"
            f"Received: {checkpoint.path} with pixel_statistics for {layout!r}. Save as 'huggingface_radio' or .keras."
        )
    wanted = (
        checkpoint.fields.get("class_token_reduction", row.class_token_reduction),
        checkpoint.fields.get("class_token_indices"),
    )
    fits = wanted[0] == row.class_token_reduction and (wanted[1] is None or bool(row.metadata_arrays))
    is_known = wanted[1] is not None and row.defaults(checkpoint.tensors).get("class_token_indices") == wanted[1]
    if count == 1 or is_known or (row.class_token_reduction and (checkpoint.fields["pooling"] != "token" or fits)):
        return
    does = f"pools {row.class_token_reduction} class tokens" if row.class_token_reduction else "has one class token"
    raise CheckpointError(
        f"the software of a layout must pool the same class tokens, and {row.software} {does}.\n"
        f"Received: {checkpoint.path} with class_tokens={count}, class_token_reduction={wanted[0]!r}, "
        f"class_token_indices={wanted[1]}, for "
        f"{layout!r}. Save it as .keras."
    )


def _check_unstored(checkpoint: Checkpoint, layout: str, folder: bool) -> None:
    """Raises for software that computes something else which no tensor shows; warns of what may be set there."""
    row, is_said = LAYOUTS[layout], folder and FOLDERS[layout].stores_rotary
    usual: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Positions)}
    usual |= UNSTORED_FIELDS
    here, there = (usual | each for each in (checkpoint.fields, row.defaults(checkpoint.tensors)))
    wrong = ["patch_padding"] if here["patch_padding"] != there["patch_padding"] else []
    wrong += ["rotary"] if here["rotary"] != there["rotary"] and not is_said else []
    wrong += ["norm_position"] if here["norm_position"] == "post" and not row.supports_post_norm else []
    if wrong:
        name = wrong[0]
        raise CheckpointError(
            f"{row.software} takes files of this layout as {name}={there[name]!r}, so its numbers would be others.\n"
            f"Received: {name}={here[name]!r} of {checkpoint.path} for {layout!r}. Save it in another layout."
        )
    names = [name for name in usual if name.startswith("rotary") and here["rotary"] != "none" and not is_said]
    names += [] if folder else ["norm_position"]
    if other := [f"{name} {there[name]}, this model {here[name]}" for name in names if here[name] != there[name]]:
        _warn(f"{row.software} computes {'; '.join(other)}, unless set otherwise.")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)


def write_npz(path: FilePath, arrays: Iterable[tuple[str, np.ndarray]], note: dict) -> None:
    """Writes an `.npz` as `np.savez` would, without holding all arrays at once.

    The file is written into the folder of its destination, flushed to disk and then renamed, so a fault
    leaves what was there before.

    Args:
        path: destination; must end in `.npz`.
        arrays: pairs of name and array, each name once.
        note: small dict for `scan` to give back; kept in the zip's comment.

    Raises:
        ValueError: for another ending, or a name that comes twice.
        FileNotFoundError: if the folder does not exist.
    """
    with (
        atomic_write(_check_path(path, ".npz")) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in _unique_names(path, arrays):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = json.dumps({NOTE_KEY: note}).encode()


def write_safetensors(path: FilePath, arrays: Iterable[tuple[str, np.ndarray]], note: dict) -> None:
    """Writes a safetensors file; its header comes first, so all arrays are held at once.

    Otherwise as `write_npz`: a fault leaves what was there before.

    Args:
        path: destination; must end in `.safetensors`.
        arrays: pairs of name and array, each name once.
        note: small dict for `scan` to give back; kept in `__metadata__`.

    Raises:
        ValueError: for another ending, or a name that comes twice.
        FileNotFoundError: if the folder does not exist.
    """
    with atomic_write(_check_path(path, ".safetensors")) as temporary:
        # The serializer writes memory as it lies, and refuses transposed views, which are common here.
        held = {name: np.asarray(array, order="C") for name, array in _unique_names(path, arrays)}
        try:
            # transformers refuses files whose format is not "pt".
            save_file(held, temporary, {"format": "pt", NOTE_KEY: json.dumps(note)})
        except SafetensorError as error:
            raise OSError(f"the file could not be written: {error}.\nReceived: {path}") from error


def write_json(path: FilePath, content: dict) -> None:
    """Writes a small JSON file, atomically as `write_npz`; `path` must end in `.json`."""
    write_text(_check_path(path, ".json"), json.dumps(content, indent=2) + "\n")


def write_text(path: FilePath, text: str) -> None:
    """Writes a small text, atomically as `write_npz`."""
    with atomic_write(Path(path)) as temporary:
        Path(temporary).write_text(text, "utf-8")


def _unique_names(path: FilePath, arrays: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """The pairs of name and array; refuses a second array of a name, which readers would drop."""
    names = set()
    for name, array in arrays:
        if name in names:
            raise ValueError(f"each array must have a name of its own.\nReceived: {name!r} twice, for {path}")
        names.add(name)
        yield name, array


def _check_path(path: FilePath, ending: str) -> Path:
    path = Path(path)
    if path.suffix != ending:
        raise ValueError(f"`path` must end in {ending}.\nReceived: {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of `path` must exist.\nReceived: {path}")
    return path
