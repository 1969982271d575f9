"""What an encoder makes of images, here and in timm: all tokens, or the class token that stands for the image.

`prepare` writes random weights in timm's layout, images, and the tokens that a model computes of them.
"""

import warnings
from typing import Any, ClassVar

from answering import serve
from keras_models import KerasRunner
from torch_peers import Timm


class Tokens(KerasRunner):
    packages = (*KerasRunner.packages, "keras-vit-zoo")
    fields: ClassVar[dict[str, Any]] = {"pooling": "none"}

    def build(self):
        import keras_vit

        side = self.job["image_size"]
        return keras_vit.build(self.job["model"], input_shape=(side, side, 3), include_top=False, **self.fields)

    def load(self, model):
        import keras_vit

        keras_vit.load_checkpoint(model, self.job["files"]["weights"])
        return model


class Pooled(Tokens):
    """The last block computes the class token alone."""

    fields: ClassVar[dict[str, Any]] = {}  # pooled as its record says


class PooledInEngine(Pooled):
    packages = (*Pooled.packages, "openvino", "onnxruntime")

    def inference(self, model):
        import keras_vit

        name, threads = self.job["runner"].removeprefix("ours-"), self.job["threads"]
        engine = keras_vit.accelerate(model, name, "float32", threads, batch_size=self.job["batch"], cache=None)
        images, _ = self.batch()
        return lambda: engine.predict_on_batch(images)


class Preparation(Tokens):
    def load(self, model):
        """No weight is left at its first value, so that the tokens tell of each."""
        import numpy as np

        rng = np.random.default_rng(0)
        for weight in model.weights:
            weight.assign_add(rng.normal(0, 0.02, weight.shape).astype("float32"))
        return model

    def inference(self, model):
        import numpy as np

        import keras_vit

        files, side, count = self.job["files"], self.job["image_size"], self.job["batch"]
        images = np.random.default_rng(1).uniform(-1, 1, (count, side, side, 3)).astype("float32")
        np.save(files["images"], images)
        np.save(files["labels"], np.zeros(count, "int64"))  # which `batch` reads
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of preprocessing, which nobody reads here
            keras_vit.save_checkpoint(model, files["weights"], self.job["layout"])
        return lambda: model.predict_on_batch(images)


class TimmTokens(Timm):
    def build(self):
        import timm

        return timm.create_model(self.job["peer_model"], img_size=self.job["image_size"], num_classes=0)

    def load(self, model):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(self.job["files"]["weights"]))
        return model

    def logits(self, model, images):
        return model.forward_features(images)


RUNNERS = {
    "prepare": Preparation,
    "ours-tokens": Tokens,
    "ours-pooled": Pooled,
    "ours-onnxruntime": PooledInEngine,
    "ours-openvino": PooledInEngine,
    "timm": TimmTokens,
}

if __name__ == "__main__":
    serve(RUNNERS)
