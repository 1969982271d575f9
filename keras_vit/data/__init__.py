"""Labelled images from files or arrays, checked and put into batches for a model.

`open_source` finds and checks the examples. `load_dataset` makes a `tf.data` pipeline of them. Both need TensorFlow,
whatever backend Keras runs on.
"""

from keras_vit.data.opening import open_source
from keras_vit.data.pipeline import load_dataset
from keras_vit.data.source import Source
from keras_vit.images.validation import BadImage

__all__ = ["open_source", "load_dataset", "Source", "BadImage"]
