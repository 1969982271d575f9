"""From names and files to text towers, tokenizers and zero-shot classifiers."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from keras_vit.annotations import Arguments, FilePath, Tensor
from keras_vit.builders import build
from keras_vit.checks import ArgumentError, check_positive_int, did_you_mean, with_hints, with_parameters
from keras_vit.config.text import TEXT_FIELDS, TextConfig
from keras_vit.config.variants import ENCODERS
from keras_vit.files import expand_path, file_sha256, read_json_object
from keras_vit.model.copies import initialize_variables, uninitialized_variables
from keras_vit.model.two_towers.text_tower import NO_TOKENIZER, TextTransformer, build_text_graph, check_tokenizer
from keras_vit.model.two_towers.zero_shot import (
    check_bias,
    check_image_tower,
    check_projections,
    check_same_size,
    projection_error,
    warn_other_source,
    zero_shot_classifier,
)
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.text.opening import clip_tokenizer, has_vocabulary, open_tokenizer, vocabulary_name
from keras_vit.text.templates import NAMED, check_classes, find_templates, prompts
from keras_vit.text.tokenizer import Tokenizer, cut_and_equal_texts
from keras_vit.weights.checkpoint import describe_other_file, file_in
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import WeightsRecord, usual_weights
from keras_vit.weights.resolve_text import TextSource, find_text
from keras_vit.weights.text import TextCheckpoint, check_family, read_text_checkpoint

_CLIP_IDS = 49408  # of OpenAI's vocabulary
# Fields that tensors show, which are held to the config elsewhere.
_STORED = {
    "vocabulary_size",
    "max_length",
    "hidden_size",
    "num_layers",
    "mlp_dim",
    "projection_size",
    "projection_bias",
}
_POSITIONS = "position_embedding/table"
_SHOWN = 40  # last letters of a class's name in an error


def build_text(
    config: TextConfig | str | None = None,
    include_top: bool = True,
    weights: FilePath | WeightsRecord | None = None,
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    name: str | None = None,
    sha256: str | None = None,
    strict: bool = False,
    **config_overrides: Any,
) -> TextTransformer:
    """Builds a text tower of CLIP, SigLIP or their like: ids to one vector.

    Example:
        >>> config = keras_vit.TextConfig(64, 8, 16, 2, num_heads=2, mlp_dim=32)
        >>> keras_vit.build_text(config, projection_size=12).output_shape
        (None, 12)

    Args:
        config: a `TextConfig`, or the name of an image tower as `"clip/B16"`, whose text tower is meant; by default it
            is read off the file of `weights` and the config in its folder.
        include_top: whether to end in the projection to E, if there is one; else the pooled place `(B, D)`.
        weights: `None` for random initialisation, or of a name the usual ones; else a published name with both towers,
            as `"clip/B16"`, or of its weights, as `"openai"` with `config="clip/B16"`; `"hf:owner/repository"`; a
            record of `find_weights`; or the path of a file or folder.
        pooling: `"none"` for all places after the last norm `(B, T, D)`, without the top.
        max_length: T, ids of a text; by default as many as the file has positions.
        name: of the model.
        sha256: hexadecimal digest that the file must have.
        strict: whether to refuse weights that must be adapted, as by fewer positions, or whose config is contradicted.
        **config_overrides: fields of `TextConfig` to replace; `num_heads` is needed for files of authors, which do not
            say it.

    Returns:
        A `TextTransformer`, with the tokenizer of the same source if there is one.

    Raises:
        TypeError: for an argument of the wrong type, or neither config nor weights.
        ValueError: for arguments that are wrong or contradict each other.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, does not fit, or has a tower of another family.

    Source: arXiv:2103.00020, section 2.4 (CLIP); arXiv:2303.15343 (SigLIP).
    """
    given = config_overrides | {k: v for k, v in (("pooling", pooling), ("max_length", max_length)) if v is not None}
    for field in given:
        if field not in TEXT_FIELDS:
            raise TypeError(f"keyword arguments must be fields of `TextConfig`.\nReceived: {field}={given[field]!r}.")
    include_top = include_top and given.get("pooling") != "none"
    variant, config = (config, None) if isinstance(config, str) else (None, config)
    if config is not None and not isinstance(config, TextConfig):
        raise TypeError(f"`config` must be a `TextConfig`, or a name as 'clip/B16'.\nReceived: {config!r:.80}.")
    if config is not None and weights is None:
        return build_text_graph(config.replace(**given), include_top, name or "text")
    if weights is None and variant is None:
        raise TypeError("a text tower is built from a config, from weights, or from both.\nReceived: neither.")
    source = _text_source(weights, variant)
    checkpoint = read_text_checkpoint(source.path)
    if sha256 is not None and (found := file_sha256(checkpoint.path)) != sha256.lower():
        raise CheckpointError(
            f"the file must have the sha256 that was asked for.\nReceived: {checkpoint.path} with {found}."
        )
    wanted = checkpoint.config(**{**source.fields, **given}) if config is None else config.replace(**given)
    facts, differing = _unstored_facts(checkpoint, source, wanted, given if config is None else TEXT_FIELDS)
    if heads := [line for line in differing if line.startswith("num_heads ")]:
        warnings.warn(
            f"the text tower is computed otherwise than its file says: {heads[0]}.", UserWarning, stacklevel=2
        )
    with uninitialized_variables():
        model = build_text_graph(wanted, include_top, name or "text")
    model.load_report = (*describe_other_file(checkpoint.path), *_fill(model, checkpoint, strict, differing))
    model.provenance = facts
    model.load_report += source.contradictions(checkpoint.fields)
    model.logit_scale, model.logit_bias = checkpoint.logit_scale_and_bias
    model.weights_source = source.record or checkpoint.path
    try:
        model.tokenizer = _open_tokenizer(source, checkpoint, wanted.max_length)
    except (FileNotFoundError, ImportError) as error:
        model.load_report += (f"{NO_TOKENIZER}: {' '.join(str(error).split())}",)
    return model


def has_weights_of(text: TextTransformer, weights: FilePath) -> bool:
    """Whether a text tower is that of `weights` by config and weights; the file's position table may be longer."""
    source = _text_source(weights)
    checkpoint = read_text_checkpoint(source.path)
    tensors, known = checkpoint.tensors, {**checkpoint.fields, **source.fields, "max_length": None}
    if any(value not in (None, getattr(text.config, name)) for name, value in known.items()):
        return False
    values = {variable.path: keras.ops.convert_to_numpy(variable) for variable in text.variables}
    return values.keys() == tensors.keys() and all(
        np.array_equal(value, tensors[path][: len(value)].astype(value.dtype)) for path, value in values.items()
    )


