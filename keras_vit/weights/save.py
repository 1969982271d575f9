"""From a model to a checkpoint file that other software opens."""

import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import FilePath, Pair, Variable
from keras_vit.checks import check_choice
from keras_vit.config.heads import DEPTHS, KEYPOINTS, OPEN_BOX_HEAD, QUERIES
from keras_vit.config.text import TextConfig
from keras_vit.files import expand_path
from keras_vit.layers import AddPositionEmbs, BiTRoot
from keras_vit.model.dense_model import DenseModel
from keras_vit.model.freezing import merge_lora
from keras_vit.model.layer_access import (
    HEADS,
    UNITS,
    blocks_with_queries,
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
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.renamed import accepts_old_arguments
from keras_vit.text.opening import write_tokenizer, write_transformers_tokenizer
from keras_vit.weights.checkpoint import PATCH_KERNEL, SAFETENSORS_NAME, TABLE, TOWERS_NAME, Checkpoint
from keras_vit.weights.convert import (
    check_architecture,
    check_replaceable,
    write_checkpoint,
    write_json,
    write_npz,
    write_safetensors,
)
from keras_vit.weights.families import HEAD_LAYOUTS, LAYOUTS, MASK_TOKEN
from keras_vit.weights.families.text import TEXT_LAYOUTS
from keras_vit.weights.heads import ENCODER, HEAD_NOTE
from keras_vit.weights.metadata.two_towers import is_usual_clip, open_clip_config, transformers_towers
from keras_vit.weights.read import CheckpointError, scan
from keras_vit.weights.text import NOTE, TIPS


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
            names as published, the default; or `"bit_paper"`, big_vision's. Of a `ContrastiveModel`, whose path is a
            new folder, `"open_clip"`, of a usual CLIP, or `"huggingface"`: transformers' CLIP, MetaCLIP 2, SigLIP or,
            of an image tower from a NaFlex file, SigLIP 2. By default keras_vit opens it, and OpenCLIP if it can.
            Of a `DenseModel` the layout of its head, by default the one that was read; the path is a `.safetensors`
            file of the head alone, or a folder with the encoder below it, which `segmenter` and `depth_estimator` open.
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
    if isinstance(model, TextTransformer):
        return _save_text_checkpoint(model, path, format)
    if isinstance(model, DenseModel):
        return _save_dense_model(model, path, format)
    if isinstance(getattr(model, "text", None), TextTransformer):
        both: Any = model  # a ContrastiveModel
        scale, bias = both.scale_and_bias()
        return save_towers(both.image, both.text, path, scale, bias, format)
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
    variables = weight_paths(model, besides=(QUERIES,))  # which are of the head
    _check_own_operations(model, variables)
    known: dict[str, Any] = {
        **{"path": Path(model.name), "layout": layout, "preprocessing": getattr(model, "preprocessing", None)},
        "recorded_names": getattr(model, "class_names", None),
    }
    if is_resnet:
        return write_checkpoint(
            Checkpoint(tensors=_LazyWeights(variables, None), num_heads=None, **known), path, layout, labels
        )
    block, positions = next(iter(encoder_blocks(model)), None), stem_positions(model)
    if block is None or PATCH_KERNEL not in variables:
        raise CheckpointError(
            f"a checkpoint needs the whole encoder, from `patch_embedding` on.\nReceived: {model.name}"
        )
    others = [layer.name for layer in position_layers(model) if layer is not positions]
    if others and not all(LAYOUTS[layout].has_name(f"{name}/table") for name in others):
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
        tensors=_LazyWeights(variables, positions, _mask_token(model, layout)),
        num_heads=block.num_heads,
        recorded_grid=next((layer.grid for layer in position_layers(model)), None),
        recorded_fields=inferred_fields(model),
        **known,
        provenance=getattr(model, "provenance", {}),
    )
    return write_checkpoint(checkpoint, path, layout, labels)


