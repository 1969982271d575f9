"""A Flax transcription of the model, written for this comparison: its tree of weights is that of the official file."""

from answering import Runner, serve


class Flax(Runner):
    packages = ("jax", "jaxlib", "flax", "optax")

    def bring_packages(self):
        import flax.linen  # noqa: F401
        import jax

        jax.devices()  # begins the backend, and fails here if there is none

    def build(self):
        import jax

        self.model = vision_transformer(self.job)
        side = self.job["image_size"]
        init = jax.jit(lambda key: self.model.init(key, jax.numpy.zeros((1, side, side, 3))))
        return jax.block_until_ready(init(jax.random.key(0)))["params"]

    def load(self, model):
        import jax
        import numpy as np

        shapes = jax.tree.map(lambda leaf: leaf.shape, model)
        with np.load(self.job["files"]["official"]) as arrays:
            tree = nested({name: arrays[name] for name in arrays.files})
        if jax.tree.map(lambda leaf: leaf.shape, tree) != shapes:
            raise ValueError("the official file does not fit the Flax model")
        return jax.block_until_ready(jax.device_put(tree))

    def inference(self, model):
        import jax
        import numpy as np

        if self.job["precision"] == "bfloat16":
            model = jax.tree.map(lambda leaf: leaf.astype(jax.numpy.bfloat16), model)
        apply = jax.jit(lambda tree, images: self.model.apply({"params": tree}, images))
        images, _ = self.batch()
        return lambda: np.asarray(apply(model, images))

    def train(self, model):
        import jax
        import optax

        optimizer = self.optimizer(optax)

        def loss_of(tree, images, labels):
            logits = self.model.apply({"params": tree}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        def update(tree, state, images, labels):
            loss, gradients = jax.value_and_grad(loss_of)(tree, images, labels)
            updates, state = optimizer.update(gradients, state, tree)
            return optax.apply_updates(tree, updates), state, loss

        compiled = jax.jit(update, donate_argnums=(0, 1))
        kept = [model, optimizer.init(model)]
        images, labels = self.batch()

        def step():
            *kept[:], loss = compiled(*kept, images, labels)
            jax.block_until_ready(kept)
            return float(loss)

        return step

    def optimizer(self, optax):
        import jax

        rate = self.job["learning_rate"]
        clip = optax.clip_by_global_norm(self.job["clip_norm"])
        if self.job["optimizer"] == "sgd":
            return optax.chain(clip, optax.sgd(rate, momentum=self.job["momentum"]))

        def kernels(tree):
            return jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", tree)

        return optax.chain(clip, optax.adamw(rate, weight_decay=self.job["weight_decay"], mask=kernels))

    def facts(self):
        import jax

        device = jax.devices()[0]
        if device.platform == "cpu":
            return {}
        memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
        return {"device_memory": memory, "accelerator": device.device_kind}


def nested(arrays):
    """Arrays by their path as `a/b` to a tree of dictionaries."""
    tree: dict = {}
    for name, array in arrays.items():
        *folders, leaf = name.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = array
    return tree


def block_class(job):
    """A block of the encoder: attention, then an MLP, with LayerNorm before each."""
    import jax
    from flax import linen

    sizes, dtype = job["sizes"], jax.numpy.dtype(job["precision"])

    class Mlp(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.Dense(sizes["mlp_dim"], dtype=dtype, name="Dense_0")(x)
            x = jax.nn.gelu(x, approximate=job["activation"] == "gelu_tanh")
            return linen.Dense(sizes["hidden_size"], dtype=dtype, name="Dense_1")(x)

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            attention = linen.MultiHeadDotProductAttention(
                sizes["num_heads"], dtype=dtype, name="MultiHeadDotProductAttention_1"
            )
            x = x + attention(linen.LayerNorm(dtype=dtype, name="LayerNorm_0")(x))
            return x + Mlp(name="MlpBlock_3")(linen.LayerNorm(dtype=dtype, name="LayerNorm_2")(x))

    return Block


def vision_transformer(job):
    """Section 3.1 of arXiv:2010.11929, with the names of the official checkpoints."""
    import jax.numpy as jnp
    from flax import linen

    sizes, dtype, block = job["sizes"], jnp.dtype(job["precision"]), block_class(job)
    width, patch = sizes["hidden_size"], sizes["patch_size"]

    class Positions(linen.Module):
        @linen.compact
        def __call__(self, x):
            table = self.param("pos_embedding", linen.initializers.normal(0.02), (1, *x.shape[1:]))
            return x + table.astype(dtype)

    class Encoder(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = Positions(name="posembed_input")(x)
            for index in range(sizes["num_layers"]):
                x = block(name=f"encoderblock_{index}")(x)
            return linen.LayerNorm(dtype=dtype, name="encoder_norm")(x)

    class VisionTransformer(linen.Module):
        @linen.compact
        def __call__(self, images):
            x = linen.Conv(width, (patch, patch), (patch, patch), "VALID", dtype=dtype, name="embedding")(images)
            x = x.reshape(len(x), -1, width)  # (B, N, D)
            token = self.param("cls", linen.initializers.zeros, (1, 1, width)).astype(dtype)
            x = jnp.concatenate([jnp.tile(token, (len(x), 1, 1)), x], axis=1)  # (B, T, D)
            x = Encoder(name="Transformer")(x)[:, 0]  # (B, D)
            return linen.Dense(job["classes"], name="head")(x.astype(jnp.float32))  # (B, K)

    return VisionTransformer()


if __name__ == "__main__":
    serve({"flax": Flax})
