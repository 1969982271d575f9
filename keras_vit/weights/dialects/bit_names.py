"""The layouts of BiT's ResNet baselines in `.npz` files: the published one, and big_vision's.

Published names are TensorFlow's below `resnet/`; some files number the convolutions, as `standardized_conv2d_7`. Both
keep kernels as they are here, but for the published head, a 1x1 convolution.
"""

import dataclasses
import re
from collections.abc import Callable, Collection

from keras_vit.weights.dialects.dialect import Dialect
from keras_vit.weights.dialects.official_names import PREFIXES
from keras_vit.weights.dialects.renames import FLAX, Style, UnitAxes, with_units

_NUMBER = re.compile(r"(^|/)(standardized_conv2d|group_norm|conv2d)_\d+/")
_UNITS = ("resnet_stage_{stage}_unit_{unit}/", "block{stage}/unit{unit:02}/")
_CONV, _PARTS = "standardized_conv2d", {"1": "a", "2": "b", "3": "c"}
_KERAS = Style("/", {leaf: leaf for leaf in ("gamma", "beta", "kernel", "bias")}, {"head/kernel": UnitAxes(2, 2)})


def _without_numbers(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: _NUMBER.sub(r"\1\2/", name)


BIT = Dialect(
    "bit",
    "BiT's code",
    ".npz",
    with_units(_KERAS, written=False),
    requires=(r"root_block/standardized_conv2d(_\d+)?/kernel",),
    names={
        ("", ""): {"resnet_root/conv": f"root_block/{_CONV}", "resnet_norm": "group_norm", "head": "head/conv2d"},
        _UNITS: {
            "conv_proj": f"a/proj/{_CONV}",
            **{f"conv_{number}": f"{letter}/{_CONV}" for number, letter in _PARTS.items()},
            **{f"norm_{number}": f"{letter}/group_norm" for number, letter in _PARTS.items()},
        },
    },
    prefixes=(*(f"{prefix}resnet/" for prefix in PREFIXES), *PREFIXES),
    prefix="resnet/",
    read_names=_without_numbers,
)
BIT_PAPER = dataclasses.replace(
    BIT,
    name="bit_paper",
    software="big_vision",
    style=with_units(FLAX),
    requires=("root_block/conv_root/kernel",),
    names={
        ("", ""): {"resnet_root/conv": "root_block/conv_root", "resnet_norm": "norm-pre-head", "head": "head"},
        _UNITS: {
            "conv_proj": "conv_proj",
            **{f"conv_{number}": f"conv{number}" for number in _PARTS},
            **{f"norm_{number}": f"gn{number}" for number in _PARTS},
        },
    },
    prefix="",
    void_is_bfloat16=True,
)