def _save_dense_model(model: DenseModel, path: FilePath, format: str | None = None) -> Path:
    """Writes the head of a model of maps in a layout of heads, by default that of its file; see `save_checkpoint`."""
    layout = format or model.layouts[0]
    check_choice("format", layout, HEAD_LAYOUTS)
    row, destination = HEAD_LAYOUTS[layout], expand_path(path)
    start = f"{model.head.name}/"
    found = {name.removeprefix(start): value for name, value in weight_paths(model).items() if name.startswith(start)}
    if queries := layer_named(model, QUERIES):
        found[f"{QUERIES}/{queries.queries.name}"] = queries.queries
    if row.kind == OPEN_BOX_HEAD:
        found.pop("queries")  # which are the caller's, and given again
    values = {name: np.asarray(ops.convert_to_numpy(value), "float32") for name, value in found.items()}
    if lost := row.unmapped(values):
        raise CheckpointError(
            f"the {row.name} layout must have a place for every weight of the head.\n"
            f"Received: {model.name!r} with {', '.join(lost[:5])}. Save it as .keras."
        )
    of_file = f"{ENCODER}/"
    unread = model.unread if layout == model.layouts[0] else {}
    arrays = row.to_file(values) | {name: array for name, array in unread.items() if not name.startswith(of_file)}
    note: dict[str, Any] = {HEAD_NOTE: _facts_of_head(model, layout), "folder_config": dict(model.folder_config)}
    in_folder = destination.suffix != ".safetensors"
    whole = model.layouts[1] in row.encoder_layouts
    if in_folder:
        destination.mkdir(exist_ok=True)
        destination = destination / SAFETENSORS_NAME
    check_replaceable(destination)
    if whole:
        of_encoder = row.encoder[row.encoder_layouts.index(model.layouts[1])] if row.encoder else ""
        written = _written_encoder(model, destination.parent)
        note |= written[1]
        arrays = {of_encoder + name: array for name, array in written[0].items()} | arrays
    write_safetensors(destination, arrays.items(), note)
    if in_folder and whole and model.folder_config:
        write_json(destination.parent / "config.json", dict(model.folder_config))
    if in_folder and not whole:
        (destination.parent / ENCODER).mkdir(exist_ok=True)
        of_encoder = model.layouts[1] or "official"
        place = destination.parent / ENCODER / f"model{LAYOUTS[of_encoder].suffix}"
        file = scan(save_checkpoint(model.encoder, place, of_encoder))
        unread = {name.removeprefix(of_file): array for name, array in model.unread.items() if name.startswith(of_file)}
        if unread.keys() <= file.entries.keys() and unread:
            write_safetensors(place, (file.read(list(file.entries)) | unread).items(), file.note)
    return destination


_OF_HEADS = ("pool_scales", "num_heads")  # attributes of heads that no tensor shows


def _facts_of_head(model: DenseModel, layout: str) -> dict[str, Any]:
    """What no tensor says of a head, for the note."""
    bins = layer_named(model, DEPTHS)
    facts: dict[str, Any] = {"layout": layout, "blocks": list(model.blocks), "normed": model.normed, "unit": model.unit}
    facts |= {} if model.class_names is None else {"class_names": list(model.class_names)}
    facts |= {} if model.short_side is None else {"short_side": model.short_side}
    if queries := blocks_with_queries(model):
        facts["num_blocks"] = queries
    if getattr(bins, "rule", "range") == "sigmoid":
        facts["max_depth"] = (model.depth_range or (None,))[-1]
    elif model.depth_range is not None:
        facts["depth_range"] = list(model.depth_range)
    ways: dict[str, Any] = {name: getattr(bins, name) for name in ("bins", "normalise") if hasattr(bins, name)}
    ways |= {name: getattr(model.head, name) for name in _OF_HEADS if hasattr(model.head, name)}
    ways |= {"upsample": model.head.upsample} if model.task == KEYPOINTS else {}
    positions = stem_positions(model)
    return facts | ways | ({} if positions is None else {"resize_method": positions.resize_method})


