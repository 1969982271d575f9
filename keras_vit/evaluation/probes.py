"""`probe`, which measures a model's features by a small classifier on them; the model is not trained.

Least squares is the official few-shot probe: arXiv:2010.11929, section 4.1 (metrics); google-research/big_vision,
`evaluators/fewshot_lsr.py`, which computes in float32. Here it is float64. Logistic regression is fitted by L-BFGS on
whitened features. Its strength is the one of a grid with the best accuracy on the validation examples; then it is
fitted to these as well, as arXiv:1910.04867 finally trains on 800 + 200 images.
"""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.cache import DEFAULT_CACHE
from keras_vit.checks import ArgumentError, check_choice, check_installed, check_positive_int, check_seed
from keras_vit.data.source import Data, Source, check_split
from keras_vit.data.splits import divide
from keras_vit.evaluation.feature_cache import FeatureSet, image_features
from keras_vit.evaluation.metrics import ClassResult, class_results, confusion_matrix
from keras_vit.model.image_model import ImageModel
from keras_vit.pages.formatting import printable
from keras_vit.renamed import accepts_old_arguments

KINDS = ("fewshot", "linear", "knn")
_MOST_NAMES = 5  # of classes that an error lists
SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
RIDGE = 2.0**10
_CONSTANT = 100.0  # value of the bias feature, so large that the bias is hardly regularised
_EPSILON = 1e-5  # added to the standard deviations
# C of scikit-learn: factor of the sum of losses, against half the squared weights. The grid is our choice;
# arXiv:2103.00020 tries 96 strengths in its linear probes.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_MOST_STEPS = 1000  # of L-BFGS, as in the example of github.com/openai/CLIP
# Up to so many numbers one thread is used. With 1,000 examples of 768 numbers on two busy cores, several threads took
# 12 to 30 times as long, since they waited for each other.
_ONE_THREAD = 2**24
NUM_NEIGHBORS = 20
_TEMPERATURE = 0.07
_MOST_NUMBERS = 2**24  # cosines at once: 64 MB


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """One trained and tested probe.

    Attributes:
        labels: int64 `(n,)`, the true classes of the test examples.
        predictions: int64 `(n,)`.
        shots: training examples of each class; `None` for all.
        seed: seed that chose these examples; `None` if all are used.
        settings: other chosen values, as the `strength` of a linear probe.
    """

    labels: np.ndarray
    predictions: np.ndarray
    shots: int | None = None
    seed: int | None = None
    settings: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Part of the test examples that it classifies correctly."""
        return float((self.predictions == self.labels).mean())


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """The result of `probe`: the accuracy of each trial.

    Example:
        >>> result = keras_vit.probe(model, photos, shots=[1, 5], cache=None)
        >>> result.test_images, sorted(result.accuracies)
        (3, [1, 5])

    Attributes:
        kind: `"fewshot"`, `"linear"` or `"knn"`.
        class_names: names of the K classes.
        trials: one for each number of shots and seed; a single one for other kinds.
        train_images: number of available training examples.
        test_images: number of test examples of each trial.
        skipped: numbers of shots that were left out, since a class has fewer examples.
        seconds: duration, including the features.
    """

    kind: str
    class_names: tuple[str, ...]
    trials: tuple[Trial, ...]
    train_images: int
    test_images: int
    skipped: tuple[int, ...] = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        shown = ", ".join(f"{shots_in_words(shots)}={self.mean(shots):.4f}" for shots in self.accuracies)
        return f"Probe({self.kind!r}, {shown}, test_images={self.test_images}, classes={len(self.class_names)})"

    @property
    def accuracies(self) -> dict[int | None, tuple[float, ...]]:
        """The accuracy of each seed by the number of shots, which is `None` for all examples."""
        return {shots: tuple(trial.accuracy for trial in self._trials(shots)) for shots in self._shots()}

    def mean(self, shots: int | None = None) -> float:
        """The mean accuracy over the seeds for a number of shots; `None` stands for the largest."""
        return float(np.mean(self.accuracies[self._shots()[-1] if shots is None else shots]))

    def deviation(self, shots: int | None = None) -> float | None:
        """The sample standard deviation over the seeds, with divisor n - 1; `None` for a single trial."""
        found = self.accuracies[self._shots()[-1] if shots is None else shots]
        return float(np.std(found, ddof=1)) if len(found) > 1 else None

    @property
    def accuracy(self) -> float:
        """The mean over the seeds with the most shots."""
        return self.mean()

    @property
    def labels(self) -> np.ndarray:
        """int64 `(n,)`: the true classes of the test examples, once for each seed with the most shots."""
        return np.concatenate([trial.labels for trial in self._trials(self._shots()[-1])])

    @property
    def predictions(self) -> np.ndarray:
        """int64 `(n,)`: the predicted class for each of `labels`."""
        return np.concatenate([trial.predictions for trial in self._trials(self._shots()[-1])])

    @property
    def confusion(self) -> np.ndarray:
        """int64 `(K, K)`, rows are true classes: the sum over the seeds with the most shots."""
        return confusion_matrix(self.labels, self.predictions, len(self.class_names))

    @property
    def classes(self) -> tuple[ClassResult, ...]:
        """Count, recall and precision of each class, over the seeds with the most shots."""
        passes = len(self._trials(self._shots()[-1]))
        return class_results(self.labels, self.predictions, self.class_names, passes)

    def summary(self) -> dict[str, Any]:
        """The numbers and each class, ready for JSON."""
        fields = ("kind", "accuracy", "train_images", "test_images", "seconds")
        rows = [
            {
                "shots": shots,
                "mean": self.mean(shots),
                "deviation": self.deviation(shots),
                "trials": [
                    {"seed": trial.seed, "accuracy": trial.accuracy, **trial.settings} for trial in self._trials(shots)
                ],
            }
            for shots in self.accuracies
        ]
        facts = {field: getattr(self, field) for field in fields} | {"skipped_shots": list(self.skipped)}
        return facts | {"results": rows, "classes": [dataclasses.asdict(result) for result in self.classes]}

    def _shots(self) -> list[int | None]:
        return list(dict.fromkeys(trial.shots for trial in self.trials))

    def _trials(self, shots: int | None) -> list[Trial]:
        return [trial for trial in self.trials if trial.shots == shots]


@accepts_old_arguments
def probe(
    model: ImageModel,
    data: Data,
    kind: str = "fewshot",
    *,
    train_split: str = "train",
    test_split: str = "test",
    shots: Sequence[int] | None = None,
    seeds: Sequence[int] = SEEDS,
    num_neighbors: int = NUM_NEIGHBORS,
    batch_size: int = 32,
    seed: int = 0,
    cache: FilePath | None = DEFAULT_CACHE,
) -> Probe:
    """Measures how good a model's features are, by a small classifier on them. The data may have any classes.

    Example:
        >>> knn = keras_vit.probe(model, photos, "knn", num_neighbors=3, cache=None)
        >>> knn.train_images
        24

    Args:
        model: a `VisionTransformer` or `ResNet`; a head is not used.
        data: a `Source`, or what `keras_vit.open_source` takes.
        kind: `"fewshot"` is the official least-squares probe on a few examples of each class. `"linear"` is logistic
            regression. Its strength is chosen on the validation split, or on a fifth of `train_split` if the data has
            none or the probe uses it. `"knn"` is the vote of the nearest neighbors by their cosine.
        train_split: split for training.
        test_split: split for the test.
        shots: numbers of examples of each class, for `"fewshot"`; by default those of 1, 5, 10 and 25 that every
            class has.
        seeds: seeds of the choice of these examples.
        num_neighbors: number of votes, for `"knn"`.
        batch_size: images at once; the results do not depend on it.
        seed: divides data without splits.
        cache: folder of cached features, by default `features` in the folder of downloaded weights; `None` for none.

    Returns:
        A `Probe`.

    Raises:
        ValueError: for an unknown kind, arguments of another kind, or splits that overlap. Also for classes with fewer
            examples than `shots`, for more neighbors than examples, and as `keras_vit.open_source`.
        TypeError: for another type of model.
        ImportError: for `"linear"` without the extra `data`.

    Source: arXiv:2010.11929, section 4.1, for `"fewshot"`; google-research/big_vision, `evaluators/fewshot_lsr.py`.
    """
    check_choice("kind", kind, KINDS)
    taken = _check_splits(train_split, test_split)
    _check_arguments(kind, shots, seeds, num_neighbors)
    if kind == "linear":
        check_installed("sklearn", "it fits the linear probe", "data")  # first, since features take minutes
    from keras_vit.data import open_source

    source = open_source(data, seed=seed)
    if kind == "knn":
        _check_num_neighbors(num_neighbors, source.split(train_split).size)
    began = time.perf_counter()

    def read(split: str) -> FeatureSet:
        return image_features(model, source, split, batch_size=batch_size, cache=cache)

    train, test = read(train_split), read(test_split)
    skipped: tuple[int, ...] = ()
    if kind == "fewshot":
        chosen = _usable_shots(source, train.labels, shots)
        skipped = tuple(set(SHOTS) - set(chosen)) if shots is None else ()
        trials = _fewshot(train, test, len(source.class_names), chosen, seeds)
    elif kind == "linear":
        trials = [_linear(test, *_strength_sets(source, taken, train, read, seed))]
    else:
        trials = [_knn(train, test, len(source.class_names), num_neighbors)]
    counts = len(train.labels), len(test.labels)
    seconds = time.perf_counter() - began
    return Probe(kind, source.class_names, tuple(trials), *counts, tuple(sorted(skipped)), seconds)


def _fewshot(
    train: FeatureSet, test: FeatureSet, classes: int, shots: Sequence[int], seeds: Sequence[int]
) -> list[Trial]:
    trials = []
    for count in shots:
        for seed in seeds:
            rows = choose_shots(train.labels, classes, count, seed)
            fitted = fit_least_squares(train.features[rows], train.labels[rows], classes)
            predictions = fitted.scores(test.features).argmax(axis=1)
            trials.append(Trial(test.labels, predictions, shots=count, seed=seed))
    return trials


def _linear(test: FeatureSet, fitted: FeatureSet, held: FeatureSet, whole: FeatureSet) -> Trial:
    strength = choose_strength((fitted.features, fitted.labels), (held.features, held.labels))
    predictions = fit_logistic(whole.features, whole.labels, strength).predict(test.features)
    return Trial(test.labels, predictions, settings={"strength": strength})


def _knn(train: FeatureSet, test: FeatureSet, classes: int, num_neighbors: int) -> Trial:
    scores = neighbor_scores(train.features, train.labels, test.features, classes, num_neighbors)
    return Trial(test.labels, scores.argmax(axis=1), settings={"neighbours": num_neighbors})


def shots_in_words(shots: int | None) -> str:
    """`"5 shots"`, and `"all examples"` for `None`."""
    return "all examples" if shots is None else f"{shots} shot{'s' * (shots > 1)}"


def _strength_sets(
    source: Source, taken: set[str], train: FeatureSet, read: Callable[[str], FeatureSet], seed: int
) -> tuple[FeatureSet, FeatureSet, FeatureSet]:
    """Three sets: to fit each strength, to choose one, and to fit the final probe."""
    if source.sizes.get("validation") and "validation" not in taken:
        held = read("validation")
        both = np.concatenate([train.features, held.features]), np.concatenate([train.labels, held.labels])
        return train, held, FeatureSet(*both)
    parts = divide(train.labels, seed)
    held_back = np.concatenate([parts["validation"], parts["test"]])
    return train.select(parts["train"]), train.select(held_back), train


def _usable_shots(source: Source, labels: np.ndarray, shots: Sequence[int] | None) -> list[int]:
    """The sorted numbers of shots; by default those for which every class has enough examples."""
    counts = np.bincount(labels, minlength=len(source.class_names))
    chosen = sorted(shots) if shots is not None else [count for count in SHOTS if count <= counts.min()]
    least = chosen[-1] if chosen else min(SHOTS)
    short = [f"{printable(source.class_names[number])} {counts[number]}" for number in np.flatnonzero(counts < least)]
    if short:
        more = f" and {len(short) - _MOST_NAMES} more" if len(short) > _MOST_NAMES else ""
        raise ArgumentError(
            "every class must have as many training examples as `shots`, or classes are measured unlike.\n"
            f"Received: shots={chosen or [least]}, examples: {', '.join(short[:_MOST_NAMES])}{more}. "
            'Pass fewer shots, or train_split="train+validation".'
        )
    return chosen


def _check_num_neighbors(num_neighbors: int, examples: int) -> None:
    if num_neighbors > examples:
        raise ArgumentError(
            "`num_neighbors` must be at most the examples that there are to vote.\n"
            f"Received: num_neighbors={num_neighbors}, {examples} training examples. Pass fewer."
        )


def _check_splits(train_split: str, test_split: str) -> set[str]:
    """The names of all splits that the probe uses, which must not overlap."""
    if shared := set(check_split(train_split)) & set(check_split(test_split)):
        raise ArgumentError(
            "`train_split` and `test_split` must have no split in common, or a probe is tested on what it has seen.\n"
            f"Received: train_split={train_split!r}, test_split={test_split!r}, both with {', '.join(sorted(shared))}."
        )
    return {*check_split(train_split), *check_split(test_split)}


def _check_arguments(kind: str, shots: Sequence[int] | None, seeds: Sequence[int], num_neighbors: int) -> None:
    """Refuses invalid or repeated numbers, and arguments of another kind."""
    check_positive_int("num_neighbors", num_neighbors)
    for name, given, check in (
        ("shots", shots, check_positive_int),
        ("seeds", seeds, check_seed),
    ):
        if given is None:
            continue
        if isinstance(given, str) or not isinstance(given, Sequence) or not len(given) or len(set(given)) < len(given):
            raise ArgumentError(f"`{name}` must be a list of numbers, each once.\nReceived: {name}={given!r}.")
        for number in given:
            check(name, number)
    others: dict[str, tuple] = {"shots": (shots, None, "fewshot"), "seeds": (tuple(seeds), SEEDS, "fewshot")}
    others |= {"num_neighbors": (num_neighbors, NUM_NEIGHBORS, "knn")}
    for name, (value, default, owner) in others.items():
        if value != default and kind != owner:
            raise ArgumentError(
                f"`{name}` is for kind={owner!r}.\nReceived: kind={kind!r}, {name}={value!r}. Leave it out."
            )


@dataclasses.dataclass(frozen=True, eq=False)
class LeastSquares:
    """A linear map from features to one score for each class.

    Attributes:
        mean: `(D,)` of the training features.
        deviation: `(D,)`, their standard deviation plus 1e-5.
        weights: `(D + 1, K)`; the last row belongs to the constant feature.
    """

    mean: np.ndarray
    deviation: np.ndarray
    weights: np.ndarray

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Scores `(n, K)` of features `(n, D)`; the highest score is the class."""
        return _whitened(features, self.mean, self.deviation) @ self.weights


