"""What a few labels add to a zero-shot classifier: weights between it and its fine-tuned self, and a cache of photos.

Source: arXiv:2109.01903 (WiSE-FT); arXiv:2111.03930 (Tip-Adapter).
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt

from keras_vit.checks import ArgumentError, check_nonnegative, check_number, with_parameters
from keras_vit.model.two_towers.zero_shot import check_finite, real_rows, unit_rows

_Weights = TypeVar("_Weights", keras.Model, Mapping[str, np.ndarray])


def wise_ft(zero_shot: _Weights, finetuned: _Weights, alpha: float = 0.5) -> _Weights:
    """Weights between those of a zero-shot classifier and of the same after fine-tuning.

    Fine-tuned weights are better on the photos of their training, zero-shot ones on others. The paper's half way
    keeps most of both.

    Example:
        >>> start, end = {"kernel": np.zeros(2)}, {"kernel": np.ones(2)}
        >>> keras_vit.wise_ft(start, end, alpha=0.25)["kernel"].tolist()
        [0.25, 0.25]

    Args:
        zero_shot: a model, or arrays by name.
        finetuned: likewise, with the same names and shapes.
        alpha: share of the fine-tuned weights, in [0, 1].

    Returns:
        `(1 - alpha) zero_shot + alpha finetuned`: arrays by name, or a new model like `finetuned`.

    Raises:
        TypeError: for what is neither a model nor arrays by name.
        ValueError: for weights of other names or shapes, or not finite; other classes, or in another order; configs
            that differ but for rates of training; a share out of range.

    Source: arXiv:2109.01903, equation 1.
    """
    check_number("alpha", alpha)
    if not 0 <= alpha <= 1:
        raise ArgumentError(f"`alpha` must be in [0, 1].\nReceived: alpha={alpha}.")
    names: list[Any] = [getattr(each, "class_names", None) for each in (zero_shot, finetuned)]
    if None not in names:
        first_names, second_names = ([name.replace("_", " ").casefold() for name in each] for each in names)
        if first_names != second_names:
            rule = "in the same order" if sorted(first_names) == sorted(second_names) else "of the same names"
            raise ArgumentError(
                f"both classifiers must have their classes {rule}.\n"
                f"Received: {names[0]!r:.150} and {names[1]!r:.150}. Give `zero_shot` the class names of `finetuned`, "
                "in their order."
            )
    configs = [each.as_dict() if (each := getattr(model, "config", None)) else {} for model in (zero_shot, finetuned)]
    fields = [name for name in configs[0].keys() & configs[1].keys() if not name.endswith("_rate")]  # of training
    if differing := sorted(name for name in fields if configs[0][name] != configs[1][name]):
        listed = ", ".join(f"{name}={configs[0][name]!r} and {configs[1][name]!r}" for name in differing)
        raise ArgumentError(
            f"both classifiers must compute the same with the same weights.\nReceived: {listed:.300}.",
            parameters=("zero_shot", "finetuned"),
        )
    first, second = _by_name("zero_shot", zero_shot), _by_name("finetuned", finetuned)
    shapes: list[dict[str, Any]] = [{n: tuple(np.shape(a)) for n, a in arrays.items()} for arrays in (first, second)]
    if shapes[0] != shapes[1]:
        others = sorted(name for name in {*shapes[0], *shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise ArgumentError(
            "both classifiers must have the same weights.\n"
            f"Received: {len(others)} that differ, as {others[0]} {shapes[0].get(others[0])} and "
            f"{shapes[1].get(others[0])}.",
            parameters=("zero_shot", "finetuned"),
        )
    for argument, arrays in (("zero_shot", first), ("finetuned", second)):
        if wrong := next((name for name, array in arrays.items() if not np.isfinite(array).all()), None):
            raise ArgumentError(f"weights of `{argument}` must be finite.\nReceived: {wrong}, with NaN or infinity.")
    mixed = {name: (1 - alpha) * np.asarray(first[name]) + alpha * np.asarray(second[name]) for name in second}
    if not isinstance(finetuned, keras.Model):
        return mixed
    model: Any = type(finetuned).from_config(finetuned.get_config())
    for variable in model.variables:
        variable.assign(mixed[variable.path])
    return model


def _by_name(argument: str, weights: Any) -> Mapping[str, Any]:
    if isinstance(weights, keras.Model):
        return {variable.path: keras.ops.convert_to_numpy(variable) for variable in weights.variables}
    if not isinstance(weights, Mapping):
        raise with_parameters(
            TypeError(f"`{argument}` must be a Keras model, or arrays by name.\nReceived: {weights!r:.80}."), argument
        )
    return weights


def tip_adapter(
    embeddings: npt.ArrayLike,
    keys: npt.ArrayLike,
    labels: npt.ArrayLike,
    class_embeddings: npt.ArrayLike,
    *,
    alpha: float = 1.0,
    beta: float = 5.5,
    scale: float = 100.0,
) -> np.ndarray:
    """Logits of photos by their classes' texts and by a cache of a few labelled photos, without training.

    Example:
        >>> photos, texts = np.eye(3), np.eye(3)[[1, 2]]
        >>> found = keras_vit.tip_adapter(photos, photos[:1], [1], texts)
        >>> found[0].round(2).tolist()
        [0.0, 1.0]

    Args:
        embeddings: `(N, E)` of the photos to classify, of any length.
        keys: `(n, E)` of the labelled photos.
        labels: `(n,)`, their classes in 0..K-1.
        class_embeddings: `(K, E)` of the classes' texts.
        alpha: weight of the cache, at least 0.
        beta: how sharply the nearest labelled photos count, at least 0.
        scale: the factor on cosines of photos and texts.

    Returns:
        float64 `(N, K)`: `scale f w^T + alpha exp(-beta (1 - f k^T)) onehot(labels)`.

    Raises:
        ValueError: for shapes that do not fit, rows that are not finite or zero, or numbers out of range.

    Source: arXiv:2111.03930, equations 4 and 5.
    """
    alpha, beta, scale = (
        check_finite(name, value) for name, value in (("alpha", alpha), ("beta", beta), ("scale", scale))
    )
    check_nonnegative("alpha", alpha)
    check_nonnegative("beta", beta)
    given = {"embeddings": embeddings, "keys": keys, "class_embeddings": class_embeddings}
    rows = [real_rows(name, each) for name, each in given.items()]
    sizes = {each.shape[-1] if each.ndim == 2 else None for each in rows}
    classes = np.asarray(labels)
    if None in sizes or len(sizes) > 1 or classes.shape != (len(rows[1]),):
        raise ArgumentError(
            "`embeddings`, `keys` and `class_embeddings` must be (N, E), (n, E) and (K, E), and `labels` (n,).\n"
            f"Received: shapes {', '.join(str(each.shape) for each in rows)} and {classes.shape}."
        )
    if classes.dtype.kind not in "iu" or (classes.size and not 0 <= classes.min() <= classes.max() < len(rows[2])):
        raise ArgumentError(f"`labels` must be numbers from 0 to {len(rows[2]) - 1}.\nReceived: {classes[:5]}.")
    photos, cached, texts = (unit_rows(name, each) for name, each in zip(given, rows, strict=True))
    nearness = np.exp(-beta * (1 - photos @ cached.T))  # (N, n)
    return scale * photos @ texts.T + alpha * nearness @ np.eye(len(texts))[classes]
