"""The config of a file's model, by its tensors, its metadata and the table of published weights."""

import dataclasses
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from keras_vit.config.variants import ENCODERS
from keras_vit.config.vit import RECORD_OF, SIZES, ViTConfig
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import CUTS_CENTRE
from keras_vit.weights.checkpoint import Checkpoint, check_layers, read_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.families.layout import PLAIN_PARTS
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import WeightsRecord
from keras_vit.weights.resolve import WeightsFile

_ABSENT = (False, "none", "query_value", "attention", "rms")  # values of parts of which something is not there
# Of the config of a published encoder: what its file decides, and not its record.
_OF_THE_FILE = (*SIZES, "class_token", "representation_size", "resnet_stages", "resnet_width_factor")


def infer_config(checkpoint: Checkpoint, pooling: str | None, fields: Mapping[str, Any]) -> ViTConfig:
    """The config of a model by its file, the metadata, and `num_heads` among the caller's fields.

    Args:
        checkpoint: of a Vision Transformer.
        pooling: of the caller's, or `None` for the file's.
        fields: of `ViTConfig`, the caller's.

    Raises:
        CheckpointError: if the file has parts that are not known here, or the number of heads is unknown.
    """
    patch_size, hidden_size, num_layers, mlp_dim, stages = checkpoint.measured()
    received = f"Received: {checkpoint.path}, which looks like {checkpoint.describe()}"
    if not all((patch_size, hidden_size, num_layers, mlp_dim)):
        unknown = f", with {len(checkpoint.unknown)} arrays of other names, as {', '.join(checkpoint.unknown[:3])}"
        raise CheckpointError(
            "without a config, all parts of the file must be known here, and none may be empty.\n"
            f"{received}{unknown if checkpoint.unknown else ''}."
        )
    num_heads = checkpoint.num_heads or fields.get("num_heads")
    not_read = [line for line in checkpoint.remarks if "not understood" in line]
    if num_heads is None:
        raise CheckpointError(
            "the number of heads must be in the file, in a config.json in its folder, or be given.\n"
            f"{'; '.join((received, *not_read))}. {'Correct that, or pass' if not_read else 'Pass'} `num_heads=`."
        )
    checkpoint = dataclasses.replace(checkpoint, num_heads=num_heads)  # by which those of keys are counted
    fields_found = {"class_token": checkpoint.has_class_token, "resnet_stages": stages} | checkpoint.fields
    fields_found |= final_norm_override(checkpoint, pooling) | ({} if pooling is None else {"pooling": pooling})
    try:
        return ViTConfig(patch_size, hidden_size, num_layers, num_heads, mlp_dim, **fields_found)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{error} File: {checkpoint.path}") from error


def assumed_defaults(checkpoint: Checkpoint, given: Collection[str]) -> tuple[str, ...]:
    """Lines on what the model of a file alone computes though nothing says so, and on a family that is not known here.

    Args:
        checkpoint: of no published weights.
        given: fields that the caller has decided.
    """
    row, fields, lines = LAYOUTS[checkpoint.layout], checkpoint.fields, []
    if row.is_resnet:
        return ()
    if checkpoint.family and not checkpoint.is_known:
        lines += [f"{checkpoint.family} is not known here: took the layout {row.name} by the tensors"]
    names = ["layer_norm_epsilon"] if fields["gated_mlp"] else ["activation", "layer_norm_epsilon"]
    names += ["pool_prefix_tokens"] if "pool_prefix_tokens" in fields else []  # of one with prefix tokens
    recorded = {*given, *checkpoint.recorded_fields}
    if "siglip" in checkpoint.family and not checkpoint.is_known and "activation" not in recorded:
        warnings.warn(
            f"{checkpoint.family} is no model that is known here, and nothing says which GELU it has: SigLIPs of timm "
            f"have either. Took activation={fields['activation']!r}; pass `activation=` if it is the other.",
            UserWarning,
            stacklevel=4,
        )
    known = {*recorded, *(names if checkpoint.is_known and row.software == "timm" else ())}
    silent = ", ".join(f"{name} {fields[name]}" for name in names if name not in known)
    if silent and row.suffix == ".safetensors":  # else of one software, which computes one function
        lines.append(f"{silent}: as {row.software} computes, since the file does not say")
    is_said = {"gated_mlp", "activation"} & {*recorded, *checkpoint.expected}
    if row.name == "timm" and fields["gated_mlp"] and not is_said:
        lines.append("gated MLP: SiLU, since nothing says its activation")  # in timm GELU, unless given
    usual = {name: values[:1] or ("any",) for name, values in row.parts.items() if len(values) != 1}
    known |= {*checkpoint.expected, *(usual if checkpoint.is_known else ())}
    if lacking := _lacking_parts(checkpoint, {name: usual[name][0] for name in usual if name not in known}):
        shown = ", ".join(f"{name} {value}" for name, value in lacking.items())
        lines.append(f"{shown}: read off the tensors, since no config says what the model has")
    return tuple(lines)