def choose_shots(labels: np.ndarray, classes: int, shots: int, seed: int) -> np.ndarray:
    """Numbers of the training examples: the first ones of a permutation of each class by `seed`.

    Args:
        labels: int `(n,)`.
        classes: K.
        shots: examples of each class; a smaller class gives all.
        seed: seed of NumPy's `default_rng`, which draws for the classes in their order.
    """
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(np.flatnonzero(labels == number)) for number in range(classes)]
    return np.concatenate([order[:shots] for order in orders])


def fit_least_squares(features: np.ndarray, labels: np.ndarray, classes: int, ridge: float = RIDGE) -> LeastSquares:
    """Fits targets -1 and 1 by least squares, with a penalty of `ridge` times the squared weights.

    Args:
        features: `(n, D)`.
        labels: int `(n,)` in [0, K).
        classes: K.
        ridge: strength of the regularisation.
    """
    features = np.asarray(features, "float64")
    mean, deviation = features.mean(axis=0), features.std(axis=0) + _EPSILON
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)  # (n, K)
    weights = ridge_solution(_whitened(features, mean, deviation), targets, ridge)
    return LeastSquares(mean, deviation, weights)


def ridge_solution(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """The weights W that minimise |xW - y|^2 + ridge |W|^2, by an eigendecomposition of the smaller Gram matrix.

    Args:
        x: `(n, d)`.
        y: `(n, K)`.
        ridge: above 0.

    Returns:
        `(d, K)`: (x'x + ridge)^-1 x'y, which is x'(xx' + ridge)^-1 y.
    """
    if len(x) >= x.shape[1]:
        values, vectors = np.linalg.eigh(x.T @ x)
        return (vectors / (values + ridge)) @ (vectors.T @ (x.T @ y))
    values, vectors = np.linalg.eigh(x @ x.T)
    return (x.T @ (vectors / (values + ridge))) @ (vectors.T @ y)


def _whitened(features: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Features with mean 0 and deviation 1, followed by the constant feature."""
    scaled = (features - mean) / deviation
    return np.concatenate([scaled, np.full((len(scaled), 1), _CONSTANT)], axis=1)  # (n, D + 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Logistic:
    """A fitted logistic regression.

    Attributes:
        mean: `(D,)` of the training features.
        deviation: `(D,)`, their standard deviation, with 1 in place of 0.
        regression: `LogisticRegression` of scikit-learn.
    """

    mean: np.ndarray
    deviation: np.ndarray
    regression: Any

    def predict(self, features: np.ndarray) -> np.ndarray:
        """int64 `(n,)`, the class of the highest score for each of the features `(n, D)`."""
        return self.regression.predict((features - self.mean) / self.deviation).astype("int64")


def fit_logistic(features: np.ndarray, labels: np.ndarray, strength: float) -> Logistic:
    """Fits a logistic regression to whitened features.

    Args:
        features: `(n, D)`.
        labels: int `(n,)`, of at least two classes.
        strength: C; a larger one regularises less.

    Raises:
        ImportError: without scikit-learn.
        ValueError: for examples of one class.

    Warns:
        UserWarning: if it has not converged after 1,000 steps.
    """
    check_installed("sklearn", "it fits the linear probe", "data")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # which scikit-learn needs, too

    _check_classes(labels)
    features = np.asarray(features, "float64")
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    regression = LogisticRegression(C=strength, max_iter=_MOST_STEPS)
    threads = 1 if features.size <= _ONE_THREAD else None
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit((features - mean) / deviation, labels)
    if regression.n_iter_.max() >= _MOST_STEPS:
        warnings.warn(
            f"a linear probe of strength {strength:g} has not converged after {_MOST_STEPS:,} steps.", stacklevel=2
        )
    return Logistic(mean, deviation, regression)


def choose_strength(train: tuple[np.ndarray, np.ndarray], validation: tuple[np.ndarray, np.ndarray]) -> float:
    """The strength with the highest validation accuracy; the smallest of equal ones.

    Args:
        train: features `(n, D)` and labels `(n,)`.
        validation: likewise.
    """
    features, labels = validation
    right = [(fit_logistic(*train, strength).predict(features) == labels).mean() for strength in STRENGTHS]
    return STRENGTHS[int(np.argmax(right))]


def _check_classes(labels: np.ndarray) -> None:
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "a linear probe needs training examples of at least two classes.\n"
            f"Received: {len(labels)} example(s) of {len(np.unique(labels))}."
        )


def neighbor_scores(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    classes: int,
    num_neighbors: int = NUM_NEIGHBORS,
    most_numbers: int = _MOST_NUMBERS,
) -> np.ndarray:
    """The votes of the nearest neighbors, by their cosine, for each class.

    Args:
        train: `(n, D)` features of the training examples.
        labels: int `(n,)`, their classes.
        test: `(m, D)` features of the test examples.
        classes: K.
        num_neighbors: number of votes, n at most.
        most_numbers: number of cosines in memory at once.

    Returns:
        float64 `(m, K)`: the sums of exp(cosine / 0.07), divided by exp(1 / 0.07).

    Source: arXiv:1805.01978 for the weights exp(cosine / 0.07); arXiv:2104.14294 for 20 neighbors, and its code,
    facebookresearch/dino, `eval_knn.py`, for both.
    """
    train, test = _unit(train), _unit(test)
    rows = max(most_numbers // len(train), 1)
    return np.concatenate(
        [
            _votes(test[start : start + rows] @ train.T, labels, classes, num_neighbors)
            for start in range(0, len(test), rows)
        ]
    )


def _votes(cosines: np.ndarray, labels: np.ndarray, classes: int, num_neighbors: int) -> np.ndarray:
    nearest = np.argpartition(-cosines, num_neighbors - 1, axis=1)[:, :num_neighbors]
    weights = np.exp((np.take_along_axis(cosines, nearest, axis=1).astype("float64") - 1) / _TEMPERATURE)
    votes = np.zeros((len(cosines), classes))
    np.add.at(votes, (np.arange(len(cosines))[:, None], labels[nearest]), weights)
    return votes


def _unit(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
