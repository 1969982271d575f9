"""The rows of the table for the ResNet baselines: BiT's files (arXiv:1912.11370) and the distilled ones.

Which files there are, and the accuracy of the distilled ones, is from the README of google-research/big_transfer. "timm
results" is `results-imagenet.csv` of huggingface/pytorch-image-models: at 448 pixels (R152x4 at 480), bilinear, without
a margin; the teachers at their resolution, bicubic. No listing tells the sizes, so they are computed.
"""

from keras_vit.weights.hub.records import WeightsRecord, area_crop, make_record, squash

IMAGENET, IMAGENET21K = 1000, 21843
_TIMM = "timm results"
_README = "big_transfer README, of arXiv:2106.05237"
_FINE_TUNED_AT = 480  # pixels: BiT's rule for larger images, arXiv:1912.11370, section 3.3
_ACCURACIES = {  # of the files that were fine-tuned on ImageNet
    "R50x1": 80.340,
    "R50x3": 84.020,
    "R101x1": 82.342,
    "R101x3": 84.438,
    "R152x2": 84.510,
    "R152x4": 84.916,
}
_MARGIN = 256 / 224  # of their evaluation: big_vision, configs/proj/distill/bit_i1k.py, at 224 pixels
_IN_PROPORTION = "The evaluation at this resolution is not published; it is that at 224 pixels in proportion."
_DISTILLED = (  # name, variant, file, resolution, top-1, its source
    ("bit-distilled-imagenet2012-224", "R50x1", "R50x1_224", 224, 82.8, _README),
    ("bit-distilled-imagenet2012-160", "R50x1", "R50x1_160", 160, 80.5, _README),
    ("bit-teacher-imagenet21k+imagenet2012-224", "R152x2", "R152x2_T_224", 224, 82.876, _TIMM),
    ("bit-teacher-imagenet21k+imagenet2012-384", "R152x2", "R152x2_T_384", 384, 83.834, _TIMM),
)


def _transferred():
    """BiT-S, BiT-M, and BiT-M fine-tuned, of each published size."""
    kinds = (  # name, file, classes, resolution
        ("bit-imagenet2012", "BiT-S-{}", IMAGENET, 224),
        ("bit-imagenet21k", "BiT-M-{}", IMAGENET21K, 224),
        ("bit-imagenet21k+imagenet2012", "BiT-M-{}-ILSVRC2012", IMAGENET, _FINE_TUNED_AT),
    )
    for name, file, classes, resolution in kinds:
        for variant, accuracy in _ACCURACIES.items():
            reported = {"accuracy": accuracy, "accuracy_source": _TIMM} if resolution == _FINE_TUNED_AT else {}
            yield make_record(
                name, variant, f"bit_models/{file.format(variant)}.npz", classes, squash(resolution), **reported
            )


def _distilled():
    for name, variant, file, resolution, accuracy, source in _DISTILLED:
        yield make_record(
            name,
            variant,
            f"bit_models/distill/{file}.npz",
            IMAGENET,
            area_crop(resolution, resolution * _MARGIN),
            accuracy=accuracy,
            accuracy_source=source,
            note="" if resolution == 224 else _IN_PROPORTION,
        )


BIT_RECORDS: tuple[WeightsRecord, ...] = (*_transferred(), *_distilled())
