"""The layout of transformers' ViT and DeiT: kernels as torch has them.

Files on the Hugging Face hub have the names of transformers 4, which version 5 still reads and we write. The names of
version 5 in memory (`layers.0.attention.q_proj`) are read too.
"""

from collections.abc import Callable, Collection

from keras_vit.weights.dialects.dialect import Dialect, Folder
from keras_vit.weights.dialects.renames import TORCH, Layers
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.sidecar.folder_json import transformers_files, transformers_opening

_PREFIXES = ("vit.", "deit.", "")  # of all names but those of the heads; none without a head
_PATCHES, _DISTILLATION = "embeddings.patch_embeddings.projection", "embeddings.distillation_token"
_NORMS: Layers = {"norm_1": "layernorm_before", "norm_2": "layernorm_after"}


def _read_names(names: Collection[str]) -> Callable[[str], str]:
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}{_PATCHES}.weight" in names), "")
    return lambda name: name.removeprefix(prefix)


def _written_names(names: Collection[str]) -> Callable[[str], str]:
    """The names of ViT or of DeiT, with their prefix if there is a head."""
    distilled, has_head = _DISTILLATION in names, "classifier.weight" in names
    if has_head and "pooler.dense.weight" in names:
        raise CheckpointError(
            "transformers' classifier has no pre-logits: its pooler, which is the same layer, belongs to models "
            "without a head. Save as official, or build without one of the two."
        )
    prefix = "" if not has_head else "deit." if distilled else "vit."

    def spelled(name: str) -> str:
        if name.startswith("classifier."):
            return f"cls_{name}" if distilled else name
        return name if name.startswith("distillation_classifier.") else prefix + name

    return spelled


HUGGINGFACE = Dialect(
    "huggingface",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(r"(vit\.|deit\.)?embeddings\.patch_embeddings\.projection\.weight",),
    ignores=(r"(vit\.|deit\.)?embeddings\.mask_token", r"decoder\..*"),  # of masked pre-training alone
    names={
        ("", ""): {
            "class_token/token": "embeddings.cls_token",
            "distillation_token/token": _DISTILLATION,
            "position_embedding/table": "embeddings.position_embeddings",
            "patch_embedding/projection": _PATCHES,
            "encoder_norm": "layernorm",
            "pre_logits": "pooler.dense",  # tanh of a dense layer on the class token, in both
            "head": "classifier",
            "head_distillation": "distillation_classifier",
        },
        ("block_{block:02}/", "encoder.layer.{block}."): {
            **_NORMS,
            **{f"attention/{part}": f"attention.attention.{part}" for part in ("query", "key", "value")},
            "attention/out": "attention.output.dense",
            "mlp/dense_1": "intermediate.dense",
            "mlp/dense_2": "output.dense",
        },
    },
    also={
        ("block_{block:02}/", "layers.{block}."): {
            **_NORMS,
            **{f"attention/{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value", "out")},
            "mlp/dense_1": "mlp.fc1",
            "mlp/dense_2": "mlp.fc2",
        },
        ("", ""): {"head": "cls_classifier"},  # of DeiT
    },
    read_names=_read_names,
    written_names=_written_names,
    activation="gelu",
    layer_norm_epsilon=1e-6,  # transformers' default is 1e-12, but DeiT and AugReg files were trained with this
    resize_method="bicubic",
    lacks=("mean pooling", "head on all tokens", "model without positions"),
    folder=Folder(transformers_files, transformers_opening, says_epsilon=True, has_one_side=True),
)
