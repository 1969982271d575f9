"""ViTPose in NumPy, of files with transformers' names, written from the paper, with mistakes that are easy to make."""

import math

import numpy as np
from dpt_in_numpy import convolution, gelu, relu
from networks_in_numpy import Network, drawn, with_parts

from keras_vit import dense

PATCH, WIDTH, HEADS, LAYERS, POINTS, CHANNELS = 16, 12, 3, 3, 5, 7
GRID = (3, 2)
MISTAKES = (
    "no class row",
    "no patch padding",
    "not normed",
    "epsilon",
    "corners",
    "ReLU after the resize",
    "one less of padding",
)
OF_CLASSIC = ("no class row", "not normed", "epsilon of BatchNorm", "transposed", "off by a pixel")


def names(classic=False):
    """Names and shapes of a small file."""
    d, m = WIDTH, 2 * WIDTH
    layers = {"embeddings.patch_embeddings.projection": (d, 3, PATCH, PATCH), "layernorm": (d,)}
    for number in range(LAYERS):
        start = f"encoder.layer.{number}"
        layers |= {f"{start}.attention.attention.{part}": (d, d) for part in ("query", "key", "value")}
        layers |= {f"{start}.attention.output.dense": (d, d), f"{start}.mlp.fc1": (m, d), f"{start}.mlp.fc2": (d, m)}
        layers |= {f"{start}.layernorm_{place}": (d,) for place in ("before", "after")}
    found = {"embeddings.position_embeddings": (1, 1 + math.prod(GRID), d), **with_parts(layers)}
    found = {f"backbone.{name}": shape for name, shape in found.items()}
    if not classic:
        return found | with_parts({"head.conv": (POINTS, d, 3, 3)})
    for number, size in ((1, d), (2, CHANNELS)):
        found |= {f"head.deconv{number}.weight": (size, CHANNELS, 4, 4)}
        parts = ("weight", "bias", "running_mean", "running_var")
        found |= {f"head.batchnorm{number}.{part}": (CHANNELS,) for part in parts}
    return found | with_parts({"head.conv": (POINTS, CHANNELS, 1, 1)})


def weights(classic=False):
    found = drawn(names(classic), seed=1)
    if classic:
        for number in (1, 2):
            found[f"head.batchnorm{number}.running_var"] = np.abs(found[f"head.batchnorm{number}.running_var"]) / 9
            found[f"head.batchnorm{number}.num_batches_tracked"] = np.array(7, "int64")
    return found


class VitPose(Network):
    """The whole model of one file; the mistake is one of `MISTAKES`, or `""`."""

    heads = HEADS

    def __init__(self, arrays, mistake="", block=LAYERS, factor=4):
        super().__init__(arrays, mistake)
        self.block_read, self.factor = block, factor

    def __call__(self, images):
        """Heatmaps `(B, h, w, K)`."""
        grid = tuple(side // PATCH for side in images.shape[1:3])
        pad = {"no patch padding": 0, "one less of padding": 1}.get(self.mistake, 2)
        around = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))[:, : images.shape[1], : images.shape[2]]
        x = self.patches("backbone.embeddings.patch_embeddings.projection", around, PATCH)
        table = self.w["backbone.embeddings.position_embeddings"]
        rows = table[:, 1:].reshape(1, *GRID, WIDTH)
        rows = rows if grid == GRID else np.asarray(dense.resize(rows, grid, "bicubic"))
        x = x + rows.reshape(1, -1, WIDTH) + (0 if self.mistake == "no class row" else table[:, :1])
        for number in range(self.block_read):
            x = self.block(f"backbone.encoder.layer.{number}", x)
        x = x if self.mistake == "not normed" else self.norm("backbone.layernorm", x)
        return self.head(x.reshape(len(images), *grid, WIDTH))

    def block(self, name, x):
        parts = [f"{name}.attention.attention.{part}" for part in ("query", "key", "value")]
        x = x + self.attended(parts, self.norm(f"{name}.layernorm_before", x), f"{name}.attention.output.dense")
        y = gelu(self.dense(f"{name}.mlp.fc1", self.norm(f"{name}.layernorm_after", x)))
        return x + self.dense(f"{name}.mlp.fc2", y)

    def head(self, maps):
        if "head.deconv1.weight" in self.w:
            return self.classic(maps)
        size = tuple(self.factor * side for side in maps.shape[1:3])
        late = self.mistake == "ReLU after the resize"
        maps = np.asarray(dense.resize(maps if late else relu(maps), size, align_corners=self.mistake == "corners"))
        kernel = self.w["head.conv.weight"].transpose(2, 3, 1, 0)
        return convolution(relu(maps) if late else maps, kernel, self.w["head.conv.bias"])

    def classic(self, maps):
        for number in (1, 2):
            maps = self.doubled(maps, self.w[f"head.deconv{number}.weight"])
            gain, shift, mean, variance = (
                self.w[f"head.batchnorm{number}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
            )
            epsilon = 1e-3 if self.mistake == "epsilon of BatchNorm" else 1e-5
            maps = relu((maps - mean) / np.sqrt(variance + epsilon) * gain + shift)
        return convolution(maps, self.w["head.conv.weight"].transpose(2, 3, 1, 0), self.w["head.conv.bias"])

    def doubled(self, maps, kernel):
        """A transposed convolution, by what each cell adds to 4 x 4 others, with a rim of one that is cut off."""
        kernel = kernel.transpose(0, 1, 3, 2) if self.mistake == "transposed" else kernel
        batch, h, w, _ = maps.shape
        found = np.zeros((batch, 2 * h + 2, 2 * w + 2, kernel.shape[1]))
        for row, column in np.ndindex(4, 4):
            found[:, row : row + 2 * h : 2, column : column + 2 * w : 2] += maps @ kernel[:, :, row, column]
        cut = 2 if self.mistake == "off by a pixel" else 1
        return found[:, cut : cut + 2 * h, cut : cut + 2 * w]
