"""Random changes of training images: crops and flips, RandAugment, erasing, and mixing of a batch.

An `Augmentation` record lists the changes; the functions make them inside a `tf.data` graph, on any backend of Keras.
Each function depends on its arguments and seed only. So step t of a run always sees the same images, whatever the
order and the number of threads.
"""

from keras_vit.data.augmentation.records import AUGMENTATIONS, Augmentation, find_augmentation
from keras_vit.data.augmentation.transforms import augment_batch, augment_image, crop_window

__all__ = ["AUGMENTATIONS", "Augmentation", "augment_batch", "augment_image", "crop_window", "find_augmentation"]
