"""What runners on Keras have in common, here and of keras-hub: calls and training steps of a model."""

from answering import LeftOutError, Runner


class KerasRunner(Runner):
    """A Keras model; a subclass builds it, and makes its optimizer."""

    packages = ("keras", "tensorflow", "tensorflow-cpu", "jax", "jaxlib")
    jit_compile: bool | None = None  # as Keras decides: on TensorFlow by XLA on a GPU only

    def bring_packages(self):
        import keras

        threads = self.job["threads"]
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        elif keras.backend.backend() == "torch":
            import torch

            torch.set_num_threads(threads)
        self.check_device(keras.backend.backend())
        if self.job["task"] == "train" and self.job["precision"] == "bfloat16":
            keras.config.set_dtype_policy("mixed_bfloat16")
        keras.ops.convert_to_numpy(keras.ops.ones(()))  # begins the backend

    def check_device(self, backend):
        """Raises unless a backend of Keras, which takes the processor without a word, has what is asked."""
        if self.job["device"] == "gpu" and not gpus_of(backend):
            raise LeftOutError(f"Keras on {backend} finds no GPU")

    def in_precision(self, model):
        """The model in the precision of the job, which is not float32."""
        raise NotImplementedError

    def inference(self, model):
        import numpy as np

        if self.job["precision"] != "float32":
            model = self.in_precision(model)
        if self.jit_compile is not None:
            model.jit_compile = self.jit_compile
        images, _ = self.batch()
        return lambda: np.asarray(model.predict_on_batch(images), "float32")

    def train(self, model):
        import keras

        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(self.optimizer(), loss, metrics=None, jit_compile="auto" if self.jit_compile is None else True)
        images, labels = self.batch()
        return lambda: float(model.train_on_batch(images, labels, return_dict=True)["loss"])

    def optimizer(self):
        """Of this package."""
        raise NotImplementedError

    def facts(self):
        import keras

        if keras.backend.backend() != "jax":
            return {}
        import jax

        device = jax.devices()[0]
        if device.platform == "cpu":
            return {}
        memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
        return {"device_memory": memory, "accelerator": device.device_kind}


def gpus_of(backend):
    """GPUs that a backend of Keras sees."""
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.config.list_physical_devices("GPU")
    if backend == "jax":
        import jax

        return [device for device in jax.devices() if device.platform == "gpu"]
    import torch

    return list(range(torch.cuda.device_count()))
