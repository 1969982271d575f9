"""The rows of the table that lie on the Hugging Face Hub: timm's, Google's and DeiT's copies.

Both libraries look for `model.safetensors` first, so that is the file. timm's evaluation (its model files'
`_cfg`) is bicubic with a central crop; the accuracies are those of its `results-imagenet.csv`.
transformers' ViT computes with exact GELU and a LayerNorm epsilon of 1e-12 (its `ViTConfig`).
"""

from collections.abc import Iterator
from typing import Any

from keras_vit.config.variants import VARIANTS
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.hub.weights_record import WeightsRecord, bicubic_crop, make_record, squash

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # for values in [0, 1]
_TIMM = "timm results"

_TIMM_MODELS = (  # repository below timm/, variant, resolution, classes, top-1
    ("vit_tiny_patch16_224.augreg_in21k", "Ti/16", 224, 21843, None),
    ("vit_small_patch32_224.augreg_in21k", "S/32", 224, 21843, None),
    ("vit_small_patch16_224.augreg_in21k", "S/16", 224, 21843, None),
    ("vit_base_patch32_224.augreg_in21k", "B/32", 224, 21843, None),
    ("vit_base_patch16_224.augreg_in21k", "B/16", 224, 21843, None),
    ("vit_base_patch8_224.augreg_in21k", "B/8", 224, 21843, None),
    ("vit_large_patch16_224.augreg_in21k", "L/16", 224, 21843, None),
    ("vit_tiny_r_s16_p8_224.augreg_in21k", "R+Ti/16", 224, 21843, None),
    ("vit_small_r26_s32_224.augreg_in21k", "R26+S/32", 224, 21843, None),
    ("vit_large_r50_s32_224.augreg_in21k", "R50+L/32", 224, 21843, None),
    ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "Ti/16", 224, 1000, 75.454),
    ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "Ti/16", 384, 1000, 78.424),
    ("vit_small_patch32_224.augreg_in21k_ft_in1k", "S/32", 224, 1000, 75.994),
    ("vit_small_patch32_384.augreg_in21k_ft_in1k", "S/32", 384, 1000, 80.486),
    ("vit_small_patch16_224.augreg_in21k_ft_in1k", "S/16", 224, 1000, 81.384),
    ("vit_small_patch16_384.augreg_in21k_ft_in1k", "S/16", 384, 1000, 83.802),
    ("vit_base_patch32_224.augreg_in21k_ft_in1k", "B/32", 224, 1000, 80.716),
    ("vit_base_patch32_384.augreg_in21k_ft_in1k", "B/32", 384, 1000, 83.350),
    ("vit_base_patch16_224.augreg_in21k_ft_in1k", "B/16", 224, 1000, 84.532),
    ("vit_base_patch16_384.augreg_in21k_ft_in1k", "B/16", 384, 1000, 85.996),
    ("vit_base_patch8_224.augreg_in21k_ft_in1k", "B/8", 224, 1000, 85.798),
    ("vit_large_patch16_224.augreg_in21k_ft_in1k", "L/16", 224, 1000, 85.834),
    ("vit_large_patch16_384.augreg_in21k_ft_in1k", "L/16", 384, 1000, 87.084),
    ("vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k", "R+Ti/16", 224, 1000, 71.798),
    ("vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k", "R+Ti/16", 384, 1000, 75.962),
    ("vit_small_r26_s32_224.augreg_in21k_ft_in1k", "R26+S/32", 224, 1000, 81.864),
    ("vit_small_r26_s32_384.augreg_in21k_ft_in1k", "R26+S/32", 384, 1000, 84.048),
    ("vit_large_r50_s32_224.augreg_in21k_ft_in1k", "R50+L/32", 224, 1000, 84.422),
    ("vit_large_r50_s32_384.augreg_in21k_ft_in1k", "R50+L/32", 384, 1000, 86.182),
    ("vit_base_patch16_224.augreg2_in21k_ft_in1k", "B/16", 224, 1000, 85.096),
    ("vit_base_patch8_224.augreg2_in21k_ft_in1k", "B/8", 224, 1000, 86.218),
    ("vit_small_patch16_224.augreg_in1k", "S/16", 224, 1000, 78.846),
    ("vit_small_patch16_384.augreg_in1k", "S/16", 384, 1000, 81.116),
    ("vit_base_patch32_224.augreg_in1k", "B/32", 224, 1000, 74.894),
    ("vit_base_patch32_384.augreg_in1k", "B/32", 384, 1000, 78.752),
    ("vit_base_patch16_224.augreg_in1k", "B/16", 224, 1000, 79.154),
    ("vit_base_patch16_384.augreg_in1k", "B/16", 384, 1000, 81.102),
    ("vit_base_patch32_224.orig_in21k", "B/32", 224, 0, None),
    ("vit_base_patch16_224.orig_in21k", "B/16", 224, 0, None),
    ("vit_large_patch32_224.orig_in21k", "L/32", 224, 0, None),
    ("vit_large_patch16_224.orig_in21k", "L/16", 224, 0, None),
    ("vit_huge_patch14_224.orig_in21k", "H/14", 224, 0, None),
    ("vit_base_r50_s16_224.orig_in21k", "R50+B/16", 224, 0, None),
    ("vit_base_patch16_224.orig_in21k_ft_in1k", "B/16", 224, 1000, 81.786),
    ("vit_base_patch16_384.orig_in21k_ft_in1k", "B/16", 384, 1000, 84.200),
    ("vit_large_patch32_384.orig_in21k_ft_in1k", "L/32", 384, 1000, 81.510),
    ("vit_base_r50_s16_384.orig_in21k_ft_in1k", "R50+B/16", 384, 1000, 84.976),
    ("vit_base_patch16_224.sam_in1k", "B/16", 224, 1000, 80.244),
    ("vit_base_patch32_224.sam_in1k", "B/32", 224, 1000, 73.694),
)
_DEIT = (  # repository below timm/, name here, variant, resolution, top-1; arXiv:2012.12877
    ("deit_tiny_patch16_224", "deit-imagenet2012", "Ti/16", 224, 72.172),
    ("deit_small_patch16_224", "deit-imagenet2012", "S/16", 224, 79.844),
    ("deit_base_patch16_224", "deit-imagenet2012", "B/16", 224, 81.992),
    ("deit_base_patch16_384", "deit-imagenet2012-384", "B/16", 384, 83.106),
    ("deit_tiny_distilled_patch16_224", "deit-distilled-imagenet2012", "Ti/16", 224, 74.500),
    ("deit_small_distilled_patch16_224", "deit-distilled-imagenet2012", "S/16", 224, 81.218),
    ("deit_base_distilled_patch16_224", "deit-distilled-imagenet2012", "B/16", 224, 83.386),
    ("deit_base_distilled_patch16_384", "deit-distilled-imagenet2012-384", "B/16", 384, 85.426),
)
_GOOGLE = (  # repository below google/, variant, resolution, top-1 of the same weights, its source
    ("vit-base-patch16-224", "B/16", 224, 81.2, "official README"),
    ("vit-base-patch16-384", "B/16", 384, 83.97, "arXiv:2010.11929, table 5"),
    ("vit-base-patch32-384", "B/32", 384, 81.28, "arXiv:2010.11929, table 5"),
    ("vit-large-patch16-224", "L/16", 224, 82.7, "official README"),
    ("vit-large-patch16-384", "L/16", 384, 85.15, "arXiv:2010.11929, table 5"),
    ("vit-large-patch32-384", "L/32", 384, 80.99, "arXiv:2010.11929, table 5"),
    ("vit-base-patch16-224-in21k", "B/16", 224, None, "none reported"),
    ("vit-base-patch32-224-in21k", "B/32", 224, None, "none reported"),
    ("vit-large-patch16-224-in21k", "L/16", 224, None, "none reported"),
    ("vit-large-patch32-224-in21k", "L/32", 224, None, "none reported"),
    ("vit-huge-patch14-224-in21k", "H/14", 224, None, "none reported"),
)


