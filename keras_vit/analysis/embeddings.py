"""Principal components, similarities and norms of tokens and position tables, as float64 arrays.

Source of the paper's figures: arXiv:2010.11929, figures 7 (left, middle) and 10.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.submodels import check_grid, vision_transformer_in
from keras_vit.annotations import Pair, Tensor
from keras_vit.checks import check_positive, check_positive_int
from keras_vit.model.layer_access import patch_embedding, position_layers

_ROUNDING = 1e-12  # smallest share of a variance or square that is more than rounding


def patch_filters(model: keras.Model, count: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of the filters of the patch embedding.

    Example:
        >>> components, shares = keras_vit.analysis.patch_filters(model, count=3)
        >>> components.shape, shares.shape
        ((3, 16, 16, 3), (3,))

    Args:
        model: a `VisionTransformer`, or a model that has one among its layers.
        count: number of components, at most the number of values of a patch and of a token.

    Returns:
        Components `(count, P, P, C)` of length 1, and the shares of the variance that they explain, which fall. In each
        component the entry of the largest magnitude is positive.

    Raises:
        ValueError: for a count out of range, or a hybrid.
    """
    inner = vision_transformer_in(model)
    if inner.config.resnet_stages is not None:
        raise ValueError(
            "the filters must be of pixels, and a hybrid embeds what its ResNet makes of them.\n"
            f"Received: {inner.name!r}. Its first filters are in the first layer of `model.layers` with weights."
        )
    kernel = _float64(patch_embedding(inner).projection.kernel)  # (P, P, C, D)
    components, shares = principal_components(kernel.reshape(-1, kernel.shape[-1]).T, count)
    return components.reshape(-1, *kernel.shape[:-1]), shares


def position_similarity(model: keras.Model, grid: Pair | None = None) -> np.ndarray:
    """Cosine similarity of the position embeddings of all patches.

    Example:
        >>> keras_vit.analysis.position_similarity(model).shape
        (2, 3, 2, 3)

    Args:
        model: a `VisionTransformer` with positions, learned or not, or a model that has one among its layers.
        grid: `(h, w)` to which the table is resized first, as for images of another size; by default its own. If
            every block has a table, the first one is used.

    Returns:
        `(h, w, h, w)`: `[y, x]` is the map of the patch in row y and column x. An embedding of zeros has similarity 0.

    Raises:
        ValueError: for a model without positions, or with relative ones, which belong to pairs of patches.
    """
    inner = vision_transformer_in(model)
    layers = position_layers(inner)
    if not layers:
        raise ValueError(
            f"a model must add position embeddings to its tokens to compare them.\nReceived: {inner.name!r}, "
            f"with position_embedding={inner.config.position_embedding!r}."
        )
    layer = layers[0]
    grid = layer.grid if grid is None else check_grid(grid)
    table = _float64(layer.table_at(grid))[0, layer.num_prefix_tokens :]
    unit = _normalize(table)
    return (unit @ unit.T).reshape(*grid, *grid)


def token_similarity(maps: np.ndarray, patch: Pair) -> np.ndarray:
    """Cosine similarity of every patch's token to that of one patch.

    Example:
        >>> maps = keras_vit.features(model, images)[2]
        >>> similarity = keras_vit.analysis.token_similarity(maps, (0, 1))
        >>> similarity.shape, round(float(similarity[0, 0, 1]), 3)
        ((2, 2, 3), 1.0)

    Args:
        maps: `(..., h, w, D)`, as from `features`.
        patch: `(row, column)`, counted from 0; negative ones count from the end.

    Returns:
        `(..., h, w)`.

    Raises:
        ValueError: for a patch outside the map.
    """
    maps = _check_maps(maps)
    sides = maps.shape[-3:-1]
    places = [place for place in np.ravel(patch) if np.asarray(place).dtype.kind in "iu"]
    if len(places) != 2 or not all(-side <= place < side for place, side in zip(places, sides, strict=True)):
        raise ValueError(f"`patch` must be (row, column) in a map of {sides}.\nReceived: patch={patch!r}.")
    unit = _normalize(maps)
    return np.einsum("...hwd,...d->...hw", unit, unit[..., patch[0], patch[1], :])


def pca_to_rgb(maps: np.ndarray) -> np.ndarray:
    """The first three principal components of the patch tokens of all images, as colours.

    Example:
        >>> maps = keras_vit.features(model, images)[2]
        >>> colours = keras_vit.analysis.pca_to_rgb(maps)
        >>> colours.shape, float(colours.min()), float(colours.max())
        ((2, 2, 3, 3), 0.0, 1.0)

    Args:
        maps: `(..., h, w, D)`. A missing component is 0.

    Returns:
        `(..., h, w, 3)` in [0, 1]: red is the first component, and each goes from its smallest to its largest value.
        The sign is such that the component's entry of the largest magnitude is positive.
    """
    maps = _check_maps(maps)
    tokens = maps.reshape(-1, maps.shape[-1])
    components, shares = principal_components(tokens, min(3, *tokens.shape))
    values = np.zeros((len(tokens), 3))
    values[:, : len(shares)] = (tokens - tokens.mean(axis=0)) @ components.T * (shares > _ROUNDING)
    low, high = values.min(axis=0), values.max(axis=0)
    return ((values - low) / np.where(high > low, high - low, 1)).reshape(*maps.shape[:-1], 3)


