"""MAE (arXiv:2111.06377): an encoder sees some patches, and a small decoder predicts the pixels of all others.

The decoder of a published pre-training file is read too, so that such a training goes on.
"""

import re
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import FilePath, Tensor, Variable
from keras_vit.checks import ArgumentError, check_flag, check_fraction, check_positive_int
from keras_vit.config.position_tables import sincos2d
from keras_vit.layers.dropout import uniform
from keras_vit.layers.encoder import TransformerBlock
from keras_vit.layers.norms import layer_norm
from keras_vit.model.layer_access import patch_embedding, position_layers, rotary_layers
from keras_vit.model.replicated_model import num_replicas
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.selfsupervised.masking import mae_losses, random_masking
from keras_vit.training.selfsupervised.features import check_encoder, prepared, tiled, visible_tokens
from keras_vit.training.selfsupervised.steps import UnlabeledModel
from keras_vit.weights.checkpoint import file_in
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import scan_any

_POSITIONS = "sincos2d_mae"
_EVALUATION_SEED = 0  # of the one draw that every image has outside of training
# By layout: where the decoder's parts are below a prefix, and what its blocks and its norm are called in an encoder.
_DECODERS = {
    "timm": ("", {r"decoder_blocks\.": "blocks.", r"decoder_norm\.": "norm."}),
    "huggingface": ("decoder.", {r"decoder_layers\.": "encoder.layer.", r"decoder_norm\.": "layernorm."}),
}


