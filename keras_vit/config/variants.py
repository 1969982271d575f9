"""The architecture of a Vision Transformer as data: `ViTConfig`, and one row per published model.

Sizes are those of arXiv:2010.11929 (table 1), arXiv:2106.10270 (Ti, S, the R26 and R+Ti hybrids)
and arXiv:2106.04560 (g, G), spelled as in the papers. Nothing here imports Keras.
"""

import dataclasses

from keras_vit.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_positive_int,
    check_rate,
    did_you_mean,
)

POOLINGS = ("token", "gap", "map", "none")
ACTIVATIONS = ("gelu_tanh", "gelu")
POSITION_EMBEDDINGS = ("learned", "learned2d", "relative", "sincos2d", "none")
POSITION_INJECTIONS = ("stem", "blocks", "blocks_shared")
ATTENTIONS = ("global", "axial")
LAST_BLOCKS = ("pooled", "all")
DEFAULT_IMAGE_SIZE = 224  # pixels, the resolution of pre-training
DEFAULT_CLASSES = 1000

_POSITIVE = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")
_RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate")
_MEAN, _FIRST = '"gap" is the mean of the patch tokens.', '"token" takes the class token.'
_OTHER_POOLINGS = dict.fromkeys(("avg", "average", "mean", "global_average"), _MEAN)  # what others call them
_OTHER_POOLINGS |= dict.fromkeys(("max", "maximum"), f"There is no maximum; {_MEAN}")
_OTHER_POOLINGS |= dict.fromkeys(("cls", "tok", "first", "class_token"), _FIRST)
_CHOICES = {
    "pooling": POOLINGS,
    "activation": ACTIVATIONS,
    "position_embedding": POSITION_EMBEDDINGS,
    "position_injection": POSITION_INJECTIONS,
    "attention": ATTENTIONS,
    "last_block": LAST_BLOCKS,
}


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Everything that decides the layers of one Vision Transformer, but its image size and classes.

    Args:
        patch_size: P, side of a patch in pixels of what is cut: the image, or the ResNet's feature map.
        hidden_size: D, size of a token.
        num_layers: number of transformer blocks.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, width of a block's MLP.
        pooling: what becomes of the encoded tokens: `"token"` (the class token), `"gap"` (mean of the
            patch tokens), `"map"` (attention pooling, arXiv:2106.04560) or `"none"` (all tokens stay).
        class_token: whether a class token is prepended. `None` means with `"token"` and `"none"`
            pooling, and not with the others.
        representation_size: width of the tanh layer before the head (section 3.1), or `None` for none.
        resnet_stages: blocks in each ResNet stage of a hybrid, `()` for its root alone, `None` for no ResNet.
        resnet_width_factor: 1.0 is a root of 64 channels.
        dropout_rate: after the position embedding and every dense layer but q, k, v (appendix B.1), in [0, 1).
        attention_dropout_rate: on the attention weights, in [0, 1).
        stochastic_depth_rate: of the last block; block l of L has l/(L-1) of it, in [0, 1).
        activation: `"gelu_tanh"` as the official weights need it, or exact `"gelu"`.
        position_embedding: `"learned"` (a vector for each patch), `"learned2d"` (half a vector for each column and
            each row), `"relative"` (in every block, by how far apart two patches are in reading order; all three of
            appendix D.4), fixed `"sincos2d"` (arXiv:2205.01580), or `"none"`.
        last_block: `"pooled"` computes in the last block only the tokens that the pooling reads (the
            same numbers in less time), `"all"` computes every token.
        layer_norm_epsilon: of every LayerNorm; 1e-6 in the official code and timm, 1e-12 in transformers.
        distilled: whether a distillation token follows the class token, with a head of its own; the
            logits are the average of both heads (DeiT, arXiv:2012.12877).
        patch_dropout_rate: share of the patch tokens that training leaves out, before the first block, in [0, 1).
        rematerialize: whether training computes every block again on the way back instead of keeping what is
            inside it: the same numbers, about a third more time, and far less memory.
        position_injection: where positions are added: once behind the `"stem"`, before each of the `"blocks"` with
            tables of their own, or there with one table, `"blocks_shared"` (appendix D.4, table 8).
        attention: `"global"`, or `"axial"`: each block attends along rows, then along columns, with an MLP behind
            each, so without a class token (appendix D.6).
        merged_tokens: how many pairs of like patches each block merges into one (ToMe, arXiv:2210.09461), at most half
            of them: less work, and approximately the same answers.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range, or values that contradict each other.
    """

    patch_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    pooling: str = "token"
    class_token: bool | None = None
    representation_size: int | None = None
    resnet_stages: tuple[int, ...] | None = None
    resnet_width_factor: float = 1.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    activation: str = "gelu_tanh"
    position_embedding: str = "learned"
    last_block: str = "pooled"
    layer_norm_epsilon: float = 1e-6
    distilled: bool = False
    patch_dropout_rate: float = 0.0
    rematerialize: bool = False
    position_injection: str = "stem"
    attention: str = "global"
    merged_tokens: int = 0

    def __post_init__(self):
        for field in _POSITIVE:
            object.__setattr__(self, field, check_positive_int(field, getattr(self, field)))
        if self.representation_size is not None:
            size = check_positive_int("representation_size", self.representation_size)
            object.__setattr__(self, "representation_size", size)
        for field in _RATES:
            check_rate(field, getattr(self, field))
        for field, choices in _CHOICES.items():
            check_choice(field, getattr(self, field), choices, _OTHER_POOLINGS if field == "pooling" else None)
        if self.resnet_stages is not None:
            object.__setattr__(self, "resnet_stages", _check_stages(self.resnet_stages))
        self._check_together()

    def _check_together(self):
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
                f"Received: hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )
        if self.class_token is not None and not isinstance(self.class_token, bool):
            raise TypeError(f"`class_token` must be True, False or None.\nReceived: class_token={self.class_token!r}.")
        if self.pooling == "token" and self.class_token is False:
            raise ValueError(
                '`pooling="token"` reads the class token, so there must be one.\n'
                'Received: class_token=False. Pass `pooling="gap"`, or leave `class_token` out.'
            )
        self._check_positions()
        self._check_axial()
        self._check_merging()
        self._check_distilled()
        check_flag("rematerialize", self.rematerialize)
        check_number("layer_norm_epsilon", self.layer_norm_epsilon)
        if not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(
                "`layer_norm_epsilon` is added to a variance, so it must be small and positive.\n"
                f"Received: layer_norm_epsilon={self.layer_norm_epsilon}."
            )
        check_number("resnet_width_factor", self.resnet_width_factor)
        width = 64 * self.resnet_width_factor
        if self.resnet_stages is not None and not (width >= 32 and width % 32 == 0):
            raise ValueError(
                "the ResNet's GroupNorm has 32 groups, so 64 * `resnet_width_factor` must be a positive "
                f"multiple of 32.\nReceived: resnet_width_factor={self.resnet_width_factor}."
            )

    def _check_positions(self):
        kind, injection = self.position_embedding, self.position_injection
        if kind == "sincos2d" and self.hidden_size % 4:
            raise ValueError(
                '`position_embedding="sincos2d"` fills a token with sine and cosine of two coordinates, '
                f"so `hidden_size` must be a multiple of 4.\nReceived: hidden_size={self.hidden_size}."
            )
        if kind == "learned2d" and self.hidden_size % 2:
            raise ValueError(
                '`position_embedding="learned2d"` gives half of a token to the column and half to the row, '
                f"so `hidden_size` must be even.\nReceived: hidden_size={self.hidden_size}."
            )
        if injection != "stem" and kind in ("relative", "none"):
            raise ValueError(
                "`position_injection` says where a position table is added to tokens, and there is none: relative "
                "positions are inside of every block's attention.\n"
                f"Received: position_embedding={kind!r}, position_injection={injection!r}. "
                "Leave `position_injection` out."
            )
        if self.patch_dropout_rate and (kind == "relative" or injection != "stem"):
            raise ValueError(
                "behind `patch_dropout_rate` no block knows the places of the patches that stay, so their positions "
                f"must be added before.\nReceived: patch_dropout_rate={self.patch_dropout_rate}, "
                f"position_embedding={kind!r}, position_injection={injection!r}."
            )

    def _check_merging(self):
        object.__setattr__(self, "merged_tokens", check_int("merged_tokens", self.merged_tokens, 0))
        others = {
            "pooling": ("token", "gap"),
            "attention": ("global",),
            "position_embedding": ("learned", "learned2d", "sincos2d", "none"),
            "position_injection": ("stem",),
            "patch_dropout_rate": (0,),
            "rematerialize": (False,),
        }
        wrong = [f"{name}={getattr(self, name)!r}" for name, fit in others.items() if getattr(self, name) not in fit]
        if self.merged_tokens and wrong:
            raise ValueError(
                "tokens are merged between blocks that attend to all, whose places no block asks for, and behind which "
                "the class token or the mean is read.\n"
                f"Received: merged_tokens={self.merged_tokens} with {', '.join(wrong)}."
            )

    def _check_axial(self):
        if self.attention == "global":
            return
        if self.has_class_token or self.distilled:
            raise ValueError(
                '`attention="axial"` attends along rows and columns of patches, in none of which a class token is.\n'
                f"Received: pooling={self.pooling!r}, class_token={self.class_token}, distilled={self.distilled}. "
                'Pass `pooling="gap"`, or `"map"`, or `"none"` with `class_token=False`.'
            )
        if self.position_embedding == "relative" or self.patch_dropout_rate:
            raise ValueError(
                '`attention="axial"` needs all patches in their grid, and their positions before the blocks.\n'
                f"Received: position_embedding={self.position_embedding!r}, "
                f"patch_dropout_rate={self.patch_dropout_rate}."
            )

    def _check_distilled(self):
        check_flag("distilled", self.distilled)
        if not self.distilled:
            return
        if self.pooling not in ("token", "none") or self.class_token is False or self.representation_size is not None:
            raise ValueError(
                "`distilled=True` reads a class token and a distillation token, each with a head of its own, so "
                '`pooling` must be "token" or "none", without `representation_size`.\n'
                f"Received: pooling={self.pooling!r}, class_token={self.class_token}, "
                f"representation_size={self.representation_size}."
            )

    @property
    def has_class_token(self) -> bool:
        """Whether a class token is prepended."""
        return self.pooling in ("token", "none") if self.class_token is None else self.class_token

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches: the class token and the distillation token, where there are such."""
        return int(self.has_class_token) + int(self.distilled)

    @property
    def resnet_width(self) -> int:
        """Channels of the ResNet's root."""
        return int(64 * self.resnet_width_factor)

    @property
    def stride(self) -> int:
        """Side in image pixels of what one patch token covers, so the unit of the input's height and width."""
        if self.resnet_stages is None:
            return self.patch_size
        # The root's convolution and pooling halve once each, every stage after the first halves again.
        return self.patch_size * 4 * 2 ** max(len(self.resnet_stages) - 1, 0)

    @property
    def side_unit(self) -> int:
        """Pixels of which an image's height and width are multiples, so that patches tile it."""
        return self.stride

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """`(h, w)`: patches on each side of an image of `height` x `width` pixels."""
        return height // self.stride, width // self.stride


