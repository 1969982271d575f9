"""keras-hub's `ViTImageClassifier`, with the weights of the official file.

Its GELU is exact and cannot be chosen, so it is comparable with `--activation gelu` only.
"""

from answering import serve
from keras_models import KerasRunner


class KerasHub(KerasRunner):
    packages = (*KerasRunner.packages, "keras-hub")

    def bring_packages(self):
        import keras_hub  # noqa: F401

        super().bring_packages()

    def build(self):
        return self.built(None)

    def built(self, dtype):
        import keras_hub

        sizes, side = self.job["sizes"], self.job["image_size"]
        backbone = keras_hub.models.ViTBackbone(
            image_shape=(side, side, 3),
            patch_size=sizes["patch_size"],
            num_layers=sizes["num_layers"],
            num_heads=sizes["num_heads"],
            hidden_dim=sizes["hidden_size"],
            mlp_dim=sizes["mlp_dim"],
            dtype=dtype,
        )
        head_dtype = "float32" if dtype == "bfloat16" else None
        return keras_hub.models.ViTImageClassifier(backbone, self.job["classes"], head_dtype=head_dtype)

    def load(self, model):
        import numpy as np

        with np.load(self.job["files"]["official"]) as arrays:
            left = set(arrays.files)
            for name, variable in variables_of(model, self.job["sizes"]["num_layers"]):
                variable.assign(arrays[name].reshape(variable.shape))  # the table of positions has an axis for batches
                left.remove(name)
        if left:
            raise ValueError(f"the official file has {sorted(left)}, for which the model has no place")
        return model

    def in_precision(self, model):
        twin = self.built("bfloat16")
        twin.set_weights(model.get_weights())
        return twin

    def optimizer(self):
        import keras

        rate, clip = self.job["learning_rate"], self.job["clip_norm"]
        if self.job["optimizer"] == "sgd":
            return keras.optimizers.SGD(rate, momentum=self.job["momentum"], global_clipnorm=clip)
        decay = self.job["weight_decay"]
        optimizer = keras.optimizers.AdamW(rate, weight_decay=decay, epsilon=1e-8, global_clipnorm=clip)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "class_token", "embeddings"])
        return optimizer


def variables_of(model, num_layers):
    """Pairs of an official name and the variable that has its values."""
    embedding = model.backbone.get_layer("vit_patching_and_embedding")
    encoder = model.backbone.get_layer("vit_encoder")
    yield "cls", embedding.class_token
    yield from of_layer("embedding", embedding.patch_embedding)
    yield "Transformer/posembed_input/pos_embedding", embedding.position_embedding.embeddings
    for index in range(num_layers):
        block, name = encoder.encoder_layers[index], f"Transformer/encoderblock_{index}"
        yield from of_norm(f"{name}/LayerNorm_0", block.layer_norm_1)
        for part in ("query", "key", "value"):
            yield from of_layer(f"{name}/MultiHeadDotProductAttention_1/{part}", getattr(block.mha, f"{part}_dense"))
        yield from of_layer(f"{name}/MultiHeadDotProductAttention_1/out", block.mha.output_dense)
        yield from of_norm(f"{name}/LayerNorm_2", block.layer_norm_2)
        yield from of_layer(f"{name}/MlpBlock_3/Dense_0", block.mlp.dense_1)
        yield from of_layer(f"{name}/MlpBlock_3/Dense_1", block.mlp.dense_2)
    yield from of_norm("Transformer/encoder_norm", encoder.layer_norm)
    yield from of_layer("head", model.output_dense)


def of_layer(name, layer):
    return (f"{name}/kernel", layer.kernel), (f"{name}/bias", layer.bias)


def of_norm(name, layer):
    return (f"{name}/scale", layer.gamma), (f"{name}/bias", layer.beta)


if __name__ == "__main__":
    serve({"keras-hub": KerasHub})
