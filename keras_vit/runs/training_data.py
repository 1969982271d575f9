"""The data of a finished run as it was trained on: whether they are still the same, and photos to calibrate int8 on."""

import warnings
from typing import Any

from keras_vit.data.opening import open_source
from keras_vit.data.source import Source, fingerprint
from keras_vit.exporting.export import MAX_PHOTOS, MIN_PHOTOS
from keras_vit.exporting.sample_photos import SAMPLE_PHOTOS, Photos
from keras_vit.runs.saved_runs import RunFacts


def has_changed(run: RunFacts, source: Source) -> bool:
    """Whether a source is known to be other data than a run's, or divided otherwise.

    Then images that the run was trained on may be among those to test.

    Args:
        run: facts of the run.
        source: the run's data as they are now.
    """
    if run.data_hash is None:
        return False
    try:
        return fingerprint(_as_trained(run, source)) != run.data_hash
    except (TypeError, ValueError):  # too few images for the subset, or none that could be one
        return True


def calibration_photos(run: RunFacts) -> tuple[Photos, str]:
    """Training photos of a run, as `images` of `export` and `accelerate`, and words that say which they are.

    They are spread evenly over its training set; of a set of tensorflow-datasets they are the first. The photos are
    `None` where the data are missing, have changed or are too few. Two photos of scikit-learn stand in then, and the
    words have the reason.

    Args:
        run: facts of the run; those of no run for a model without one.
    """
    if run.data is None:
        return None, SAMPLE_PHOTOS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of bad files, of which the training has told
            source = open_source(run.data, seed=run.seed, targets=run.task.targets())
        if has_changed(run, source):
            return None, f"{SAMPLE_PHOTOS}, as the run's data, {run.data}, have changed since"
        photos = _as_trained(run, source).split("train").sample(MAX_PHOTOS)
    except (ValueError, TypeError, OSError, ImportError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        return None, f"{SAMPLE_PHOTOS}, as the run's data, {run.data}, cannot be read: {reason}"
    if len(photos) < MIN_PHOTOS:
        return None, f"{SAMPLE_PHOTOS}, as {source.name} has {len(photos)} to train on and it takes {MIN_PHOTOS}"
    return photos, f"{len(photos)} training images of {source.name}"


def _as_trained(run: Any, source: Source) -> Source:
    """The source with those training images alone that the run was trained on."""
    return source if run.subset is None else source.subset(**run.subset)
