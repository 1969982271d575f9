"""The rows of the table that lie in Google's buckets: the paper's, AugReg, SAM, GSAM, big_vision's, and BiT's.

Sizes "listed" are from the bucket listing in the notebook `vit_jax_augreg.ipynb` and from the official README. "README"
is that of google-research/vision_transformer. "timm results" is `results-imagenet.csv` of
huggingface/pytorch-image-models, computed with exact GELU, bicubic, and a central crop of 0.9, or 1.0 at 384 pixels.
"""

from collections.abc import Iterator

from keras_vit.config.variants import VARIANTS
from keras_vit.weights.hub.augreg_records import augreg_record
from keras_vit.weights.hub.weights_record import (
    WeightsRecord,
    area_crop,
    bicubic_crop,
    listed_size,
    make_record,
    squash,
    unknown_size,
)

IMAGENET, IMAGENET21K = 1000, 21843
_LISTING = "bucket listing"
_PAPER = "arXiv:2010.11929, table 5"
_README = "official README"
_TIMM = "timm results"

_ZERO_HEAD = "The head is zero on purpose: the features were trained, the classes are not there."
_IMAGENET21K = (  # variant, file, listed size
    ("B/8", "ViT-B_8", "393.72 MiB"),
    ("B/16", "ViT-B_16", "393.69 MiB"),
    ("B/32", "ViT-B_32", "400.01 MiB"),
    ("L/16", "ViT-L_16", "1.22 GiB"),
    ("L/32", "ViT-L_32", "1.23 GiB"),
    ("H/14", "ViT-H_14", "2.46 GiB"),
    ("R26+B/32", "R26+ViT-B_32", "450.23 MiB"),
    ("R50+B/16", "R50+ViT-B_16", "439.85 MiB"),
    ("R50+L/32", "R50+ViT-L_32", "1.31 GiB"),
)
_IMAGENET2012 = (  # variant, file, resolution, listed size, top-1, its source
    ("B/8", "ViT-B_8", 384, "334.78 MiB", None, "none reported"),
    ("B/16", "ViT-B_16", 384, "331.40 MiB", 83.97, _PAPER),
    ("B/32", "ViT-B_32", 384, "336.89 MiB", 81.28, _PAPER),
    ("L/16", "ViT-L_16", 384, "1.14 GiB", 85.15, _PAPER),
    ("L/32", "ViT-L_32", 384, "1.14 GiB", 80.99, _PAPER),
    ("R50+B/16", "R50+ViT-B_16", 384, "377.57 MiB", None, "none reported for this file"),
    ("B/16", "ViT-B_16-224", 224, "330.29 MiB", 81.2, _README),
    ("L/16", "ViT-L_16-224", 224, "1.13 GiB", 82.7, _README),
)


def _paper_records() -> Iterator[WeightsRecord]:
    for variant, file, size in _IMAGENET21K:
        yield make_record(
            "imagenet21k",
            variant,
            f"vit_models/imagenet21k/{file}.npz",
            IMAGENET21K,
            squash(224),
            size=listed_size(size, _LISTING),
            head="zero",
            note=_ZERO_HEAD,
            representation_size=VARIANTS[variant].hidden_size,
        )
    for variant, file, resolution, size, accuracy, source in _IMAGENET2012:
        yield make_record(
            "imagenet21k+imagenet2012" + ("-224" if resolution == 224 else ""),
            variant,
            f"vit_models/imagenet21k+imagenet2012/{file}.npz",
            IMAGENET,
            squash(resolution),
            size=listed_size(size, _LISTING),
            accuracy=accuracy,
            accuracy_source=source,
        )


