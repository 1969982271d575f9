"""The operators of our ONNX graphs, and those of `torch_patterns`, as functions of torch's tensors.

Attributes are keyword arguments under ONNX's names. What the table lacks is refused, and so is what a function lacks.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

# By operator, which inputs say where or how large, and come as numbers.
NUMBERS = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "ReduceMean": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
_NONE = (0, 0, 0, 0)  # pixels of padding
_TANH_SLOPE, _CUBIC = math.sqrt(2 / math.pi), 0.044715


@functools.cache
def operators() -> dict[str, Callable[..., Any]]:
    """The functions by the names of operators; tensors come in the order of ONNX's inputs."""
    import torch

    return {
        **_elementwise(torch),
        **_shapes(torch),
        **_choices(torch),
        **_moments(torch),
        **_layers(torch),
        **_images(torch),
    }


def _elementwise(torch):
    def divide(x, y):
        return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")

    return {
        "Abs": torch.abs,
        "Add": torch.add,
        "Cos": torch.cos,
        "Div": divide,
        "Erf": torch.erf,
        "Less": torch.lt,
        "LessOrEqual": torch.le,
        "Log": torch.log,
        "Max": lambda *tensors: functools.reduce(torch.maximum, tensors),
        "Mul": torch.mul,
        "Neg": torch.neg,
        "Not": torch.logical_not,
        "Pow": torch.pow,
        "Reciprocal": torch.reciprocal,
        "Relu": torch.relu,
        "Sigmoid": torch.sigmoid,
        "Sin": torch.sin,
        "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
        "Sqrt": torch.sqrt,
        "Sub": torch.sub,
        "Tanh": torch.tanh,
    }


def _shapes(torch):
    def reshape(x, shape):
        return x.reshape([known or x.shape[axis] for axis, known in enumerate(shape)])  # 0 for as it is

    def slice_(x, starts, ends, axes=None, steps=None):
        places = [slice(None)] * x.ndim
        axes = range(len(starts)) if axes is None else axes
        for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
            places[axis] = slice(start, end, step)
        return x[tuple(places)]

    def pad(x, pads, value=0.0):
        first, last = pads[: x.ndim], pads[x.ndim :]
        sides = [side for axis in reversed(range(x.ndim)) for side in (first[axis], last[axis])]
        return torch.nn.functional.pad(x, sides, value=float(value))

    def unsqueeze(x, axes):
        rank = x.ndim + len(axes)
        for axis in sorted(axis % rank for axis in axes):
            x = x.unsqueeze(axis)
        return x

    return {
        "Concat": lambda *tensors, axis: torch.cat(tensors, axis),
        "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape))),
        "Pad": pad,
        "Reshape": reshape,
        "Shape": lambda x: torch.tensor(x.shape),
        "Slice": slice_,
        "Squeeze": lambda x, axes: x.squeeze(tuple(axes)),
        "Transpose": lambda x, perm: x.permute(perm),
        "Unsqueeze": unsqueeze,
    }


def _choices(torch):
    def gather(x, places, axis=0):
        places = places.long() % x.shape[axis]
        return x.index_select(axis, places.flatten()).reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])

    def gather_nd(x, places, batch_dims=0):
        if batch_dims != 1:
            raise NotImplementedError(f"batch_dims={batch_dims}")
        rows = torch.arange(len(x), device=x.device).reshape(-1, *[1] * (places.ndim - 2))
        return x[(rows, *places.long().unbind(-1))]

    def one_hot(places, depth, values, axis=-1):
        kinds = torch.arange(depth if isinstance(depth, int) else depth[0], device=places.device)
        hot = places.unsqueeze(axis).long() % len(kinds)
        kinds = kinds.reshape(-1, *[1] * (hot.ndim - 1 - axis % hot.ndim))
        return torch.where(hot == kinds, values[1], values[0])

    def top(x, count, axis=-1, largest=1, sorted=1):
        return torch.topk(x, count[0], axis, bool(largest), bool(sorted))

    return {
        "ConstantOfShape": lambda shape, value: value.expand(shape),
        "Gather": gather,
        "GatherND": gather_nd,
        "OneHot": one_hot,
        "Range": lambda start, limit, delta: torch.arange(start, limit, delta),
        "TopK": top,
    }