def _check_stages(stages):
    if not isinstance(stages, (tuple, list)):
        raise TypeError(
            f"`resnet_stages` must be None or a tuple of block counts.\nReceived: resnet_stages={stages!r}."
        )
    return tuple(check_positive_int("resnet_stages", blocks) for blocks in stages)


#                    P   D     L   A   M
VARIANTS = {
    "Ti/16": ViTConfig(16, 192, 12, 3, 768),
    "S/16": ViTConfig(16, 384, 12, 6, 1536),
    "S/32": ViTConfig(32, 384, 12, 6, 1536),
    "B/8": ViTConfig(8, 768, 12, 12, 3072),
    "B/16": ViTConfig(16, 768, 12, 12, 3072),
    "B/32": ViTConfig(32, 768, 12, 12, 3072),
    "L/16": ViTConfig(16, 1024, 24, 16, 4096, dropout_rate=0.1),
    "L/32": ViTConfig(32, 1024, 24, 16, 4096),
    "H/14": ViTConfig(14, 1280, 32, 16, 5120, dropout_rate=0.1),
    "g/14": ViTConfig(14, 1408, 40, 16, 6144),
    "G/14": ViTConfig(14, 1664, 48, 16, 8192),
    # Called /16 in arXiv:2106.10270, but its tokens cover 32 pixels: 4 of the root times 8 of the patch.
    "R+Ti/16": ViTConfig(8, 192, 12, 3, 768, resnet_stages=()),
    "R26+S/32": ViTConfig(1, 384, 12, 6, 1536, resnet_stages=(2, 2, 2, 2)),
    "R26+B/32": ViTConfig(1, 768, 12, 12, 3072, resnet_stages=(2, 2, 2, 2)),
    "R50+B/16": ViTConfig(1, 768, 12, 12, 3072, resnet_stages=(3, 4, 9), dropout_rate=0.1),
    "R50+L/32": ViTConfig(1, 1024, 24, 16, 4096, resnet_stages=(3, 4, 6, 3), dropout_rate=0.1),
}


