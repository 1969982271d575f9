"""Which family a config.json names, and in which layouts its files are, so that tensors of another family are seen.

Tensors of one family often fit the names of another, whose rules would give other numbers without a word.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.weights.hub import config_of_timm
from keras_vit.weights.sidecar.facts import not_computed

_VIT = ("timm", "timm_beit3", "timm_aimv2")  # of timm's class `VisionTransformer`, where the roles tell them apart
_EVA = ("timm_eva", "timm_dinov3", "timm_rope", "timm_rope_registers", "timm_sapiens2", "timm_pe_core", "timm_pe")
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {  # how timm's names begin, the first of which counts: our layouts
    r"eva02_|eva_giant_": ("timm_eva",),
    r"eva_large_": ("timm_eva", "timm"),
    r"beit(v2)?_": ("timm_beit",),
    r"vit_pe_core_": ("timm_pe_core",),
    r"vit_pe_": ("timm_pe",),
    r"vit_.*_(dinov3|lingbot|eupe)": ("timm_dinov3",),
    r"vit_.*_sapiens2": ("timm_sapiens2",),
    r"vit_.*_rope_reg\d": ("timm_rope_registers",),
    r"vit_.*_rope_": ("timm_rope",),
    r"": _VIT,
}
# Names of timm's that no record has.
_UNRECORDED = re.compile(
    r"vit_(large|giant|gigantic)_patch14_224|vit_(betwixt|base|huge|giant)_patch1[46]_gap_\d+|vit_\w+_patch16_lingbot|"
    r"vit_base_patch\d+_plus_\d+|vit_small_patch16_36x1_224|vit_base_patch16_reg4_gap_256|vit_base_r26_s32_224|"
    r"vit_so150m_patch16_reg4_map_256|vit_base_patch16_rpn_224|beit3_giant_patch14_\d+|"
    r"test_vit\d?"
)
_CLOSED: Mapping[str, str] = {  # likewise, of models that are not computed here: what these have
    r"(vit|test_vit)_s?relpos": "relative positions of another kind",
    r"vit_.*_\d+x[2-9]\d*_|vit_.*_(parallel|xp)_|vit_d?pwee_": "attention and MLP side by side",
    r"vit_d(wee|little)_": "differential attention",
    r"vit_.*_(mci|resnet\d+d?)_|vitamin": "another stem",
    r"samvit|sam2_|hiera|swin|vit_.*_cswin|twins|davit|maxx?vit|focalnet|nest_|mvit": "stages with windows",
    r"naflexvit": "batches of patches with grids of their own",
    r"(se|sk|eca|gc|tf|wide|legacy|cs)?_?(convnext|resne[x]?t|efficientnet|regnet|mobile|densenet|vgg|nfnet|inception)|"
    r"nf_|dpn|dla\d|hrnet|repvgg|mixnet|ghostnet|xception|darknet|vovnet|mnasnet|rexnet|hgnet|convformer|"
    r"caformer": "convolutions",
    r"mixer|gmlp|gmixer|resmlp|poolformer|convmixer|mambaout|sequencer": "no attention",
    r"cait|xcit|tnt_|crossvit|coat|convit|pit_|levit|visformer|volo|pvt|edgenext|efficientformer|fastvit|tiny_vit|"
    r"nextvit|repvit|swiftformer|shvit|gcvit|botnet|halonet|lambda|bat_|csatv2": "attention of another kind",
}
_TYPES: Mapping[str, tuple[str, ...]] = {  # `model_type` of transformers: our names of the layouts
    **dict.fromkeys(("vit", "deit", "vit_msn", "vit_mae", "ijepa"), ("huggingface",)),
    "pixio": ("huggingface_pixio",),
    "dinov2": ("huggingface_dinov2",),
    "dinov2_with_registers": ("huggingface_dinov2_registers",),
    "dinov3_vit": ("huggingface_dinov3",),
    **dict.fromkeys(
        ("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"),
        ("huggingface_clip", "huggingface_clip_classifier"),
    ),
    **dict.fromkeys(("siglip", "siglip_vision_model"), ("huggingface_siglip",)),
    **dict.fromkeys(("siglip2", "siglip2_vision_model"), ("huggingface_siglip2", "huggingface_siglip")),
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), ("huggingface_aimv2", "aimv2")),
    **dict.fromkeys(("beit", "data2vec-vision"), ("huggingface_beit",)),
    **dict.fromkeys(("internvl_vision", "intern_vit_6b"), ("huggingface_internvit", "internvit")),
    "dinov2_registers": ("dinov2_registers",),  # which a user says of a file that tells nothing
    **dict.fromkeys(("tipsv2", "tipsv2_vision_model"), ("huggingface_tipsv2", "dinov2_registers")),
    "radio": ("huggingface_radio",),
}
_CLOSED_TYPES = re.compile(
    r"(donut-|maskformer-)?swin(v2|2sr)?|naflexvit|(dinov3_)?convnext(v2)?|cvt|resnet|regnet|bit|levit|efficientnet|"
    r"mobile(net|vit).*|efficientformer|swiftformer|poolformer|focalnet|pvt(_v2)?|segformer|hiera|dinat|nat|van|"
    r"vit_hybrid|vivit|videomae|timesformer|vjepa2|yolos|vitdet|dpt|sam\d?(_.*)?|perceiver|hgnet_v2"
)


def layouts_of_architecture(architecture: Any, arguments: Mapping[str, Any], place: Path) -> tuple[str, ...]:
    """The layouts in which timm has a model of that name; none for a name that is not known here.

    Args:
        architecture: of `config.json`.
        arguments: `model_args`, which make any other of its class `Eva`.
        place: of the file, for the message.

    Raises:
        CheckpointError: for a model that is not computed here.
    """
    architecture = str(architecture)
    if part := next((part for pattern, part in _CLOSED.items() if re.match(pattern, architecture)), None):
        raise not_computed("architecture", architecture, place, f"plain Vision Transformers, and not {part}")
    if config_of_timm(architecture) is None and not _UNRECORDED.fullmatch(architecture):
        return ()
    found = next(rows for pattern, rows in _ARCHITECTURES.items() if re.match(pattern, architecture))
    return (*_EVA, "timm") if "attn_type" in arguments and set(found) & set(_EVA) else found


def layouts_of_type(kind: Any, place: Path) -> tuple[str, ...]:
    """The layouts of transformers' class of that `model_type`; none for one that is not known here.

    Raises:
        CheckpointError: for a model that is not computed here.
    """
    if isinstance(kind, str) and _CLOSED_TYPES.fullmatch(kind):
        raise not_computed("model_type", kind, place, "those of plain Vision Transformers")
    return _TYPES.get(str(kind), ())