def _unstored_facts(
    checkpoint: TextCheckpoint, source: TextSource, config: TextConfig, given: Collection[str]
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Fields that no tensor says, `{name: (value, source)}`, and a line for each that the caller has otherwise."""
    stated = {**checkpoint.provenance, **source.facts}
    own = {name: (getattr(config, name), "the caller") for name in given if name not in _STORED}
    usual = {field.name: field.default for field in dataclasses.fields(TextConfig) if field.name != "num_heads"}
    lines = []
    for name, (value, _) in own.items():
        fact, by = stated.get(name) or (checkpoint.fields.get(name, usual.get(name)), "the file's software")
        if value not in (fact, "none") and fact is not None:  # "none" are all places, of which none is pooled
            lines.append(f"{name} {value}, where {by} has {fact}")
    return stated | own, lines


def _fill(
    model: TextTransformer, checkpoint: TextCheckpoint, strict: bool, differing: Sequence[str]
) -> tuple[str, ...]:
    """Gives the model its weights; a line for each adaptation, besides those on fields that differ."""
    tensors, variables = dict(checkpoint.tensors), {variable.path: variable for variable in model.variables}
    lines = [*differing]
    table, length = tensors.get(_POSITIONS), model.config.max_length
    if table is not None and table.shape[0] > length:
        tensors[_POSITIONS] = table[:length]
        lines.append(f"positions cut to the first {length} of {table.shape[0]}")
        if not model.config.causal:
            warnings.warn(
                f"this text tower reads its padding. It was trained with {table.shape[0]} ids, and gives other "
                f"embeddings with {length}. Leave `max_length` out, or train it.",
                UserWarning,
                stacklevel=4,
            )
    if "projection/kernel" in tensors and "projection/kernel" not in variables:
        tensors = {path: tensor for path, tensor in tensors.items() if not path.startswith("projection/")}
    wrong = [f"- {path} {tuple(variable.shape)}" for path, variable in variables.items() if path not in tensors]
    wrong += [f"+ {path} {tensor.shape}" for path, tensor in tensors.items() if path not in variables]
    wrong += [
        f"~ {path}: file {tensors[path].shape}, model {tuple(variable.shape)}"
        for path, variable in variables.items()
        if path in tensors and tensors[path].shape != tuple(variable.shape)
    ]
    if wrong or (strict and lines):
        raise CheckpointError(
            "the weights must be those of the text tower (- is in the model alone, + in the file alone, ~ has another "
            "shape).\n"
            f"Received: {checkpoint.path}: {'; '.join((wrong or lines)[:6])}."
        )
    initialize_variables(variables, tensors)
    return tuple(lines)


def tokenizer(source: FilePath, *, max_length: int | None = None, clean: str | None = None) -> Tokenizer:
    """Opens the tokenizer of a two-tower model: texts to ids.

    Example:
        >>> tokens = keras_vit.tokenizer("clip")
        >>> tokens("a photo of a cat").shape, tokens.end_id
        ((1, 77), 49407)

    Args:
        source: a folder, a vocabulary's file, `"hf:owner/repository"` or a published name, which is not looked for in
            the working directory; `"clip"` is OpenAI's vocabulary, which is shipped. In a folder the first of
            `tokenizer.json`, a sentencepiece `.model`, `vocab.json` with `merges.txt` and
            `bpe_simple_vocab_16e6.txt.gz` is taken.
        max_length: T; by default that of the config in the folder or of the weights, else 77 for CLIP's vocabulary and
            64 for others.
        clean: what is done to a text first: `"lower"`, `"whitespace"`, `"canonicalize"`, `"siglip_transformers"`,
            `"siglip_transformers_cased"`, `"lowercase"`, `"lower_ascii"` or `"none"`. By default what the software of
            the folder does.

    Returns:
        A `Tokenizer`: of one text or several int32 `(B, T)`. It can be pickled.

    Raises:
        FileNotFoundError: if nothing is there, or a folder has no vocabulary.
        ImportError: if `tokenizers` or `sentencepiece` is not installed; the error names the extra.
        ValueError: for `""`, a file that is no vocabulary, another word, or a folder of OpenCLIP without a vocabulary
            whose text tower cannot be read.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise with_parameters(TypeError(f"`source` must be a path or a name.\nReceived: {source!r:.80}."), "source")
    if max_length is not None:
        check_positive_int("max_length", max_length)
    if source == "":  # which `Path` takes for the folder that the process is in
        raise ArgumentError("`source` must be a path or a name.\nReceived: ''.", ("source",))
    if source == "clip":
        return clip_tokenizer(max_length, clean)
    path = expand_path(source)
    if isinstance(source, str) and (source in ENCODERS or source.startswith("hf:")):
        found = _text_source(source)
        checkpoint = read_text_checkpoint(found.path)
        return _open_tokenizer(found, checkpoint, max_length or checkpoint.fields["max_length"], clean)
    if not path.exists():
        raise FileNotFoundError(
            "`source` must be a folder, a vocabulary's file, or a published name.\n"
            f"Received: {source!r}, where nothing is."
        )
    if path.is_dir() and not has_vocabulary(path) and (weights_file := file_in(path)) != path:
        path = weights_file.parent  # of a run that of both towers
    if path.is_file() or (path / "config.json").is_file() or (path / "open_clip_config.json").is_file():
        return open_tokenizer(path, max_length, clean, **_clip_facts(_text_checkpoint(path)))
    found_here = _text_checkpoint(path)
    rows = None if found_here is None else found_here.fields["max_length"]  # which no config describes
    return open_tokenizer(path, max_length or rows, clean, **_clip_facts(found_here))


def _text_source(weights: FilePath | WeightsRecord | None, variant: str | None = None) -> TextSource:
    """Where the text tower is; of an encoder's name it is that of its usual weights."""
    if variant is None and isinstance(weights, str) and weights in ENCODERS:
        variant, weights = weights, None
    if variant is not None and variant not in ENCODERS:
        raise ArgumentError(
            "`config` must be a `TextConfig`, or the name of an image tower that has a text tower, as 'clip/B16'.\n"
            f"Received: config={variant!r}.{did_you_mean(variant, tuple(ENCODERS))}"
        )
    return find_text(usual_weights(str(variant)) if weights is None else weights, variant)


def _text_checkpoint(path: Path) -> TextCheckpoint | None:
    """The text tower of a folder, if it has one. Without a vocabulary it must say which is meant, or what is wrong."""
    try:
        return read_text_checkpoint(path) if path.is_dir() else None
    except OSError:
        return None
    except CheckpointError:
        if not has_vocabulary(path) and (path / "open_clip_config.json").is_file():
            raise
        return None


def _clip_facts(checkpoint: TextCheckpoint | None) -> Arguments:
    """Whether a tower reads CLIP's vocabulary, and how its software spells start and end."""
    if checkpoint is None:
        return {}
    rows, config = checkpoint.fields["vocabulary_size"], checkpoint.path.with_name("open_clip_config.json")
    found = read_json_object(config) if rows > _CLIP_IDS else None  # OpenCLIP's code, whose table may have more rows
    is_clip = rows == _CLIP_IDS or (found is not None and not vocabulary_name(found))
    return {"is_clip": is_clip, "spelling": checkpoint.clip_spelling}


def _open_tokenizer(
    source: TextSource, checkpoint: TextCheckpoint, max_length: int, clean: str | None = None
) -> Tokenizer:
    folder = source.vocabulary or checkpoint.path.parent
    return open_tokenizer(folder, max_length, clean, **_clip_facts(checkpoint), weights=checkpoint.path)


@with_hints
def zero_shot(
    model: VisionTransformer | FilePath,
    text_embeddings: npt.ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    *,
    classes: Sequence[str] | None = None,
    templates: str | Sequence[str] | None = None,
    text: TextTransformer | None = None,
    logit_scale: float | None = None,
    logit_bias: float | None = None,
    classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
) -> VisionTransformer:
    """Makes a classifier of an image tower and what its classes are called, without training.

    The logits are exp(logit_scale) cos(image, text) + logit_bias. Cosines of 0.2 to 0.35 are usual for CLIP, also of
    the right class; SigLIP's probabilities are small, and independent of each other.

    Example:
        >>> tower = keras_vit.ViTTi16(num_layers=2, include_top=False)
        >>> texts = np.random.default_rng(0).normal(size=(2, 192))  # by a text tower
        >>> zero = keras_vit.zero_shot(tower, texts, ["cat", "dog"], logit_scale=4.6)
        >>> zero.output_shape, zero.class_names
        ((None, 2), ('cat', 'dog'))

    Args:
        model: an image tower of CLIP, SigLIP or their like; or a folder, file or published name of both towers. The
            head of a tower, if there is one, is the projection that the file has after pooling; so build it without
            `classes`, and with `include_top=False` where the file has none.
        text_embeddings: floats `(K, E)`, one for each class, of any length; or `(K, n, E)` of n texts for each, whose
            mean is taken at length 1. Either these or `classes`.
        class_names: names of the K classes; by default `classes`.
        classes: what the K classes are called, as `["cat", "red car"]`. Names may repeat.
        templates: prompts with `{}` for a name, whose embeddings are averaged; `"imagenet"` for OpenAI's 80,
            `"imagenet-7"` for 7. By default "a photo of a {}.".
        text: the text tower that embeds the prompts; by default that of the file of `model`.
        logit_scale: logarithm of the factor on the cosines; by default the file's.
        logit_bias: what is added to the logits; by default the file's, else 0, but for SigLIP's, which have one.
        classifier_activation: of the logits: `"softmax"` gives CLIP's probabilities, `"sigmoid"` SigLIP's. By default
            the outputs are logits.

    Returns:
        A `VisionTransformer` with K outputs, which predicts, is evaluated, fine-tuned, saved and exported as every
        other. It shares the tower's weights with `model`.

    Raises:
        TypeError: for a model of another kind, one text in place of names, or both or neither of `text_embeddings`
            and `classes`.
        ValueError: for a model without one embedding for an image; for a tower without the projection that its file
            has, or with a new one of zeros; for classes whose prompts are cut to the same ids; for embeddings of
            another size than the model's, that are not finite or zero; for names that are not K; if neither argument
            nor file has the scale, or SigLIP's bias; for `classes` without a text tower, or with one of another size
            than the image tower's.

    Warns:
        UserWarning: if the towers were loaded from other files, so that they may be of different
            models; of a tower from a `.keras` file its source is not known. For prompts that are cut, and for classes
            that the vocabulary cannot tell apart.

    Source: arXiv:2103.00020, section 3.1.2 to 3.1.4 (CLIP); arXiv:2303.15343, equation 1 (SigLIP).
    """
    if (text_embeddings is None) == (classes is None):
        raise TypeError(
            "the classes of a zero-shot classifier are given by `text_embeddings` or by `classes`.\n"
            f"Received: {'neither' if classes is None else 'both'}."
        )
    keras.activations.get(classifier_activation)  # raises here for one that there is not, and not after the texts
    needs_text = classes is not None and text is None
    tower = model if isinstance(model, VisionTransformer) else _image_tower(model, needs_text)
    if text_embeddings is not None:
        if templates is not None or text is not None:
            raise TypeError("`templates` and `text` are for `classes`.\nReceived: text_embeddings=... and one of them.")
        if getattr(text_embeddings, "before_projection", False):  # of a text tower here
            raise projection_error("text_embeddings", np.shape(text_embeddings)[-1], "build_text")
        embeddings: npt.ArrayLike = text_embeddings
    else:
        names = check_classes(classes)
        if text is not None and not isinstance(text, TextTransformer):
            raise with_parameters(
                TypeError(f"`text` must be a text tower of `keras_vit.build_text`.\nReceived: {text!r:.80}."), "text"
            )
        if text is None:
            text = build_text(weights=_source_of(tower) if isinstance(model, VisionTransformer) else model)
        check_image_tower(tower)
        check_same_size(tower, text)
        check_projections(tower, text)
        if not needs_text:
            warn_other_source(tower, text, stacklevel=4)
        check_bias(logit_bias, tower, text)
        embeddings = _class_embeddings(text, names, templates)
        logit_scale = next((scale for scale in (logit_scale, tower.logit_scale) if scale is not None), text.logit_scale)
        logit_bias = next((bias for bias in (logit_bias, tower.logit_bias) if bias is not None), text.logit_bias)
        class_names = names if class_names is None else class_names
    return zero_shot_classifier(
        tower,
        embeddings,
        class_names,
        logit_scale=logit_scale,
        logit_bias=logit_bias,
        classifier_activation=classifier_activation,
        unique=classes is None,
    )


def _image_tower(source: FilePath, needs_text: bool) -> VisionTransformer:
    """The image tower of a source, with the projection that its file has."""
    named = isinstance(source, str) and source in ENCODERS
    given: dict[str, Any] = {"config": source, "weights": usual_weights(str(source))} if named else {"weights": source}
    try:
        return build(**given)
    except CheckpointError as error:
        if needs_text:  # of which the error is, where neither tower can be read, as of CoCa
            check_family(_text_source(source).path)
        rule, hint, _ = str(error).partition("Pass `num_heads=`")
        if hint:  # which are those of one tower
            raise CheckpointError(
                f"{rule}Pass `keras_vit.build(weights=..., num_heads=...)` as the model, with `include_top=False` if "
                "the file has no projection, and `text=keras_vit.build_text(weights=..., num_heads=...)`."
            ) from error
        if "has no head" not in str(error):
            raise
        return build(**given, include_top=False)


def _source_of(tower: VisionTransformer) -> FilePath | WeightsRecord:
    if tower.weights_source is None:
        raise ValueError(
            "`classes` are embedded by the text tower of the image tower's file, and it is not known here.\n"
            f"Received: {tower.name!r}, text=None. Pass `text=keras_vit.build_text(weights=...)`, or the folder or "
            "name in place of the model."
        )
    return tower.weights_source


def _check_ids_differ(tokenizer: Tokenizer, classes: Sequence[str], texts: Sequence[str]) -> None:
    """Refuses two classes whose prompts are cut to the same ids; warns of equal ids of short ones, and of cut prompts.

    Args:
        tokenizer: of the text tower.
        classes: K names.
        texts: K x n prompts.
    """
    different = list(dict.fromkeys(texts))
    cut, groups = cut_and_equal_texts(different, tokenizer)
    count = len(texts) // len(classes)
    first_of = {text: group[0] for group in groups for text in group}
    known: dict[tuple[str, ...], tuple[str, Sequence[str]]] = {}
    for number, name in enumerate(classes):
        own = texts[number * count : (number + 1) * count]
        other, others = known.setdefault(tuple(first_of.get(text, text) for text in own), (name, own))
        if name == other:
            continue
        pair = " and ".join(repr(each if len(each) <= _SHOWN else f"...{each[-_SHOWN:]}") for each in (other, name))
        if cut.isdisjoint((*own, *others)):
            warnings.warn(
                f"the classes {pair} have the same ids, and so the same scores.",
                UserWarning,
                stacklevel=5,
            )
            continue
        raise ArgumentError(
            f"prompts of different classes must differ in the first {tokenizer.max_length} ids, at which they are "
            f"cut.\nReceived: the classes {pair}. Use shorter names or templates.",
            parameters=("classes", "templates"),
        )
    if cut:
        warnings.warn(
            f"{len(cut):,} of {len(different):,} prompts are longer than {tokenizer.max_length} tokens and are cut, as "
            f"{min(cut)!r:.80}.",
            UserWarning,
            stacklevel=5,
        )


def _class_embeddings(
    text: TextTransformer, classes: Sequence[str], templates: str | Sequence[str] | None
) -> np.ndarray:
    """`(K, E)` of length 1: the mean over prompts of embeddings of length 1, as CLIP's and SigLIP's authors take it."""
    is_siglip = text.config.pooling == "last" and text.config.layer_norm_epsilon < 5e-6
    canonical = is_siglip and isinstance(templates, str) and templates in NAMED
    found = find_templates(templates)
    texts = prompts(classes, found, canonical)
    _check_ids_differ(check_tokenizer(text), classes, texts)
    embeddings = text.embed(texts).astype("float64")
    embeddings /= np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings.reshape(len(classes), len(found), -1).mean(axis=1)
