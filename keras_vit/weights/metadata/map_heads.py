"""What a `config.json` says of a head that makes maps: facts that no tensor has, and contradictions to the tensors.

The words are those of transformers, and of mmsegmentation's and Segmenter's facts as this package reads them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights.read import CheckpointError

_NECKS = {"mmseg_upernet": "multi_level", "mmseg_upernet_pyramid": "feature2pyramid"}  # by layouts of heads
_POOL = "decode_head.psp_modules."
_MASK_TYPES = ("eomt", "eomt_dinov3", "eomt_authors")
_MASK_PROBABILITIES = "attn_mask_probs"  # of training, one for each block with queries
_OWL_TYPES = ("owlvit", "owlv2")  # the second with objectness
_VITPOSE_BLOCK = 4  # that transformers' head reads where a config says nothing of the encoder
_PATCH_KERNELS = (".patch_embed.projection.weight", ".patch_embed.proj.weight", "_embeddings.projection.weight")
# By the word of transformers for DPT and Depth Anything: the values that are computed here, its default first.
_COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "readout_type": ("project", "ignore"),
    "head_in_index": (-1, 3),
    "reassemble_factors": ([4, 2, 1, 0.5],),
}
Shapes = Mapping[str, tuple[int, ...]]


def facts_of_config(config: Mapping[str, Any], layout: str, path: Path) -> dict[str, Any]:
    """Facts of a head by their names in `HeadCheckpoint`.

    Args:
        config: of the folder.
        layout: of the head.
        path: of the file.

    Raises:
        CheckpointError: for a part that is not computed here.
    """
    kind, inside = config.get("model_type"), config.get("backbone_config")
    inside = inside if isinstance(inside, dict) else {}
    facts: dict[str, Any] = {}
    if kind == "vitpose":
        facts = {"blocks": _stages(inside)[-1:] if inside else [_VITPOSE_BLOCK]}
        facts |= {"upsample": config.get("scale_factor", 4)}
    elif kind in ("dpt", "depth_anything", "upernet") and inside:
        facts = {"blocks": _stages(inside)}
        facts |= {"normed": inside.get("model_type") != "beit" and bool(inside.get("apply_layernorm", True))}
        facts |= {"unit": "metres", "resize_method": None} if kind == "dpt" else {}
    elif kind == "dpt":
        facts = {"blocks": [int(each) + 1 for each in config.get("backbone_out_indices", (2, 5, 8, 11))]}
    elif kind == "beit" and config.get("out_indices"):
        facts = {"blocks": [int(each) + 1 for each in config["out_indices"]]}  # the authors'; transformers' are 2 less
    elif kind == "mmseg":
        facts = _facts_of_mmseg(config, layout, path)
    elif kind in _MASK_TYPES:
        facts = {"num_blocks": config.get("num_blocks")}
        facts |= {"short_side": config["image_size"]} if isinstance(config.get("image_size"), int) else {}
    if kind in ("mmseg", "segmenter") and config.get("decoder_heads"):
        facts |= {"num_heads": config["decoder_heads"]}
    if config.get("depth_estimation_type") == "metric":
        facts |= {"unit": "metres"} | ({"max_depth": float(config["max_depth"])} if config.get("max_depth") else {})
    _check_computed(config, facts.get("blocks") or (), path)
    if kind in ("beit", "upernet") and config.get("pool_scales"):
        facts |= {"pool_scales": [int(each) for each in config["pool_scales"]]}
    named = ("dpt", "beit", "upernet", "yolos", "vitpose", *_MASK_TYPES)
    names = config.get("id2label") if kind in named else None
    return facts | ({"class_names": names} if names else {})


def _check_computed(config: Mapping[str, Any], blocks: Sequence[int], path: Path) -> None:
    """Raises for what transformers computes and this package does not, and for taps that transformers refuses."""
    computed = dict(_COMPUTED) if config.get("model_type") in ("dpt", "depth_anything") else {}
    if config.get("model_type") == "depth_anything" and config.get("depth_estimation_type") != "metric":
        computed["max_depth"] = (None, 1)
    wrong = [f"{word}={config[word]!r}" for word, taken in computed.items() if config.get(word, taken[0]) not in taken]
    if list(blocks) != sorted(set(blocks)):
        wrong.append(f"blocks in the order {', '.join(map(str, blocks))}")
    if wrong:
        raise CheckpointError(
            "a head must read blocks in their order, and be of a kind that is computed here.\n"
            f"Received: {'; '.join(wrong)} in the config.json of {path}. Compare it with the one that was published."
        )


def _stages(backbone: Mapping[str, Any]) -> list[int]:
    """Numbers of the passed blocks whose tokens a backbone of transformers gives."""
    found = backbone.get("out_indices") or [
        str(stage).removeprefix("stage") for stage in backbone.get("out_features") or ()
    ]
    return [int(each) for each in found]


def _facts_of_mmseg(config: Mapping[str, Any], layout: str, path: Path) -> dict[str, Any]:
    blocks = list(config.get("blocks") or ())
    blocks = blocks[-1:] if layout == "mmseg_setr" else blocks  # the others are of heads that only training reads
    facts: dict[str, Any] = {"blocks": blocks} if blocks else {}
    mode = config.get("interpolate_mode")
    if mode not in (None, "bilinear", "bicubic"):
        raise CheckpointError(
            "positions must be resized by the 'bilinear' or 'bicubic' rule, which are computed here.\n"
            f"Received: interpolate_mode={mode!r} in the config.json of {path}."
        )
    return facts | ({} if mode is None else {"resize_method": mode})


def norm_of_taps(names: Iterable[str], encoder: tuple[str, ...], normed: bool | str) -> bool | str:
    """Whether taps are normed, in mmsegmentation: a last norm is applied to the tap of the last block alone.

    Args:
        names: of the file.
        encoder: prefixes of its encoder.
        normed: what its layout says.
    """
    has_norm = any(f"{prefix}ln1.weight" in names for prefix in encoder)
    return normed or ("last" if has_norm else False)


def check_config(config: Mapping[str, Any], layout: str, shapes: Shapes, path: Path) -> None:
    """Raises where a config contradicts the tensors.

    Args:
        config: of the folder.
        layout: of the head.
        shapes: of all arrays of the file, by their names without what a wrapper puts before them.
        path: of the file.
    """
    if not config:
        return
    inside = config.get("backbone_config")
    of_encoder = inside if isinstance(inside, dict) else config
    kernels = [shape for name, shape in shapes.items() if name.endswith(_PATCH_KERNELS)]
    found: dict[str, tuple[Any, Any]] = {  # by the word: what config.json says, and the tensors
        "patch_size": (_side(of_encoder.get("patch_size")), kernels[0][-1] if kernels else None),
        "neck": (config.get("neck"), _NECKS.get(layout)),
    }
    if config.get("model_type") == "depth_anything" and kernels:
        found["patch_size of the head"] = config.get("patch_size"), kernels[0][-1]
    if config.get("model_type") == "dpt":
        has = {word: any(word in name for name in shapes) for word in ("readout_projects", "batch_norm1")}
        found["readout_type"] = config.get("readout_type"), "project" if has["readout_projects"] else "ignore"
        norms = config.get("use_batch_norm_in_fusion_residual")
        found["use_batch_norm_in_fusion_residual"] = norms, has["batch_norm1"]
    if config.get("model_type") == "vitpose":
        found["use_simple_decoder"] = config.get("use_simple_decoder"), "head.deconv1.weight" not in shapes
        last = shapes.get("head.conv.weight")
        found["number of id2label"] = len(config.get("id2label") or ()) or None, last[0] if last else None
    if config.get("model_type") in _OWL_TYPES:
        found["model_type"] = config["model_type"], _OWL_TYPES["objectness_head.dense0.weight" in shapes]
        text, dense = config.get("text_config"), shapes.get("class_head.dense0.weight")
        found["hidden_size of text_config"] = (text or {}).get("hidden_size"), dense[0] if dense else None
    if tokens := next((shape for name, shape in shapes.items() if name.endswith(".cls_emb")), None):
        found["num_labels"] = config.get("num_labels"), tokens[1]
    if config.get("model_type") == "mmseg":
        found["final_norm"] = config.get("final_norm"), "backbone.ln1.weight" in shapes
    if (scales := config.get("pool_scales")) and layout.endswith("upernet"):
        there = {name.removeprefix(_POOL).partition(".")[0] for name in shapes if name.startswith(_POOL)}
        found["number of pool_scales"] = len(scales), len(there)
    if config.get("id2label") and (last := shapes.get("decode_head.classifier.weight")):
        found["number of id2label"] = len(config["id2label"]), last[0]
    if config.get("model_type") == "upernet" and (top := shapes.get("decode_head.bottleneck.conv.weight")):
        found["hidden_size"] = config.get("hidden_size"), top[0]
    wrong = [
        f"{word} {said!r}, and {there!r} in the tensors"
        for word, (said, there) in found.items()
        if said is not None and there is not None and said != there
    ]
    if wrong:
        raise CheckpointError(
            "config.json and the tensors must say the same of a head.\n"
            f"Received: {'; '.join(wrong)}, {path}. Put the config.json of these weights into their folder."
        )


def _side(size: Any) -> Any:
    """One number of a square `[16, 16]`."""
    return size[0] if isinstance(size, list) and size and {*map(str, size)} == {str(size[0])} else size


def facts_of_masks(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    unread: Mapping[str, np.ndarray],
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The facts of a head of masks, with those that its arrays show.

    Raises:
        CheckpointError: where they are not what config.json says, or nothing says in which blocks queries are.
    """
    by_end = {name.rpartition(".")[2]: array for name, array in unread.items()}
    labels = config.get("id2label")
    shown: dict[str, Any] = {
        "num_queries": len(tensors["query_tokens/queries"]),
        "num_upscale_blocks": sum(name.startswith("depthwise_") for name in tensors),
        "num_blocks": len(by_end[_MASK_PROBABILITIES]) if _MASK_PROBABILITIES in by_end else None,
        "id2label": tensors["class_head/kernel"].shape[-1] - 1,
    }
    said = dict(config) | {"id2label": len(labels) if isinstance(labels, dict) else None}
    said |= {"num_blocks": facts.get("num_blocks")}
    wrong = [name for name in shown if None not in (said.get(name), shown[name]) and said[name] != shown[name]]
    if wrong:
        raise CheckpointError(
            "a head of masks must have what its config.json says.\n"
            f"Received: {'; '.join(f'{name} {said[name]}, and {shown[name]} in the file' for name in wrong)}, {path}. "
            "Put the config.json of these weights into their folder."
        )
    blocks = said["num_blocks"] or shown["num_blocks"]
    if not isinstance(blocks, int) or blocks < 1:
        raise CheckpointError(
            "a head of masks needs the number of blocks that have queries, 3 in Small and Base, 4 in Large.\n"
            f"Received: {path} without {_MASK_PROBABILITIES}, and num_blocks={blocks!r}. Write it as `num_blocks` into "
            "the config.json in its folder."
        )
    pixels = {part: by_end.get(f"pixel_{part}") for part in ("mean", "std")}
    found = {part: tuple(map(float, array.reshape(-1))) for part, array in pixels.items() if array is not None}
    return {**facts, "num_blocks": blocks, **found}
