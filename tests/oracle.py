"""The Vision Transformer again, in NumPy and float64: the second computation that the tests compare with."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def gelu(x, exact=False):
    if exact:
        return x * 0.5 * (1 + erf(x / math.sqrt(2)))
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def layer_norm(x, gamma, beta=None):
    """Without a shift it is RMSNorm."""
    if beta is None:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gamma
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * gamma + beta


def unfold(images, patch):
    """(B, H, W, C) to (B, N, P*P*C), patches and pixels in reading order."""
    batch, height, width, channels = images.shape
    x = images.reshape(batch, height // patch, patch, width // patch, patch, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, patch * patch * channels)


def attention_weights(tokens, queries, w, heads, turned=lambda x: x):
    """(B, A, Q, T); `w` maps names as `query/kernel` to arrays, `turned` is what rotary positions do."""

    def split(x, name):
        """Each head, normed over itself or before over all of them, and repeated for every query that shares it."""
        size = w["query/kernel"].shape[1] // heads
        x = x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0)
        gamma, beta = w.get(f"{name}_norm/gamma"), w.get(f"{name}_norm/beta")
        x = x if gamma is None or len(gamma) == size else layer_norm(x, gamma, beta)
        x = x.reshape(*x.shape[:2], -1, size).transpose(0, 2, 1, 3)
        x = layer_norm(x, gamma, beta) if gamma is not None and len(gamma) == size else x
        return x[:, [head * x.shape[1] // heads for head in range(heads)]]

    q, k, v = split(queries, "query"), split(tokens, "key"), split(tokens, "value")
    logits = turned(q) @ turned(k).transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
    logits = np.exp(logits - logits.max(-1, keepdims=True))
    return logits / logits.sum(-1, keepdims=True), v


def attention(tokens, queries, w, heads, **rotary):
    weights, values = attention_weights(tokens, queries, w, heads, **rotary)
    mixed = (weights @ values).transpose(0, 2, 1, 3).reshape(*queries.shape[:2], -1)
    return inner_norm(mixed, w) @ w["out/kernel"] + w.get("out/bias", 0.0)


def attention_with_gradients(query, key, value, upstream, added=0.0, kept=1.0):
    """`dropout(softmax(query @ key + added)) @ value`, and the gradients of its sum of products with `upstream`.

    They are of query, key, value and, where it is an array, of what is added; `kept` are factors of weights.
    """
    logits = query @ key + added
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    back = upstream @ value.swapaxes(-1, -2) * kept
    dlogits = weights * (back - (weights * back).sum(-1, keepdims=True))
    axes = tuple(i for i, side in enumerate(np.shape(added)) if side != dlogits.shape[i])
    dadded = [dlogits.sum(axes, keepdims=True)] if np.ndim(added) else []
    dvalue = (weights * kept).swapaxes(-1, -2) @ upstream
    return (weights * kept) @ value, dlogits @ key.swapaxes(-1, -2), query.swapaxes(-1, -2) @ dlogits, dvalue, *dadded


def inner_norm(x, w):
    """The norm in front of the last dense layer of attention or an MLP, where there is one."""
    return layer_norm(x, w["norm/gamma"], w.get("norm/beta")) if "norm/gamma" in w else x


def mlp(x, w, exact=False):
    hidden = gelu(x @ w["dense_1/kernel"] + w.get("dense_1/bias", 0.0), exact)
    return inner_norm(hidden, w) @ w["dense_2/kernel"] + w.get("dense_2/bias", 0.0)


def gated_mlp(x, w):
    gate, value = (x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0) for name in ("gate", "up"))
    return inner_norm(gate / (1 + np.exp(-gate)) * value, w) @ w["down/kernel"] + w.get("down/bias", 0.0)


def turned(x, grid, rule, frequencies=None, periods=None, class_angles=None):
    """Queries or keys (B, A, T, E), those of the last h * w tokens turned: one complex number for each pair.

    With `class_angles`, the first token too.
    """
    size, (height, width), x = x.shape[-1], grid, x.copy()
    half = rule["rotary_layout"] == "half"
    first, second = (slice(size // 2), slice(size // 2, None)) if half else (slice(0, None, 2), slice(1, None, 2))
    powers = np.array([rule["rotary_theta"] ** (-4 * k / size) for k in range(size // 4)])
    powers = powers if periods is None else 1 / periods

    def turn(token, angles):
        z = (x[:, :, token, first] + 1j * x[:, :, token, second]) * np.exp(1j * angles)
        x[:, :, token, first], x[:, :, token, second] = z.real, z.imag

    def coordinate(i, n):
        if rule["rotary_coordinates"] == "unit":
            return 2 * math.pi * (2 * (i + 0.5) / n - 1)
        return (i + rule.get("rotary_offset", 0)) * (rule.get("rotary_reference") or n) / n

    if class_angles is not None:
        turn(0, class_angles)
    for row in range(height):
        for column in range(width):
            places = [coordinate(row, height), coordinate(column, width)]
            places = places if rule["rotary_axes"] == "yx" else places[::-1]
            if frequencies is None:
                angles = np.concatenate([place * powers for place in places])
            else:
                angles = places[0] * frequencies[0] + places[1] * frequencies[1]  # (A, E/2)
            turn(x.shape[2] - height * width + row * width + column, angles)
    return x


def block(tokens, w, heads, exact=False, norm_position="pre", **rotary):
    def normed(x, half, where):
        return layer_norm(x, w[f"norm_{half}/gamma"], w.get(f"norm_{half}/beta")) if norm_position == where else x

    x = normed(tokens, 1, "pre")
    x = normed(attention(x, x, below(w, "attention"), heads, **rotary), 1, "post")
    tokens = tokens + x * w.get("layer_scale_1/gamma", 1.0)
    x = normed(tokens, 2, "pre")
    x = gated_mlp(x, below(w, "mlp")) if "mlp/gate/kernel" in w else mlp(x, below(w, "mlp"), exact)
    return tokens + normed(x, 2, "post") * w.get("layer_scale_2/gamma", 1.0)


def below(w, prefix):
    return {path.removeprefix(f"{prefix}/"): value for path, value in w.items() if path.startswith(f"{prefix}/")}


def weights_of(layer):
    """`{path below the layer: float64 array}`."""
    return {v.path.removeprefix(f"{layer.path}/"): np.asarray(v.numpy(), "float64") for v in layer.weights}


def std_conv(x, kernel, stride):
    """A weight-standardised convolution with TensorFlow's SAME padding, by loops over the kernel."""
    kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
    x = same_pad(x, kernel.shape[0], stride, 0.0)
    return sum(
        window(x, i, j, kernel.shape[0], stride) @ kernel[i, j]
        for i in range(kernel.shape[0])
        for j in range(kernel.shape[1])
    )


def max_pool(x):
    x = same_pad(x, 3, 2, -np.inf)
    return np.max([window(x, i, j, 3, 2) for i in range(3) for j in range(3)], axis=0)


def window(x, i, j, size, stride):
    return x[:, i : x.shape[1] - size + 1 + i : stride, j : x.shape[2] - size + 1 + j : stride]


def same_pad(x, size, stride, value):
    pads = [(0, 0)]
    for side in x.shape[1:3]:
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)], constant_values=value)


def group_norm(x, gamma, beta, groups=32, epsilon=1e-6):
    shape = x.shape
    x = x.reshape(*shape[:-1], groups, -1)
    axes = (1, 2, 4)
    x = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return x.reshape(shape) * gamma + beta
