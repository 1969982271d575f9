"""The public names, in reading order; `import keras_vit` gives them all."""

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
from keras_vit.distillation import DistillationLoss, Distiller
from keras_vit.posembed import resize_pos_embed
from keras_vit.preprocessing import Preprocessing, decode_predictions, preprocess_input
from keras_vit.variants import VARIANTS, ViTConfig
from keras_vit.vit import VisionTransformer, with_input_shape
from keras_vit.weights.convert import convert_checkpoint
from keras_vit.weights.fetch import DownloadError, OfflineError
from keras_vit.weights.hub import find_weights, list_weights
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.save import save_checkpoint

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
    "list_weights",
    "find_weights",
    "load_checkpoint",
    "save_checkpoint",
    "convert_checkpoint",
    "resize_pos_embed",
    "CheckpointError",
    "DownloadError",
    "OfflineError",
    # training by a teacher
    "Distiller",
    "DistillationLoss",
]
