"""UPerNet and its necks in NumPy, written from the papers, with mistakes that are easy to make."""

import math

import numpy as np
from dpt_in_numpy import convolution, deconvolution, gelu, relu

from keras_vit import dense

MISTAKES = (
    "corners",  # of pixels in place, in every resize
    "tanh",  # GELU of the pyramid
    "epsilon",  # Keras', of BatchNorm
    "other pool",  # the mean of 2 x 2 pixels for the largest, or the first pixel for the mean
    "even windows",  # that do not overlap, of the means over the deepest map
    "shallow last",  # taps the other way round
    "means first",  # before the deepest map
    "no sums",  # of the maps from the deepest upwards
    "deepest first",  # of the four maps that are joined
)


class Head:
    """The head of weights by path, as `bottleneck/conv/kernel`.

    Args:
        weights: float arrays.
        layer: the `UPerNetHead` whose switches it has.
        mistake: one of `MISTAKES`, or `""`.
    """

    def __init__(self, weights, layer, mistake=""):
        self.w = {path: np.asarray(array, "float64") for path, array in weights.items()}
        self.layer, self.mistake = layer, mistake

    def conv(self, name, x):
        return convolution(x, self.w[f"{name}/kernel"], self.w.get(f"{name}/bias", 0.0))

    def deconv(self, name, x):
        return deconvolution(x, self.w[f"{name}/kernel"], self.w[f"{name}/bias"])

    def norm(self, name, x):
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (self.w[f"{name}/{part}"] for part in parts)
        return (x - mean) / np.sqrt(variance + (1e-3 if self.mistake == "epsilon" else 1e-5)) * gamma + beta

    def unit(self, name, x):
        return relu(self.norm(f"{name}/batch_norm", self.conv(f"{name}/conv", x)))

    def resize(self, x, size):
        return dense.resize(x, tuple(size), align_corners=self.mistake == "corners")

    def halved(self, x):
        h, w = (side // 2 for side in x.shape[1:3])
        cells = x[:, : 2 * h, : 2 * w].reshape(len(x), h, 2, w, 2, -1)
        if self.layer.neck == "pyramid":
            return cells.mean((2, 4)) if self.mistake == "other pool" else cells.max((2, 4))
        return cells[:, :, 0, :, 0] if self.mistake == "other pool" else cells.mean((2, 4))

    def levels(self, taps):
        if self.layer.neck == "none":
            return taps
        if self.layer.neck == "pyramid":
            x = gelu(self.norm("neck/batch_norm", self.deconv("neck/up_0_first", taps[0])), self.mistake == "tanh")
            return [
                self.deconv("neck/up_0_second", x),
                self.deconv("neck/up_1", taps[1]),
                taps[2],
                self.halved(taps[3]),
            ]
        maps = [self.conv(f"neck/lateral_{number}", tap) for number, tap in enumerate(taps)]
        grid = np.array(taps[0].shape[1:3])
        maps = [self.resize(x, factor * grid) for x, factor in zip(maps, (4, 2, 1), strict=False)] + [
            self.halved(maps[3])
        ]
        return [self.conv(f"neck/level_{number}", x) for number, x in enumerate(maps)]

    def mean(self, x, bins):
        """Over windows, each with its own loop."""
        n, m = x.shape[1:3]
        found = np.zeros((len(x), bins, bins, x.shape[-1]))
        for i in range(bins):
            for j in range(bins):
                (top, bottom), (left, right) = (self.window(i, n, bins), self.window(j, m, bins))
                found[:, i, j] = x[:, top:bottom, left:right].mean((1, 2))
        return found

    def window(self, index, n, bins):
        start, end = math.floor(index * n / bins), math.ceil((index + 1) * n / bins)
        if self.mistake == "even windows":
            end = max(math.floor((index + 1) * n / bins), start + 1)
        return start, end

    def __call__(self, taps):
        """Maps `(B, h, w, D)` to what the head puts out."""
        levels = self.levels(taps[::-1] if self.mistake == "shallow last" else taps)
        deepest = levels[3]
        means = [self.mean(deepest, scale) for scale in self.layer.pool_scales]
        means = [self.resize(self.unit(f"pool_{i}", x), deepest.shape[1:3]) for i, x in enumerate(means)]
        joined = [*means, deepest] if self.mistake == "means first" else [deepest, *means]
        top = self.unit("bottleneck", np.concatenate(joined, -1))
        maps = [self.unit(f"lateral_{number}", levels[number]) for number in range(3)] + [top]
        for number in (3, 2, 1) if self.mistake != "no sums" else ():
            maps[number - 1] = maps[number - 1] + self.resize(maps[number], maps[number - 1].shape[1:3])
        maps = [self.unit(f"fpn_{number}", maps[number]) for number in range(3)] + [top]
        maps = [self.resize(x, maps[0].shape[1:3]) for x in maps]
        maps = maps[::-1] if self.mistake == "deepest first" else maps
        return self.conv("classifier", self.unit("fpn_bottleneck", np.concatenate(maps, -1)))
