"""Measures of a classifier by its scores, and of a representation by probes.

`evaluate` measures a model with a head. `probe` fits a small classifier to the input of the head, by least squares,
logistic regression or nearest neighbors. These features are computed once and cached on the disk.
"""

from keras_vit.evaluation.classifier import evaluate
from keras_vit.evaluation.feature_cache import FeatureSet, image_features
from keras_vit.evaluation.metrics import CALIBRATION_BINS, ClassResult, Evaluation, measure
from keras_vit.evaluation.page import write_evaluation_page
from keras_vit.evaluation.probes import Probe, Trial, probe

__all__ = [
    "evaluate",
    "measure",
    "Evaluation",
    "ClassResult",
    "CALIBRATION_BINS",
    "probe",
    "Probe",
    "Trial",
    "image_features",
    "FeatureSet",
    "write_evaluation_page",
]
