"""transformers' `ViTForImageClassification`, from the folder that we write for it."""

from answering import serve
from torch_models import TorchRunner


class Transformers(TorchRunner):
    packages = ("torch", "transformers")
    builds_apart = False  # names in files are not those of modules, which `from_pretrained` alone knows

    def bring_packages(self):
        super().bring_packages()
        from transformers import ViTForImageClassification  # noqa: F401

    def build(self):
        from transformers import ViTConfig, ViTForImageClassification

        sizes = self.job["sizes"]
        config = ViTConfig(
            image_size=self.job["image_size"],
            patch_size=sizes["patch_size"],
            hidden_size=sizes["hidden_size"],
            num_hidden_layers=sizes["num_layers"],
            num_attention_heads=sizes["num_heads"],
            intermediate_size=sizes["mlp_dim"],
            hidden_act={"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}[self.job["activation"]],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=1e-6,
            num_labels=self.job["classes"],
        )
        return ViTForImageClassification(config)

    def from_file(self):
        from transformers import ViTForImageClassification

        return ViTForImageClassification.from_pretrained(self.job["files"]["huggingface"])

    def logits(self, model, images):
        return model(images).logits


if __name__ == "__main__":
    serve({"transformers": Transformers})
