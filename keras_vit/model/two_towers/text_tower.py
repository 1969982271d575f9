"""The text tower: ids to one vector, on the transformer blocks of the image tower.

Layers are named `token_embedding`, `position_embedding`, `mask`, `block_00`, ..., `encoder_norm`, `pooling` and
`projection`.
"""

import contextlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from keras_vit import layers
from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import ArgumentError, check_positive_int, check_process
from keras_vit.config.text import TextConfig
from keras_vit.images.validation import with_progress
from keras_vit.layers.configurable import at_least_float32
from keras_vit.layers.norms import layer_norm
from keras_vit.renamed import by_old_name
from keras_vit.text import TextEmbeddings
from keras_vit.text.tokenizer import Pieces, Tokenizer

_WIDTHS = 16  # ids of causal towers are cut to a multiple of it after the longest end
_FEWEST_ROWS, _MOST_ROWS = 0.9, 1.01  # ids of a tokenizer, as a share of the rows of a tower's token table
_SAMPLE = "A photo of a Caf&eacute;, “red”"  # capitals, an entity, marks: what is cleaned otherwise shows
NO_TOKENIZER = "tokenizer left out"  # how the line on it begins
_TOKENIZER, _PIECES = "tokenizer.json", "pieces"  # files of a tokenizer in a `.keras` archive


