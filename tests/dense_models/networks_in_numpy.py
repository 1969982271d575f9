"""What NumPy programs of models with torch's names share: names and random weights, dense layers, norms, attention."""

import math

import numpy as np


def with_parts(layers):
    """`{name: shape}` of weights and biases of `{layer: shape of the weight}`."""
    parts = ((name, shape, part) for name, shape in layers.items() for part in ("weight", "bias"))
    return {f"{name}.{part}": shape if part == "weight" else shape[:1] for name, shape, part in parts}


def drawn(names, norms=("norm",), spread=1.0, small=0.5, seed=0):
    """Random arrays of `{name: shape}`; those of norms, which have one of these words, are around 1."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in names.items():
        is_matrix = len(shape) > 1 and name.endswith("weight")
        values = rng.normal(0, spread * math.prod(shape[1:]) ** -0.5 if is_matrix else small, shape)
        is_gain = any(word in name for word in norms) and name.endswith("weight")
        found[name] = np.asarray(values + is_gain, "float32")
    return found


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(x, gamma, beta, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


def attention(q, k, v, heads, bias=0.0):
    """`(B, T, D)` of queries, keys and values."""
    batch, length, _ = q.shape
    q, k, v = (x.reshape(batch, x.shape[1], heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + bias
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return (shares / shares.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)


class Network:
    """A model of one file.

    Args:
        arrays: of the file.
        mistake: one that is easy to make, or `""`.
    """

    heads, epsilon = 2, 1e-12

    def __init__(self, arrays, mistake=""):
        self.w = {name: np.asarray(array, "float64") for name, array in arrays.items()}
        self.mistake = mistake

    def dense(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name, x, epsilon=None):
        epsilon = 1e-3 if self.mistake == "epsilon" else epsilon or self.epsilon
        return normed(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], epsilon)

    def patches(self, name, images, side):
        """Patches through a convolution, `(B, N, D)` in reading order."""
        batch, grid = len(images), [n // side for n in images.shape[1:3]]
        x = images.astype("float64").reshape(batch, grid[0], side, grid[1], side, 3).transpose(0, 1, 3, 5, 2, 4)
        kernel = self.w[f"{name}.weight"]
        return x.reshape(batch, math.prod(grid), -1) @ kernel.reshape(len(kernel), -1).T + self.w.get(f"{name}.bias", 0)

    def attended(self, names, x, out):
        """Attention with the dense layers of these names for queries, keys and values, and of `out`."""
        return self.dense(out, attention(*(self.dense(name, x) for name in names), self.heads))