def _on_the_hub(
    name: str, variant: str, repository: str, classes: int, preprocessing: Preprocessing, **known: Any
) -> WeightsRecord:
    """A record whose file is `repository`'s `model.safetensors`; computed with exact GELU, trained without dropout."""
    return make_record(
        name,
        variant,
        f"hf/{repository}/model.safetensors",
        classes,
        preprocessing,
        url=f"https://huggingface.co/{repository}/resolve/main/model.safetensors",
        hf_repo=repository,
        activation="gelu",
        dropout_rate=0.0,
        **known,
    )


def _crop(resolution: int, **statistics: Any) -> Preprocessing:
    return bicubic_crop(resolution, 1.0 if resolution == 384 else 0.9, **statistics)


def _timm_records() -> Iterator[WeightsRecord]:
    for model, variant, resolution, classes, accuracy in _TIMM_MODELS:
        hybrid = VARIANTS[variant].resnet_stages is not None
        yield _on_the_hub(
            f"hf:timm/{model}",
            variant,
            f"timm/{model}",
            classes,
            _crop(resolution),
            accuracy=accuracy,
            accuracy_source=_TIMM if accuracy else "none reported",
            note="timm's ResNet uses other epsilons, so its logits differ a little from these." if hybrid else "",
        )
    for model, name, variant, resolution, accuracy in _DEIT:
        yield _on_the_hub(
            name,
            variant,
            f"timm/{model}.fb_in1k",
            1000,
            _crop(resolution, mean=_IMAGENET_MEAN, std=_IMAGENET_STD),
            accuracy=accuracy,
            accuracy_source=_TIMM,
            distilled="distilled" in name,
        )


def _google_records() -> Iterator[WeightsRecord]:
    for model, variant, resolution, accuracy, source in _GOOGLE:
        pretrained = model.endswith("-in21k")
        yield _on_the_hub(
            f"hf:google/{model}",
            variant,
            f"google/{model}",
            0 if pretrained else 1000,
            squash(resolution, antialias=True),
            accuracy=accuracy,
            accuracy_source=source,
            note="The pooler is the paper's pre_logits; its all-zero head was left out." if pretrained else "",
            layer_norm_epsilon=1e-12,
            representation_size=VARIANTS[variant].hidden_size if pretrained else None,
        )


def hugging_face_records() -> Iterator[WeightsRecord]:
    """Those of timm's copies, then Google's."""
    yield from _timm_records()
    yield from _google_records()
