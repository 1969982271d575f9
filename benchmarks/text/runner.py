"""One process of `python -m benchmarks.text`: a text tower of CLIP B/16 here or in OpenCLIP, which answers lines.

A line is a JSON list: `["embed", FILE, OUT]`, `["tokenize", FILE]` or `["memory", FILE]`, where FILE has texts. The
answer has seconds of processor time, or bytes. It imports of this package only what it measures.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 128
SIZES = {"hidden_size": 512, "num_layers": 12, "num_heads": 8, "mlp_dim": 2048, "projection_size": 512}


class Ours:
    """The tower and the tokenizer of this package."""

    def __init__(self, weights: str) -> None:
        import keras_vit

        self.keras_vit = keras_vit
        self.model = keras_vit.build_text(weights=weights)
        self.tokenizer = self.model.tokenizer = keras_vit.tokenizer("clip")

    def timed(self, texts: list[str]) -> Callable[[], np.ndarray]:
        """A call that embeds texts, tokenising included."""
        return lambda: self.model.embed(texts, batch_size=BATCH)

    def memory(self, texts: list[str]) -> int:
        """Bytes that embedding texts needs, of a tower that has next to none itself."""
        small = self.keras_vit.TextConfig(49408, 77, 32, num_layers=1, num_heads=2, mlp_dim=64, projection_size=512)
        model = self.keras_vit.build_text(small)
        model.tokenizer = self.tokenizer
        model.embed(texts[:BATCH], batch_size=BATCH)  # traces
        Path("/proc/self/clear_refs").write_text("5")  # Linux starts the peak anew
        before = _peak()
        model.embed(texts, batch_size=BATCH)
        return _peak() - before


class OpenClip:
    """Those of OpenCLIP, on torch."""

    def __init__(self, weights: str) -> None:
        import open_clip
        import torch
        from safetensors.torch import load_file

        torch.set_num_threads(1)
        self.torch, self.tokenizer = torch, open_clip.get_tokenizer("ViT-B-16")
        self.model = open_clip.create_model("ViT-B-16", pretrained=None).eval()
        strange = self.model.load_state_dict(load_file(weights), strict=False).unexpected_keys
        if strange:
            raise ValueError(f"OpenCLIP must know all tensors of the file.\nReceived: {strange}.")

    def timed(self, texts: list[str]) -> Callable[[], np.ndarray]:
        """A call that embeds texts, which are tokenised before."""
        ids = self.tokenizer(texts)

        def embed() -> np.ndarray:
            with self.torch.inference_mode():
                parts = [self.model.encode_text(ids[start : start + BATCH]) for start in range(0, len(ids), BATCH)]
            return self.torch.cat(parts).numpy()

        return embed


def _peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def answers(runner: Any) -> Iterator[dict[str, float]]:
    """What each line of the standard input asks for."""
    calls: dict[str, Callable[[], np.ndarray]] = {}
    for line in sys.stdin:
        task, file, *out = json.loads(line)
        if task == "memory":
            yield {"memory": runner.memory(Path(file).read_text().splitlines())}
            continue
        texts = Path(file).read_text().splitlines()
        if task == "embed" and file not in calls:
            calls[file] = runner.timed(texts)
            runner.timed(texts[:BATCH])()  # traces, and is not timed
        began = time.process_time()
        found = calls[file]() if task == "embed" else runner.tokenizer(texts)
        seconds = time.process_time() - began
        if out:
            np.save(out[0], np.asarray(found))
        yield {"processor_s": seconds}


if __name__ == "__main__":
    kind, weights = sys.argv[1:]
    for answer in answers({"keras_vit": Ours, "open_clip": OpenClip}[kind](weights)):
        print(json.dumps(answer), flush=True)
