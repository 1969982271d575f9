"""What transformers' `config.json` and `preprocessor_config.json` say of the weights beside them."""

from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.sidecar.facts import Reading, Sidecar, activation_of, sides_of

PIL_FILTERS = {2: "bilinear", 3: "bicubic"}  # `resample` of transformers' image processors


def read_transformers(config: dict, processor: dict, folder) -> Sidecar:
    """The sidecar of both files; an absent one is empty.

    Raises:
        CheckpointError: for an activation that is not computed here.
    """
    reading, images = Reading("config.json"), Reading("preprocessor_config.json")
    fields = {
        "activation": activation_of(config.get("hidden_act"), folder / "config.json"),
        "layer_norm_epsilon": config.get("layer_norm_eps"),
    }
    return Sidecar(
        fields=reading.fields({name: value for name, value in fields.items() if value is not None}),
        num_heads=reading.count("num_attention_heads", config.get("num_attention_heads")),
        image_size=reading.part("image_size", lambda: sides_of(config.get("image_size"))),
        preprocessing=images.preprocessing(lambda: _record(processor)) if processor else None,
        pre_logits_activation=config.get("pooler_act") or "tanh",
        remarks=(*reading.remarks, *images.remarks),
    )


def _record(said):
    _refuse_unless(said.get("do_rescale", True) is True, said, "do_rescale")
    _refuse_unless(abs(said.get("rescale_factor", 1 / 255) * 255 - 1) < 1e-3, said, "rescale_factor")
    _refuse_unless(said.get("resample", 2) in PIL_FILTERS, said, "resample")
    mean, std = said.get("image_mean", [0.5] * 3), said.get("image_std", [0.5] * 3)  # those of ViTImageProcessor
    if not said.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    return Preprocessing(
        mean=mean, std=std, interpolation=PIL_FILTERS[said.get("resample", 2)], antialias=True, **_sizes(said)
    )


def _sizes(said):
    """`image_size`, `resize` and `crop_fraction`: a processor squashes, or resizes first and cuts out the centre."""
    size: Any = sides_of(said.get("size"))
    if not said.get("do_center_crop"):
        whole = isinstance(said.get("size"), dict) and "shortest_edge" in said["size"]
        _refuse_unless(not whole, said, "size")  # leaves images of every aspect
        return {"image_size": size, "resize": "squash" if said.get("do_resize", True) else "none"}
    crop: Any = sides_of(said.get("crop_size"))
    _refuse_unless(said.get("do_resize", True), said, "do_resize")
    _refuse_unless(crop is not None and size is not None and size[0] >= crop[0], said, "crop_size")
    _refuse_unless(crop[0] * size[1] == crop[1] * size[0], said, "crop_size")  # covers another shape than it cuts out
    return {"image_size": crop, "resize": "crop", "crop_fraction": crop[0] / size[0], "rounding": "transformers"}


def _refuse_unless(rule, said, name):
    if not rule:
        raise ValueError(f"{name} must be one that a record can hold.\nReceived: {name} {said.get(name)}")
