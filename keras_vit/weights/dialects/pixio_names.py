"""The layout of Pixio (arXiv:2512.15715) in transformers: several class tokens with positions, pooled as their mean."""

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.dialects.dialect import Dialect
from keras_vit.weights.dialects.renames import TORCH

PIXIO = Dialect(
    "huggingface_pixio",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(
        *(r"embeddings\.patch_embeddings\.projection\.weight", r"embeddings\.cls_token", r"layernorm\.weight"),
        *(r"encoder\.layer\.0\.norm1\.weight", r"encoder\.layer\.0\.intermediate\.dense\.weight"),
    ),
    ignores=(r"embeddings\.mask_token", r"decoder\..*"),  # of masked pre-training
    names={
        ("", ""): {
            "class_token/token": "embeddings.cls_token",
            "position_embedding/table": "embeddings.position_embeddings",
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
            "encoder_norm": "layernorm",
        },
        ("block_{block:02}/", "encoder.layer.{block}."): {
            "norm_1": "norm1",
            **{f"attention/{part}": f"attention.attention.{part}" for part in ("query", "key", "value")},
            "attention/out": "attention.output.dense",
            "norm_2": "norm2",
            "mlp/dense_1": "intermediate.dense",
            "mlp/dense_2": "output.dense",
        },
    },
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic",
    summary="mean",
    preprocessing=Preprocessing(
        image_size=None,
        mean=(0.485, 0.456, 0.406),  # ImageNet's, of values in [0, 1]
        std=(0.229, 0.224, 0.225),
        interpolation="bicubic",
        antialias=True,
    ),
)
