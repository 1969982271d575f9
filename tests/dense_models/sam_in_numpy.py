"""SAM's image encoder in NumPy, of files with transformers' names, written from the paper, with mistakes."""

import math

import numpy as np
from dpt_in_numpy import convolution, gelu
from networks_in_numpy import Network, attention, drawn, with_parts

PATCH, WIDTH, HEADS, LAYERS, CHANNELS, GRID, WINDOW = 8, 12, 3, 3, 7, 5, 3
WITHOUT_WINDOWS = (2,)  # blocks, from 1
MISTAKES = (
    "padded before the norm",
    "padding left out",  # of the softmax
    "scaled query",
    "rows for columns",
    "distances turned",
    "no windows",
    "no positions",
    "epsilon",
    "one norm in the neck",
)


def names():
    """Names and shapes of a small file."""
    d, m, each = WIDTH, 2 * WIDTH, WIDTH // HEADS
    layers = {"patch_embed.projection": (d, 3, PATCH, PATCH)}
    found = {"pos_embed": (1, GRID, GRID, d)}
    for number in range(LAYERS):
        start, side = f"layers.{number}", GRID if number + 1 in WITHOUT_WINDOWS else WINDOW
        layers |= {f"{start}.attn.qkv": (3 * d, d), f"{start}.attn.proj": (d, d)}
        layers |= {f"{start}.mlp.lin1": (m, d), f"{start}.mlp.lin2": (d, m)}
        layers |= {f"{start}.layer_norm{place}": (d,) for place in (1, 2)}
        found |= {f"{start}.attn.rel_pos_{axis}": (2 * side - 1, each) for axis in "hw"}
    found |= {"neck.conv1.weight": (CHANNELS, d, 1, 1), "neck.conv2.weight": (CHANNELS, CHANNELS, 3, 3)}
    layers |= {f"neck.layer_norm{place}": (CHANNELS,) for place in (1, 2)}
    return {f"vision_encoder.{name}": shape for name, shape in (found | with_parts(layers)).items()}


def weights():
    return drawn(names(), seed=2)


class Sam(Network):
    """The encoder of one file; the mistake is one of `MISTAKES`, or `""`."""

    heads, epsilon = HEADS, 1e-6

    def __call__(self, images):
        """A map `(B, h, w, C)`."""
        x = self.patches("vision_encoder.patch_embed.projection", images, PATCH)
        x = x.reshape(len(x), GRID, GRID, WIDTH) + self.w["vision_encoder.pos_embed"]
        for number in range(LAYERS):
            side = None if number + 1 in WITHOUT_WINDOWS or self.mistake == "no windows" else WINDOW
            x = self.block(f"vision_encoder.layers.{number}", x, side)
        for number in (1, 2):
            name = f"vision_encoder.neck.conv{number}.weight"
            x = convolution(x, self.w[name].transpose(2, 3, 1, 0))
            if number == 2 or self.mistake != "one norm in the neck":
                x = self.norm(f"vision_encoder.neck.layer_norm{number}", x)
        return x

    def block(self, name, x, side):
        late = self.mistake == "padded before the norm"
        y = x if late else self.norm(f"{name}.layer_norm1", x)
        h, w = y.shape[1:3]
        if side is None:
            y = self.norm(f"{name}.layer_norm1", y) if late else y
            found = self.attended_map(f"{name}.attn", y)
        else:
            rows, columns = (-(-n // side) for n in (h, w))
            y = np.pad(y, ((0, 0), (0, rows * side - h), (0, columns * side - w), (0, 0)))
            y = self.norm(f"{name}.layer_norm1", y) if late else y
            found = np.zeros_like(y)
            for row, column in np.ndindex(rows, columns):
                part = np.s_[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
                inside = (min(side, h - row * side), min(side, w - column * side))
                found[part] = self.attended_map(f"{name}.attn", y[part], inside)
            found = found[:, :h, :w]
        x = x + found
        y = gelu(self.dense(f"{name}.mlp.lin1", self.norm(f"{name}.layer_norm2", x)))
        return x + self.dense(f"{name}.mlp.lin2", y)

    def attended_map(self, name, x, inside=None):
        """Attention in a map `(B, h, w, D)`; `inside` is how much of it is no padding."""
        batch, h, w, size = x.shape
        q, k, v = np.split(self.dense(f"{name}.qkv", x.reshape(batch, h * w, size)), 3, axis=-1)
        by_head = q.reshape(batch, h, w, HEADS, -1)
        by_head = by_head / math.sqrt(by_head.shape[-1]) if self.mistake == "scaled query" else by_head
        axes = "wh" if self.mistake == "rows for columns" else "hw"
        tables = [self.w[f"{name}.rel_pos_{axis}"] for axis in axes]
        bias = np.zeros((batch, HEADS, h, w, h, w))
        for y, x_, y2, x2 in np.ndindex(h, w, h, w):
            turn = -1 if self.mistake == "distances turned" else 1
            vectors = [
                self.vector(table, turn * (a - b)) for table, a, b in zip(tables, (y, x_), (y2, x2), strict=True)
            ]
            bias[:, :, y, x_, y2, x2] = by_head[:, y, x_] @ sum(vectors)
            if self.mistake == "padding left out" and inside and (y2 >= inside[0] or x2 >= inside[1]):
                bias[:, :, y, x_, y2, x2] = -np.inf
        bias = 0 if self.mistake == "no positions" else bias.reshape(batch, HEADS, h * w, h * w)
        return self.dense(f"{name}.proj", attention(q, k, v, HEADS, bias)).reshape(x.shape)

    def vector(self, table, distance):
        return table[(distance + len(table) // 2) % len(table)]  # beyond the table by a mistake alone
