"""How the image processors of transformers prepare photos: `preprocessor_config.json` from a record, and to one."""

import re
from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import CUTS_CENTRE, sides_to_cover
from keras_vit.weights.metadata.record import CLIP_MEAN, CLIP_STD, check_channels, nearest_filter, parse_size

IMAGE_PROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
PIL_FILTERS = {2: "bilinear", 3: "bicubic"}  # `resample` of transformers' image processors
_CLIP_PHOTOS = {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "resample": 3,
    "do_center_crop": True,
    "size": {"shortest_edge": 224},
    "crop_size": 224,
}
_IMAGENET_PHOTOS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_PROCESSORS: dict[str, dict[str, Any]] = {  # what transformers takes where a file is silent; of others ViT's
    "CLIP": _CLIP_PHOTOS,
    "Bit": _CLIP_PHOTOS,
    "DeiT": {"resample": 3, "do_center_crop": True, "size": 256, "crop_size": 224},
    "Beit": {"resample": 3},
    "Siglip": {"resample": 3},
    "DINOv3ViT": _IMAGENET_PHOTOS,
    "MobileViT": {"do_flip_channel_order": True},
    "Sapiens2": _IMAGENET_PHOTOS,
    "Eomt": _IMAGENET_PHOTOS,
    "Yolos": _IMAGENET_PHOTOS,
    "VitPose": _IMAGENET_PHOTOS,
}
# That do what `read_processor` reads of their files. Others resize by rules of their own: ConvNext's `crop_pct`, tiles.
_PLAIN = ("", "ViT", "CLIP", "Bit", "DeiT", "Beit", "Siglip", "DINOv3ViT", "MobileViT", "Sapiens2", "Eomt")
_OF_SHORT_SIDE = ("CLIP", "Bit")  # a `size` of one number is that of the shorter side, of others both


def _processor_kind(processor: dict) -> str:
    """As `"CLIP"` of a `CLIPImageProcessorFast`."""
    name = processor.get("image_processor_type") or processor.get("feature_extractor_type") or ""
    return re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(name))


def read_processor(processor: dict, channels: Any = 3, own: str | None = None) -> Preprocessing:
    """The record of what a processor does.

    Args:
        processor: what its file says.
        channels: of the images.
        own: the kind that its family alone has, as `"Siglip2"`; `None` allows any.

    Raises:
        ValueError: for a step that a record cannot hold.
    """
    for name in ("rescale_factor", "do_rescale"):  # of which transformers takes null for no
        _refuse_unless(processor.get(name, 1) is not None, processor, name)
    name = "image_processor_type" if processor.get("image_processor_type") else "feature_extractor_type"
    _refuse_unless(own is None or _processor_kind(processor) in (*_PLAIN, own), processor, name)
    given = {name: value for name, value in processor.items() if value is not None}
    processor = _PROCESSORS.get(_processor_kind(processor), {}) | given
    _refuse_unless(processor.get("do_rescale", True) is True, processor, "do_rescale")
    _refuse_unless(abs(processor.get("rescale_factor", 1 / 255) * 255 - 1) < 1e-3, processor, "rescale_factor")
    _refuse_unless(not processor.get("do_flip_channel_order"), processor, "do_flip_channel_order")  # BGR
    _refuse_unless(processor.get("resample", 2) in PIL_FILTERS, processor, "resample")
    mean, std = (
        processor.get("image_mean", [0.5] * 3),
        processor.get("image_std", [0.5] * 3),
    )  # those of ViTImageProcessor
    if not processor.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    check_channels(channels, image_mean=mean, image_std=std)
    return Preprocessing(
        mean=mean, std=std, interpolation=PIL_FILTERS[processor.get("resample", 2)], antialias=True, **_sizes(processor)
    )


def _sizes(processor: dict) -> dict[str, Any]:
    """`image_size`, `resize` and `crop_fraction`: a processor squashes, or resizes first and cuts out the centre.

    It keeps the aspect where `size` is that of the shorter side.
    """
    given = processor.get("size")
    _refuse_unless(not isinstance(given, dict) or "longest_edge" not in given, processor, "size")
    size: Any = parse_size(given)
    if not processor.get("do_center_crop"):
        whole = isinstance(processor.get("size"), dict) and "shortest_edge" in processor["size"]
        _refuse_unless(not whole, processor, "size")  # leaves images of every aspect
        return {"image_size": size, "resize": "squash" if processor.get("do_resize", True) else "none"}
    crop: Any = parse_size(processor.get("crop_size"))
    _refuse_unless(processor.get("do_resize", True), processor, "do_resize")
    _refuse_unless(crop is not None and size is not None and size[0] >= crop[0], processor, "crop_size")
    _refuse_unless(
        crop[0] * size[1] == crop[1] * size[0], processor, "crop_size"
    )  # covers another shape than it cuts out
    short = "shortest_edge" in given if isinstance(given, dict) else _processor_kind(processor) in _OF_SHORT_SIDE
    resize = "crop" if short else "squash_crop"
    return {"image_size": crop, "resize": resize, "crop_fraction": crop[0] / size[0], "rounding": "transformers"}


def _refuse_unless(rule: bool, processor: dict, name: str) -> None:
    if not rule:
        raise ValueError(f"{name} must be one that a record can hold.\nReceived: {name} {processor.get(name)}")


def describe_unused_steps(processor: dict, name: str) -> list[str]:
    """A line for each step that a processor does with photos and a record cannot hold."""
    steps = [step for step in ("do_pad", "crop_to_patches") if processor.get(step)]
    return [f"{step} of {name} not understood ({processor[step]}): left out" for step in steps]


def transformers_processor(record: Preprocessing, image_size: tuple[int, int]) -> dict:
    """`preprocessor_config.json` for photos as a record has them."""
    height, width = image_size
    config = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": record.resize != "none",  # also for images of any size: ViT of transformers takes one size
        "size": {"height": height, "width": width},
        "resample": {name: number for number, name in PIL_FILTERS.items()}[nearest_filter(record)],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(record.mean),
        "image_std": list(record.std),
    }
    if record.resize in CUTS_CENTRE:
        covered = sides_to_cover(record, image_size)
        squashes = record.resize == "squash_crop"
        config["image_processor_type"] = "DeiTImageProcessor" if squashes else "BitImageProcessor"
        config["size"] = dict(zip(("height", "width"), covered, strict=True))
        if not squashes:
            config["size"] = {"shortest_edge": max(covered)}  # so that both sides are covered
        config |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return config
