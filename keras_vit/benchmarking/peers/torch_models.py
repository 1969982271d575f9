"""What the peers on torch have in common: the batch, calls and training steps of a module."""

import contextlib

from answering import Runner


class TorchRunner(Runner):
    """A model of torch; a subclass builds it, and says how its logits are got."""

    packages = ("torch",)

    def bring_packages(self):
        import torch

        torch.set_num_threads(self.job["threads"])
        self.device = "cuda" if self.job["device"] == "gpu" else "cpu"

    def logits(self, model, images):
        """Of a module of this peer."""
        return model(images)

    def compiled(self, model):
        """The module as it will be called."""
        return model

    def tensors(self):
        """The batch as `(B, 3, H, W)` and `(B,)`, in the order that torch wants."""
        import torch

        images, labels = self.batch()
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)

    def inference(self, model):
        import torch

        half = self.job["precision"] == "bfloat16"
        dtype = torch.bfloat16 if half else torch.float32  # of weights too: faster than autocast
        model = self.compiled(model.to(self.device, dtype).eval())
        images = self.tensors()[0]

        def call():
            with torch.inference_mode():
                return self.logits(model, images.to(self.device, dtype)).float().cpu().numpy()

        return call

    def training(self, model):
        import torch

        model = model.to(self.device).train()
        forward, optimizer = self.compiled(model), self.optimizer(model)
        images, labels = self.tensors()
        half = self.job["precision"] == "bfloat16"

        def step():
            with torch.autocast(self.device, torch.bfloat16) if half else contextlib.nullcontext():
                logits = self.logits(forward, images.to(self.device))
                loss = torch.nn.functional.cross_entropy(logits.float(), labels.to(self.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.job["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()  # here, so that the next forward pass runs without gradients
            return loss.item()

        return step

    def optimizer(self, model):
        """AdamW with decay of kernels alone, or SGD with momentum."""
        import torch

        if self.job["optimizer"] == "sgd":
            return torch.optim.SGD(model.parameters(), self.job["learning_rate"], momentum=self.job["momentum"])
        kernels = [value for name, value in model.named_parameters() if is_kernel(name, value)]
        others = [value for name, value in model.named_parameters() if not is_kernel(name, value)]
        decay = self.job["weight_decay"]
        groups = [{"params": kernels, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, self.job["learning_rate"])  # with Adam's usual betas and 1e-8, as ours

    def facts(self):
        import torch

        if self.device == "cpu":
            return {}
        return {"device_memory": torch.cuda.max_memory_allocated(), "accelerator": torch.cuda.get_device_name()}


def is_kernel(name, value):
    """Whether a parameter is decayed: a matrix or a convolution, no table of positions and no token."""
    return name.endswith(".weight") and value.ndim > 1


def gelu(activation):
    """The activation of a job, as a class without arguments."""
    import torch

    return lambda: torch.nn.GELU(approximate="tanh" if activation == "gelu_tanh" else "none")
