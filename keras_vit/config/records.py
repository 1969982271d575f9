"""The five records of a `ViTConfig`, each with its own checks: patches, tokens, positions, blocks and pooling."""

import dataclasses
from typing import Any, ClassVar

from keras_vit.checks import (
    check_choice,
    check_flag,
    check_fraction,
    check_int,
    check_number,
    check_positive,
    check_positive_int,
)
from keras_vit.config.parts import LAYER_SCALES, NORM_POSITIONS, PART_FIELDS, QKV_BIASES, Part, block_parts
from keras_vit.renamed import accepts_old_names

POOLINGS = ("token", "gap", "token_gap", "map", "attentive", "none")
ACTIVATIONS = ("gelu_tanh", "gelu", "quick_gelu")
CLASS_TOKEN_REDUCTIONS = ("mean", "concatenated")
NORMS = ("layer", "rms")
QK_NORMS = ("none", "head", "width")
FINAL_NORMS = ("tokens", "pooled", "none")
FIXED_POSITIONS = ("sincos2d", "sincos2d_mae")  # by formulas that differ in their frequencies
POSITION_EMBEDDINGS = ("learned", *FIXED_POSITIONS, "learned2d", "relative", "none")
POSITION_INJECTIONS = ("stem", "blocks", "blocks_shared")
RELATIVE_BIASES = ("none", "blocks", "shared")
ROTATIONS = ("none", "axial", "mixed")
ROTARY_LAYOUTS = ("half", "interleaved")
ROTARY_AXES = ("yx", "xy")
ROTARY_COORDINATES = ("unit", "grid")
ROTARY_PERIODS = ("computed", "stored")
ATTENTIONS = ("global", "axial")
LAST_BLOCK_OUTPUTS = ("pooled", "all")
PAPER_VALUES = {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-6}  # of what no weights of a file show
ENCODER_FIELDS = ("num_layers", "attention", "pre_norm")  # of `Blocks`, and of the encoder: no single block has them
ADDED_POSITIONS = ("learned", "learned2d", *FIXED_POSITIONS)  # kinds that are a table which is added to tokens

_MEAN, _FIRST = '"gap" is the mean of the patch tokens.', '"token" takes the class token.'
_OTHER_POOLINGS = dict.fromkeys(("avg", "average", "mean", "global_average"), _MEAN)  # what others call them
_OTHER_POOLINGS |= dict.fromkeys(("max", "maximum"), f"There is no maximum; {_MEAN}")
_OTHER_POOLINGS |= dict.fromkeys(("cls", "tok", "first", "class_token"), _FIRST)


