"""The head of Dense Prediction Transformers in NumPy, written from the papers, with mistakes that are easy to make."""

import math

import numpy as np

from keras_vit import dense

MISTAKES = (
    "half",  # pixels' corners in place where their centres should be, in what follows a fusion
    "half in the end",
    "padded on one side",  # the convolution of stride 2, as Keras' "same"
    "resized to the skip",
    "first unit used",
    "tanh",  # GELU of the read-out
    "class before patch",
    "doubled",  # each fusion, where Depth Anything ends at the next map's size
    "no read-out",
    "epsilon",  # Keras', of BatchNorm
    "shallow first",  # the fusions in the order of taps
)


def convolution(x, kernel, bias=0.0, stride=1, pads=None):
    """`(B, h, w, C)` with a kernel `(k, k, C, F)`, padded to (k - 1) / 2 on each side."""
    side = (kernel.shape[0] - 1) // 2
    x = np.pad(x, ((0, 0), *(pads or ((side, side), (side, side))), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("bhwcij,ijcf->bhwf", views, kernel, optimize=True) + bias


def deconvolution(x, kernel, bias):
    """With a kernel `(k, k, F, C)` and a stride of k."""
    found = np.einsum("bhwc,ijfc->bhiwjf", x, kernel, optimize=True)
    batch, h, i, w, j, size = found.shape
    return found.reshape(batch, h * i, w * j, size) + bias


def gelu(x, tanh=False):
    if tanh:
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def relu(x):
    return np.maximum(x, 0)


class Head:
    """The head of weights by path, as `fuse_0/out/kernel`.

    Args:
        weights: float arrays.
        layer: the `DPTHead` whose switches it has.
        mistake: one of `MISTAKES`, or `""`.
    """

    def __init__(self, weights, layer, mistake=""):
        self.w = {path: np.asarray(array, "float64") for path, array in weights.items()}
        self.layer, self.mistake = layer, mistake

    def conv(self, name, x, **arguments):
        return convolution(x, self.w[f"{name}/kernel"], self.w.get(f"{name}/bias", 0.0), **arguments)

    def norm(self, name, x):
        if f"{name}/gamma" not in self.w:
            return x
        gamma, beta, mean, variance = (self.w[f"{name}/{part}"] for part in _PARTS)
        return (x - mean) / np.sqrt(variance + (1e-3 if self.mistake == "epsilon" else 1e-5)) * gamma + beta

    def unit(self, name, x):
        found = x
        for number in (1, 2):
            found = self.norm(f"{name}/batch_norm_{number}", self.conv(f"{name}/filter_{number}", relu(found)))
        return x + found

    def level(self, number, tap, token):
        x = tap
        if self.layer.readout and self.mistake != "no read-out":
            broadcast = np.broadcast_to(token[:, None, None], tap.shape)
            both = (broadcast, tap) if self.mistake == "class before patch" else (tap, broadcast)
            x = np.concatenate(both, -1) @ self.w[f"readout_{number}/kernel"] + self.w[f"readout_{number}/bias"]
            x = gelu(x, self.mistake == "tanh")
        x = self.conv(f"project_{number}", self.norm(f"batch_norm_tap_{number}", x))
        if number == 3:
            pads = ((0, 1), (0, 1)) if self.mistake == "padded on one side" else None
            x = self.conv("resize_3", x, stride=2, pads=pads)
        elif number < 2:
            x = deconvolution(x, self.w[f"resize_{number}/kernel"], self.w[f"resize_{number}/bias"])
        return self.conv(f"conv_level_{number}", x)

    def fused(self, maps):
        x = None
        order = (0, 1, 2, 3) if self.mistake == "shallow first" else (3, 2, 1, 0)
        for number, place in enumerate(order):
            skip, name = maps[place], f"fuse_{number}"
            if x is not None and self.mistake == "resized to the skip":
                x = dense.resize(x, skip.shape[1:3])
            if x is not None:
                x = x + self.unit(f"{name}/unit_1", dense.resize(skip, x.shape[1:3]))
            elif self.mistake == "first unit used":
                skip = skip + self.unit(f"{name}/unit_1", skip)
            x = self.unit(f"{name}/unit_2", skip if x is None else x)
            size = [2 * side for side in x.shape[1:3]]
            if self.layer.exact_sizes and number < 3 and self.mistake != "doubled":
                size = maps[order[number + 1]].shape[1:3]
            x = self.conv(f"{name}/out", dense.resize(x, size, align_corners=self.mistake != "half"))
        return x

    def __call__(self, taps, tokens):
        """Maps `(B, h, w, D)` and class tokens `(B, D)` to what the head puts out."""
        x = self.fused([self.level(number, *pair) for number, pair in enumerate(zip(taps, tokens, strict=True))])
        if self.layer.before != "none":
            x = relu(self.norm("batch_norm_before", self.conv("before", x)))
        if self.layer.end == "classes_of_map":
            return self.conv("out_3", x)
        size = [2 * side for side in x.shape[1:3]]
        if self.layer.end == "classes":
            x = self.conv("out_3", relu(self.norm("batch_norm_out", self.conv("conv_out", x))))
            return dense.resize(x, size, align_corners=self.mistake != "half in the end")
        if self.layer.end == "depth_of_image":
            size = [self.layer.patch_size * side for side in taps[0].shape[1:3]]
        x = dense.resize(self.conv("out_1", x), size, align_corners=self.mistake != "half in the end")
        return self.conv("out_3", relu(self.conv("out_2", x)))


_PARTS = ("gamma", "beta", "moving_mean", "moving_variance")
