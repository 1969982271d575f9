"""Random changes of training images: crops and flips, RandAugment, erasing, and mixing of a batch.

An `Augmentation` record says what is done; the functions do it inside a `tf.data` graph, on any backend of
Keras. Every one is a pure function of its seed, so that step t of a run sees the same images again, in
whatever order and number of threads the pipeline works.
"""

from keras_vit.data.augmentation.augmentation_records import AUGMENTATIONS, Augmentation, find_augmentation
from keras_vit.data.augmentation.batches import augment_batch
from keras_vit.data.augmentation.crops import crop_window
from keras_vit.data.augmentation.images import augment_image

__all__ = ["AUGMENTATIONS", "Augmentation", "augment_batch", "augment_image", "crop_window", "find_augmentation"]
