"""Vision Transformers of arXiv:2010.11929 for Keras 3: the official model, its checkpoints, its numbers."""

from keras_vit import layers
from keras_vit.builders import (
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTL32,
    RViTTi16,
    ViTB8,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTH14,
    ViTL16,
    ViTL32,
    ViTS16,
    ViTS32,
    ViTTi16,
    build,
)
from keras_vit.posembed import resize_pos_embed
from keras_vit.preprocessing import Preprocessing, decode_predictions, preprocess_input
from keras_vit.variants import VARIANTS, ViTConfig
from keras_vit.vit import VisionTransformer, with_input_shape
from keras_vit.weights import CheckpointError, load_checkpoint, save_checkpoint

__version__ = "0.1.0"

__all__ = [
    # the model
    "build",
    "ViTTi16",
    "ViTS16",
    "ViTS32",
    "ViTB8",
    "ViTB16",
    "ViTB32",
    "ViTL16",
    "ViTL32",
    "ViTH14",
    "ViTg14",
    "ViTG14",
    "RViTTi16",
    "R26ViTS32",
    "R26ViTB32",
    "R50ViTB16",
    "R50ViTL32",
    "with_input_shape",
    "VisionTransformer",
    "ViTConfig",
    "VARIANTS",
    "layers",
    # images in, names out
    "preprocess_input",
    "decode_predictions",
    "Preprocessing",
    # weights
    "load_checkpoint",
    "save_checkpoint",
    "resize_pos_embed",
    "CheckpointError",
]
