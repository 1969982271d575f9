"""The model card of a served model, beside its versions, where TensorFlow Serving passes over what is no number."""

from keras_vit.cards import NOT_CHOSEN, PREPROCESSING, USE, Card, classes_section, preprocessing_section, table
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE
from keras_vit.exporting.report import ExportReport
from keras_vit.exporting.saved_model.file_inputs import takes_files
from keras_vit.exporting.task import ExportTask
from keras_vit.model.resnet import ResNet
from keras_vit.version import __version__

_LIMITS = (
    "What the model was trained on, and how well it does, was not known to the program that wrote this card. Whether "
    "it does worse for some groups of people, places or things was not studied."
)


def served_card(task: ExportTask, report: ExportReport) -> Card:
    """The card of a served model's folder, about its newest version.

    Args:
        task: what was written.
        report: what was measured of it; its path is that of the version.
    """
    sections = [
        ("Model", _model(task, report)),
        (USE, _use(task, report)),
        ("Compared", _compared(report)),
        (PREPROCESSING, preprocessing_section(task.model.preprocessing, "The graph itself")),
        ("Classes", classes_section(task.labels) if task.labels else ""),
        ("Limits", _LIMITS),
        ("Licence", NOT_CHOSEN),
    ]
    kind = "resnet" if isinstance(task.model, ResNet) else "vision-transformer"
    return Card(task.name, "tensorflow", tuple(sections), kind, classifies=bool(task.labels))


def _model(task, report):
    head = f"{len(task.labels):,} classes" if task.labels else "no head, so it gives features"
    height, width = (side or "any" for side in task.image_size)
    return (
        f"A SavedModel of {task.model.name}, version {report.path.name}, in {task.precision}: images of {height} x "
        f"{width} pixels in {task.channels} channels, {head}. Written by keras_vit {__version__}. TensorFlow Serving "
        "takes this folder; TensorFlow alone loads a version."
    )


def _use(task, report):
    version = report.path.name
    sides = ", ".join(str(side or DEFAULT_IMAGE_SIZE) for side in task.image_size)
    given = f"pixels=tf.zeros((1, {sides}, {task.channels}), tf.uint8)"
    if takes_files(task):
        given = 'image_bytes=tf.io.read_file("photo.jpg")[None]'
    return f"""```python
import tensorflow as tf

served = tf.saved_model.load("{version}").signatures["serving_default"]
print(served({given}))
```"""


def _compared(report):
    if report.runtime is None:
        return "It was not compared with the model that it was written from."
    rows = [
        (drift.output, f"{drift.max_difference:.2g}", f"{drift.bound:.2g}", f"{drift.deviation:.2g}")
        for drift in report.drift
    ]
    same = report.top1_agreement
    agreement = "" if same is None else f" The best class is the model's on {same:.1%} of them, which is no accuracy."
    found = f"With the model in float32, on {report.images:,} photos, by {report.runtime}.{agreement}\n\n"
    return found + table(("output", "largest difference", "bound", "deviation of the model's"), rows)