# The recommended upstream files: the README's table; B/8's is big_vision's `howto-i21k-B/8`.
_AUGREG_UPSTREAM = (  # file, listed size
    ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "37 MiB"),
    ("S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0", "118 MiB"),
    ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "115 MiB"),
    ("B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", "398 MiB"),
    ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "391 MiB"),
    ("B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0", None),
    ("L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0", "1243 MiB"),
    ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "40 MiB"),
    ("R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", "170 MiB"),
    ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "1337 MiB"),
)
# At 384 pixels the README's table names the adapted files. B/8 was adapted at 224 only.
_AUGREG_384 = (  # file without "--imagenet2012-steps_20k-", top-1
    ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 78.22),
    ("S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0", "lr_0.01", 79.58),
    ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 83.73),
    ("B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", "lr_0.01", 83.59),
    ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "lr_0.03", 85.49),
    ("L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0", "lr_0.01", 85.59),
    ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 75.40),
    ("R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", "lr_0.01", 83.85),
    ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "lr_0.01", 85.99),
)
# At 224 pixels no official source names the picks, so these are timm's.
_AUGREG_224 = (
    ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 75.454),
    ("S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 75.994),
    ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 81.384),
    ("B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 80.716),
    ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "lr_0.01", 84.532),
    ("B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", "lr_0.01", 85.798),
    ("L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "lr_0.01", 85.834),
    ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", "lr_0.03", 71.798),
    ("R26_S_32-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1", "lr_0.03", 81.864),
    ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", "lr_0.01", 84.422),
)
_TIMMS_PICK = "timm's choice among AugReg's files: no official source names the recommended one at 224 pixels."


def _augreg_records() -> Iterator[WeightsRecord]:
    for file, size in _AUGREG_UPSTREAM:
        listed = {} if size is None else {"size": listed_size(size, _README)}
        yield augreg_record(file, name="augreg-imagenet21k", **listed)
    for resolution, source, note, rows in ((384, _README, "", _AUGREG_384), (224, _TIMM, _TIMMS_PICK, _AUGREG_224)):
        for file, rate, accuracy in rows:
            yield augreg_record(
                f"{file}--imagenet2012-steps_20k-{rate}-res_{resolution}",
                name=f"augreg-imagenet21k+imagenet2012-{resolution}",
                accuracy=accuracy,
                accuracy_source=source,
                note=note,
            )


def _sharpness_records() -> Iterator[WeightsRecord]:
    """SAM (arXiv:2106.01548) and GSAM (arXiv:2203.08065): trained on ImageNet-1k from scratch."""
    unlisted = unknown_size("not listed; S/16 of this set holds optimizer state, so the tensors do not tell")
    rows = (  # variant, listed size, top-1
        ("S/16", listed_size("252.57 MiB", _LISTING), None),
        ("B/16", listed_size("330.30 MiB", _LISTING), 80.244),
        ("B/32", listed_size("336.61 MiB", _LISTING), 73.694),
        ("L/16", unlisted, None),
        ("L/32", unlisted, None),
    )
    for variant, size, accuracy in rows:
        yield make_record(
            "sam",
            variant,
            f"vit_models/sam/ViT-{variant.replace('/', '_')}.npz",
            IMAGENET,
            squash(224),
            size=size,
            accuracy=accuracy,
            accuracy_source=_TIMM if accuracy else "none reported for this file",
            note="Holds the optimizer's state beside the weights." if variant == "S/16" else "",
            dropout_rate=0.0,
        )
    for variant in ("S/16", "S/32", "B/16", "B/32"):  # files as in maciejbalawejder/Vision-Transformer's download.sh
        yield make_record(
            "gsam",
            variant,
            f"vit_models/gsam/ViT-{variant.replace('/', '_')}.npz",
            IMAGENET,
            area_crop(224, 256),
            size=unknown_size("not listed, and it may hold optimizer state as a file of SAM does"),
            note="The mean of all tokens is pooled, without a class token (the official ViT-*-gap-norep).",
            pooling="gap",
        )


