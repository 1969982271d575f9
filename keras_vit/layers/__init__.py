"""The layers from image to logits. They are written with `keras.ops` and `keras_vit.kernels`.

Axes, here and everywhere: `B` batch, `H W` image height and width in pixels, `C` channels, `P` patch
side, `h w` patch grid, `N = h*w` patches, `T` tokens in the encoder, `D` token width, `A` heads,
`M` MLP width, `K` classes. Height comes before width.
"""

from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.dense_heads.boxes import BoxHead, OpenBoxHead
from keras_vit.layers.dense_heads.convolutions import ConvBatchNormReLU, FCNHead
from keras_vit.layers.dense_heads.dpt import DepthOutput, DPTHead, Fusion, ResidualUnit
from keras_vit.layers.dense_heads.keypoints import KeypointHead
from keras_vit.layers.dense_heads.linear import DepthFromBins, LinearHead
from keras_vit.layers.dense_heads.maps import PadToMultiple, ResizeToImages, TapMaps
from keras_vit.layers.dense_heads.masks import MaskHead, MaskScores, QueryTokens
from keras_vit.layers.dense_heads.segmenter import MaskTransformerHead
from keras_vit.layers.dense_heads.setr import SETRHead
from keras_vit.layers.dense_heads.upernet import TapPyramid, UPerNetHead
from keras_vit.layers.encoder import TransformerBlock
from keras_vit.layers.kinds.axial import AxialBlock
from keras_vit.layers.kinds.dino_head import DINOHead, PrototypeLogits
from keras_vit.layers.kinds.naflex_embedding import PatchColumn, PatchMask, ZeroPadding
from keras_vit.layers.kinds.token_merging import MergingBlock
from keras_vit.layers.kinds.windowed import AxisPositions, Neck, WindowedBlock
from keras_vit.layers.mlp import GatedMlpBlock, MlpBlock
from keras_vit.layers.norms import LayerScale, RMSNorm
from keras_vit.layers.patches import PatchEmbedding, PixelNormalization
from keras_vit.layers.pooling import AttentionPooling, TokenPooling
from keras_vit.layers.positions import AddPositionEmbs, PositionOffset, RelativeBias, RelativePositions
from keras_vit.layers.resnet import BiTRoot, BiTUnit, ResNetRoot, ResNetUnit, StdConv2D
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.text import TextMask, TextPooling, TextPositions, TokenEmbedding
from keras_vit.layers.tokens import ClassToken, PatchCorruption, PatchDropout, RegisterTokens

BLOCKS: dict[str, type[TransformerBlock] | type[AxialBlock]] = {
    "global": TransformerBlock,
    "axial": AxialBlock,
    "merging": MergingBlock,
    "windowed": WindowedBlock,
}  # by `ViTConfig.blocks.kind`

__all__ = [
    "StdConv2D",
    "ResNetRoot",
    "ResNetUnit",
    "BiTRoot",
    "BiTUnit",
    "PatchEmbedding",
    "PixelNormalization",
    "PatchCorruption",
    "ClassToken",
    "RegisterTokens",
    "AddPositionEmbs",
    "PositionOffset",
    "PatchDropout",
    "RelativePositions",
    "RelativeBias",
    "RotaryPositions",
    "MultiHeadAttention",
    "RMSNorm",
    "LayerScale",
    "MlpBlock",
    "GatedMlpBlock",
    "TransformerBlock",
    "AxialBlock",
    "MergingBlock",
    "WindowedBlock",
    "AxisPositions",
    "Neck",
    "TokenPooling",
    "AttentionPooling",
    "DINOHead",
    "PrototypeLogits",
    "PatchColumn",
    "PatchMask",
    "ZeroPadding",
    "PadToMultiple",
    "TapMaps",
    "LinearHead",
    "DepthFromBins",
    "DPTHead",
    "Fusion",
    "ResidualUnit",
    "DepthOutput",
    "UPerNetHead",
    "TapPyramid",
    "ConvBatchNormReLU",
    "FCNHead",
    "MaskTransformerHead",
    "SETRHead",
    "QueryTokens",
    "MaskHead",
    "MaskScores",
    "BoxHead",
    "OpenBoxHead",
    "KeypointHead",
    "ResizeToImages",
    "TokenEmbedding",
    "TextPositions",
    "TextMask",
    "TextPooling",
]