@dataclasses.dataclass(frozen=True)
class Patches:
    """How an image is cut.

    Args:
        patch_size: P, side of a patch in pixels of what is cut: the image, or the ResNet's feature map.
        patch_bias: whether the patches' projection has a bias; CLIP's has none.
        patch_norm: whether a norm follows that projection, before positions, as in AIMv2.
        pixel_statistics: mean and deviation of each channel, by which the model itself normalises pixels of [0, 1], as
            C-RADIO does (arXiv:2412.07679); `None` for images that are prepared.
        resnet_stages: blocks in each ResNet stage of a hybrid, `()` for its root alone, `None` for no ResNet.
        resnet_width_factor: 1.0 is a root of 64 channels.
    """

    patch_size: int
    patch_bias: bool = True
    patch_norm: bool = False
    pixel_statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    resnet_stages: tuple[int, ...] | None = None
    resnet_width_factor: float = 1.0

    def __post_init__(self) -> None:
        set_field(self, "patch_size", check_positive_int("patch_size", self.patch_size))
        check_flag("patch_bias", self.patch_bias)
        check_flag("patch_norm", self.patch_norm)
        if self.pixel_statistics is not None:
            set_field(self, "pixel_statistics", check_statistics(self.pixel_statistics))
        if self.resnet_stages is not None:
            set_field(self, "resnet_stages", _check_stages(self.resnet_stages))
        check_number("resnet_width_factor", self.resnet_width_factor)
        width = 64 * self.resnet_width_factor
        if self.resnet_stages is not None and not (width >= 32 and width % 32 == 0):
            raise ValueError(
                "the ResNet's GroupNorm has 32 groups, so 64 * `resnet_width_factor` must be a positive "
                f"multiple of 32.\nReceived: resnet_width_factor={self.resnet_width_factor}."
            )

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


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Which tokens there are.

    Args:
        class_token: whether a class token is prepended. `None` means with `"token"` and `"none"`
            pooling, and not with the others.
        class_tokens: how many class tokens there are, if there are any, each with a row of the position table: 8 in
            Pixio (arXiv:2512.15715), one of each teacher in C-RADIO (arXiv:2601.17237).
        distilled: whether a distillation token follows the class token, with a head of its own; the
            logits are the average of both heads (DeiT, arXiv:2012.12877).
        registers: number of tokens without positions between those and the patches, which no head reads
            (arXiv:2309.16588).
        patch_dropout_rate: share of the patch tokens that training leaves out, before the first block, in [0, 1).
    """

    class_token: bool | None = None
    class_tokens: int = 1
    distilled: bool = False
    registers: int = 0
    patch_dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.class_token is not None and not isinstance(self.class_token, bool):
            raise TypeError(f"`class_token` must be True, False or None.\nReceived: class_token={self.class_token!r}.")
        set_field(self, "class_tokens", check_positive_int("class_tokens", self.class_tokens))
        check_flag("distilled", self.distilled)
        set_field(self, "registers", check_int("registers", self.registers, 0))
        check_fraction("patch_dropout_rate", self.patch_dropout_rate)


@dataclasses.dataclass(frozen=True)
class Positions:
    """How the model knows where its patches are.

    Args:
        position_embedding: `"learned"` is a vector for each patch, `"learned2d"` half a vector for each column and
            each row. `"relative"` is by how far apart two patches are in reading order, in every block. All three are
            of appendix D.4. `"sincos2d"` is fixed (arXiv:2205.01580), and so is `"sincos2d_mae"`, with the frequencies
            of MAE and of AIMv2 for native sizes (arXiv:2111.06377, arXiv:2411.14402). `"none"` is no position.
        position_injection: where positions are added: once after the `"stem"`; before each of the `"blocks"`, each
            with its own table; or there with one table, `"blocks_shared"`. Appendix D.4, table 8.
        relative_bias: whether every head adds a learned number to its logits for the offset of two patches, from a
            table of each of the `"blocks"` or from one that is `"shared"` (BEiT, arXiv:2106.08254); `"none"` by
            default. A table of `position_embedding` may be there too.
        rotary: whether every block's attention turns queries and keys of patches by angles for their row and column:
            `"none"`; `"axial"`, half of the angles for each; `"mixed"`, by learned sums of both (arXiv:2403.13298).
            A table of `position_embedding` may be there too.
        rotary_theta: the angles' frequencies are `rotary_theta ** (-4 k / head_dim)`.
        rotary_layout: which channels of a head are a pair: `"half"` j and j + head_dim / 2, as in DINOv3;
            `"interleaved"` 2j and 2j + 1, as in EVA-02.
        rotary_axes: which angles come first, of rows (`"yx"`) or of columns (`"xy"`).
        rotary_coordinates: of row or column i of n: `"unit"` is 2 pi (2 (i + 0.5) / n - 1), as in DINOv3
            (arXiv:2508.10104); `"grid"` is i.
        rotary_offset: added to i on the grid.
        rotary_reference: side r of a reference grid: index i of n becomes i * r / n; `None` for none. EVA-02's is 16.
        rotary_periods: `"computed"` from `rotary_theta`, or `"stored"` as a weight that does not learn: the authors'
            files of DINOv3 have them, rounded to bfloat16.
        rotary_class_angles: whether the class token is turned by learned angles, as in MLCD (arXiv:2407.17331), and not
            by 0.
    """

    position_embedding: str = "learned"
    position_injection: str = "stem"
    relative_bias: str = "none"
    rotary: str = "none"
    rotary_theta: float = 100.0
    rotary_layout: str = "half"
    rotary_axes: str = "yx"
    rotary_coordinates: str = "unit"
    rotary_offset: float = 0.0
    rotary_reference: int | None = None
    rotary_periods: str = "computed"
    rotary_class_angles: bool = False

    def __post_init__(self) -> None:
        check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        check_choice("position_injection", self.position_injection, POSITION_INJECTIONS)
        check_choice("relative_bias", self.relative_bias, RELATIVE_BIASES)
        check_choice("rotary", self.rotary, ROTATIONS)
        check_positive("rotary_theta", self.rotary_theta)
        check_choice("rotary_layout", self.rotary_layout, ROTARY_LAYOUTS)
        check_choice("rotary_axes", self.rotary_axes, ROTARY_AXES)
        check_choice("rotary_coordinates", self.rotary_coordinates, ROTARY_COORDINATES)
        check_number("rotary_offset", self.rotary_offset)
        check_choice("rotary_periods", self.rotary_periods, ROTARY_PERIODS)
        check_flag("rotary_class_angles", self.rotary_class_angles)
        if self.rotary_reference is not None:
            set_field(self, "rotary_reference", check_positive_int("rotary_reference", self.rotary_reference))


@accepts_old_names
@dataclasses.dataclass(frozen=True)
class Blocks:
    """What every transformer block is.

    Args:
        hidden_size: D, size of a token.
        num_layers: number of transformer blocks.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, width of a block's MLP.
        dropout_rate: after the position embedding and every dense layer but q, k, v (appendix B.1), in [0, 1).
        attention_dropout_rate: on the attention weights, in [0, 1).
        stochastic_depth_rate: of the last block; block l of L has l/(L-1) of it, in [0, 1).
        activation: `"gelu_tanh"` as the official weights need it, exact `"gelu"`, or `"quick_gelu"`, which is
            x sigmoid(1.702 x), of OpenAI's CLIP (arXiv:2103.00020). `None` is what a file or record says, else the
            first.
        norm: what every norm of the model is: `"layer"`, or `"rms"` without mean and shift (RMSNorm, arXiv:1910.07467).
        layer_norm_epsilon: of every norm; 1e-6 in the official code and timm, 1e-12 in transformers. `None` is what a
            file or record says, else 1e-6.
        pre_norm: whether a LayerNorm stands before the first block, as in CLIP.
        norm_position: `"pre"`, norms before attention and MLP, or `"post"`, after them, on what is added to the tokens,
            as in EVA-02-CLIP E/14 (arXiv:2303.15389).
        qkv_bias: which of query, key and value have a bias: `"all"`, `"none"`, or `"query_value"`, as in BEiT.
        proj_bias: whether the attention's output has a bias.
        mlp_bias: whether the dense layers of a block's MLP have a bias.
        gated_mlp: whether a block's MLP is silu(gate) * value in place of a GELU (SwiGLU, arXiv:2002.05202), as in
            DINOv2 g/14; `mlp_dim` is the width of each of both.
        qk_norm: whether queries and keys are normed before they are turned or scaled: `"none"`; each `"head"` by
            itself, as in Sapiens2 (arXiv:2604.21681); or over the `"width"`, as in InternViT-6B (arXiv:2312.14238).
        kv_heads: how many heads keys and values have in each block, where groups of queries' heads share them
            (arXiv:2305.13245); an int is of every block, `None` as many as queries have.
        layer_scale: which branches of a block end in a learned factor for each channel (arXiv:2103.17239, section 2):
            `"none"`, `"attention"`, or `"both"`, as in DINOv2 and DeiT III.
        layer_scale_init: first value of those factors.
        attention_norm: whether attention's last dense layer has a LayerNorm in front, as in BEiT-3 and EVA-02-CLIP
            (arXiv:2210.06423, sub-LN).
        mlp_norm: whether the MLP's last dense layer has one, as in these and EVA-02 B and L.
        rematerialize: whether training computes every block again on the way back instead of keeping what is
            inside it. The numbers are the same, it takes about a third more time, and far less memory.
        attention: `"global"`, or `"axial"`: each block attends along rows, then along columns, with an MLP after
            each, so without a class token (appendix D.6).
        merged_tokens: how many pairs of like patches each block merges into one (ToMe, arXiv:2210.09461), at most half
            of them: less work, and approximately the same answers.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    activation: str = None  # type: ignore[assignment]  # which `__post_init__` resolves
    norm: str = "layer"
    layer_norm_epsilon: float = None  # type: ignore[assignment]
    pre_norm: bool = False
    norm_position: str = "pre"
    qkv_bias: str = "all"
    proj_bias: bool = True
    mlp_bias: bool = True
    gated_mlp: bool = False
    qk_norm: str = "none"
    kv_heads: tuple[int, ...] | None = None
    layer_scale: str = "none"
    layer_scale_init: float = 1e-5
    attention_norm: bool = False
    mlp_norm: bool = False
    rematerialize: bool = False
    attention: str = "global"
    merged_tokens: int = 0

    def __post_init__(self) -> None:
        set_field(self, "unspecified", tuple(name for name in PAPER_VALUES if getattr(self, name) is None))
        for name in self.unspecified:
            set_field(self, name, PAPER_VALUES[name])
        for field in ("hidden_size", "num_layers", "num_heads", "mlp_dim"):
            set_field(self, field, check_positive_int(field, getattr(self, field)))
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
                f"Received: hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )
        for field in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
            check_fraction(field, getattr(self, field))
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("attention", self.attention, ATTENTIONS)
        check_flag("pre_norm", self.pre_norm)
        check_choice("norm_position", self.norm_position, NORM_POSITIONS)
        check_choice("qkv_bias", self.qkv_bias, tuple(QKV_BIASES))
        for field in ("proj_bias", "mlp_bias", "gated_mlp"):
            check_flag(field, getattr(self, field))
        check_choice("norm", self.norm, NORMS)
        check_choice("qk_norm", self.qk_norm, QK_NORMS)
        set_field(self, "kv_heads", _check_kv_heads(self.kv_heads, self.num_heads, self.num_layers))
        check_choice("layer_scale", self.layer_scale, LAYER_SCALES)
        check_number("layer_scale_init", self.layer_scale_init)
        check_flag("attention_norm", self.attention_norm)
        check_flag("mlp_norm", self.mlp_norm)
        check_flag("rematerialize", self.rematerialize)
        set_field(self, "merged_tokens", check_int("merged_tokens", self.merged_tokens, 0))
        check_epsilon(self.layer_norm_epsilon)

    unspecified: ClassVar[tuple[str, ...]] = ()  # fields that a file or record may decide, as nothing was said of them

    @property
    def kind(self) -> str:
        """Which block it is: `"global"`, or one of the ablations' kinds."""
        return "merging" if self.merged_tokens else self.attention

    def parts_of(self, index: int) -> tuple[Part, ...]:
        """The dense kernels of the block of that number, if it attends once."""
        kinds = {name: getattr(self, name) for name in PART_FIELDS} | {"kv_heads": self.kv_heads_of(index)}
        return block_parts(self.hidden_size, self.mlp_dim, **kinds)

    def kv_heads_of(self, index: int) -> int | None:
        """`kv_heads` of the block of that number."""
        return None if self.kv_heads is None else self.kv_heads[index]


