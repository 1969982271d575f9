"""What a layer declares of its dense kernels: the one place that says what a block is made of.

Layers build their dense layers from it. LoRA, folding at export, layouts over devices, FLOPs and memory read it, and
none of them knows the name of a dense layer by itself.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from keras_vit.checks import check_choice

# role: (target of LoRA, axis that tensor parallelism cuts)
_ROLES: Mapping[str, tuple[str, str]] = {
    "query": ("attention", "outputs"),
    "key": ("attention", "outputs"),
    "value": ("attention", "outputs"),
    "output": ("attention", "inputs"),
    "mlp_in": ("mlp", "outputs"),
    "mlp_gate": ("mlp", "outputs"),
    "mlp_out": ("mlp", "inputs"),
}
# `layer_scale`: {role: path of the LayerScale that follows}
_SCALES: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "attention": {"output": "layer_scale_1"},
    "both": {"output": "layer_scale_1", "mlp_out": "layer_scale_2"},
}
QKV_BIASES: Mapping[str, tuple[str, ...]] = {  # roles that have one
    "all": ("query", "key", "value"),
    "query_value": ("query", "value"),
    "none": (),
}
LAYER_SCALES = tuple(_SCALES)
NORM_POSITIONS = ("pre", "post")
PART_FIELDS: tuple[str, ...] = (
    "layer_scale",
    "gated_mlp",
    "qkv_bias",
    "proj_bias",
    "mlp_bias",
    "attention_norm",
    "mlp_norm",
    "norm_position",
)
PART_FIELDS += ("num_heads", "kv_heads")
GROUPS = tuple(dict.fromkeys(group for group, _ in _ROLES.values()))
INPUT = ".."  # of `Part.norm`: the LayerNorm whose output the layer is called with


@dataclasses.dataclass(frozen=True)
class Part:
    """One dense kernel of a layer.

    Attributes:
        role: `"query"`, `"key"`, `"value"` or `"output"` of attention; `"mlp_in"`, `"mlp_gate"` or `"mlp_out"`.
        path: of the dense layer below the layer that declares it, as `"attention/query"`.
        inputs: rows of the kernel.
        outputs: columns of the kernel.
        norm: path of the LayerNorm that the dense layer reads, `INPUT`, or `None` where it reads something else.
        bias: whether there is one.
        scale: path of the LayerScale that follows, or `None`.
    """

    role: str
    path: str
    inputs: int
    outputs: int
    norm: str | None = None
    bias: bool = True
    scale: str | None = None

    @property
    def group(self) -> str:
        """`"attention"` or `"mlp"`."""
        return _ROLES[self.role][0]

    @property
    def cut(self) -> str:
        """`"outputs"` or `"inputs"`: the axis of the kernel that devices share (arXiv:1909.08053, section 3)."""
        return _ROLES[self.role][1]


def attention_parts(
    hidden_size: int,
    qkv_bias: str = "all",
    proj_bias: bool = True,
    attention_norm: bool = False,
    projects_query: bool = True,
    key_size: int | None = None,
) -> tuple[Part, ...]:
    """Dense kernels of multi-head attention of width D, the last one perhaps after a norm.

    Keys and values have `key_size` columns, fewer than D where several heads share them.
    """
    names = {"query": "query"} if projects_query else {}
    names |= {"key": "key", "value": "value", "output": "out"}
    norms = {"output": "norm"} if attention_norm else {}
    biases = (*QKV_BIASES[qkv_bias], *(("output",) if proj_bias else ()))
    columns = dict.fromkeys(("key", "value"), key_size or hidden_size)
    return tuple(
        Part(role, name, hidden_size, columns.get(role, hidden_size), norms.get(role), role in biases)
        for role, name in names.items()
    )


def mlp_parts(
    hidden_size: int, mlp_dim: int, gated_mlp: bool = False, mlp_norm: bool = False, mlp_bias: bool = True
) -> tuple[Part, ...]:
    """Dense kernels of an MLP of width M on tokens of width D, the last one perhaps after a norm."""
    names = {"mlp_gate": "gate", "mlp_in": "up"} if gated_mlp else {"mlp_in": "dense_1"}
    first = tuple(Part(role, name, hidden_size, mlp_dim, bias=mlp_bias) for role, name in names.items())
    norm = "norm" if mlp_norm else None
    return *first, Part("mlp_out", "down" if gated_mlp else "dense_2", mlp_dim, hidden_size, norm, mlp_bias)


def block_parts(
    hidden_size: int,
    mlp_dim: int,
    layer_scale: str = "none",
    gated_mlp: bool = False,
    qkv_bias: str = "all",
    proj_bias: bool = True,
    mlp_bias: bool = True,
    attention_norm: bool = False,
    mlp_norm: bool = False,
    norm_position: str = "pre",
    num_heads: int = 1,
    kv_heads: int | None = None,
) -> tuple[Part, ...]:
    """Dense kernels of a transformer block: attention and MLP, each after a norm and before its LayerScale.

    A norm after attention or MLP is read by none of them.
    All but the sizes are fields of `Blocks`, and have the names that `PART_FIELDS` lists.
    """
    check_choice("layer_scale", layer_scale, LAYER_SCALES)
    check_choice("norm_position", norm_position, NORM_POSITIONS)
    if norm_position == "post" and layer_scale != "none":
        raise ValueError(
            "a norm at the end of a branch has a factor for each channel already.\n"
            f"Received: norm_position={norm_position!r}, layer_scale={layer_scale!r}."
        )
    key_size = key_size_of(hidden_size, num_heads, kv_heads)
    attention = attention_parts(hidden_size, qkv_bias, proj_bias, attention_norm, key_size=key_size)
    first, second = ("norm_1", "norm_2") if norm_position == "pre" else (None, None)
    attention = below("attention", attention, first)
    parts = attention + below("mlp", mlp_parts(hidden_size, mlp_dim, gated_mlp, mlp_norm, mlp_bias), second)
    scales = _SCALES[layer_scale]
    return tuple(dataclasses.replace(part, scale=scales.get(part.role)) for part in parts)


def key_size_of(hidden_size: int, num_heads: int, kv_heads: int | None) -> int:
    """Columns of the kernels of key and value, for so many of their heads; `None` is as many as of queries."""
    return hidden_size if kv_heads is None else hidden_size // num_heads * kv_heads


def pooling_parts(hidden_size: int, mlp_dim: int, kind: str = "map") -> tuple[Part, ...]:
    """Dense kernels of attention pooling: keys and values read the encoded tokens, and the query reads the probe.

    The `"attentive"` kind takes the probe for the query, has a bias of the output alone, and no MLP.
    """
    bare = {"qkv_bias": "none", "projects_query": False} if kind == "attentive" else {}
    attention = below("attention", attention_parts(hidden_size, **bare))  # type: ignore[arg-type]
    attention = tuple(
        dataclasses.replace(part, norm=INPUT) if part.role in ("key", "value") else part for part in attention
    )
    return attention + (() if bare else below("mlp", mlp_parts(hidden_size, mlp_dim), "norm"))


def below(scope: str, parts: Iterable[Part], norm: str | None = None) -> tuple[Part, ...]:
    """Parts of attention or an MLP as the layer around it declares them.

    Args:
        scope: name of the layer inside.
        parts: that it declares.
        norm: name of the LayerNorm in front of it, which its first dense layers read.
    """
    reads_input = ("query", "key", "value", "mlp_in", "mlp_gate")
    return tuple(
        dataclasses.replace(part, norm=norm) if part.role in reads_input else part for part in inside(scope, parts)
    )


def inside(scope: str, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Parts of a layer inside another one, where it is called `scope`, by their paths below that layer."""
    return tuple(
        dataclasses.replace(part, path=f"{scope}/{part.path}", norm=part.norm and f"{scope}/{part.norm}")
        for part in parts
    )