def variant(name: str) -> ViTConfig:
    """The `ViTConfig` of a published model.

    Args:
        name: a key of `VARIANTS`, as `"B/16"` or `"R50+L/32"`.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
    """
    if name not in VARIANTS:
        raise ValueError(
            f"`name` must be one of {', '.join(VARIANTS)}.\nReceived: {name!r}.{did_you_mean(name, VARIANTS)}"
        )
    return VARIANTS[name]


def builder_name(name: str) -> str:
    """The builder function of a variant: `"ViTB16"` for `"B/16"`, `"R50ViTL32"` for `"R50+L/32"`."""
    hybrid, _, size = name.rpartition("+")
    return f"{hybrid}ViT{size.replace('/', '')}"


BUILDERS = {builder_name(name): name for name in VARIANTS}  # builder: variant


def check_image_size(size, config) -> tuple:
    """`size`, a side or (H, W), as (H, W) of ints; raises unless the sides are unknown or tiled by the patches."""
    given = size if isinstance(size, (tuple, list)) else (size, size)
    if len(given) != 2:
        raise ValueError(f"`image_size` must be one side, or (H, W).\nReceived: image_size={size!r}.")
    sides = [side if side is None else check_positive_int("image_size", side) for side in given]
    check_tiled("image_size", size, sides, config)
    return tuple(sides)


def check_tiled(name, given, sides, config, channels=()):
    """Raises unless the sides of `given`, argument `name`, are unknown or tiled by the config's patches."""
    step = config.side_unit
    if not any(side is not None and side % step for side in sides):
        return
    nearest = (*(side and max(round(side / step), 1) * step for side in sides), *channels)
    unit = f"patch_size={config.patch_size}"
    if step != config.patch_size:
        unit += f" behind a ResNet, {step} pixels in all"
    raise ValueError(
        f"`{name}` must be a multiple of `patch_size` on both sides, so that patches tile the image.\n"
        f"Received: {name}={given}, {unit}. Nearest: {nearest if isinstance(given, (tuple, list)) else nearest[0]}."
    )
