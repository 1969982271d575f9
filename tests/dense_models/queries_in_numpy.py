"""EoMT in NumPy, of files with transformers' names, written from the paper, with mistakes that are easy to make."""

import math

import numpy as np
from dpt_in_numpy import convolution, deconvolution, gelu

SIDE, PATCH, WIDTH, HEADS, LAYERS, QUERIES, CLASSES, BLOCKS, REGISTERS = 32, 8, 16, 2, 3, 5, 3, 2, 2
MISTAKES = (
    "masked",  # attention of queries to patches in their masks alone, as in training
    "first block",  # queries in all blocks
    "positions",  # of the first patches, added to the queries
    "not normed",
    "tanh",  # GELU
    "epsilon",  # Keras', of the map's LayerNorm
    "transposed",  # kernels of the transposed convolutions
    "channels mixed",  # by the kernel of each channel's convolution, turned
)
TURNED = "queries turned"  # as patches are, on DINOv3


def names(dinov3=False):
    """Names and shapes of a small file."""
    d, m = WIDTH, 2 * WIDTH
    attention, mlp = ("qkvo", ("up_proj", "down_proj")) if dinov3 else (("q", "k", "v", "out"), ("fc1", "fc2"))
    kernel = "embeddings.patch_embeddings" + ("" if dinov3 else ".projection")
    found = {f"{kernel}.weight": (d, 3, PATCH, PATCH), f"{kernel}.bias": (d,)}
    found |= {"embeddings.cls_token": (1, 1, d), "embeddings.register_tokens": (1, REGISTERS, d)}
    found |= {} if dinov3 else {"embeddings.position_embeddings.weight": ((SIDE // PATCH) ** 2, d)}
    for number in range(LAYERS):
        start = f"layers.{number}"
        dense = {f"attention.{part}_proj": (d, d) for part in attention}
        dense |= {f"mlp.{mlp[0]}": (m, d), f"mlp.{mlp[1]}": (d, m)}
        for name, shape in dense.items():
            bias = not (dinov3 and name == "attention.k_proj")
            found |= {f"{start}.{name}.weight": shape, **({f"{start}.{name}.bias": shape[:1]} if bias else {})}
        found |= {f"{start}.{norm}.{part}": (d,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
        found |= {f"{start}.layer_scale{number}.lambda1": (d,) for number in (1, 2)}
    found |= {"query.weight": (QUERIES, d), "attn_mask_probs": (BLOCKS,), "criterion.empty_weight": (CLASSES + 1,)}
    dense = {"class_predictor": (CLASSES + 1, d), **{f"mask_head.fc{number}": (d, d) for number in (1, 2, 3)}}
    for number in (0, 1):
        start = f"upscale_block.block.{number}"
        found |= {f"{start}.conv1.weight": (d, d, 2, 2), f"{start}.conv1.bias": (d,)}
        found |= {f"{start}.conv2.weight": (d, 1, 3, 3)}
        found |= {f"{start}.layernorm2d.{part}": (d,) for part in ("weight", "bias")}
    found |= {f"layernorm.{part}": (d,) for part in ("weight", "bias")}
    return found | {f"{name}.{part}": s for name, shape in dense.items() for part, s in _parts(shape)}


def _parts(shape):
    return (("weight", shape), ("bias", shape[:1]))


def weights(dinov3=False, seed=0):
    """Random ones; the training's masked attention is on."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in names(dinov3).items():
        values = rng.normal(0, 1.5 * math.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.3, shape)
        found[name] = (values + ("norm" in name and name.endswith("weight"))).astype("float32")
    return found | {"attn_mask_probs": np.ones(BLOCKS, "float32")}


def norm(x, gamma, beta, epsilon=1e-6):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


class Eomt:
    """The whole model of one file.

    Args:
        arrays: of the file.
        dinov3: whether positions turn queries and keys of patches.
        mistake: one of `MISTAKES`, or `""`.
    """

    def __init__(self, arrays, dinov3=False, mistake=""):
        self.w = {name: np.asarray(array, "float64") for name, array in arrays.items()}
        self.dinov3, self.mistake = dinov3, mistake
        self.activate = lambda x: gelu(x, tanh=mistake == "tanh")

    def dense(self, name, x):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name, x, epsilon=1e-6):
        return norm(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], epsilon)

    def __call__(self, images):
        """Class logits `(B, Q, K + 1)` and mask logits `(B, h, w, Q)` of images `(B, H, W, 3)`."""
        self.grid = tuple(side // PATCH for side in images.shape[1:3])
        tokens, count = self.embedded(images.astype("float64")), 0
        for number in range(LAYERS):
            allowed = None
            if number == (0 if self.mistake == "first block" else LAYERS - BLOCKS):
                queries = self.w["query.weight"]
                if self.mistake == "positions":
                    queries = queries + self.w["embeddings.position_embeddings.weight"][:QUERIES]
                tokens = np.concatenate([np.broadcast_to(queries, (len(tokens), *queries.shape)), tokens], 1)
                count = QUERIES
            if self.mistake == "masked" and count:
                masks = self.head(self.norm("layernorm", tokens))[1]
                small = masks.reshape(len(masks), self.grid[0], 4, self.grid[1], 4, QUERIES)[:, :, 1:3, :, 1:3]
                allowed = small.mean((2, 4)).reshape(len(masks), -1, QUERIES).transpose(0, 2, 1) > 0
            tokens = self.block(f"layers.{number}", tokens, count, allowed)
        return self.head(tokens if self.mistake == "not normed" else self.norm("layernorm", tokens))

    def embedded(self, images):
        name = "embeddings.patch_embeddings" + ("" if self.dinov3 else ".projection")
        batch, (h, w) = len(images), self.grid
        patches = images.reshape(batch, h, PATCH, w, PATCH, 3).transpose(0, 1, 3, 5, 2, 4).reshape(batch, h * w, -1)
        x = patches @ self.w[f"{name}.weight"].reshape(WIDTH, -1).T + self.w[f"{name}.bias"]
        x = x + self.w.get("embeddings.position_embeddings.weight", 0.0)
        first = np.concatenate([self.w["embeddings.cls_token"], self.w["embeddings.register_tokens"]], 1)
        return np.concatenate([np.broadcast_to(first, (batch, *first.shape[1:])), x], 1)

    def block(self, name, tokens, count, allowed):
        x = self.attention(f"{name}.attention", self.norm(f"{name}.norm1", tokens), count, allowed)
        tokens = tokens + self.w[f"{name}.layer_scale1.lambda1"] * x
        first, second = ("up_proj", "down_proj") if self.dinov3 else ("fc1", "fc2")
        x = self.activate(self.dense(f"{name}.mlp.{first}", self.norm(f"{name}.norm2", tokens)))
        return tokens + self.w[f"{name}.layer_scale2.lambda1"] * self.dense(f"{name}.mlp.{second}", x)

    def attention(self, name, x, count, allowed):
        batch, length, _ = x.shape
        q, k, v = (
            self.dense(f"{name}.{part}_proj", x).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
            for part in "qkv"
        )
        if self.dinov3:
            q, k = (self.turned(each, count) for each in (q, k))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        if allowed is not None:
            scores[:, :, :QUERIES, -allowed.shape[-1] :][~np.repeat(allowed[:, None], HEADS, 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        x = (shares / shares.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)
        return self.dense(f"{name}.{'o' if self.dinov3 else 'out'}_proj", x)

    def turned(self, x, count):
        """The patches, which are last, by angles for row and column in [-1, 1]."""
        quarter = x.shape[-1] // 4
        places = [2 * np.pi * ((2 * np.arange(n) + 1) / n - 1) for n in self.grid]
        angles = np.stack(np.meshgrid(*places, indexing="ij"), -1).reshape(-1, 2, 1)
        angles = (angles * 100.0 ** (-np.arange(quarter) / quarter)).reshape(-1, 2 * quarter)
        angles = np.tile(angles, 2)
        before = x.shape[2] - len(angles) - (count if self.mistake == TURNED else 0)
        first, second = np.split(x, 2, axis=-1)
        turned = np.concatenate([-second, first], -1)
        patches = slice(before, before + len(angles))
        found = x.copy()
        found[:, :, patches] = x[:, :, patches] * np.cos(angles) + turned[:, :, patches] * np.sin(angles)
        return found

    def head(self, tokens):
        """Queries come first here, as in the paper."""
        queries, patches = tokens[:, :QUERIES], tokens[:, QUERIES + 1 + REGISTERS :]
        x = queries
        for number in (1, 2, 3):
            x = self.dense(f"mask_head.fc{number}", self.activate(x) if number > 1 else x)
        maps = patches.reshape(len(tokens), *self.grid, -1)
        for number in (0, 1):
            name = f"upscale_block.block.{number}"
            kernel = self.w[f"{name}.conv1.weight"].transpose(2, 3, 1, 0)
            kernel = kernel.transpose(1, 0, 2, 3) if self.mistake == "transposed" else kernel
            maps = self.activate(deconvolution(maps, kernel, self.w[f"{name}.conv1.bias"]))
            each = self.w[f"{name}.conv2.weight"][:, 0].transpose(1, 2, 0)
            each = each.transpose(1, 0, 2) if self.mistake == "channels mixed" else each
            maps = convolution(maps, np.eye(WIDTH) * each[..., None, :])
            maps = self.norm(f"{name}.layernorm2d", maps, 1e-3 if self.mistake == "epsilon" else 1e-6)
        return self.dense("class_predictor", queries), np.einsum("bhwd,bqd->bhwq", maps, x)
