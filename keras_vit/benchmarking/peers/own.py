"""This package's own runners: the model as Keras calls it, under XLA, and in the engines of `accelerate`.

Also what is done once for all runners: the files that they read (`prepare`), and the speed of a matrix product.
"""

import importlib
import warnings

from answering import LeftOutError, serve
from keras_models import KerasRunner

_ENGINES = ("tensorflow", "xla", "openvino", "onnxruntime", "torch")
_OWN_THREADS = ("openvino", "onnxruntime", "torch")  # whose number is said to them; TensorFlow's is that of its process
_PRODUCTS = 10  # in a row, so that what surrounds them does not count


class Ours(KerasRunner):
    packages = (*KerasRunner.packages, "keras-vit-zoo")

    def bring_packages(self):
        importlib.import_module("keras_vit")  # as a user does; this module itself stands below the public names
        super().bring_packages()

    def arguments(self):
        side = self.job["image_size"]
        return {
            "input_shape": (side, side, 3),
            "classes": self.job["classes"],
            "activation": self.job["activation"],
        }

    def build(self):
        from keras_vit.builders import build

        return build(self.job["model"], **self.arguments())

    def load(self, model):
        from keras_vit.weights.load import load_checkpoint

        load_checkpoint(model, self.job["files"]["official"])
        return model

    def from_file(self):
        from keras_vit.builders import build

        return build(self.job["model"], weights=self.job["files"]["official"], **self.arguments())

    def in_precision(self, model):
        from keras_vit.model.precision import in_precision

        return in_precision(model, self.job["precision"])

    def optimizer(self):
        from keras_vit.training.optimizers import SGD, AdamW

        rate, clip = self.job["learning_rate"], self.job["clip_norm"]
        if self.job["optimizer"] == "sgd":
            return SGD(rate, momentum=self.job["momentum"], global_clipnorm=clip)
        return AdamW(rate, weight_decay=self.job["weight_decay"], global_clipnorm=clip)


class OursCompiled(Ours):
    jit_compile = True


class OursInEngine(Ours):
    """The model in an engine, or in the fastest of all: of these each is opened, with its number of threads."""

    packages = (*Ours.packages, "openvino", "onnxruntime", "torch")

    def inference(self, model):
        if self.job["runner"] != "ours-auto":
            self.engine = self.opened(model, self.job["runner"].removeprefix("ours-"))
            return self.call()
        found, reasons = [], []
        for name in _ENGINES:
            try:
                found.append(self.opened(model, name))
            except LeftOutError as reason:
                reasons.append(f"{name}: {reason}")
        if not found:
            raise LeftOutError("; ".join(reasons))
        self.engine = min(found, key=lambda engine: engine.report.seconds[engine.engine])
        return self.call()

    def opened(self, model, name):
        from keras_vit.exporting.engines.accelerate import accelerate
        from keras_vit.exporting.report import ExportError

        threads = self.job["threads"] if name in _OWN_THREADS else None
        try:
            return accelerate(model, name, self.job["precision"], threads, batch_size=self.job["batch"])
        except (ImportError, ValueError, RuntimeError, ExportError) as error:
            raise LeftOutError(" ".join(str(error).split())) from error

    def call(self):
        images, _ = self.batch()
        return lambda: self.engine.predict_on_batch(images)

    def facts(self):
        return {"engine": self.engine.engine}


class Assigned(Ours):
    """The model built with values of its own, then assigned array by array from `np.load`."""

    packages = ("numpy", *Ours.packages)

    def from_file(self):
        import numpy as np

        from keras_vit.model.layer_lookup import weight_paths
        from keras_vit.weights.dialects.official import official_name

        model = self.build()
        with np.load(self.job["files"]["official"]) as arrays:
            for path, variable in weight_paths(model).items():
                variable.assign(arrays[official_name(path, "official")].reshape(variable.shape))
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

        from keras_vit.weights.save import save_checkpoint

        files, side, rng = self.job["files"], self.job["image_size"], np.random.default_rng(1)
        images = rng.uniform(-1, 1, (self.job["batch"], side, side, 3)).astype("float32")
        np.save(files["images"], images)
        np.save(files["labels"], rng.integers(0, self.job["classes"], self.job["batch"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a GELU and an image processor that no peer here is left to choose
            save_checkpoint(model, files["official"])
            for layout in self.job["layouts"]:
                save_checkpoint(model, files[layout], layout)
        return lambda: np.concatenate([model.predict_on_batch(image[None]) for image in images])


class MatrixProduct(KerasRunner):
    """Products of two square matrices, timed as a peer's step is; its logits are the number of their FLOPs."""

    def build(self):
        import keras
        import numpy as np

        side = self.job["batch"]
        values = np.random.default_rng(0).normal(0, side**-0.5, (side, side))
        return keras.ops.convert_to_tensor(values.astype("float32"), self.job["precision"])

    def load(self, model):
        return model

    def inference(self, model):
        import keras
        import numpy as np

        def call():
            found = model
            for _ in range(_PRODUCTS):
                found = keras.ops.matmul(found, model)
            keras.ops.convert_to_numpy(found[0, :1])  # waits for all of them
            return np.full((1, 1), 2.0 * _PRODUCTS * len(model) ** 3)

        return call


RUNNERS = {
    "ours-model": Ours,
    "ours-xla": OursCompiled,
    **dict.fromkeys((f"ours-{name}" for name in ("auto", *(name for name in _ENGINES if name != "xla"))), OursInEngine),
    "np.load": Assigned,
    "prepare": Preparation,
    "matrix": MatrixProduct,
}

if __name__ == "__main__":
    serve(RUNNERS)
