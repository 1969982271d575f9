"""This package's own runners: the model as Keras calls it, under XLA, and in the engines of `accelerate`.

`prepare` is what is done once for all runners: it writes the files that they read.
"""

import warnings

from answering import LeftOutError, serve
from keras_models import KerasRunner

_ENGINES = ("tensorflow", "xla", "openvino", "onnxruntime")
_OWN_THREADS = ("openvino", "onnxruntime")  # which take the number as an argument; TensorFlow's is that of its process


class Ours(KerasRunner):
    packages = (*KerasRunner.packages, "keras-vit-zoo")

    def bring_packages(self):
        import keras_vit  # noqa: F401

        super().bring_packages()

    def arguments(self):
        side = self.job["image_size"]
        return {
            "input_shape": (side, side, 3),
            "classes": self.job["classes"],
            "activation": self.job["activation"],
        }

    def build(self):
        import keras_vit

        return keras_vit.build(self.job["model"], **self.arguments())

    def load(self, model):
        import keras_vit

        keras_vit.load_checkpoint(model, self.job["files"]["official"])
        return model

    def from_file(self):
        import keras_vit

        return keras_vit.build(self.job["model"], weights=self.job["files"]["official"], **self.arguments())

    def in_precision(self, model):
        from keras_vit.model.precision import in_precision

        return in_precision(model, self.job["precision"])

    def optimizer(self):
        import keras_vit

        rate, clip = self.job["learning_rate"], self.job["clip_norm"]
        if self.job["optimizer"] == "sgd":
            return keras_vit.SGD(rate, momentum=self.job["momentum"], global_clipnorm=clip)
        return keras_vit.AdamW(rate, weight_decay=self.job["weight_decay"], global_clipnorm=clip)


class OursCompiled(Ours):
    jit_compile = True


class OursInEngine(Ours):
    """The model in an engine, or in the fastest of all: of these each is opened, with its number of threads."""

    packages = (*Ours.packages, "openvino", "onnxruntime")

    def inference(self, model):
        name = self.job["runner"].removeprefix("ours-")
        found, reasons = [], []
        for engine in _ENGINES if name == "auto" else (name,):
            try:
                found.append(self.opened(model, engine))
            except LeftOutError as reason:
                reasons.append(f"{engine}: {reason}")
        if not found:
            raise LeftOutError("; ".join(reasons))
        self.engine = min(found, key=lambda engine: engine.report.seconds[engine.engine])
        images, _ = self.batch()
        return lambda: self.engine.predict_on_batch(images)

    def opened(self, model, name):
        import keras_vit

        threads = self.job["threads"] if name in _OWN_THREADS else None
        try:
            return keras_vit.accelerate(
                model, name, self.job["precision"], threads, batch_size=self.job["batch"], cache=None
            )
        except (ImportError, ValueError, RuntimeError) as error:
            raise LeftOutError(" ".join(str(error).split())) from error

    def facts(self):
        return {"engine": self.engine.engine}


class Assigned(Ours):
    """The model built with values of its own, then assigned array by array from `np.load`."""

    packages = ("numpy", *Ours.packages)

    def from_file(self):
        import numpy as np

        from keras_vit.model.layer_access import weight_paths
        from keras_vit.weights.families import from_file

        model = self.build()
        with np.load(self.job["files"]["official"]) as arrays:
            tensors, _ = from_file("official", "", dict(arrays))
        for path, variable in weight_paths(model).items():
            variable.assign(tensors[path])
        return model


class Preparation(Ours):
    """Writes what the others read: weights in every layout, images, labels, and the logits in float32.

    No weight is left at zero, so that the logits tell of each.
    """

    def load(self, model):
        import numpy as np

        rng = np.random.default_rng(0)
        for weight in model.weights:
            scale = 0.05 if weight.path.startswith("head") else 0.02
            weight.assign_add(rng.normal(0, scale, weight.shape).astype("float32"))
        return model

    def inference(self, model):
        import numpy as np

        import keras_vit

        files, side, rng = self.job["files"], self.job["image_size"], np.random.default_rng(1)
        images = rng.uniform(-1, 1, (self.job["batch"], side, side, 3)).astype("float32")
        np.save(files["images"], images)
        np.save(files["labels"], rng.integers(0, self.job["classes"], self.job["batch"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a GELU and an image processor that no peer here is left to choose
            keras_vit.save_checkpoint(model, files["official"])
            for layout in self.job["layouts"]:
                keras_vit.save_checkpoint(model, files[layout], layout)
        return lambda: np.concatenate([model.predict_on_batch(image[None]) for image in images])


RUNNERS = {
    "ours-model": Ours,
    "ours-xla": OursCompiled,
    **dict.fromkeys(("ours-auto", "ours-tensorflow", "ours-openvino", "ours-onnxruntime"), OursInEngine),
    "np.load": Assigned,
    "prepare": Preparation,
}

if __name__ == "__main__":
    serve(RUNNERS)