@accepts_old_names
@dataclasses.dataclass(frozen=True)
class Pooling:
    """What becomes of the encoded tokens.

    Args:
        pooling: `"token"` (the class token), `"gap"` (mean of the patch tokens), `"token_gap"` (both, 2 D
            channels, as of DINOv2's linear evaluation, arXiv:2304.07193), `"map"` (attention pooling,
            arXiv:2106.04560) or `"none"` (all tokens stay).
        class_token_indices: which class tokens `"token"` reads, `None` for all.
        class_token_reduction: of several, their `"mean"`, or one vector with all of them, `"concatenated"`.
        map_heads: heads of `"map"`, `None` for the blocks'; Perception Encoder's have 8 (arXiv:2504.13181).
        map_mlp_dim: width of its MLP, `None` for the blocks'.
        pool_prefix_tokens: whether it reads class tokens and registers too, and not the patches alone.
        final_norm: where the last LayerNorm stands: on the `"tokens"` after the last block, on what was `"pooled"`
            from them (timm's `fc_norm`), or `"none"`.
        representation_size: width of the tanh layer before the head (section 3.1), or `None` for none.
        projection_size: E, width of a linear layer before the head, as of CLIP's embedding, or `None` for none.
        normalize_embedding: whether what the head reads is divided by its length, so that logits are cosines times a
            factor.
        last_block_outputs: `"pooled"` computes in the last block only the tokens that the pooling reads (the
            same numbers in less time), `"all"` computes every token.
    """

    pooling: str = "token"
    class_token_indices: tuple[int, ...] | None = None
    class_token_reduction: str = "mean"
    map_heads: int | None = None
    map_mlp_dim: int | None = None
    pool_prefix_tokens: bool = False
    final_norm: str = "tokens"
    representation_size: int | None = None
    projection_size: int | None = None
    normalize_embedding: bool = False
    last_block_outputs: str = "pooled"

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, POOLINGS, _OTHER_POOLINGS)
        if self.class_token_indices is not None:
            set_field(self, "class_token_indices", _check_places(self.class_token_indices))
        check_choice("class_token_reduction", self.class_token_reduction, CLASS_TOKEN_REDUCTIONS)
        check_choice("final_norm", self.final_norm, FINAL_NORMS)
        check_choice("last_block_outputs", self.last_block_outputs, LAST_BLOCK_OUTPUTS)
        check_flag("normalize_embedding", self.normalize_embedding)
        check_flag("pool_prefix_tokens", self.pool_prefix_tokens)
        for field in ("representation_size", "projection_size", "map_heads", "map_mlp_dim"):
            if (size := getattr(self, field)) is not None:
                set_field(self, field, check_positive_int(field, size))