class MaskedAutoencoder(UnlabeledModel):
    """Pre-trains an encoder without labels, with `fit`: from few patches, the pixels of all others are predicted.

    What is trained is `encoder` itself: save that one. Its position table stays as it is, as MAE's is fixed, and is
    frozen from here on.

    Example:
        >>> config = keras_vit.ViTConfig(4, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> encoder = keras_vit.build(config, include_top=False, input_shape=(8, 12, 3))
        >>> training = keras_vit.MaskedAutoencoder(encoder, 16, 1, decoder_heads=2)
        >>> found = training({"images": np.ones((2, 8, 12, 3), "float32")})
        >>> tuple(found["predictions"].shape), int(np.sum(found["mask"][0]))
        ((2, 6, 48), 5)

    Args:
        encoder: a `VisionTransformer` without a head, whose positions are added to its tokens.
        decoder_size: width of the decoder, a multiple of 4.
        decoder_layers: its blocks.
        decoder_heads: its heads; must divide `decoder_size`.
        ratio: share of the patches that are masked, in [0, 1); int(N (1 - ratio)) are seen.
        normalize: whether the pixels of each patch are brought to mean 0 and deviation 1 to be predicted.

    Call arguments:
        x: `{"images": (B, H, W, C)}`, floats prepared by `encoder.preprocessing`, or uint8; and `"noise"` `(B, N)`, by
            whose order patches are masked. Without it noise is drawn, outside of training the same for all images.

    Returns:
        A dict of the scalar `"loss"`, which several devices do not have; `"predictions"` `(B, N, P P C)`; the `"mask"`
        `(B, N)`, True where masked; and `"restore"` `(B, N)`, as of `random_masking`.

    Raises:
        TypeError: for what is no `VisionTransformer`.
        ValueError: for an encoder with a head or with rotary or relative positions, sizes out of range, a batch without
            images, images that patches do not tile, and a loss, metrics or accumulation in `compile`.

    Source: arXiv:2111.06377, section 3 and appendix A; the variance of a patch as its code has it.
    """

    inputs_by_name: ClassVar = {"images": "(B, H, W, C)"}

    def __init__(
        self,
        encoder: VisionTransformer,
        decoder_size: int = 512,
        decoder_layers: int = 8,
        decoder_heads: int = 16,
        ratio: float = 0.75,
        normalize: bool = True,
        name: str = "masked_autoencoder",
    ) -> None:
        check_encoder("encoder", encoder)
        if rotary_layers(encoder) or not position_layers(encoder) or encoder.config.position_injection != "stem":
            raise ArgumentError(
                "`encoder` must add positions to its tokens once, as the patches that are seen lie anywhere.\n"
                f"Received: {encoder.name!r} with position_embedding={encoder.config.position_embedding!r}, "
                f"rotary={encoder.config.rotary!r}."
            )
        if check_positive_int("decoder_size", decoder_size) % 4 or decoder_size % decoder_heads:
            raise ArgumentError(
                "`decoder_size` must be a multiple of 4, for its positions, and of `decoder_heads`.\n"
                f"Received: decoder_size={decoder_size}, decoder_heads={decoder_heads}."
            )
        super().__init__(name)
        self.encoder = encoder
        self.ratio, self.normalize = check_fraction("ratio", ratio), check_flag("normalize", normalize)
        for layer in position_layers(encoder):
            layer.trainable = False
        network = visible_tokens(encoder)
        self._seen = lambda: network  # whose weights are the encoder's
        side, channels = encoder.config.stride, encoder.input_shape[-1]
        self.decoder = Decoder(
            *(decoder_size, check_positive_int("decoder_layers", decoder_layers), decoder_heads),
            *(encoder.config.num_prefix_tokens, side * side * channels, encoder.config.layer_norm_epsilon),
            dtype=patch_embedding(encoder).dtype_policy,
            name="decoder",
        )
        self.decoder.build((None, None, encoder.config.hidden_size))
        self.noise = keras.random.SeedGenerator()

    def compile(self, optimizer: Any, **kwargs: Any) -> None:
        """Keras' `compile`, without a loss or metrics.

        Args:
            optimizer: as `keras_vit.AdamW(rate, beta_2=0.95, weight_decay=0.05)`.
            **kwargs: of Keras' `compile`.
        """
        self.compile_with(optimizer, kwargs)

    def call(self, x: dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        self.check_batch(x)
        tiled("images", x["images"].shape, self.encoder)
        images = prepared(self.encoder, x["images"])
        grid = self.encoder.config.grid(*images.shape[1:3])
        kept, mask, restore = random_masking(self._noise_of(x, grid[0] * grid[1], training), self.ratio)
        tokens = self._seen()([images, ops.cast(kept, "int32")], training=training)
        predictions = ops.cast(self.decoder(tokens, restore, grid=grid, training=training), "float32")
        found = {"predictions": predictions, "mask": mask, "restore": restore}
        if num_replicas(self) > 1:
            return found
        losses = mae_losses(predictions, images, mask, self.encoder.config.stride, self.normalize)
        return {"loss": ops.mean(losses), **found}

    def _noise_of(self, x: dict[str, Tensor], patches: int, training: bool | None) -> Tensor:
        batch = ops.shape(x["images"])[0]
        if "noise" in x:
            if tuple(x["noise"].shape[1:]) != (patches,):
                raise ArgumentError(
                    f"`noise` must have a number for each of {patches} patches.\n"
                    f"Received: shape {tuple(x['noise'].shape)}."
                )
            return x["noise"]
        if training:
            return uniform((batch, patches), self.noise)
        drawn = keras.random.uniform((1, patches), dtype="float32", seed=_EVALUATION_SEED)
        return ops.broadcast_to(drawn, (batch, patches))

    def losses_of(
        self, x: dict[str, Tensor], found: dict[str, Tensor], there: Tensor | None, training: bool | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        images = prepared(self.encoder, x["images"])
        side = self.encoder.config.stride
        return mae_losses(found["predictions"], images, found["mask"], side, self.normalize), {}

    def load(self, path: FilePath) -> tuple[str, ...]:
        """Reads encoder and decoder from a file of a pre-training: the authors' names, or transformers'.

        Args:
            path: of the file, or of a folder with a `model.safetensors`.

        Returns:
            The lines of `keras_vit.load_checkpoint` on the encoder.

        Raises:
            FileNotFoundError: if there is no such file.
            CheckpointError: for a file without a decoder, or with one that does not fit; nothing is changed then.
        """
        tensors = _decoder_tensors(path, self.decoder)
        report = load_checkpoint(self.encoder, path)
        for key, variable in self.decoder.by_path().items():
            variable.assign(tensors[key])
        return tuple(line for line in report if "decoder" not in line and "mask_token" not in line)


class Decoder(keras.layers.Layer):
    """From the tokens of seen patches to the pixels of all.

    Args:
        hidden_size: width.
        num_layers: of blocks.
        num_heads: of each.
        num_prefix_tokens: before the patches; they go through the decoder too.
        outputs: numbers of a patch.
        epsilon: of the norms.

    Call arguments:
        tokens: `(B, num_prefix_tokens + k, D)`.
        restore: `(B, N)`.
        grid: `(h, w)`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        num_prefix_tokens: int,
        outputs: int,
        epsilon: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.num_prefix_tokens = hidden_size, num_prefix_tokens
        policy = {"dtype": self.dtype_policy}
        self.embed = keras.layers.Dense(hidden_size, name="embed", **policy)
        self.blocks = [
            TransformerBlock(
                *(hidden_size, num_heads, 4 * hidden_size),
                activation="gelu",
                layer_norm_epsilon=epsilon,
                name=f"block_{index:02}",
                **policy,
            )
            for index in range(num_layers)
        ]
        self.norm = layer_norm(self.dtype_policy, "norm", epsilon)
        self.predict_pixels = keras.layers.Dense(outputs, name="predict_pixels", **policy)

    def build(self, tokens_shape: Any) -> None:
        inside = (None, None, self.hidden_size)
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.mask_token = self.add_weight(name="mask_token", shape=(1, 1, self.hidden_size), initializer=normal)
        self.embed.build(tokens_shape)
        for layer in (*self.blocks, self.norm, self.predict_pixels):
            layer.build(inside)

    def call(self, tokens: Tensor, restore: Tensor, grid: Any = None, training: bool | None = None) -> Tensor:
        x, prefix = self.embed(tokens), self.num_prefix_tokens
        batch, patches = ops.shape(restore)[0], restore.shape[1]
        token = ops.cast(self.mask_token, x.dtype)
        masked = ops.broadcast_to(token, (batch, patches - (x.shape[1] - prefix), self.hidden_size))
        every = ops.concatenate([x[:, prefix:], masked], axis=1)
        every = ops.take_along_axis(every, ops.expand_dims(restore, -1), axis=1)  # (B, N, D), in their places
        rows, columns = (np.arange(side, dtype="float32") for side in grid)
        every = every + ops.cast(sincos2d(rows, columns, self.hidden_size, kind=_POSITIONS), x.dtype)
        x = ops.concatenate([x[:, :prefix], every], axis=1)
        for block in self.blocks:
            x = block(x, training=training)
        return self.predict_pixels(self.norm(x)[:, prefix:])

    def by_path(self) -> dict[str, Variable]:
        """The weights by the names that a layout of encoders gives them, but for the three of the decoder alone."""
        found = {"mask_token": self.mask_token}
        for layer in (self.embed, self.norm, self.predict_pixels, *self.blocks):
            found |= {weight.path[weight.path.rindex(f"{layer.name}/") :]: weight for weight in layer.weights}
        return found


def _decoder_tensors(path: FilePath, decoder: Decoder) -> dict[str, np.ndarray]:
    """The arrays of a file for each weight of the decoder, by its path."""
    file = scan_any(file_in(path))
    end = re.compile(r"(.*?)(decoder\.)?decoder_pred\.weight")
    match = next(filter(None, map(end.fullmatch, file.entries)), None)
    if match is None:
        raise CheckpointError(
            "a pre-training file must have its decoder, as `decoder_pred.weight`.\n"
            f"Received: {path}, without one. Take the file of the pre-training; `build` reads an encoder alone."
        )
    layout = "huggingface" if match[2] else "timm"
    start, renames = _DECODERS[layout]
    start = match[1] + start
    names = [name for name in file.entries if re.match(re.escape(start) + r"(decoder_|mask_token)", name)]
    arrays = {name.removeprefix(start): array for name, array in file.read(names).items()}
    found: dict[str, Any] = {"mask_token": arrays.pop("mask_token", None)}
    table = arrays.pop("decoder_pos_embed", None)
    for name, part in (("decoder_embed", "embed"), ("decoder_pred", "predict_pixels")):
        found[f"{part}/kernel"] = np.transpose(arrays.pop(f"{name}.weight", np.zeros((0, 0))))
        found[f"{part}/bias"] = arrays.pop(f"{name}.bias", None)
    for pattern, new in renames.items():
        arrays = {re.sub(f"^{pattern}", new, name): array for name, array in arrays.items()}
    tensors, _ = LAYOUTS[layout].from_file(arrays, None)
    found |= {re.sub("^encoder_norm/", "norm/", name): array for name, array in tensors.items()}
    _check_fit(path, found, decoder.by_path())
    _check_table(path, table, decoder)
    return {name: np.asarray(array, "float32") for name, array in found.items()}


def _check_fit(path: FilePath, found: dict[str, Any], wanted: dict[str, Variable]) -> None:
    shapes: list[dict[str, Any]] = [
        {name: tuple(array.shape) for name, array in side.items() if array is not None} for side in (found, wanted)
    ]
    if shapes[0] == shapes[1]:
        return
    lines = [f"    ~ {n}  file {shapes[0].get(n)}  model {s}" for n, s in shapes[1].items() if shapes[0].get(n) != s]
    lines += [f"    + {n} {s}, in the file alone" for n, s in shapes[0].items() if n not in shapes[1]]
    raise CheckpointError(
        "the decoder of the file must fit the one of the model.\n"
        + "\n".join(lines[:8])
        + f"\nReceived: {path}. Pass its `decoder_size`, `decoder_layers` and `decoder_heads`."
    )


def _check_table(path: FilePath, table: np.ndarray | None, decoder: Decoder) -> None:
    """Raises for positions of a decoder that are not the fixed ones."""
    if table is None:
        return
    prefix = decoder.num_prefix_tokens
    side = round((table.shape[1] - prefix) ** 0.5)
    axis = np.arange(side, dtype="float32")
    fixed = sincos2d(axis, axis, decoder.hidden_size, kind=_POSITIONS)
    if table.shape[1] - prefix != side**2 or not np.allclose(table[0, prefix:], fixed, atol=1e-4):
        raise CheckpointError(
            "the decoder's positions must be the fixed ones of sines and cosines on a square grid.\n"
            f"Received: {path} with others in decoder_pos_embed {table.shape}."
        )