def principal_components(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Principal components `(count, d)` of rows `(n, d)`, with length 1, and their shares of the variance.

    Example:
        >>> rows = np.array([[0.0, 0.0], [3.0, 0.0], [6.0, 0.0]])
        >>> components, shares = keras_vit.analysis.principal_components(rows, 1)
        >>> components, shares
        (array([[1., 0.]]), array([1.]))

    Raises:
        ValueError: for a count above the smaller of n and d.
    """
    rows = _float64(rows)
    count = check_positive_int("count", count)
    if count > min(rows.shape):
        raise ValueError(f"`count` must be at most {min(rows.shape)}.\nReceived: count={count}.")
    _, sizes, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    components = directions[:count]
    farthest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    total = np.square(sizes).sum()
    return components * np.where(farthest < 0, -1, 1), np.square(sizes[:count]) / (total or 1)


def token_norms(tokens: np.ndarray) -> np.ndarray:
    """Euclidean norm of each token: `(..., D)` to `(...)`.

    Example:
        >>> keras_vit.analysis.token_norms(np.array([[3.0, 4.0], [0.0, 2.0]]))
        array([5., 2.])
    """
    return np.linalg.norm(_float64(tokens), axis=-1)


def outlier_tokens(tokens: np.ndarray, factor: float = 6.0) -> np.ndarray:
    """Finds tokens of outlying norm, which hold global information (arXiv:2309.16588, section 2).

    Example:
        >>> tokens = np.array([[[1.0], [1.1], [0.9], [9.0]]])  # one image, four tokens
        >>> keras_vit.analysis.outlier_tokens(tokens)
        array([[False, False, False,  True]])

    Args:
        tokens: `(B, ..., D)` before the last LayerNorm, as from `features(..., norm=False)`.
        factor: an outlier's norm exceeds the median by more than `factor` median absolute deviations. Of normally
            distributed norms, 2.6 in 100,000 exceed it by 6.

    Returns:
        Booleans `(B, ...)`, judged by the lengths of the token's own image.
    """
    check_positive("factor", factor)
    norms = token_norms(tokens)
    axes = tuple(range(1, norms.ndim))
    middle = np.median(norms, axis=axes, keepdims=True)
    return norms > middle + factor * np.median(np.abs(norms - middle), axis=axes, keepdims=True)


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Similarity of two representations of the same examples, from 0 to 1, which ignores rotations.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(20, 3))
        >>> round(keras_vit.analysis.linear_cka(x, x[:, ::-1]), 3)
        1.0

    Args:
        x: `(n, D)`, or `(n, ..., D)`, in which every token is an example.
        y: `(n, E)` or `(n, ..., E)`, of another block or model.

    Raises:
        ValueError: for different numbers of examples, or a representation in which all are equal.

    Source: Kornblith et al., arXiv:1905.00414, section 3: centred kernel alignment with a linear kernel.
    """
    one, other = (_center(_float64(each)) for each in (x, y))
    if len(one) != len(other) or (np.ndim(x) == np.ndim(y) and np.shape(x)[:-1] != np.shape(y)[:-1]):
        raise ValueError(
            "both representations must be of the same examples, in the same order.\n"
            f"Received: shapes {np.shape(x)} and {np.shape(y)}."
        )
    both = np.square(np.linalg.norm(other.T @ one))
    own = np.linalg.norm(one.T @ one) * np.linalg.norm(other.T @ other)
    sizes = [np.square(each).sum() / (np.square(_float64(given)).sum() or 1) for each, given in ((one, x), (other, y))]
    if not min(sizes) > _ROUNDING:
        raise ValueError(
            "a representation must be finite and differ between examples.\nReceived: one that is constant."
        )
    return float(both / own)


def _center(x: np.ndarray) -> np.ndarray:
    x = x.reshape(-1, x.shape[-1])
    return x - x.mean(axis=0)


def _normalize(tokens: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(tokens, axis=-1, keepdims=True)
    return tokens / np.where(lengths, lengths, 1)


def _check_maps(maps: np.ndarray) -> np.ndarray:
    maps = _float64(maps)
    if maps.ndim < 3:
        raise ValueError(f"`maps` must be (..., h, w, D), as `features` gives them.\nReceived: shape {maps.shape}.")
    if not np.isfinite(maps).all():
        raise ValueError("`maps` must be finite.\nReceived: NaN or infinite values.")
    return maps


def _float64(array: Tensor) -> np.ndarray:
    return np.asarray(array if isinstance(array, np.ndarray) else ops.convert_to_numpy(array), "float64")
