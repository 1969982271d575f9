"""Labelled images from wherever they lie to batches that a model takes, as a `tf.data.Dataset`.

`open_source` looks a data set through; `load_dataset` makes it, or what opens as one, a pipeline. Both need
TensorFlow for `tf.data`, whatever backend Keras runs on.
"""

from keras_vit.data.pipeline import load_dataset
from keras_vit.data.source import Source
from keras_vit.data.source_opening import open_source
from keras_vit.images.photo_checks import BadImage

__all__ = ["open_source", "load_dataset", "Source", "BadImage"]