_UNKNOWN_SIZE = unknown_size("not listed; a big_vision file may hold optimizer state beside the weights")
_PLAIN = (  # epochs, top-1, its source
    (90, 76.5, "big_vision README"),
    (150, None, "none found"),
    (300, 80.0, "arXiv:2205.01580, abstract"),
)
_FLEXIVIT = (  # variant, file, name, top-1 with patches of 16 pixels
    ("S/16", "flexivit_s_i1k", "flexivit-imagenet2012", 82.520),
    ("S/16", "flexivit_s_i1k_600ep", "flexivit-imagenet2012-600ep", 82.362),
    ("S/16", "flexivit_s_i1k_300ep", "flexivit-imagenet2012-300ep", 82.178),
    ("S/16", "flexivit_s_i1k_90ep", "flexivit-imagenet2012-90ep", None),
    ("B/16", "flexivit_b_i1k", "flexivit-imagenet2012", 84.678),
    ("B/16", "flexivit_b_i1k_600ep", "flexivit-imagenet2012-600ep", 84.522),
    ("B/16", "flexivit_b_i1k_300ep", "flexivit-imagenet2012-300ep", 84.406),
    ("B/16", "flexivit_b_i1k_90ep", "flexivit-imagenet2012-90ep", None),
    ("L/16", "flexivit_l_i1k", "flexivit-imagenet2012", 85.646),
    ("L/16", "flexivit_l_i1k_600ep", "flexivit-imagenet2012-600ep", 85.538),
    ("L/16", "flexivit_l_i1k_300ep", "flexivit-imagenet2012-300ep", 85.290),
    ("L/16", "flexivit_l_i1k_90ep", "flexivit-imagenet2012-90ep", None),
    ("B/16", "flexivit_b_i21k_90ep", "flexivit-imagenet21k-90ep", None),
    ("B/16", "flexivit_b_i21k_300ep", "flexivit-imagenet21k-300ep", None),
    ("B/16", "flexivit_b_i21k_1000ep", "flexivit-imagenet21k-1000ep", None),
)


def _big_vision_records() -> Iterator[WeightsRecord]:
    """Plain ViT-S/16 (arXiv:2205.01580), FlexiViT (arXiv:2212.08013), and the plain ViT-B/16 it is compared with."""
    for epochs, accuracy, source in _PLAIN:
        yield make_record(
            f"big_vision-imagenet2012-{epochs}ep",
            "S/16",
            f"big_vision/vit_s16_i1k_{epochs}ep.npz",
            IMAGENET,
            area_crop(224, 256),
            size=_UNKNOWN_SIZE,
            accuracy=accuracy,
            accuracy_source=source,
            pooling="gap",
            position_embedding="sincos2d",
            representation_size=384,
        )
    plain = ("B/16", "vit_b16_i21k_300ep", "big_vision-imagenet21k-300ep", None)
    for variant, file, name, accuracy in (*_FLEXIVIT, plain):
        yield make_record(
            name,
            variant,
            f"big_vision/flexivit/{file}.npz",
            IMAGENET21K if "i21k" in file else IMAGENET,
            area_crop(240, 272),
            size=_UNKNOWN_SIZE,
            accuracy=accuracy,
            accuracy_source=_TIMM if accuracy else "none found",
            note=_FLEXIBLE if file.startswith("flexivit") else "",
            # jax.image.resize, in every forward pass there
            resize_method="bilinear_antialias" if file.startswith("flexivit") else None,
            dropout_rate=0.0,
        )


_FLEXIBLE = "Made for patches from 8 to 48 pixels: its one kernel and its one table of positions are resized."
_DEIT3 = (  # variant, file, resolution, top-1 trained on ImageNet-1k alone, and on ImageNet-21k before
    ("S/16", "bv_deit_3_small", 224, 81.4, 83.1),
    ("S/16", "bv_deit_3_small", 384, 83.4, 84.8),
    ("B/16", "bv_deit_3_base", 224, 83.8, 85.7),
    ("B/16", "bv_deit_3_base", 384, 85.0, 86.7),
    ("L/16", "bv_deit_3_large", 224, 84.9, 87.0),
    ("L/16", "bv_deit_3_large", 384, 85.8, 87.7),
)
_DEIT3_NOTE = (
    "Trained with exact GELU; big_vision runs it with tanh. DeiT III scales each branch by a vector, for which "
    "big_vision's model has no place, so it must be in the kernels and biases of the branch's last layer."
)


