"""A layer made of other layers, that is saved with the precision of each of them."""

import keras


class CompositeLayer(keras.layers.Layer):
    """Base of layers with dense layers inside.

    `model.quantize("int8")` changes the dtype policy of the dense layers inside a block, which the block's
    own arguments do not tell. Saved with a map of them, a quantised model can be reloaded.
    """

    def get_config(self):
        config = super().get_config()
        quantized = [layer for layer in self._flatten_layers(include_self=False) if layer.quantization_mode]
        if quantized:
            policies = keras.dtype_policies.DTypePolicyMap(default_policy=self.dtype_policy)
            for layer in quantized:
                policies[layer.path] = layer.dtype_policy
            config["dtype"] = keras.dtype_policies.serialize(policies)
        return config
