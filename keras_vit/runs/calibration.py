"""Photos that int8 is calibrated on where its user gives none: those that the run was trained on."""

import warnings

from keras_vit.data.opening import open_source
from keras_vit.exporting.export import FEWEST_PHOTOS, MOST_PHOTOS
from keras_vit.exporting.sample_photos import Photos
from keras_vit.runs.finished import RunFacts

_STAND_INS = "calibrated on parts of two photos of scikit-learn"


def calibration_photos(run: RunFacts) -> tuple[Photos, str]:
    """Training photos of a run, as `images` of `export` and `accelerate`, and a line that says which they are.

    They are spread evenly over its training set; of a set of tensorflow-datasets they are the first. Where the data is
    not to be had, or is too little, the photos are `None`, for which two of scikit-learn stand in, and the line has
    the reason.

    Args:
        run: facts of the run; those of no run for a model without one.
    """
    if run.data is None:
        return None, _STAND_INS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of bad files, of which the training has told
            source = open_source(run.data, seed=run.seed)
            photos = source.split("train").some(MOST_PHOTOS)
    except (ValueError, OSError, ImportError) as error:
        return None, f"{_STAND_INS}, as the run's data cannot be read: {' '.join(str(error).split())}"
    if len(photos) < FEWEST_PHOTOS:
        return None, f"{_STAND_INS}, as {source.name} has {len(photos)} to train on and it takes {FEWEST_PHOTOS}"
    return photos, f"calibrated and compared on {len(photos)} training images of {source.name}"
