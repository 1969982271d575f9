"""Training a student by a teacher, as DeiT does: arXiv:2012.12877, section 4.

A distilled model has two heads: its class token learns the labels, its distillation token the teacher.
"""

import inspect
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import check_choice, check_number
from keras_vit.model.copies import is_distributed
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import head_layers
from keras_vit.model.outputs import check_no_activation, check_reads_outputs, output_spec
from keras_vit.model.replicated_model import ReplicatedModel
from keras_vit.model.vision_transformer import VisionTransformer

KINDS = ("hard", "soft")


@keras.saving.register_keras_serializable("keras_vit")
class DistillationLoss(keras.losses.Loss):
    """How far a student's logits are from a teacher's.

    Example:
        >>> loss = keras_vit.DistillationLoss("soft", temperature=2.0)
        >>> teacher = np.array([[2.0, 1.0, 0.0]])
        >>> [round(float(loss(teacher, x)), 3) for x in (teacher, -teacher)]
        [0.0, 1.281]

    Args:
        kind: `"hard"`, cross-entropy with the class the teacher prefers (eq. 3, DeiT's choice), or `"soft"`,
            Kullback-Leibler divergence from the teacher's distribution, both softened (eq. 2).
        temperature: tau of the soft loss, above 0; 3 in the paper. The loss is multiplied by its square, so that
            gradients keep their size.

    Call arguments:
        y_true: teacher's logits `(B, K)`.
        y_pred: student's logits `(B, K)`, of its distillation head.

    Raises:
        ValueError: if a value is out of range.

    Source: arXiv:2012.12877, section 4 and 5.2. (The soft loss of the paper's code is divided by K as well, which
    its equation does not have.)
    """

    def __init__(self, kind: str = "hard", temperature: float = 3.0, name: str = "distillation", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        check_choice("kind", kind, KINDS)
        check_number("temperature", temperature)
        if not temperature > 0:
            raise ValueError(f"`temperature` divides logits, so it must be above 0.\nReceived: {temperature}.")
        self.kind = kind
        self.temperature = temperature

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if self.kind == "hard":
            labels = ops.argmax(y_true, axis=-1)
            return keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        teacher = ops.log_softmax(y_true / self.temperature, axis=-1)
        student = ops.log_softmax(y_pred / self.temperature, axis=-1)
        return self.temperature**2 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)  # (B,)

    def get_config(self) -> Arguments:
        return {**super().get_config(), "kind": self.kind, "temperature": self.temperature}