@keras.saving.register_keras_serializable("keras_vit")
class TextTransformer(keras.Model):
    """A text tower as a Keras model. `build_text` makes one.

    Example:
        >>> config = keras_vit.TextConfig(64, 8, 16, 2, num_heads=2, mlp_dim=32)
        >>> tower = keras_vit.build_text(config)
        >>> tuple(tower(np.zeros((3, 8), "int32")).shape)
        (3, 16)

    Attributes:
        config: the `TextConfig`.
        tokenizer: the `Tokenizer` of the same source, or `None`.
        logit_scale: logarithm of the factor on cosines, of the file; else `None`.
        logit_bias: what these files add to the logits; else `None`.
        load_report: one line for each adaptation that loading made.
        provenance: what no tensor says, `{name: (value, source)}`.
        weights_source: what `build_text` has loaded in this process: a published record or the file's path; else
            `None`.
        lacks_projection: whether the config has a projection and the model ends before it.

    Call arguments:
        ids: int32 `(B, t)`, t at most `config.max_length`.

    Returns:
        float32 `(B, E)`, not of length 1; without a projection `(B, D)`; `(B, t, D)` with `pooling="none"`.
    """

    config: TextConfig

    def __init__(
        self,
        *args: Any,
        config: TextConfig | Arguments | None = None,
        tokenizer: Tokenizer | None = None,
        weights_report: Sequence[str] = (),
        weights_facts: Mapping[str, Sequence[Any]] | None = None,
        similarity: Sequence[float | None] | None = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        super().__init__(*args, **kwargs)
        known = TextConfig(**config) if isinstance(config, Mapping) else config
        self.config = cast(TextConfig, known)  # `None` in a clone of `keras.models.clone_model`
        self.tokenizer = tokenizer
        self.weights_source: Any = None
        projects = known is not None and known.projection_size is not None
        self.lacks_projection = projects and not any(layer.name == "projection" for layer in self.layers)
        self.load_report = tuple(weights_report)
        self.provenance = {name: (value, source) for name, (value, source) in (weights_facts or {}).items()}
        self.logit_scale, self.logit_bias = similarity or (None, None)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The `Tokenizer` of the same source, or `None`; it can be set.

        Raises:
            TypeError: for what is no `Tokenizer`.
            ValueError: for a tokenizer of another length than a tower has that reads its padding.

        Warns:
            UserWarning: if it takes the place of one that makes other ids.
        """
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        old = getattr(self, "_tokenizer", None)
        if tokenizer is not None:
            if not isinstance(tokenizer, Tokenizer):
                raise TypeError(
                    "`tokenizer` must be one that `keras_vit.tokenizer` opens.\n"
                    f"Received: {tokenizer!r:.80}. Set `keras_vit.tokenizer(...)`."
                )
            if _reads_padding(self.config) and tokenizer.max_length != self.config.max_length:
                raise _length_error(self.config, f"a tokenizer of max_length={tokenizer.max_length}")
            if isinstance(old, Tokenizer):
                _warn_of_other_ids(old, tokenizer)
        self._tokenizer = tokenizer

    def embed(self, texts: str | Sequence[str], batch_size: int = 128) -> np.ndarray:
        """float32 `(B, E)`, one row for each text, not of length 1.

        Args:
            texts: one or several.
            batch_size: texts at once.

        Raises:
            TypeError: for what is no text.
            ValueError: for a model without a tokenizer, or whose output is no single vector.
        """
        check_positive_int("batch_size", batch_size)
        tokenizer = check_tokenizer(self)
        if len(self.output_shape) != 2:
            raise ValueError(
                f"a text must get one vector.\nReceived: {self.name!r} of outputs {self.output_shape}. Build it with "
                "another `pooling`."
            )
        ids = tokenizer(texts)
        embeddings = np.zeros((len(ids), self.output_shape[-1]), "float32")
        lengths = _lengths(ids, self.config)
        order = np.argsort(lengths, kind="stable")
        starts = range(0, len(ids), batch_size)
        for start in with_progress(starts, len(starts), label="Embedding texts"):
            rows = order[start : start + batch_size]
            width = min(-(-int(lengths[rows].max()) // _WIDTHS) * _WIDTHS, ids.shape[1])
            size = min(1 << (len(rows) - 1).bit_length(), batch_size)  # each shape is compiled, so there are few
            padded = np.concatenate([rows, rows[-1:].repeat(size - len(rows))])
            embeddings[rows] = self.predict_on_batch(ids[padded, :width])[: len(rows)]
        found = embeddings.view(TextEmbeddings)
        found.before_projection = self.lacks_projection
        return found

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        check_ids(inputs, self.config)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        check_ids(inputs, self.config)  # JAX comes here past `__call__`
        if _reads_padding(self.config) and inputs.shape[1] is None:  # a graph of TensorFlow, which fails here if fewer
            inputs = keras.ops.reshape(inputs, (keras.ops.shape(inputs)[0], self.config.max_length))
        return super().call(inputs, *args, **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_ids(x, self.config)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_ids(x, self.config)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        check_ids(x, self.config)
        return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        check_ids(x, self.config)
        return super().predict_on_batch(x)

    def __getattr__(self, name: str) -> Any:
        if name == "similarity":
            return None if self.logit_scale is None else (self.logit_scale, self.logit_bias)
        return by_old_name(self, name)

    def get_config(self) -> Arguments:
        return {
            **super().get_config(),
            "config": None if self.config is None else self.config.as_dict(),
            "weights_report": list(self.load_report),
            "weights_facts": {name: list(fact) for name, fact in self.provenance.items()},
            "similarity": None if self.logit_scale is None else [self.logit_scale, self.logit_bias],
        }

    def save_assets(self, folder: str) -> None:
        """Writes the tokenizer into a `.keras` archive."""
        if self.tokenizer is None:
            return
        facts = {"kind": self.tokenizer.pieces.kind, **self.tokenizer.get_config()}
        Path(folder, _TOKENIZER).write_text(json.dumps(facts))
        Path(folder, _PIECES).write_bytes(self.tokenizer.pieces.data)

    def load_assets(self, folder: str) -> None:
        """Reads the tokenizer of a `.keras` archive."""
        facts = json.loads(Path(folder, _TOKENIZER).read_text())
        self._tokenizer = Tokenizer(Pieces(facts.pop("kind"), Path(folder, _PIECES).read_bytes()), **facts)


def _warn_of_other_ids(old: Tokenizer, new: Tokenizer) -> None:
    """Warns where texts get other ids than those that the tower was trained with."""
    facts = {name: value for name, value in old.get_config().items() if name != "max_length"}
    changed = [
        f"{name}={value!r}, not {getattr(new, name)!r}" for name, value in facts.items() if getattr(new, name) != value
    ]
    if old.pieces != new.pieces:  # perhaps the same vocabulary in another file, around which other things are done
        shown = [tokenizer.ids_and_lengths(_SAMPLE) for tokenizer in (old, new)]
        fewest = min(min(ids.shape[1], int(lengths[0])) for ids, lengths in shown) - 1  # the end may be a cut's
        first = [ids[0, :fewest].tolist() for ids, _ in shown]
        changed = [f"ids {first[0]} of {_SAMPLE!r}, not {first[1]}"] if first[0] != first[1] else []
    if changed:
        warnings.warn(
            f"the tokenizer that was here before has {', '.join(changed)}. If the tower was trained with that one, the "
            "new one gives other embeddings.",
            UserWarning,
            stacklevel=4,
        )


def _length_error(config: TextConfig, received: str) -> ArgumentError:
    return ArgumentError(
        f"texts of this tower must be padded to {config.max_length} ids, since padding takes part.\n"
        f"Received: {received}. Make ids by `model.tokenizer`, or a tokenizer with `max_length={config.max_length}`.",
        parameters=("ids",),
    )


def _lengths(ids: np.ndarray, config: TextConfig) -> np.ndarray:
    """How many ids of each row can reach its vector: in a causal tower none after the place that is taken."""
    if not config.causal or config.pooling not in ("argmax", "end") or not len(ids):
        return np.full(len(ids), ids.shape[1])
    marks = ids if config.pooling == "argmax" else ids == config.end_id
    return marks.argmax(axis=1) + 1


def check_tokenizer(model: TextTransformer) -> Tokenizer:
    """The tokenizer of a text tower; raises unless its ids can be those that the tower was trained with.

    Tables of tokens have some rows more than the vocabulary has ids, or fewer: a round number, without its last ids,
    as `<extra_id_0>`, which no text has.
    """
    tokenizer, config = model.tokenizer, model.config
    if not isinstance(tokenizer, Tokenizer):
        lines = [line for line in model.load_report if line.startswith(NO_TOKENIZER)]
        reasons = [f": {line.removeprefix(NO_TOKENIZER).lstrip(': ').rstrip('.')}" for line in lines]
        raise ValueError(
            "texts are embedded by a model with the tokenizer that it was trained with.\n"
            f"Received: {model.name!r}, which has none{''.join(reasons)}. Set it by "
            "`model.tokenizer = keras_vit.tokenizer(...)`, or pass ids to `predict`."
        )
    ids, rows, end = tokenizer.vocabulary_size, config.vocabulary_size, tokenizer.end_id
    is_largest = config.pooling != "argmax" or (end is not None and end >= _FEWEST_ROWS * ids)
    is_of_size = _FEWEST_ROWS * rows <= ids <= _MOST_ROWS * rows and not tokenizer.has_words_from(rows)
    if not is_of_size or not is_largest or config.end_id not in (None, end):
        what = f"with the end {config.end_id}" if config.pooling == "end" else f"that takes {config.pooling!r}"
        raise ArgumentError(
            "a text tower reads ids of the vocabulary that it was trained with.\n"
            f"Received: a tokenizer of {ids} ids with the end {end}, a token table of {rows} rows and a tower {what}.",
            parameters=("tokenizer",),
        )
    return tokenizer


def _reads_padding(config: TextConfig | None) -> bool:
    """Whether a text must have its full length, as of SigLIP."""
    return config is not None and not config.causal and not config.mask_padding


def check_ids(ids: Any, config: TextConfig | None) -> None:
    """Raises for ids that no text of this vocabulary has; of a tensor in a graph its dtype and shape are known."""
    is_list = isinstance(ids, (list, tuple))
    if config is None or not (is_list or hasattr(ids, "shape")):
        return
    found = ids
    if not hasattr(ids, "graph") and not isinstance(ids, keras.KerasTensor):
        with contextlib.suppress(Exception):  # of a tensor in a graph, for which each backend has an error of its own
            found = np.asarray(ids if is_list else keras.ops.convert_to_numpy(ids))
    if not hasattr(found, "shape"):  # no list of numbers
        return
    if getattr(found.shape, "rank", 2) is None:  # TensorFlow knows nothing of it
        return
    shape, dtype = tuple(found.shape), getattr(found.dtype, "name", str(found.dtype))
    if "int" not in dtype or len(shape) != 2:
        raise ArgumentError(
            "a text tower takes ids, int (B, T).\n"
            f"Received: {dtype} of shape {shape}. Make ids of texts by `keras_vit.tokenizer`, or call "
            "`model.embed(texts)`.",
            parameters=("ids",),
        )
    if 0 in shape:
        raise ArgumentError(f"`ids` must be of at least one text and one id.\nReceived: shape {shape}.")
    length = shape[1]
    if length is not None and length > config.max_length:
        raise ArgumentError(
            f"a text has at most {config.max_length} ids.\nReceived: shape {shape}.", parameters=("ids",)
        )
    if _reads_padding(config) and length not in (None, config.max_length):
        raise _length_error(config, f"shape {shape}")
    has_values = isinstance(found, np.ndarray) and found.size
    if has_values and not 0 <= found.min() <= found.max() < config.vocabulary_size:
        raise ArgumentError(
            f"ids must be from 0 to {config.vocabulary_size - 1}, the rows of the token table.\n"
            f"Received: ids from {found.min()} to {found.max()}. They are of another vocabulary.",
            parameters=("ids",),
        )


def build_text_graph(config: TextConfig, include_top: bool, name: str) -> TextTransformer:
    """The text tower of a config, with first values.

    Args:
        config: its sizes and switches.
        include_top: whether to end in the projection, if the config has one.
        name: of the model.
    """
    ids = keras.Input((None,), dtype="int32", name="ids")
    tokens = layers.TokenEmbedding(
        config.vocabulary_size, config.hidden_size, config.scale_tokens, name="token_embedding"
    )(ids)  # (B, T, D)
    tokens = layers.TextPositions(config.max_length, config.positions, name="position_embedding")(tokens)
    given: dict[str, Tensor] = {}
    if config.causal or config.mask_padding:
        pad_id = config.pad_id if config.mask_padding else None
        given["bias"] = layers.TextMask(config.causal, pad_id, name="mask")(ids)
    for index in range(config.num_layers):
        block = layers.TransformerBlock(
            config.hidden_size,
            config.num_heads,
            config.mlp_dim,
            activation=config.activation,
            layer_norm_epsilon=config.layer_norm_epsilon,
            qkv_bias=config.qkv_bias,
            layer_scale=config.layer_scale,
            use_attention_bias=bool(given),
            name=f"block_{index:02}",
        )
        tokens = block(tokens, **given)
    tokens = layer_norm(None, "encoder_norm", config.layer_norm_epsilon)(tokens)
    if config.pooling == "none":
        outputs = keras.layers.Identity(dtype="float32", name="tokens")(tokens)
    else:
        outputs = layers.TextPooling(config.pooling, config.end_id, config.pad_id, name="pooling")(tokens, ids)
    if include_top and config.projection_size is not None:
        size, precision = config.projection_size, at_least_float32()
        project = keras.layers.Dense(size, use_bias=config.projection_bias, dtype=precision, name="projection")
        outputs = project(outputs)
    return TextTransformer(ids, outputs, name=name, config=config)