def _deit3_records() -> Iterator[WeightsRecord]:
    """DeiT III (arXiv:2204.07118) in big_vision's layout: the first layer converted to take [-1, 1]."""
    for variant, file, resolution, *accuracies in _DEIT3:
        for data, suffix, accuracy in zip(("", "imagenet21k+"), ("1k", "21k"), accuracies, strict=True):
            fraction = 0.9 if (resolution, suffix) == (224, "1k") else 1.0  # timm's
            yield make_record(
                f"deit3-{data}imagenet2012-{resolution}",
                variant,
                f"big_vision/zoo/deit3/{file}_{resolution}_{suffix}.npz",
                IMAGENET,
                bicubic_crop(resolution, fraction),
                accuracy=accuracy,
                accuracy_source="facebookresearch/deit README_revenge.md, before the conversion",
                note=_DEIT3_NOTE,
                activation="gelu",
                dropout_rate=0.0,
            )


# BiT (arXiv:1912.11370). The files, and the accuracy of the distilled ones, are from the README of
# google-research/big_transfer. timm's accuracies are at 448 pixels (R152x4 at 480), bilinear, without a margin, the
# teachers' at their resolution, bicubic. No listing tells the sizes, so they are computed.
_TRANSFER_README = "big_transfer README, of arXiv:2106.05237"
_FINE_TUNED_AT = 480  # pixels: BiT's rule for larger images, arXiv:1912.11370, section 3.3
_TRANSFERRED_ACCURACIES = {  # of the files that were fine-tuned on ImageNet
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
    ("bit-distilled-imagenet2012-224", "R50x1", "R50x1_224", 224, 82.8, _TRANSFER_README),
    ("bit-distilled-imagenet2012-160", "R50x1", "R50x1_160", 160, 80.5, _TRANSFER_README),
    ("bit-teacher-imagenet21k+imagenet2012-224", "R152x2", "R152x2_T_224", 224, 82.876, _TIMM),
    ("bit-teacher-imagenet21k+imagenet2012-384", "R152x2", "R152x2_T_384", 384, 83.834, _TIMM),
)


def _transferred_records() -> Iterator[WeightsRecord]:
    """BiT-S, BiT-M, and BiT-M fine-tuned, of each published size."""
    kinds = (  # name, file, classes, resolution
        ("bit-imagenet2012", "BiT-S-{}", IMAGENET, 224),
        ("bit-imagenet21k", "BiT-M-{}", IMAGENET21K, 224),
        ("bit-imagenet21k+imagenet2012", "BiT-M-{}-ILSVRC2012", IMAGENET, _FINE_TUNED_AT),
    )
    for name, file, classes, resolution in kinds:
        for variant, accuracy in _TRANSFERRED_ACCURACIES.items():
            is_tuned = resolution == _FINE_TUNED_AT
            yield make_record(
                name,
                variant,
                f"bit_models/{file.format(variant)}.npz",
                classes,
                squash(resolution),
                accuracy=accuracy if is_tuned else None,
                accuracy_source=_TIMM if is_tuned else "none reported",
            )


def _distilled_records() -> Iterator[WeightsRecord]:
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


def google_records() -> Iterator[WeightsRecord]:
    """Those of Vision Transformers."""
    yield from _paper_records()
    yield from _augreg_records()
    yield from _sharpness_records()
    yield from _big_vision_records()
    yield from _deit3_records()


def bit_records() -> Iterator[WeightsRecord]:
    """Those of ResNets."""
    yield from _transferred_records()
    yield from _distilled_records()