def _written_encoder(model: DenseModel, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of the encoder as its layout names them, and the note."""
    with tempfile.TemporaryDirectory(dir=folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the software of the encoder alone would compute
        written = scan(save_checkpoint(model.encoder, Path(place) / "encoder.safetensors", model.layouts[1]))
        return written.read(list(written.entries)), written.note


def _save_text_checkpoint(model: TextTransformer, path: FilePath, format: str | None = None) -> Path:
    """Writes a text tower in the named layout, or in the first with a place for every weight; see `save_checkpoint`."""
    model = merge_lora(model) if lora_layers(model) else model  # no layout has a place for factors
    destination, tensors = expand_path(path), {variable.path: variable for variable in model.variables}
    places = {name for name, row in TEXT_LAYOUTS.items() if not row.unmapped(tensors)}
    fitting = [name for name in TEXT_LAYOUTS if name in places and _is_computed_by(name, model.config)]
    if not fitting:
        raise CheckpointError(
            "the software of a layout of a text tower must compute what the tower does, and none does here.\n"
            f"Received: {model.config}. Save it as .keras."
        )
    layout = format or next((name for name in fitting if TEXT_LAYOUTS[name].suffix == destination.suffix), "")
    check_choice("format", layout, tuple(fitting))
    row = TEXT_LAYOUTS[layout]
    if destination.suffix != row.suffix:
        raise ValueError(
            f"the path of a checkpoint in the {layout} layout must end in {row.suffix}.\nReceived: {destination}."
        )
    values = {name: ops.convert_to_numpy(variable).astype("float32") for name, variable in tensors.items()}
    arrays = [*row.to_file(values, model.config.num_heads), *_factors(model, layout)]
    check_replaceable(destination)
    write = write_npz if row.suffix == ".npz" else write_safetensors
    write(destination, arrays, {NOTE: model.config.as_dict()})
    return destination


TOWER_FORMATS = ("open_clip", "huggingface")
_NAFLEX = LAYOUTS["huggingface_siglip2"]
# Layouts of image towers that have a text tower next to them in the file, with those that it may have. Towers of other
# layouts stand below names of their own, as OpenCLIP has them.
_WITH_TEXT: Mapping[str, str] = {
    "open_clip": "open_clip_text",
    "huggingface_clip": "huggingface_text",
    "huggingface_siglip": "huggingface_siglip_text",
    _NAFLEX.name: "huggingface_siglip_text",
    "open_clip_gap": "open_clip_text",
}
_TRUNK, _TEXT = "visual.trunk.", "text."


def save_towers(
    image: VisionTransformer,
    text: TextTransformer,
    folder: FilePath,
    logit_scale: float,
    logit_bias: float | None,
    format: str | None = None,
) -> Path:
    """Writes both towers into a new folder, with the tokenizer.

    `build`, `build_text`, `tokenizer` and `zero_shot` open the folder. OpenCLIP does if the towers are of its own
    class, whose config is written too. A note in the file has what no tensor says.

    Args:
        image: the image tower.
        text: the text tower, which gets scale and bias.
        folder: new, in a folder that exists.
        logit_scale: logarithm of the factor on cosines.
        logit_bias: what is added to logits; `None` for nothing.
        format: `"open_clip"`, or `"huggingface"` for transformers; by default OpenCLIP's names, of any towers.

    Raises:
        CheckpointError: if no layout has a place for every weight, or the software of `format` has no such class; the
            folder is not there then.
        FileExistsError: if something is there.
    """
    check_choice("format", format or TOWER_FORMATS[0], TOWER_FORMATS)
    folder = expand_path(folder)
    folder.mkdir()
    text.logit_scale, text.logit_bias = logit_scale, logit_bias
    try:
        if format == "huggingface":
            return _write_transformers(image, text, folder)
        return _write_open_clip(image, text, folder, any_towers=format is None)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_open_clip(image: VisionTransformer, text: TextTransformer, folder: Path, any_towers: bool) -> Path:
    layout, arrays, note = _of_both(image, text, folder)
    is_usual = layout == "open_clip" and is_usual_clip(image.config, text.config)
    if not is_usual and not any_towers:
        raise CheckpointError(
            "OpenCLIP must have a class of both towers, and of its own CLIP the largest id ends a text.\n"
            f"Received: {image.config} and {text.config}. Leave `format` out for a folder of keras_vit, or save them "
            "for transformers."
        )
    write_safetensors(folder / TOWERS_NAME, arrays.items(), note)
    if text.tokenizer is not None:
        write_tokenizer(text.tokenizer, folder)
    if is_usual:
        config = open_clip_config(image.config, text.config, _sizes(image), image.preprocessing)
        if text.logit_bias:  # without the word OpenCLIP's class has no place for the bias in the file
            config["model_cfg"]["init_logit_bias"] = text.logit_bias
        write_json(folder / "open_clip_config.json", config)
    return folder / TOWERS_NAME


def _write_transformers(image: VisionTransformer, text: TextTransformer, folder: Path) -> Path:
    ids = text.tokenizer
    special = {} if ids is None else {f"{name}_token_id": getattr(ids, of) for name, of in _SPECIAL.items()}
    is_naflex = _is_naflex(image)
    files = transformers_towers(image.config, text.config, _sizes(image), image.preprocessing, special, is_naflex)
    is_siglip = files["config.json"]["model_type"] in _SIGLIP_LAYOUTS
    if text.logit_bias and not is_siglip:
        raise CheckpointError(
            "transformers' CLIP adds nothing to its logits, so a bias would be lost.\n"
            f"Received: {text.logit_bias:.4g}, of the sigmoid loss. Save both towers for OpenCLIP."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the config says
        layout = _SIGLIP_LAYOUTS.get(files["config.json"]["model_type"], "huggingface_clip")
        arrays, note = _arrays(image, text, folder, layout)
    if is_siglip:
        arrays["logit_scale"], bias = arrays["logit_scale"].reshape(1), np.asarray([text.logit_bias or 0.0], "float32")
        arrays["logit_bias"] = bias
    write_safetensors(folder / SAFETENSORS_NAME, arrays.items(), note)
    if ids is not None:
        files["tokenizer_config.json"] = write_transformers_tokenizer(ids, folder, files["config.json"]["model_type"])
    for name, content in files.items():
        write_json(folder / name, content)
    return folder / SAFETENSORS_NAME


_SIGLIP_LAYOUTS = {"siglip": "huggingface_siglip", "siglip2": _NAFLEX.name}  # by transformers' `model_type`
_SPECIAL = {"bos": "start_id", "eos": "end_id", "pad": "pad_id"}


def _is_naflex(image: VisionTransformer) -> bool:
    """Whether an image tower resizes its position table as NaFlex does, so as one that was read from such a file."""
    positions = stem_positions(image)
    return positions is not None and positions.resize_method == _NAFLEX.resize_method


def _sizes(image: VisionTransformer) -> tuple[Pair, int]:
    """`(H, W)` of the images, and E."""
    return image.input_shape[1:3], image.output_shape[-1]


def _of_both(
    image: VisionTransformer, text: TextTransformer, folder: Path
) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """The first layout with a place for every weight of the image tower; arrays of both; and the note of the file."""
    others = [name for name, row in LAYOUTS.items() if row.suffix == ".safetensors" and name not in _WITH_TEXT]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a layout's software would compute otherwise: the note says it
        for layout in (*((_NAFLEX.name,) if _is_naflex(image) else ()), *_WITH_TEXT, *others):
            with contextlib.suppress(ValueError):
                return layout, *_arrays(image, text, folder, layout)
    raise CheckpointError(
        "a file of both towers needs a layout with a place for every weight of the image tower.\n"
        f"Received: {image.name!r}, whose weights none has a place for. Save it as .keras."
    )


def _arrays(
    image: VisionTransformer, text: TextTransformer, folder: Path, layout: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of both towers and the note, with the image tower in a layout."""
    file = folder / "part.safetensors"
    arrays: dict[str, np.ndarray] = {}
    note: dict[str, Any] = {}
    trunk, prefix = ("", "") if layout in _WITH_TEXT else (_TRUNK, _TEXT)
    for before, save in (
        (trunk, lambda: save_checkpoint(image, file, layout)),
        (prefix, lambda: _save_text_checkpoint(text, file, _WITH_TEXT.get(layout))),
    ):
        written = scan(save())
        arrays |= {before + name: array for name, array in written.read(list(written.entries)).items()}
        note |= written.note
        file.unlink()
    for name in ("logit_scale", "logit_bias", "temperature"):
        arrays.pop(prefix + name, None)
    arrays["logit_scale"] = np.asarray(text.logit_scale, "float32")
    if text.logit_bias:
        arrays["logit_bias"] = np.asarray(text.logit_bias, "float32")
    return arrays, note


def _is_computed_by(layout: str, config: TextConfig) -> bool:
    """Whether the software of a layout has such towers, by its config or, without one, by the numbers in its code."""
    if layout == "tips_text":
        return all(getattr(config, name) == value for name, value in TIPS.items()) and config.qkv_bias == "all"
    has_bias = config.qkv_bias == "none" if layout == "dino_text" else config.qkv_bias == "all"
    if config.positions != "learned" or config.mask_padding or config.scale_tokens or not has_bias:
        return False
    numbers = config.activation, config.layer_norm_epsilon
    if layout == "dino_text":
        return config.causal and config.pooling == "argmax" and numbers == ("gelu", 1e-5)
    if layout == "huggingface_text":
        return config.causal and config.pooling in ("argmax", "end", "none")
    if layout in ("open_clip_text", "open_clip_linear_text"):
        return config.pooling in ("argmax", "end", "last", "none") and config.activation != "relu"
    is_siglip = not config.causal and config.pooling == "last"
    if layout == "huggingface_siglip_text":
        return is_siglip and config.projection_bias
    return is_siglip and config.projection_bias == bool(config.projection_size) and numbers == ("gelu_tanh", 1e-6)


def _factors(model: TextTransformer, layout: str) -> list[tuple[str, np.ndarray]]:
    """Scale and bias of the logits, as the software of a layout names them."""
    if model.logit_scale is None:
        return []
    scale, bias = (np.asarray(value or 0.0, "float32") for value in (model.logit_scale, model.logit_bias))
    if layout == "tips_text":
        return [("temperature", np.exp(-scale))]
    names = ("params/t", "params/b") if layout == "big_vision_text" else ("logit_scale", "logit_bias")
    return [(names[0], scale), *([(names[1], bias)] if model.logit_bias else [])]


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


def _mask_token(model: keras.Model, layout: str) -> np.ndarray | None:
    """`(1, D)`, where the layout has a place for it."""
    token = getattr(model, "mask_token", None)
    return None if token is None or not LAYOUTS[layout].has_name(MASK_TOKEN) else token[None]


class _LazyWeights(Mapping):
    """The weights of a model by path, each brought to NumPy only when it is read."""

    def __init__(
        self, variables: Mapping[str, Variable], positions: AddPositionEmbs | None, mask_token: Any = None
    ) -> None:
        self._variables = variables if mask_token is None else {**variables, MASK_TOKEN: mask_token}
        self._positions = positions
        self._paths = [path for path in self._variables if path != TABLE]
        self._paths += [] if positions is None else [TABLE]

    def __getitem__(self, path: str) -> np.ndarray:
        if path == TABLE and self._positions is not None:
            return np.asarray(self._positions.table_at(self._positions.grid), "float32")
        return np.asarray(ops.convert_to_numpy(self._variables[path]), "float32")

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