def set_field(record: Any, field: str, value: Any) -> None:
    """Gives a frozen record the checked value of a field."""
    object.__setattr__(record, field, value)


def check_epsilon(value: Any) -> None:
    """Raises unless `layer_norm_epsilon` is a number above 0 and below 1."""
    check_number("layer_norm_epsilon", value)
    if not 0 < value < 1:
        raise ValueError(
            "`layer_norm_epsilon` is added to a variance, so it must be small and positive.\n"
            f"Received: layer_norm_epsilon={value}."
        )


def check_statistics(statistics: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`pixel_statistics` as tuples; raises unless they are a mean and a positive deviation of each channel."""
    pair = [tuple(each) if isinstance(each, (tuple, list)) else () for each in statistics]
    if len(pair) != 2 or not pair[0] or len(pair[0]) != len(pair[1]) or min(pair[1]) <= 0:
        raise ValueError(
            "`pixel_statistics` must be (mean, std), with a number for each channel and deviations above zero.\n"
            f"Received: pixel_statistics={statistics!r}."
        )
    return pair[0], pair[1]


def _check_places(places: Any) -> tuple[int, ...]:
    if not isinstance(places, (tuple, list)) or not places:
        raise TypeError(
            f"`class_token_indices` must be None or a tuple of indices, from 0.\n"
            f"Received: class_token_indices={places!r}."
        )
    return tuple(check_int("class_token_indices", place, 0) for place in places)


def _check_kv_heads(given: Any, num_heads: int, num_layers: int) -> tuple[int, ...] | None:
    """One number for each block, or `None` where all have as many as queries."""
    if given is None:
        return None
    counts = (given,) * num_layers if isinstance(given, int) else tuple(given)
    counts = tuple(check_positive_int("kv_heads", count) for count in counts)
    if len(counts) != num_layers or any(num_heads % count for count in counts):
        raise ValueError(
            "`kv_heads` must have a number for each block that divides `num_heads`, so that groups are alike.\n"
            f"Received: kv_heads={given!r}, num_heads={num_heads}, num_layers={num_layers}."
        )
    return None if set(counts) == {num_heads} else counts


def _check_stages(stages: Any) -> tuple[int, ...]:
    if not isinstance(stages, (tuple, list)):
        raise TypeError(
            f"`resnet_stages` must be None or a tuple of block counts.\nReceived: resnet_stages={stages!r}."
        )
    return tuple(check_positive_int("resnet_stages", blocks) for blocks in stages)