def _moments(torch):
    functional = torch.nn.functional

    def group_norm(x, gain, shift, groups, epsilon):
        x = x.permute(0, 3, 1, 2)  # (B, C, H, W)
        return functional.group_norm(x, groups, gain.reshape(-1), shift.reshape(-1), epsilon).permute(0, 2, 3, 1)

    def layer_norm(x, gain, shift=None, axis=-1, epsilon=1e-5):
        if axis not in (-1, x.ndim - 1):
            raise NotImplementedError(f"axis={axis}")
        return functional.layer_norm(x, gain.shape, gain, shift, epsilon)

    def reduced(function):
        def reduce(x, axes, keepdims=1, noop_with_empty_axes=0):
            return function(x, axes, keepdim=bool(keepdims))

        return reduce

    return {
        "GroupNorm": group_norm,
        "LayerNormalization": layer_norm,
        "ReduceMean": reduced(torch.mean),
        "ReduceSum": reduced(torch.sum),
    }


def _layers(torch):
    functional = torch.nn.functional

    def attention(query, key, value):
        if query.dtype == torch.float32 or query.is_cuda:
            return functional.scaled_dot_product_attention(query, key.transpose(-1, -2), value, scale=1.0)
        return torch.softmax(query @ key, -1) @ value  # on a CPU .6 of its time in bfloat16, for 197 tokens

    def gelu(x, approximate):
        if approximate != b"tanh" or x.is_cuda or x.dtype != torch.float32:
            return functional.gelu(x, approximate=approximate.decode())
        # The same as a sigmoid, (1 + tanh(y)) / 2 = sigmoid(2 y), in half the time of torch's tanh on a CPU.
        share = x * x
        return share.mul_(2 * _TANH_SLOPE * _CUBIC).add_(2 * _TANH_SLOPE).mul_(x).sigmoid_().mul_(x)

    def product(x, y, alpha=1.0, beta=1.0, transA=0, transB=0):  # noqa: N803, the names of ONNX
        return alpha * ((x.T if transA else x) @ (y.T if transB else y))

    return {
        "Attention": attention,
        "Gelu": gelu,
        "Gemm": product,
        "Linear": lambda x, kernel, bias=None: functional.linear(x, kernel, bias),
        "MatMul": torch.matmul,
    }


def _images(torch):
    functional = torch.nn.functional

    def convolution(
        x,
        kernel,
        bias=None,
        kernel_shape=None,
        strides=(1, 1),
        dilations=(1, 1),
        group=1,
        pads=_NONE,
        auto_pad=b"NOTSET",
    ):
        sides = kernel.shape[2:]
        left, right, top, bottom = pads = _pads(x, sides, strides, dilations, pads, auto_pad)
        if tuple(strides) == tuple(sides) and group == 1 and not any(pads):
            return _patches(functional, x, kernel, bias)
        both = (min(top, bottom), min(left, right))  # which a convolution adds without a copy
        if left != right or top != bottom:
            x, both = functional.pad(x, pads), (0, 0)
        return functional.conv2d(x, kernel, bias, strides, both, dilations, group)

    def max_pool(x, kernel_shape, strides=(1, 1), pads=_NONE, auto_pad=b"NOTSET"):
        pads = _pads(x, kernel_shape, strides, (1, 1), pads, auto_pad)
        x = functional.pad(x, pads, value=-math.inf) if any(pads) else x
        return functional.max_pool2d(x, kernel_shape, strides)

    return {"Conv": convolution, "MaxPool": max_pool}


def _pads(x, sides, strides, dilations, pads, auto_pad):
    """Left, right, top and bottom, as torch wants them."""
    if auto_pad == b"SAME_UPPER":
        pairs = []
        for length, side, stride, dilation in zip(x.shape[2:], sides, strides, dilations, strict=True):
            missing = max((-(-length // stride) - 1) * stride + dilation * (side - 1) + 1 - length, 0)
            pairs.append((missing // 2, missing - missing // 2))
        (top, bottom), (left, right) = pairs
        return left, right, top, bottom
    if auto_pad not in (b"NOTSET", b"VALID"):
        raise NotImplementedError(f"auto_pad={auto_pad.decode()}")
    top, left, bottom, right = pads
    return left, right, top, bottom


def _patches(functional, x, kernel, bias):
    """A convolution whose stride is its kernel's side, as one product of patches; channels last, nothing is copied."""
    height, width = kernel.shape[2:]
    rows, columns = x.shape[2] // height, x.shape[3] // width
    x = x[:, :, : rows * height, : columns * width].permute(0, 2, 3, 1)  # (B, H, W, C)
    x = x.reshape(len(x), rows, height, columns, width, -1).transpose(2, 3).reshape(len(x), rows, columns, -1)
    return functional.linear(x, kernel.permute(0, 2, 3, 1).reshape(len(kernel), -1), bias).permute(0, 3, 1, 2)
