"""YOLOS in NumPy, of files with transformers' names, written from the paper, with mistakes that are easy to make."""

import math

import numpy as np
from dpt_in_numpy import gelu

from keras_vit import dense

PATCH, WIDTH, HEADS, LAYERS, TOKENS, CLASSES = 8, 12, 3, 3, 4, 5
GRID = (3, 5)  # of the position tables
MISTAKES = (
    "first tokens",  # in place of the last
    "no positions between",
    "positions after the last block too",
    "bilinear",
    "square",  # the table taken for a square one, of 16 rows
    "not normed",
    "GELU",  # in the heads
    "no sigmoid",
    "epsilon",
)


def names(middle=False):
    """Names and shapes of a small file."""
    d, m, rows = WIDTH, 2 * WIDTH, 1 + math.prod(GRID) + TOKENS
    found = {"embeddings.cls_token": (1, 1, d), "embeddings.detection_tokens": (1, TOKENS, d)}
    found |= {"embeddings.position_embeddings": (1, rows, d)}
    found |= {"encoder.mid_position_embeddings": (LAYERS - 1, 1, rows, d)} if middle else {}
    layers = {"embeddings.patch_embeddings.projection": (d, 3, PATCH, PATCH)}
    for number in range(LAYERS):
        start = f"encoder.layer.{number}"
        layers |= {f"{start}.attention.attention.{part}": (d, d) for part in ("query", "key", "value")}
        layers |= {f"{start}.attention.output.dense": (d, d)}
        layers |= {f"{start}.intermediate.dense": (m, d), f"{start}.output.dense": (d, m)}
        layers |= {f"{start}.layernorm_{place}": (d,) for place in ("before", "after")}
    layers |= {"layernorm": (d,)}
    found |= {f"{name}.{part}": each for name, shape in layers.items() for part, each in _parts(shape)}
    heads = {}
    for head, count in (("class_labels_classifier", CLASSES + 1), ("bbox_predictor", 4)):
        heads |= {f"{head}.layers.{number}": (size, d) for number, size in enumerate((d, d, count))}
    heads = {f"{name}.{part}": each for name, shape in heads.items() for part, each in _parts(shape)}
    return {f"vit.{name}": shape for name, shape in found.items()} | heads


def _parts(shape):
    return (("weight", shape), ("bias", shape[:1]))


def weights(middle=False, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in names(middle).items():
        is_matrix = len(shape) > 1 and name.endswith("weight")
        values = rng.normal(0, math.prod(shape[1:]) ** -0.5 if is_matrix else 0.5, shape)
        found[name] = (values + ("layernorm" in name and name.endswith("weight"))).astype("float32")
    return found


class Yolos:
    """The whole model of one file; the mistake is one of `MISTAKES`, or `""`."""

    def __init__(self, arrays, mistake=""):
        self.w = {name: np.asarray(array, "float64") for name, array in arrays.items()}
        self.mistake = mistake

    def dense(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        epsilon = 1e-3 if self.mistake == "epsilon" else 1e-12
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return x * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def table(self, table, grid):
        """A table `(1, T, D)` at the grid of an image."""
        patches, old = table[:, 1:-TOKENS], GRID
        if self.mistake == "square":
            patches, old = np.concatenate([patches, patches[:, -1:]], 1), (4, 4)
        method = "bilinear" if self.mistake == "bilinear" else "bicubic"
        maps = patches.reshape(1, *old, -1)
        maps = maps if old == grid else np.asarray(dense.resize(maps, grid, method))
        return np.concatenate([table[:, :1], maps.reshape(1, -1, WIDTH), table[:, -TOKENS:]], 1)

    def __call__(self, images):
        """Logits `(B, N, K + 1)` and boxes `(B, N, 4)`."""
        batch, grid = len(images), tuple(side // PATCH for side in images.shape[1:3])
        x = images.astype("float64").reshape(batch, grid[0], PATCH, grid[1], PATCH, 3).transpose(0, 1, 3, 5, 2, 4)
        name = "vit.embeddings.patch_embeddings.projection"
        x = x.reshape(batch, math.prod(grid), -1) @ self.w[f"{name}.weight"].reshape(WIDTH, -1).T
        x = x + self.w[f"{name}.bias"]
        first, last = (self.w[f"vit.embeddings.{name}"] for name in ("cls_token", "detection_tokens"))
        broadcast = [np.broadcast_to(each, (batch, *each.shape[1:])) for each in (first, last)]
        x = np.concatenate([broadcast[0], x, broadcast[1]], 1)
        x = x + self.table(self.w["vit.embeddings.position_embeddings"], grid)
        middle = self.w.get("vit.encoder.mid_position_embeddings", ())
        middle = () if self.mistake == "no positions between" else middle
        for number in range(LAYERS):
            x = self.block(f"vit.encoder.layer.{number}", x)
            place = min(number, len(middle) - 1) if self.mistake == "positions after the last block too" else number
            if 0 <= place < len(middle):
                x = x + self.table(middle[place], grid)
        x = x if self.mistake == "not normed" else self.norm("vit.layernorm", x)
        found = x[:, :TOKENS] if self.mistake == "first tokens" else x[:, -TOKENS:]
        boxes = self.head("bbox_predictor", found)
        return self.head("class_labels_classifier", found), boxes if self.mistake == "no sigmoid" else _sigmoid(boxes)

    def head(self, name, x):
        for number in range(3):
            activate = gelu if self.mistake == "GELU" else lambda each: np.maximum(each, 0)
            x = self.dense(f"{name}.layers.{number}", activate(x) if number else x)
        return x

    def block(self, name, x):
        y = self.norm(f"{name}.layernorm_before", x)
        batch, length, _ = x.shape
        q, k, v = (
            self.dense(f"{name}.attention.attention.{part}", y).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        shares = np.exp(q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]))
        y = (shares / shares.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        x = x + self.dense(f"{name}.attention.output.dense", y)
        y = gelu(self.dense(f"{name}.intermediate.dense", self.norm(f"{name}.layernorm_after", x)))
        return x + self.dense(f"{name}.output.dense", y)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
