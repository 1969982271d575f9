"""A callback that measures an encoder while it trains without labels: it keeps the best one and names a collapse.

What is measured is `keras_vit.selfsupervised`: kNN or twins, spread, RankMe and the entropy of targets.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import FilePath, Logs, Tensor
from keras_vit.checks import ArgumentError, check_choice, check_positive_int
from keras_vit.files import atomic_write
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.selfsupervised.measures import knn_hits, rank_me, spread, target_entropies, twin_hits
from keras_vit.training.callbacks import sync_state
from keras_vit.training.selfsupervised.features import check_encoder, features, prepared

STOPS = ("when_worse", "never")
_SPREAD, _ALIKE = 0.1, 0.01  # below it and half of the start, or below this, all images have nearly one vector
_LEAST_RANK = 0.1  # RankMe, as a share of the directions that there could be
_ONE, _ALL = 0.1, 0.99  # entropy of the mean target, as a share of ln K: one prototype, and all of them alike
_NEARLY_ALL = 0.9  # of targets of heads that have not learned
_POINT = 0.01  # by which the held-out measure may fall, at least
_ERRORS = 3  # standard errors by which it may fall
_RUNNING = 2  # measurements in a row that end a training
_UNLEARNT = 4  # in a row, after which what was so at the start too, as with random weights, is a collapse
_BATCH = 64


class CollapseGuard(keras.callbacks.Callback):
    """Measures an encoder before the first step and after each epoch of `fit`, and saves it whenever it is the best.

    The encoder of the start is the first candidate, so the file at `path` is never worse on these images. Pass
    `steps_per_epoch` to `fit` to measure every so many steps. The logs get `knn` or `twins`, `spread`, `rank_me`,
    `cosine_to_start`, and with `targets` `mean_target_entropy` and `target_entropy`. A collapse is named in one line.
    List it before what writes logs down and before `Checkpoints`, which remembers it in `also`.

    Example:
        >>> config = keras_vit.ViTConfig(4, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> encoder = keras_vit.build(config, include_top=False, input_shape=(8, 8, 3))
        >>> photos = np.random.default_rng(0).uniform(-1, 1, (6, 8, 8, 3))
        >>> guard = keras_vit.CollapseGuard(encoder, photos, "b.keras", labels=[0, 1] * 3)
        >>> sorted(guard.measure())
        ['cosine_to_start', 'knn', 'rank_me', 'spread']

    Args:
        encoder: that is kept: `training.teacher` of a `SelfDistillation`, else the encoder that trains.
        images: `(M, H, W, C)`, held out and not augmented, prepared by `encoder.preprocessing` or uint8; M from 2.
        path: of the `.keras` file of the best encoder.
        labels: int `(M,)`, for the accuracy of kNN.
        twins: `(M, 2, H, W, C)`, two random views of each image, where there are no labels: the share of views whose
            nearest other is the twin.
        targets: gives the teacher's probabilities `(M, K)` from class vectors `(M, D)`.
        num_neighbors: of kNN.
        stop: `"when_worse"` ends `fit` if in two measurements running the encoder has collapsed, or is worse than at
            the start by a point and by three standard errors of the difference; or `"never"`.
        print_fn: called with a line on a collapse, and when training ends early.

    Attributes:
        best_epoch: whose encoder is at `path`, from 1; 0 is the start. `None` before that was measured.
        start: what was measured at the start.
        stopped: why training was ended; `None` if it was not.
        collapse: words on the collapse of the last measurement; empty if there was none.

    Raises:
        TypeError, ValueError: for an encoder with a head, fewer than two images, images that are all the same, and
            neither labels nor twins or both.

    Source: RankMe, arXiv:2210.02885; the spread, arXiv:2011.10566, section 4.1; kNN, arXiv:1805.01978.
    """

    def __init__(
        self,
        encoder: VisionTransformer,
        images: Tensor,
        path: FilePath,
        *,
        labels: Any = None,
        twins: Tensor = None,
        targets: Callable[[Tensor], Tensor] | None = None,
        num_neighbors: int = 10,
        stop: Literal["when_worse", "never"] = "when_worse",
        print_fn: Callable[[str], Any] = print,
    ) -> None:
        super().__init__()
        check_encoder("encoder", encoder)
        self.encoder, self.images, self.path = encoder, _pixels(images), path
        self.labels = None if labels is None else np.asarray(labels)
        self.twins = None if twins is None else _pixels(twins)
        self.targets, self.print_fn = targets, print_fn
        self.num_neighbors = check_positive_int("num_neighbors", num_neighbors)
        self.stop = check_choice("stop", stop, STOPS)
        self._check_images()
        network = features(encoder)
        self._network = lambda: network  # whose weights are the encoder's
        self.best_epoch: int | None = None
        self.stopped: str | None = None
        self.start: dict[str, float] = {}
        self.collapse, self.best = "", -1.0  # below all shares
        self._faults, self._running, self._said = 0, 0, ""
        self._first: np.ndarray | None = None  # the features of the start
        self._hits: np.ndarray | None = None

    @property
    def measure_name(self) -> str:
        """`"knn"` or `"twins"`."""
        return "twins" if self.labels is None else "knn"

    def _check_images(self) -> None:
        if (self.labels is None) == (self.twins is None):
            raise ArgumentError(
                "the guard measures kNN by `labels`, or without them `twins`.\n"
                f"Received: {'neither' if self.labels is None else 'both'}."
            )
        count = len(self.images)
        if count < 2 or self.images.ndim != 4:
            raise ArgumentError(f"`images` must be two or more, (M, H, W, C).\nReceived: shape {self.images.shape}.")
        if (self.images == self.images[:1]).all():
            raise ArgumentError(
                f"the guard compares images, so they must differ.\nReceived: {count} copies of one image.",
                parameters=("images",),
            )
        for name, rows in (("labels", self.labels), ("twins", self.twins)):
            if rows is not None and len(rows) != count:
                raise ArgumentError(f"`{name}` must be as many as images.\nReceived: {len(rows)} for {count} images.")

    def measure(self) -> dict[str, float]:
        """What is measured of the encoder as it is; the first call is taken for the start."""
        vectors = self._vectors(self.images)
        if self.labels is None:
            first, second = (self._vectors(self.twins[:, view]) for view in (0, 1))  # type: ignore[index]
            hits = twin_hits(first, second)
        else:
            hits = knn_hits(vectors, self.labels, self.num_neighbors)
        if self._first is None:
            self._first, self._hits = vectors, hits
        self._error = _standard_error(hits, self._hits)
        found = {self.measure_name: float(hits.mean()), "spread": spread(vectors), "rank_me": rank_me(vectors)}
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(self._first, axis=1)
        found["cosine_to_start"] = float(np.mean(np.sum(vectors * self._first, axis=1) / np.maximum(lengths, 1e-12)))
        if self.targets is not None:
            targets = ops.convert_to_numpy(self.targets(ops.convert_to_tensor(vectors)))
            found["mean_target_entropy"], found["target_entropy"] = target_entropies(targets)
            self._prototypes = targets.shape[-1]
        return found

    def _vectors(self, images: np.ndarray) -> np.ndarray:
        """`(M, D)`, computed in parts, layer by layer, so that nothing is compiled for it."""
        parts = (images[start : start + _BATCH] for start in range(0, len(images), _BATCH))
        found = (self._network()(prepared(self.encoder, ops.convert_to_tensor(part)), training=False) for part in parts)
        return np.concatenate([ops.convert_to_numpy(ops.cast(vectors, "float32")) for vectors, _ in found])

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self.start:  # before `Checkpoints`, so that also a training that goes on measures the start
            sync_state(self.model)
            self.start = self.measure()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if self.best_epoch is None:
            self._keep(0, self.start[self.measure_name])

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        sync_state(self.model)
        found = self.measure()
        value, margin = found[self.measure_name], max(_POINT, _ERRORS * self._error)
        gain = value - self.start[self.measure_name]
        self.collapse = self.collapse_of(found)
        self._running = self._running + 1 if self.collapse else 0
        if self.collapse_of(self.start) and (self._running < _UNLEARNT or gain > margin):
            self.collapse = ""
        if self.collapse and self.collapse.partition(":")[0] != self._said:
            self._said = self.collapse.partition(":")[0]
            self.print_fn(f"collapse in epoch {epoch + 1}, {self.collapse}")
        if value > self.best and not self.collapse:
            self._keep(epoch + 1, value)
        self._faults = self._faults + 1 if self.collapse or -gain > margin else 0
        if self.stop == "when_worse" and self._faults >= _RUNNING:
            fell = f"{self.measure_name} fell from {100 * self.start[self.measure_name]:.1f} to {100 * value:.1f} %"
            self.stopped = self.collapse or f"worse than the start: {fell}"
            self.model.stop_training = True
            best = f"epoch {self.best_epoch}" if self.best_epoch else "the start"
            self.print_fn(f"stopped after epoch {epoch + 1}, {self.stopped}; the encoder of {best} is kept")
        if logs is not None:
            logs.update(found)

    def collapse_of(self, found: Mapping[str, float]) -> str:
        """What kind of collapse figures of `measure` show, in words; empty where they show none."""
        if found["spread"] < max(min(_SPREAD, self.start["spread"] / 2), _ALIKE):
            return f"complete: all images have nearly the same features (spread {found['spread']:.3g})"
        most = min(len(self.images), self.encoder.output_shape[-1])
        if found["rank_me"] < min(_LEAST_RANK * most, self.start["rank_me"] / 2):
            return f"dimensional: features fill {found['rank_me']:.1f} of {most} directions (RankMe)"
        if "target_entropy" in found:
            names = ("mean_target_entropy", "target_entropy")
            of_mean, each = (found[name] / math.log(self._prototypes) for name in names)
            if of_mean < _ONE:
                return f"one prototype: the mean target has {100 * of_mean:.1f} % of the entropy of all"
            if min(of_mean, each) > (_NEARLY_ALL if found is self.start else _ALL):
                return f"uniform: targets are alike ({100 * each:.1f} % of the entropy of all prototypes)"
        return ""

    def _keep(self, epoch: int, value: float) -> None:
        if self.save(epoch):
            self.best, self.best_epoch = value, epoch

    def save(self, epoch: int) -> bool:
        """Writes the encoder as that of an epoch, 0 for the start; says whether it did."""
        with atomic_write(self.path, ".part.keras") as part:
            self.encoder.save(part)
        return True

    def get_state(self) -> dict[str, Any]:
        """What a training that goes on must know, ready for JSON."""
        return {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "faults": self._faults,
            "running": self._running,
            "said": self._said,
            "collapse": self.collapse,
            "stopped": self.stopped,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was."""
        self.best, self.best_epoch, self._faults = state["best"], state["best_epoch"], state["faults"]
        self._running, self._said = state["running"], state["said"]
        self.collapse, self.stopped = state["collapse"], state["stopped"]


def _pixels(images: Tensor) -> np.ndarray:
    images = np.asarray(images)
    return images if images.dtype == np.uint8 else images.astype("float32")


def _standard_error(hits: np.ndarray, others: Any) -> float:
    """Of the difference of two shares of the same images: only those count that one alone got right."""
    return math.sqrt(np.sum(hits != others)) / len(hits)
