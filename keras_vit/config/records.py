"""The five records of a `ViTConfig`, each with its own checks: patches, tokens, positions, blocks and pooling."""

import dataclasses
from typing import Annotated, Any, ClassVar

from keras_vit.checks import (
    ArgumentError,
    Count,
    Fraction,
    Number,
    Positive,
    PositiveInt,
    check_int,
    check_number,
    check_positive_int,
    one_of,
    validate,
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
ATTENTIONS = ("global", "axial", "windowed")
LAST_BLOCK_OUTPUTS = ("pooled", "all")
PAPER_VALUES = {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-6}  # of what no weights of a file show
ENCODER_FIELDS = (
    "num_layers",
    "attention",
    "pre_norm",
    "global_blocks",
)  # of `Blocks`, and of the encoder: no single block has them
_MOST_LAYERS = 1000  # of what a file says too: a billion would fill the memory before a layer is built
ADDED_POSITIONS = ("learned", "learned2d", *FIXED_POSITIONS)  # kinds that are a table which is added to tokens

_MEAN, _FIRST = '"gap" is the mean of the patch tokens.', '"token" takes the class token.'
_OTHER_POOLINGS = dict.fromkeys(("avg", "average", "mean", "global_average"), _MEAN)  # what others call them
_OTHER_POOLINGS |= dict.fromkeys(("max", "maximum"), f"There is no maximum; {_MEAN}")
_OTHER_POOLINGS |= dict.fromkeys(("cls", "tok", "first", "class_token"), _FIRST)


def set_field(record: Any, field: str, value: Any) -> None:
    """Gives a frozen record the checked value of a field."""
    object.__setattr__(record, field, value)


def check_epsilon(name: str, value: Any) -> float:
    """`value`; raises unless it is a number above 0 and below 1."""
    if not 0 < check_number(name, value) < 1:
        raise ValueError(
            f"`{name}` is added to a variance, so it must be small and positive.\nReceived: {name}={value}."
        )
    return value


def check_heads(record: Any) -> None:
    """Raises unless every head of a tower has the same width."""
    if record.hidden_size % record.num_heads:
        raise ValueError(
            "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
            f"Received: hidden_size={record.hidden_size}, num_heads={record.num_heads}."
        )


def check_statistics(name: str, statistics: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`statistics` as tuples; raises unless they are a mean and a positive deviation of each channel."""
    pair = [tuple(each) if isinstance(each, (tuple, list)) else () for each in statistics]
    if len(pair) != 2 or not pair[0] or len(pair[0]) != len(pair[1]) or min(pair[1]) <= 0:
        raise ValueError(
            f"`{name}` must be (mean, std), with a number for each channel and deviations above zero.\n"
            f"Received: {name}={statistics!r}."
        )
    return pair[0], pair[1]


def check_patch_padding(padding: int, patch_size: int) -> int:
    """`padding`; raises unless there are as many patches as without it."""
    if 2 * padding >= patch_size:
        raise ValueError(
            "`patch_padding` must be less than half of `patch_size`, so that there are as many patches as without it.\n"
            f"Received: patch_padding={padding}, patch_size={patch_size}."
        )
    return padding


def _check_places(name: str, places: Any) -> tuple[int, ...]:
    if not isinstance(places, (tuple, list)) or not places:
        raise TypeError(f"`{name}` must be None or a tuple of indices, from 0.\nReceived: {name}={places!r}.")
    return tuple(check_int(name, place, 0) for place in places)


def _check_numbers(name: str, numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, (tuple, list)):
        raise TypeError(f"`{name}` must be a tuple of numbers of blocks, from 1.\nReceived: {name}={numbers!r}.")
    return tuple(check_positive_int(name, number) for number in numbers)


def _check_layers(name: str, value: Any) -> int:
    if check_positive_int(name, value) > _MOST_LAYERS:
        raise ArgumentError(f"`{name}` must be at most {_MOST_LAYERS:,}.\nReceived: {name}={value:,}.")
    return int(value)


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


def _check_stages(name: str, stages: Any) -> tuple[int, ...]:
    if not isinstance(stages, (tuple, list)):
        raise TypeError(f"`{name}` must be None or a tuple of block counts.\nReceived: {name}={stages!r}.")
    return tuple(check_positive_int(name, blocks) for blocks in stages)


@dataclasses.dataclass(frozen=True)
class Patches:
    """How an image is cut.

    Args:
        patch_size: P, side of a patch in pixels of what is cut: the image, or the ResNet's feature map.
        patch_bias: whether the patches' projection has a bias; CLIP's has none.
        patch_norm: whether a norm follows that projection, before positions, as in AIMv2.
        patch_padding: zeros around what is cut, less than half a patch, so that the grid stays, and each patch begins
            so many pixels further up and left; 2 in ViTPose (arXiv:2204.12484).
        pixel_statistics: mean and deviation of each channel, by which the model itself normalises pixels of [0, 1], as
            C-RADIO does (arXiv:2412.07679); `None` for images that are prepared.
        resnet_stages: blocks in each ResNet stage of a hybrid, `()` for its root alone, `None` for no ResNet.
        resnet_width_factor: 1.0 is a root of 64 channels.
    """

    patch_size: PositiveInt
    patch_bias: bool = True
    patch_norm: bool = False
    patch_padding: Count = 0
    pixel_statistics: Annotated[tuple[tuple[float, ...], tuple[float, ...]], check_statistics] | None = None
    resnet_stages: Annotated[tuple[int, ...], _check_stages] | None = None
    resnet_width_factor: Number = 1.0

    def __post_init__(self) -> None:
        validate(self)
        check_patch_padding(self.patch_padding, self.patch_size)
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
    class_tokens: PositiveInt = 1
    distilled: bool = False
    registers: Count = 0
    patch_dropout_rate: Fraction = 0.0

    def __post_init__(self) -> None:
        validate(self)


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
        position_offset: whether a learned vector is added to all patches alike, where positions are added at the stem:
            in ViTPose (arXiv:2204.12484) the row of a class token that is not there.
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

    position_embedding: Annotated[str, one_of(POSITION_EMBEDDINGS)] = "learned"
    position_injection: Annotated[str, one_of(POSITION_INJECTIONS)] = "stem"
    position_offset: bool = False
    relative_bias: Annotated[str, one_of(RELATIVE_BIASES)] = "none"
    rotary: Annotated[str, one_of(ROTATIONS)] = "none"
    rotary_theta: Positive = 100.0
    rotary_layout: Annotated[str, one_of(ROTARY_LAYOUTS)] = "half"
    rotary_axes: Annotated[str, one_of(ROTARY_AXES)] = "yx"
    rotary_coordinates: Annotated[str, one_of(ROTARY_COORDINATES)] = "unit"
    rotary_offset: Number = 0.0
    rotary_reference: PositiveInt | None = None
    rotary_periods: Annotated[str, one_of(ROTARY_PERIODS)] = "computed"
    rotary_class_angles: bool = False

    def __post_init__(self) -> None:
        validate(self)


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
            each, so without a class token (appendix D.6); or `"windowed"`: patches attend to those of their own window,
            with learned positions of rows and columns and without a class token, as in SAM (arXiv:2304.02643).
        window_size: side of these windows in patches.
        global_blocks: which blocks have no windows then, counted from 1.
        merged_tokens: how many pairs of like patches each block merges into one (ToMe, arXiv:2210.09461), at most half
            of them: less work, and approximately the same answers.
    """

    hidden_size: PositiveInt
    num_layers: Annotated[int, _check_layers]
    num_heads: PositiveInt
    mlp_dim: PositiveInt
    dropout_rate: Fraction = 0.0
    attention_dropout_rate: Fraction = 0.0
    stochastic_depth_rate: Fraction = 0.0
    activation: Annotated[str, one_of(ACTIVATIONS)] = None  # type: ignore[assignment]  # which `__post_init__` resolves
    norm: Annotated[str, one_of(NORMS)] = "layer"
    layer_norm_epsilon: Annotated[float, check_epsilon] = None  # type: ignore[assignment]
    pre_norm: bool = False
    norm_position: Annotated[str, one_of(NORM_POSITIONS)] = "pre"
    qkv_bias: Annotated[str, one_of(QKV_BIASES)] = "all"
    proj_bias: bool = True
    mlp_bias: bool = True
    gated_mlp: bool = False
    qk_norm: Annotated[str, one_of(QK_NORMS)] = "none"
    kv_heads: tuple[int, ...] | None = None
    layer_scale: Annotated[str, one_of(LAYER_SCALES)] = "none"
    layer_scale_init: Number = 1e-5
    attention_norm: bool = False
    mlp_norm: bool = False
    rematerialize: bool = False
    attention: Annotated[str, one_of(ATTENTIONS)] = "global"
    window_size: PositiveInt | None = None
    global_blocks: Annotated[tuple[int, ...], _check_numbers] = ()
    merged_tokens: Count = 0

    def __post_init__(self) -> None:
        set_field(self, "unspecified", tuple(name for name in PAPER_VALUES if getattr(self, name) is None))
        for name in self.unspecified:
            set_field(self, name, PAPER_VALUES[name])
        validate(self)
        check_heads(self)
        set_field(self, "kv_heads", _check_kv_heads(self.kv_heads, self.num_heads, self.num_layers))
        is_windowed = self.attention == "windowed"
        if is_windowed != (self.window_size is not None) or (self.global_blocks and not is_windowed):
            raise ValueError(
                '`attention="windowed"` goes with a `window_size`, and `global_blocks` with both.\n'
                f"Received: attention={self.attention!r}, window_size={self.window_size}, "
                f"global_blocks={self.global_blocks}."
            )
        if max(self.global_blocks, default=0) > self.num_layers:
            raise ValueError(
                "`global_blocks` must be numbers of blocks, from 1.\n"
                f"Received: global_blocks={self.global_blocks}, num_layers={self.num_layers}."
            )

    unspecified: ClassVar[tuple[str, ...]] = ()  # fields that a file or record may decide, as nothing was said of them

    @property
    def kind(self) -> str:
        """Which block it is: `"global"`, or one of the ablations' kinds."""
        return "merging" if self.merged_tokens else self.attention

    def parts_of(self, index: int) -> tuple[Part, ...]:
        """The dense kernels of the block of that number, if it attends once."""
        kinds = {name: getattr(self, name) for name in PART_FIELDS} | {"kv_heads": self.kv_heads_of(index)}
        return block_parts(self.hidden_size, self.mlp_dim, **kinds)

    def window_of(self, index: int) -> int | None:
        """`window_size` of the block of that number, from 0; `None` where it attends to all patches."""
        return None if index + 1 in self.global_blocks else self.window_size

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
        neck_size: channels of the map that a neck of convolutions makes of all tokens, as in SAM (arXiv:2304.02643), or
            `None` for no neck.
        normalize_embedding: whether what the head reads is divided by its length, so that logits are cosines times a
            factor.
        last_block_outputs: `"pooled"` computes in the last block only the tokens that the pooling reads (the
            same numbers in less time), `"all"` computes every token.
    """

    pooling: Annotated[str, one_of(POOLINGS, _OTHER_POOLINGS)] = "token"
    class_token_indices: Annotated[tuple[int, ...], _check_places] | None = None
    class_token_reduction: Annotated[str, one_of(CLASS_TOKEN_REDUCTIONS)] = "mean"
    map_heads: PositiveInt | None = None
    map_mlp_dim: PositiveInt | None = None
    pool_prefix_tokens: bool = False
    final_norm: Annotated[str, one_of(FINAL_NORMS)] = "tokens"
    representation_size: PositiveInt | None = None
    projection_size: PositiveInt | None = None
    neck_size: PositiveInt | None = None
    normalize_embedding: bool = False
    last_block_outputs: Annotated[str, one_of(LAST_BLOCK_OUTPUTS)] = "pooled"

    def __post_init__(self) -> None:
        validate(self)
