"""The image side of OWL-ViT and OWLv2 in NumPy, of files with transformers' names, written from the papers."""

import math

import numpy as np
from dpt_in_numpy import gelu
from networks_in_numpy import Network, drawn, sigmoid, with_parts

from keras_vit import dense

PATCH, WIDTH, HEADS, LAYERS, SIZE, GRID = 8, 12, 3, 3, 5, 3
MISTAKES = (
    "no class product",
    "cell centres",
    "no bias of the grid",
    "exact GELU in blocks",
    "quick GELU in heads",
    "not normed",
    "shift after scale",
    "elu alone",  # of the scale, without + 1
    "length of queries",
    "epsilon",
)


def names(second=False):
    """Names and shapes of a small file, with a stub of its text tower."""
    d, m, start = WIDTH, 2 * WIDTH, "owlv2" if second else "owlvit"
    layers = {f"{norm}_layernorm": (d,) for norm in ("pre", "post")}
    for number in range(LAYERS):
        block = f"encoder.layers.{number}"
        layers |= {f"{block}.self_attn.{part}_proj": (d, d) for part in ("q", "k", "v", "out")}
        layers |= {f"{block}.mlp.fc1": (m, d), f"{block}.mlp.fc2": (d, m)}
        layers |= {f"{block}.layer_norm{place}": (d,) for place in (1, 2)}
    found = {"embeddings.class_embedding": (d,), "embeddings.patch_embedding.weight": (d, 3, PATCH, PATCH)}
    found |= {"embeddings.position_embedding.weight": (1 + GRID**2, d), **with_parts(layers)}
    heads = {"layer_norm": (d,), "class_head.dense0": (SIZE, d)}
    heads |= {f"class_head.{name}": (1, d) for name in ("logit_shift", "logit_scale")}
    for head, count in (("box_head", 4), *((("objectness_head", 1),) if second else ())):
        heads |= {f"{head}.dense{number}": (size, d) for number, size in enumerate((d, d, count))}
    beside = {f"{start}.logit_scale": (), f"{start}.text_projection.weight": (SIZE, 4)}
    return {f"{start}.vision_model.{name}": shape for name, shape in found.items()} | with_parts(heads) | beside


def weights(second=False):
    return drawn(names(second), seed=3)


def queries(count=4):
    return np.random.default_rng(4).normal(size=(count, SIZE)).astype("float32")


class Owl(Network):
    """The image side of one file; the mistake is one of `MISTAKES`, or `""`."""

    heads, epsilon = HEADS, 1e-5

    def __call__(self, images, texts):
        """A dict, as the model's."""
        start = "owlv2" if "objectness_head.dense0.weight" in self.w else "owlvit"
        self.start, grid = f"{start}.vision_model", tuple(side // PATCH for side in images.shape[1:3])
        x = self.patches(f"{self.start}.embeddings.patch_embedding", images, PATCH)
        first = np.broadcast_to(self.w[f"{self.start}.embeddings.class_embedding"], (len(x), 1, WIDTH))
        table = self.w[f"{self.start}.embeddings.position_embedding.weight"]
        rows = table[1:].reshape(1, GRID, GRID, WIDTH)
        rows = rows if grid == (GRID, GRID) else np.asarray(dense.resize(rows, grid, "bicubic"))
        x = np.concatenate([first, x], 1) + np.concatenate([table[:1], rows.reshape(-1, WIDTH)])
        x = self.norm(f"{self.start}.pre_layernorm", x)
        for number in range(LAYERS):
            x = self.block(f"{self.start}.encoder.layers.{number}", x)
        x = x if self.mistake == "not normed" else self.norm(f"{self.start}.post_layernorm", x)
        x = self.norm("layer_norm", x[:, 1:] if self.mistake == "no class product" else x[:, 1:] * x[:, :1])
        found = {"boxes": sigmoid(self.head("box_head", x) + self.grid(grid)), **self.classes(x, texts)}
        if start == "owlv2":
            found["objectness"] = self.head("objectness_head", x)[..., 0]
        return found

    def block(self, name, x):
        parts = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        x = x + self.attended(parts, self.norm(f"{name}.layer_norm1", x), f"{name}.self_attn.out_proj")
        y = self.dense(f"{name}.mlp.fc1", self.norm(f"{name}.layer_norm2", x))
        y = gelu(y) if self.mistake == "exact GELU in blocks" else y * sigmoid(1.702 * y)
        return x + self.dense(f"{name}.mlp.fc2", y)

    def head(self, name, x):
        for number in range(3):
            if number:
                x = x * sigmoid(1.702 * x) if self.mistake == "quick GELU in heads" else gelu(x)
            x = self.dense(f"{name}.dense{number}", x)
        return x

    def grid(self, grid):
        if self.mistake == "no bias of the grid":
            return 0
        (h, w), less = grid, 0.5 if self.mistake == "cell centres" else 0
        places = [((j + 1 - less) / w, (i + 1 - less) / h, 1 / w, 1 / h) for i in range(h) for j in range(w)]
        return np.array([[math.log(v + 1e-4) - math.log1p(1e-4 - v) for v in place] for place in places])

    def classes(self, x, texts):
        embedding, texts = self.dense("class_head.dense0", x), texts.astype("float64")
        embedding = embedding / (np.linalg.norm(embedding, axis=-1, keepdims=True) + 1e-6)
        if self.mistake != "length of queries":
            texts = texts / (np.linalg.norm(texts, axis=-1, keepdims=True) + 1e-6)
        shift, scale = (self.dense(f"class_head.{name}", x) for name in ("logit_shift", "logit_scale"))
        factor = np.where(scale > 0, scale, np.expm1(np.minimum(scale, 0))) + (self.mistake != "elu alone")
        cosines = embedding @ texts.T
        logits = cosines * factor + shift if self.mistake == "shift after scale" else (cosines + shift) * factor
        return {"logits": logits, "class_embeddings": embedding}
