"""The class of an example of tensorflow-datasets: its label, or what a task of VTAB computes from other features."""

from collections.abc import Sequence

from keras_vit.annotations import Tensor
from keras_vit.config.datasets import DatasetRecord


def label_of(features: dict[str, Tensor], record: DatasetRecord) -> Tensor:
    """The class of an example, int64, from the features that tensorflow-datasets reads."""
    import tensorflow as tf

    if record.label in LABEL_RULES:
        key, rule = LABEL_RULES[record.label]
        return tf.cast(rule(features[key]), "int64")
    label = tf.cast(features[record.label], "int64")
    return label if record.label_classes is None else label * record.classes // record.label_classes


def _above(value: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Number of the interval that contains `value`; intervals include their upper ends."""
    import tensorflow as tf

    return tf.reduce_sum(tf.cast(tf.constant(thresholds, "float32") < tf.cast(value, "float32"), "int64")) - 1


def _clevr_count_all(objects: dict[str, Tensor]) -> Tensor:
    """The number of objects, from 3 to 10, as a class from 0."""
    import tensorflow as tf

    return tf.size(objects["size"]) - 3


def _clevr_closest_object_distance(objects: dict[str, Tensor]) -> Tensor:
    """The depth of the closest object, in six intervals of about equal frequency."""
    import tensorflow as tf

    return _above(tf.reduce_min(objects["pixel_coords"][:, 2]), (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def _kitti_closest_vehicle_distance(objects: dict[str, Tensor]) -> Tensor:
    """The distance of the closest car, van or lorry: to 8 m, to 20 m, beyond, or none in the picture."""
    import tensorflow as tf

    depths = tf.boolean_mask(objects["location"][:, 2], objects["type"] < 3)
    return _above(tf.reduce_min(tf.concat([depths, [1000.0]], axis=0)), (-100.0, 8.0, 20.0, 999.0))


# Computed labels: the feature that they come from, and the function. Source: google-research/task_adaptation, data/.
LABEL_RULES = {
    rule.__name__.removeprefix("_"): ("objects", rule)
    for rule in (_clevr_count_all, _clevr_closest_object_distance, _kitti_closest_vehicle_distance)
}
