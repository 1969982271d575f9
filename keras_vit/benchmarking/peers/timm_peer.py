"""timm's Vision Transformer, eager and compiled, from the folder that we write for it."""

from answering import serve
from torch_models import TorchRunner, gelu
from torchvision_stand_ins import stand_in


class Timm(TorchRunner):
    packages = ("torch", "timm")

    def bring_packages(self):
        super().bring_packages()
        stand_in()
        import safetensors.torch  # noqa: F401
        import timm  # noqa: F401

    def build(self):
        import timm

        sizes = self.job["sizes"]
        return timm.models.vision_transformer.VisionTransformer(
            self.job["image_size"],
            sizes["patch_size"],
            num_classes=self.job["classes"],
            embed_dim=sizes["hidden_size"],
            depth=sizes["num_layers"],
            num_heads=sizes["num_heads"],
            mlp_ratio=(sizes["mlp_dim"] + 0.5) / sizes["hidden_size"],  # of which timm takes the integer below
            act_layer=gelu(self.job["activation"]),
        )

    def load(self, model):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(self.job["files"]["timm"]))
        return model


class CompiledTimm(Timm):
    def compiled(self, model):
        import torch

        return torch.compile(model)


if __name__ == "__main__":
    serve({"timm": Timm, "timm-compiled": CompiledTimm})