def differing_parts(checkpoint: Checkpoint, config: ViTConfig, name: str, given: Collection[str]) -> tuple[str, ...]:
    """A line for each part that the model of a name has and the file lacks, which the file decides.

    Args:
        checkpoint: of no published weights.
        config: of the name.
        name: of a model.
        given: fields that the caller has decided.
    """
    if checkpoint.is_resnet:
        return ()
    parts = {part: getattr(config, part) for part in PLAIN_PARTS if part in RECORD_OF and part not in given}
    parts.pop("class_token", None)  # which the pooling decides
    lacking = _lacking_parts(checkpoint, parts)
    return tuple(f"{part} {value}, where {name} has {parts[part]}" for part, value in lacking.items())


def _lacking_parts(checkpoint: Checkpoint, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the tensors show of those parts of which they have less, or of registers another number."""
    found = checkpoint.parts
    differing = {name: found[name] for name, value in parts.items() if found[name] not in (None, value)}
    return {name: value for name, value in differing.items() if value in _ABSENT or type(value) is int}


def find_provenance(
    checkpoint: Checkpoint,
    record: WeightsRecord | None,
    config: ViTConfig,
    given: Collection[str | None],
    resize_methods: tuple[str, str],
) -> dict[str, tuple[str, str]]:
    """Fields that no tensor shows, and where they are from: `{name: (value, source)}`.

    Args:
        checkpoint: that `open_checkpoint` gave.
        record: of the table, if the weights are in it.
        config: of the model.
        given: fields that the caller has decided, and the rule that the caller chose, or `None`.
        resize_methods: of the position table, and of one of relative bias.
    """
    software, values = LAYOUTS[checkpoint.layout], _unstored_fields(config)
    by = f"the record of {record.name!r}" if record is not None else ""
    of_record = dict(record.fields) if record is not None else {}
    if record is not None and record.variant in ENCODERS:
        of_record = dict.fromkeys(values) | of_record
    tensors = {} if config.pooling == "none" else dict.fromkeys(("pooling", "final_norm"), "the tensors")
    facts = {}
    for name, value in values.items():
        recorded = "the file's metadata" if name in checkpoint.recorded_fields else ""
        known = tensors.get(name, f"{software.software}, by default")
        facts[name] = value, "the caller" if name in given else by if name in of_record else recorded or known
    has_table = {"resize_method": checkpoint.has_positions, "bias_resize_method": config.relative_bias != "none"}
    for name, method in zip(has_table, resize_methods, strict=True):
        rule = "the caller" if method in given else by if record and record.resize_method == method else ""
        if has_table[name]:
            facts[name] = method, rule or f"{software.software}, by default"
    default = checkpoint.preprocessing is software.preprocessing
    who = by or (f"{software.software}, by default" if default else "the file's metadata")
    facts["preprocessing"] = _describe(checkpoint.preprocessing), who
    return facts if record is None else facts | {"licence": (record.license, by)}


def _unstored_fields(config: ViTConfig) -> dict[str, str]:
    """The values of fields that change the numbers and that no tensor shows."""
    names = ["activation", "layer_norm_epsilon", "pooling"]
    names += ["norm_position"] if config.norm_position != "pre" else []
    names += ["patch_padding"] if config.patch_padding else []
    names += _ROTARY if config.rotary != "none" else ()
    names += ["final_norm"] if config.pooling == "gap" else []
    names += ["pool_prefix_tokens"] if config.pooling in ("map", "attentive") and config.prefix_tokens else []
    reads_several = config.class_tokens > 1 and config.pooling == "token"
    names += ["class_token_reduction", "class_token_indices"] if reads_several else []
    values = {name: str(getattr(config, name)) for name in names}
    if config.gated_mlp and config.pooling != "map":  # which has an MLP without a gate
        del values["activation"]
    if config.pooling in ("map", "attentive"):
        values["map_heads"] = str(config.map_heads or config.num_heads)
    return values


_ROTARY: tuple[str, ...] = (
    "rotary",
    "rotary_theta",
    "rotary_layout",
    "rotary_axes",
    "rotary_coordinates",
    "rotary_offset",
)
_ROTARY += ("rotary_reference",)


def _describe(preprocessing: Preprocessing | None) -> str:
    """As `"crop 0.875, bicubic, mean 0.485 0.456 0.406, std 0.229 0.224 0.225"`."""
    if preprocessing is None:
        return "none"
    way = preprocessing.resize + (f" {preprocessing.crop_fraction:g}" if preprocessing.resize in CUTS_CENTRE else "")
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    antialias = "" if preprocessing.antialias else " without antialias"
    return f"{way}, {preprocessing.interpolation}{antialias}, mean {mean}, std {std}"


def final_norm_override(checkpoint: Checkpoint, pooling: str | None) -> dict[str, str]:
    """`final_norm` of a model of all tokens, if the file's software norms only what it pools from them."""
    norms_pooled = checkpoint.fields.get("final_norm") == "pooled" or not checkpoint.norms_tokens
    return {"final_norm": "none"} if pooling == "none" and norms_pooled else {}


def open_checkpoint(source: WeightsFile, is_resnet: bool = False) -> Checkpoint:
    """The checkpoint of a file, with what the table of published weights knows of it.

    Raises:
        CheckpointError: if the file holds a model of another kind, or not what the table says.
    """
    checkpoint, record = read_checkpoint(source.path), source.record
    check_layers(checkpoint)
    if checkpoint.is_resnet != is_resnet:
        wanted, other = ("a ResNet baseline", "build") if is_resnet else ("a Vision Transformer", "build_resnet")
        raise CheckpointError(
            f"the file must hold {wanted}.\nReceived: {source.path}, which looks like {checkpoint.describe()}. "
            f"Pass it to `keras_vit.{other}`."
        )
    if record is not None and (checkpoint.classes or 0) != record.classes:
        raise CheckpointError(
            f"the file of {record.name!r} for {record.model} must have {record.classes} classes, so this is "
            f"another file.\nReceived: {source.path} with {checkpoint.classes or 0}."
        )
    if record is None:
        preprocessing = checkpoint.preprocessing or LAYOUTS[checkpoint.layout].preprocessing
        return dataclasses.replace(checkpoint, preprocessing=preprocessing)
    # The table has been compared with the papers, so it overrules the file's note.
    fields = checkpoint.recorded_fields | dict(record.fields)
    if record.variant in ENCODERS:
        fields |= {name: value for name, value in record.config.as_dict().items() if name not in _OF_THE_FILE}
    heads = record.config.num_heads if isinstance(record.config, ViTConfig) else None
    return dataclasses.replace(
        checkpoint,
        recorded_fields=fields,
        num_heads=checkpoint.num_heads or heads,
        preprocessing=record.preprocessing,
        remarks=(),
    )
