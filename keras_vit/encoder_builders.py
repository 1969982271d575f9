"""A builder for every encoder of the table, as `DINOv2S14` for `build("dinov2/S14")`; type checkers read the stub."""

from keras_vit.builders import build, builders_by
from keras_vit.config.variants import ENCODERS

_builder = builders_by(build, "encoder", ENCODERS.__getitem__)
globals().update({builder: _builder(name) for name, builder in ENCODERS.items()})

__all__ = list(ENCODERS.values())
