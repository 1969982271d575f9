"""The files of "How to train your ViT?" (arXiv:2106.10270): 51,509 records by the formula of their names.

A name has model, data, epochs, augmentation and regularisation, and for adapted files the dataset it
was fine-tuned on: `B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_384`.
Those that papers and READMEs recommend are rows of `vit.csv`.
"""

import re
from typing import TypeAlias

from keras_vit.checks import did_you_mean
from keras_vit.config.variants import VARIANTS
from keras_vit.weights.registry.record import WeightsRecord, record_of_row

FOLDER = "vit_models/augreg/"
MODELS = {  # the part of a file's name before the first "-": variant
    "Ti_16": "Ti/16",
    "S_32": "S/32",
    "S_16": "S/16",
    "B_32": "B/32",
    "B_16": "B/16",
    "B_8": "B/8",
    "L_16": "L/16",
    "R_Ti_16": "R+Ti/16",
    "R26_S_32": "R26+S/32",
    "R50_L_32": "R50+L/32",
}
CLASSES = {
    "i21k": 21843,
    "i1k": 1000,
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "kitti": 4,
    "resisc45": 45,
}
_LEVELS = ("aug_none", "aug_light0", "aug_light1", "aug_medium1", "aug_medium2", "aug_strong1", "aug_strong2")
Grammar: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]  # each part of a name, and what may stand there
_UPSTREAM: Grammar = (  # the parts of a name in their order, and what may stand there
    ("model", tuple(MODELS)),
    ("data", ("i1k", "i21k")),
    ("epochs", ("30ep", "300ep")),
    ("learning rate", ("lr_0.001",)),
    ("augmentation", _LEVELS),
    ("weight decay", ("wd_0.03", "wd_0.1")),
    ("dropout", ("do_0.0", "do_0.1")),
    ("stochastic depth", ("sd_0.0", "sd_0.1")),
)
_ADAPTED: Grammar = (
    ("dataset", ("imagenet2012", "cifar100", "oxford_iiit_pet", "kitti", "resisc45")),
    ("steps", ("steps_0k", "steps_2k", "steps_10k", "steps_20k")),
    ("learning rate", ("lr_0.001", "lr_0.003", "lr_0.01", "lr_0.03")),
    ("resolution", ("res_224", "res_384")),
)
_LOOKS_LIKE_ONE = re.compile(r"-lr_|-aug_|-i21k-|-i1k-")


def looks_like_augreg(name: str) -> bool:
    """Whether `name` is meant as the name of an AugReg file, be it right or wrong."""
    return bool(_LOOKS_LIKE_ONE.search(name))


def augreg_record(file: str) -> WeightsRecord:
    """The record of an AugReg file.

    Args:
        file: as published, with or without `.npz`.

    Raises:
        ValueError: for a name that cannot be one, saying which part is wrong and what may stand there.
    """
    stem = file.removesuffix(".npz")
    upstream, dashes, adapted = stem.partition("--")
    parts = _check_parts(file, upstream, _UPSTREAM)
    dataset, resolution = parts["data"], 224
    if (dataset, parts["epochs"]) == ("i1k", "30ep"):
        raise ValueError(f"AugReg's ImageNet-1k models were trained for 300 epochs only.\nReceived: {file!r}.")
    if dashes:
        adaptation = _check_parts(file, adapted, _ADAPTED)
        dataset, resolution = adaptation["dataset"], int(adaptation["resolution"].removeprefix("res_"))
    variant = MODELS[parts["model"]]
    row = dict.fromkeys(("layout", "resize", "gated", "parameters", "size", "accuracy", "source"), "")
    row |= dict.fromkeys(("measure", "hash", "note"), "") | {"name": stem, "variant": variant, "licence": "Apache-2.0"}
    row |= {"file": f"{FOLDER}{stem}.npz", "classes": str(CLASSES[dataset]), "pixels": str(resolution)}
    row |= {"photos": "squash bilinear aliased half", "fields": "dropout_rate=0.0"}  # official configs/augreg.py
    width = VARIANTS[variant].hidden_size
    # Some of ImageNet-1k have pre_logits, some have not (arXiv:2106.10270, section 3.2).
    return record_of_row(row, uncertain_parameters=(width + 1) * width if dataset == "i1k" else 0)


def _check_parts(name: str, text: str, grammar: Grammar) -> dict[str, str]:
    """The parts of `text` by what they mean; a part holds no "-"."""
    parts = text.split("-")
    for (meaning, choices), part in zip(grammar, parts, strict=False):
        if part not in choices:
            raise ValueError(
                f"the {meaning} in an AugReg name must be one of {', '.join(choices)}.\n"
                f"Received: {part!r} in {name!r}.{did_you_mean(part, choices)}"
            )
    if len(parts) != len(grammar):
        raise ValueError(
            f"an AugReg name has {len(_UPSTREAM)} parts joined by '-': {', '.join(part for part, _ in _UPSTREAM)}. "
            f"That of an adapted file has '--' and {len(_ADAPTED)} more: {', '.join(part for part, _ in _ADAPTED)}.\n"
            f"Received: {len(parts)} parts instead of {len(grammar)} in {text!r}, of {name!r}."
        )
    return {meaning: part for (meaning, _), part in zip(grammar, parts, strict=True)}