class Distiller(ReplicatedModel, keras.Model):
    """Trains a small model (student) by the answers of a larger one (teacher), with `fit`.

    Compile it with the loss for the labels. The loss for the teacher is here:

    loss = (1 - weight) * compiled loss(labels, class head) + weight * distillation loss(teacher, distillation head)

    Metrics, `evaluate` and `predict` see the model's own output, the average of both heads. What is trained is the
    `student` itself: save that one. The teacher gets the images that the student gets.

    Example:
        >>> config = keras_vit.VARIANTS["Ti/16"].replace(num_layers=1, distilled=True)
        >>> student = keras_vit.build(config, input_shape=(32, 48, 3), classes=3)
        >>> distiller = keras_vit.Distiller(student, teacher=model, kind="soft")
        >>> distiller.compile(keras_vit.SGD(0.01), keras_vit.SigmoidCrossentropy())
        >>> history = distiller.fit(images, np.eye(3)[[0, 2]], verbose=0)
        >>> tuple(student(images).shape)
        (2, 3)

    Args:
        student: a model of `keras_vit` with `distilled=True` and logits as outputs.
        teacher: another `keras.Model`, from the same images to logits `(B, K)`; it is frozen.
        kind: `"hard"` or `"soft"`.
        weight: of the distillation loss, in [0, 1]; in the paper 0.5 for hard and 0.1 for soft distillation.
        temperature: of the soft loss.

    Raises:
        ValueError: if student or teacher are not of that kind, or a value is out of range.

    Source: arXiv:2012.12877, section 4.
    """

    def __init__(
        self,
        student: VisionTransformer,
        teacher: keras.Model,
        kind: str = "hard",
        weight: float = 0.5,
        temperature: float = 3.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_number("weight", weight)
        if not 0 <= weight <= 1:
            raise ValueError(f"`weight` is a share of the loss, so it must be in [0, 1].\nReceived: weight={weight}.")
        _check_teacher(student, teacher)
        self.weight = weight
        self.distillation_loss = DistillationLoss(kind, temperature)
        self.student = student
        self.teacher = teacher
        self.teacher.trainable = False
        self._heads = keras.Model(student.input, _logits_of_both_heads(student), name="heads")
        outputs = student.output_spec.shape, output_spec(teacher).shape
        if outputs[0] != outputs[1]:
            raise ValueError(
                "student and teacher must score the same classes.\n"
                f"Received: outputs {outputs[0]} of the student, {outputs[1]} of the teacher."
            )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Keras' `compile`, which refuses losses and metrics of probabilities, since a student answers logits.

        Raises:
            ValueError: for those, for what a strategy cannot compute, and under `keras.distribution`.
        """
        if is_distributed():
            raise ValueError(
                "a distiller trains on one device, or on several by a strategy of TensorFlow.\n"
                f"Received: {type(keras.distribution.distribution()).__name__} of `keras.distribution`."
            )
        given = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
        check_reads_outputs(self.student, given.get("loss"), (given.get("metrics"), given.get("weighted_metrics")))
        super().compile(*args, **kwargs)

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        if not training:
            return self.student(images, training=False)
        labels, distillation = self._heads(images, training=True)
        return {"labels": labels, "distillation": distillation, "teacher": self.teacher(images, training=False)}

    def compute_loss(
        self,
        x: Tensor = None,
        y: Tensor = None,
        y_pred: Tensor = None,
        sample_weight: Tensor = None,
        training: bool | None = True,
    ) -> Tensor:
        """The weighted sum of both losses; outside training the compiled loss of the averaged logits."""
        if not training:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        labels = super().compute_loss(x, y, y_pred["labels"], sample_weight, training)
        teacher = ops.stop_gradient(y_pred["teacher"])
        distillation = self.distillation_loss(teacher, y_pred["distillation"], sample_weight=sample_weight)
        return (1 - self.weight) * labels + self.weight * distillation

    def compute_metrics(self, x: Tensor, y: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> dict[str, Tensor]:
        """Metrics of the average of both heads."""
        if isinstance(y_pred, dict):
            y_pred = (y_pred["labels"] + y_pred["distillation"]) / 2
        return super().compute_metrics(x, y, y_pred, sample_weight)


def _check_teacher(student: keras.Model, teacher: keras.Model) -> None:
    """Raises for a teacher whose inputs do not fit the student; outputs are compared by the caller."""
    if teacher is student:
        raise ValueError(
            "the teacher is frozen and the student learns from it, so they must be two models.\n"
            f"Received: {student.name!r} as both."
        )
    shape, wanted = student.input_shape, getattr(teacher, "input_shape", None)  # unknown before it is built
    same = isinstance(wanted, tuple) and len(wanted) == len(shape)
    same = same and all(None in pair or pair[0] == pair[1] for pair in zip(shape, wanted or (), strict=True))
    if wanted is not None and not same:
        raise ValueError(
            "the teacher gets the images of the student, so it must take their size and channels.\n"
            f"Received: inputs {shape} of the student, {wanted} of the teacher. "
            "`keras_vit.with_input_shape` gives a Vision Transformer of another size."
        )
    if isinstance(teacher, ImageModel):
        check_no_activation(teacher, "teacher")


def _logits_of_both_heads(student: ImageModel) -> list[Tensor]:
    heads = head_layers(student)
    if len(heads) != 2 or student.output_spec.kind != "logits":
        raise ValueError(
            "the student must have two heads and logits as its output.\n"
            f"Received: {student.name!r}. Build it with `distilled=True`, without `classifier_activation`."
        )
    return [head.output for head in heads]
