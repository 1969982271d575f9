"""An encoder learns the features of a larger one: class vector and patches, through a dense layer each."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_choice, check_nonnegative, check_positive
from keras_vit.images.preprocessing import is_uint8, unscaled
from keras_vit.layers.configurable import at_least_float32
from keras_vit.model.layer_access import patch_embedding
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.selfsupervised.feature_losses import FEATURE_LOSSES, feature_losses, relation_losses
from keras_vit.training.selfsupervised.features import check_encoder, features, prepared, tiled
from keras_vit.training.selfsupervised.steps import UnlabeledModel

PATCH_LOSSES = (*FEATURE_LOSSES, "relation")
PatchLoss = Literal["cosine", "mse", "smooth_l1", "normalized_mse", "cosine_smooth_l1", "relation"]
_DEVIATION = 0.02  # of the projectors' kernels


class FeatureDistillation(UnlabeledModel):
    """Trains a student without labels to give a teacher's features, with `fit`.

    A dense layer brings the student's class vector to the teacher's width, and another one its patches. Both get the
    same images, each by its own preprocessing. What is trained is `student` itself: save that one.

    Example:
        >>> config = keras_vit.ViTConfig(4, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> student = keras_vit.build(config, include_top=False, input_shape=(8, 8, 3))
        >>> wide = config.replace(hidden_size=36)
        >>> teacher = keras_vit.build(wide, include_top=False, input_shape=(8, 8, 3))
        >>> training = keras_vit.FeatureDistillation(student, teacher)
        >>> tuple(training({"images": np.zeros((2, 8, 8, 3), "float32")})["patch"].shape)
        (2, 4, 36)

    Args:
        student: a `VisionTransformer` without a head.
        teacher: another one, of any size and family; it is frozen.
        class_loss: of class vectors, the `kind` of `keras_vit.selfsupervised.feature_loss`.
        patch_loss: of patches, the same, or `"relation"`, `relation_loss` without a projector.
        class_weight: of the first, at least 0.
        patch_weight: of the second. Where grids differ, the teacher's is resized to the student's.

    Call arguments:
        x: `{"images": (B, H, W, C)}`, floats prepared by `student.preprocessing`, or uint8.

    Returns:
        A dict of the student's projected `"class"` `(B, E)` and `"patch"` `(B, N, E)`, and the same of the teacher.
        `fit` shows `loss`, `class_loss` and `patch_loss`, as they are added.

    Raises:
        TypeError: for what is no `VisionTransformer`.
        ValueError: for one with a head, a teacher that is the student or has other channels, an unknown loss, weights
            out of range, a batch without images, and a loss, metrics or accumulation in `compile`.

    Source: the losses as of AM-RADIO, arXiv:2312.06709, section 3; relations as of SEED, arXiv:2101.04731.
    """

    inputs_by_name: ClassVar = {"images": "(B, H, W, C)"}
    loss_names = ("class_loss", "patch_loss")

    def __init__(
        self,
        student: VisionTransformer,
        teacher: VisionTransformer,
        class_loss: str = "cosine",
        patch_loss: PatchLoss = "cosine_smooth_l1",
        class_weight: float = 1.0,
        patch_weight: float = 1.0,
        name: str = "feature_distillation",
    ) -> None:
        check_encoder("student", student)
        check_encoder("teacher", teacher)
        if teacher is student:
            raise ArgumentError(
                "the teacher is frozen and the student learns from it, so they must be two models.\n"
                f"Received: {student.name!r} as both.",
                parameters=("teacher",),
            )
        if student.input_shape[-1] != teacher.input_shape[-1]:
            raise ArgumentError(
                "the teacher gets the images of the student, so it must take their channels.\n"
                f"Received: inputs {student.input_shape} of the student, {teacher.input_shape} of the teacher.",
                parameters=("teacher",),
            )
        check_choice("class_loss", class_loss, FEATURE_LOSSES)
        check_choice("patch_loss", patch_loss, PATCH_LOSSES)
        super().__init__(name)
        self.kinds = {"class": class_loss, "patch": patch_loss}
        shares = {"class_weight": class_weight, "patch_weight": patch_weight}
        self.shares = {name.partition("_")[0]: check_nonnegative(name, share) for name, share in shares.items()}
        self.student, self.teacher = student, teacher
        teacher.trainable = False
        networks = features(student), features(teacher)
        self._features = lambda: networks  # whose weights are those of both
        self.projectors = {}
        for part, mine, other in zip(("class", "patch"), networks[0].outputs, networks[1].outputs, strict=True):
            if self.kinds[part] != "relation":
                self.projectors[part] = keras.layers.Dense(
                    other.shape[-1],
                    kernel_initializer=keras.initializers.TruncatedNormal(stddev=_DEVIATION),
                    dtype=at_least_float32(patch_embedding(student).dtype_policy),
                    name=f"{part}_projector",
                )
                self.projectors[part].build(mine.shape)

    def compile(self, optimizer: Any, **kwargs: Any) -> None:
        """Keras' `compile`, without a loss or metrics.

        Args:
            optimizer: as `keras_vit.AdamW`.
            **kwargs: of Keras' `compile`.
        """
        self.compile_with(optimizer, kwargs)

    def fit_projectors(self, batches: Iterable[Tensor], ridge: float = 1e-2) -> None:
        """Gives both projectors the weights of a ridge regression from the student's features to the teacher's.

        A student that knows something is spoiled by the first steps behind random projectors.

        Args:
            batches: `(B, H, W, C)` each, some hundreds of images in all.
            ridge: added to the diagonal of the covariance, as a share of its mean, above 0.
        """
        check_positive("ridge", ridge)
        sums: dict[str, list[Any]] = {}
        for images in batches:
            for part, *pair in zip(("class", "patch"), *self._of_both(images, training=False), strict=True):
                arrays = (ops.convert_to_numpy(ops.cast(each, "float32")).astype("float64") for each in pair)
                x, y = (each.reshape(-1, each.shape[-1]) for each in arrays)
                new = [len(x), x.sum(0), y.sum(0), x.T @ x, x.T @ y]
                sums[part] = [a + b for a, b in zip(sums[part], new, strict=True)] if part in sums else new
        for part, projector in self.projectors.items():
            count, x, y, xx, xy = sums[part]
            covariance = xx / count - np.outer(x, x) / count**2
            shrunk = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
            kernel = np.linalg.solve(shrunk, xy / count - np.outer(x, y) / count**2)
            projector.set_weights([kernel, (y - x @ kernel) / count])

    def call(self, x: dict[str, Tensor], training: bool | None = None) -> dict[str, Any]:
        self.check_batch(x)
        found, wanted = self._of_both(x["images"], training)
        projected = {
            part: self.projectors[part](vectors) if part in self.projectors else vectors
            for part, vectors in zip(("class", "patch"), found, strict=True)
        }
        return {**projected, "teacher": [ops.stop_gradient(ops.cast(vectors, "float32")) for vectors in wanted]}

    def _of_both(self, images: Tensor, training: bool | None) -> tuple[Any, list[Tensor]]:
        """Vectors and patches of the student, and of the teacher on the student's grid."""
        tiled("images", images.shape, self.student)
        tiled("images", images.shape, self.teacher)
        of_student, of_teacher = self._features()
        found = of_student(prepared(self.student, images), training=training)
        wanted = of_teacher(self._for_teacher(images), training=False)
        grids = [model.config.grid(*images.shape[1:3]) for model in (self.student, self.teacher)]
        return found, [wanted[0], _resized(wanted[1], grids[1], grids[0])]

    def _for_teacher(self, images: Tensor) -> Tensor:
        """The same pixels by the teacher's preprocessing."""
        records = [model.preprocessing for model in (self.student, self.teacher)]
        same = len({(record.mean, record.std) for record in records}) == 1
        if same or is_uint8(images):
            return prepared(self.teacher, images)
        mean, std = (ops.convert_to_tensor(each, "float32") for each in (records[1].mean, records[1].std))
        return (unscaled(ops.cast(images, "float32"), records[0]) / 255 - mean) / std

    def losses_of(
        self, x: dict[str, Tensor], found: dict[str, Any], there: Tensor | None, training: bool | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        shown = {}
        for part, wanted in zip(("class", "patch"), found["teacher"], strict=True):
            kind = self.kinds[part]
            losses = (
                relation_losses(found[part], wanted)
                if kind == "relation"
                else feature_losses(found[part], wanted, kind)  # type: ignore[arg-type]
            )
            losses = ops.mean(losses, axis=1) if part == "patch" else losses  # (B,)
            shown[f"{part}_loss"] = self.shares[part] * losses
        return shown["class_loss"] + shown["patch_loss"], shown


def _resized(patches: Tensor, grid: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """Patches `(B, h w, D)` of a grid as those of another, by bilinear interpolation."""
    if grid == wanted:
        return patches
    maps = ops.reshape(ops.cast(patches, "float32"), (-1, *grid, patches.shape[-1]))
    maps = ops.image.resize(maps, wanted, interpolation="bilinear", antialias=grid[0] > wanted[0])
    return ops.reshape(maps, (-1, wanted[0] * wanted[1], patches.shape[-1]))
