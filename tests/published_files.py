"""Files as they were published, of any record and any size, to lie in a mirror."""

import dataclasses
import warnings

import keras
import numpy as np
from conftest import randomise
from safetensors.numpy import load_file
from torch_files import write_torch

import keras_vit
from keras_vit.config.variants import ENCODERS, FAMILIES, RESNETS, VARIANTS, ResNetConfig
from keras_vit.model.layer_access import weight_paths
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.convert import write_checkpoint
from keras_vit.weights.families import LAYOUTS

SMALL_RESNET = ResNetConfig((2, 1), 0.5)


def small(variant):
    """The variant with one narrow block, and its own patches, heads and stages."""
    config = VARIANTS[variant]
    width = None if config.resnet_stages is None else 0.5
    fields = {} if width is None else {"resnet_width_factor": width}
    return dataclasses.replace(config, hidden_size=4 * config.num_heads, mlp_dim=20, num_layers=1, **fields)


def shrink(record, monkeypatch):
    """Has the table give a small model for this record's, as long as the test runs."""
    if record.variant in ENCODERS:
        family, size = FAMILIES[record.family], record.variant.partition("/")[2]
        patch, _, _, heads, _ = family.sizes[size]
        width = 8 * heads  # which the 8 heads of Perception Encoder's pooling divide too
        sizes = {**family.sizes, size: (patch, width, 2, heads, 24)}
        monkeypatch.setitem(FAMILIES, record.family, dataclasses.replace(family, sizes=sizes))
        return
    table = RESNETS if record.variant in RESNETS else VARIANTS
    monkeypatch.setitem(table, record.variant, SMALL_RESNET if table is RESNETS else small(record.variant))


def folder_layout(record):
    if record.path.startswith("big_vision/"):
        return "big_vision"
    if record.path.startswith("hf/"):
        return "huggingface" if record.path.startswith("hf/google/") else "timm"
    return "bit" if record.path.startswith("bit_models/") else "official"


def stored_config(record):
    config = record.config
    if "flexivit_" in record.path:  # one kernel of 32 x 32 and a table of 7 x 7 for all patch sizes
        return dataclasses.replace(config, patch_size=32), 224
    return config, record.resolution


def random_values():
    rng = np.random.default_rng(1)
    return lambda shape: rng.normal(0, 0.2, shape).astype("float32")


def write_published(record, path, values=None):
    """A file as it would be published: `values` makes an array of a shape, of random numbers by default."""
    if record.variant in ENCODERS:
        write_encoder(record, path)
        return
    config, resolution = stored_config(record)
    values = values or random_values()
    build = keras_vit.build_resnet if isinstance(config, ResNetConfig) else keras_vit.build
    with keras.StatelessScope(initialize_variables=False):
        top = {"classes": record.classes} if record.classes else {"include_top": False}
        model = build(config, input_shape=(resolution, resolution, 3), **top)
    shapes = {name: tuple(variable.shape) for name, variable in weight_paths(model).items()}
    tensors = {name: values(shape) for name, shape in shapes.items()}
    if record.head == "zero":
        tensors |= {name: np.zeros_like(tensors[name]) for name in ("head/kernel", "head/bias")}
    if build is keras_vit.build_resnet:
        checkpoint = Checkpoint(path, "bit", tensors, None)
    else:
        fields = {name: getattr(config, name) for name in ("activation", "layer_norm_epsilon", "position_embedding")}
        checkpoint = Checkpoint(path, "official", tensors, config.num_heads, recorded_fields=fields)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        write_checkpoint(checkpoint, path, folder_layout(record))
    if record.path.endswith("sam/ViT-S_16.npz"):  # with the optimizer's moments, below its prefix
        arrays = dict(np.load(path))
        moments = {f"opt/state/{name}/grad_ema": array for name, array in arrays.items()}
        np.savez(path, **{f"opt/target/{name}": array for name, array in arrays.items()}, **moments)


def write_encoder(record, path):
    """A file as it would be published, in the layout of the record, and the random model that it holds."""
    top = {"classes": record.classes} if record.classes else {"include_top": False}
    model = randomise(keras_vit.build(record.config, input_shape=(*record.preprocessing.image_size, 3), **top))
    if record.classes not in (0, 1000):  # a projection, which has no bias
        model.get_layer("head").bias.assign(np.zeros(record.classes))
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = record.layout or folder_layout(record)
    written = path.with_name(f"written{LAYOUTS[layout].suffix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        keras_vit.save_checkpoint(model, written, layout)
    if path.suffix in (".pth", ".tar"):
        arrays = load_file(written)
        if record.family == "ijepa":  # with the momentum's copy, which is the one that is used
            own = {f"encoder.module.{name}": np.zeros_like(array) for name, array in arrays.items()}
            arrays = own | {f"target_encoder.module.{name}": array for name, array in arrays.items()}
        write_torch(path, arrays)
        written.unlink()
    else:
        written.replace(path)
    return model
