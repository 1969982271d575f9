"""The layouts of OWL-ViT (arXiv:2205.06230) and OWLv2 (arXiv:2306.09683) of transformers: CLIP's tower, and heads.

Their text tower is read by `build_text`, and is set aside here.
"""

import dataclasses

from keras_vit.config.heads import DETECTION, OPEN_BOX_HEAD
from keras_vit.weights.families.clip import CLIP_PHOTOS, HF_CLIP
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.families.layout import ModelType
from keras_vit.weights.families.renames import Layers

_STEM: Layers = {
    "class_token/token": "embeddings.class_embedding",
    "pre_norm": "pre_layernorm",
    "position_embedding/table": "embeddings.position_embedding.weight",
    "patch_embedding/projection": "embeddings.patch_embedding",
    "encoder_norm": "post_layernorm",
}
HF_OWL = dataclasses.replace(
    HF_CLIP,
    name="huggingface_owl",
    model_types=("owlvit", "owlvit_vision_model", "owlv2", "owlv2_vision_model"),
    requires=(
        *(r"embeddings\.patch_embedding\.weight", r"embeddings\.class_embedding", r"pre_layernorm\.weight"),
        *(r"embeddings\.position_embedding\.weight", r"post_layernorm\.weight"),
    ),
    ignores=(r"embeddings\.position_ids",),
    names={**HF_CLIP.names, ("", ""): _STEM},
    read_names=lambda names: str,
    written_names=lambda names: str,
    read_steps=(),
    written_steps=(),
    norms_tokens=True,
    preprocessing=dataclasses.replace(CLIP_PHOTOS, resize="squash"),
)

TYPES = {
    **dict.fromkeys(("owlvit", "owlvit_vision_model"), ModelType("OwlViT", (HF_OWL.name,))),
    **dict.fromkeys(("owlv2", "owlv2_vision_model"), ModelType("Owlv2", (HF_OWL.name,))),
}


def _names(objectness: bool) -> dict[tuple[str, str], Layers]:
    heads = ("box", *(("objectness",) if objectness else ()))
    return {
        ("", ""): {
            "norm": "layer_norm",
            "class_embedding": "class_head.dense0",
            **{name: f"class_head.{name}" for name in ("logit_shift", "logit_scale")},
            **{f"{head}_{number + 1}": f"{head}_head.dense{number}" for head in heads for number in range(3)},
        }
    }


HF_OWLVIT_BOXES = HeadLayout(
    "huggingface_owlvit_boxes",
    "transformers",
    OPEN_BOX_HEAD,
    requires=(r"class_head\.dense0\.weight", r"box_head\.dense0\.weight", r"layer_norm\.weight"),
    names=_names(False),
    encoder=("owlvit.vision_model.",),
    encoder_layouts=(HF_OWL.name,),
    encoder_parts=("owlvit.",),
    task=DETECTION,
    taps="last",
    pads="",
    photos="squash",
    side=768,
)
HF_OWLV2_BOXES = dataclasses.replace(
    HF_OWLVIT_BOXES,
    name="huggingface_owlv2_boxes",
    requires=(*HF_OWLVIT_BOXES.requires, r"objectness_head\.dense0\.weight"),
    names=_names(True),
    encoder=("owlv2.vision_model.",),
    encoder_parts=("owlv2.",),
    photos="square",
    side=960,
)
