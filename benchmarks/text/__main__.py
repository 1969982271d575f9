"""`python -m benchmarks.text`: processor time of CLIP B/16's text tower and tokenizer, beside OpenCLIP's.

Both have one core and the same random weights, and take turns. A row is a task: prompts of 77 ids, prompts for
ImageNet's names, 100,000 captions to ids, and the memory of 80,000 prompts, for which the tower is small.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import FOLDER, ROOT, append_to, commit, machine, now
from benchmarks.text import runner

FIELDS = (
    *("date", "commit", "machine", "avx512_bf16", "amx", "task", "texts", "rounds", "processor_s", "peer_processor_s"),
    *("ratio", "difference", "memory", "load", "versions"),
)
_CAPTIONS, _ENDS = 100_000, (" on a table", " in the rain")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each task, and adds it to `text.csv` in a folder."""
    parser = argparse.ArgumentParser("python -m benchmarks.text", description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="WORD", help="tasks with this word in their name")
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    asked.results.mkdir(parents=True, exist_ok=True)
    about = {**machine(), "commit": commit(), "date": now(), "versions": versions()}
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as name:
        folder = Path(name)
        files = {task: file for task, file in written(folder, asked.prompts).items() if asked.only in task}
        processes = {kind: started(kind, folder / "text.safetensors") for kind in ("keras_vit", "open_clip")}
        try:
            for row in rows(processes, files, asked.rounds):
                print(", ".join(f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in row.items()))
                append_to(asked.results / "text.csv", FIELDS, dict.fromkeys(FIELDS, "") | about | row)
        finally:
            for process in processes.values():
                process.communicate()


def written(folder: Path, count: int) -> dict[str, Path]:
    """Files of texts by task; and the weights of one random tower, in OpenCLIP's layout."""
    code = (
        "import sys, keras_vit\n"
        "from benchmarks.text.runner import SIZES\n"
        "model = keras_vit.build_text(keras_vit.TextConfig(49408, 77, **SIZES))\n"
        "keras_vit.save_checkpoint(model, sys.argv[1], 'open_clip_text')\n"
    )
    subprocess.run([sys.executable, "-c", code, folder / "text.safetensors"], env=environment(), check=True)
    from keras_vit.text.templates import find_templates, imagenet_classes, prompts

    names = imagenet_classes()
    all_prompts = prompts(names, find_templates("imagenet"))
    short = prompts(names, find_templates(None))
    texts = {
        "prompts of 77 ids": [f"{text} " * 20 for text in short[:count]],
        "prompts for ImageNet's names": short[:count],
        "captions to ids": [*all_prompts, *(text + end for text in all_prompts for end in _ENDS)][:_CAPTIONS],
        "memory of 80,000 prompts": all_prompts,
    }
    for number, lines in enumerate(texts.values()):
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return {task: folder / f"{number}.txt" for number, task in enumerate(texts)}


def environment() -> dict[str, str]:
    """That of a process of one thread."""
    return {**os.environ, **dict.fromkeys(_THREADS, "1"), "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}


def started(kind: str, weights: Path) -> subprocess.Popen:
    """A process on the first core."""
    python = sys.executable if kind == "keras_vit" else os.environ.get("KERAS_VIT_PEERS_PYTHON", sys.executable)
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [python, str(Path(runner.__file__)), kind, str(weights)]
    core = min(os.sched_getaffinity(0))
    return subprocess.Popen(command, env=environment(), preexec_fn=lambda: os.sched_setaffinity(0, {core}), **options)


def answer_of(process: subprocess.Popen, *line: Any) -> dict[str, float]:
    """The answer to a line."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([str(word) for word in line]), file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


def rows(processes: dict[str, subprocess.Popen], files: dict[str, Path], rounds: int) -> Any:
    """A row for each task."""
    for task, file in files.items():
        texts = len(file.read_text().splitlines())
        row: dict[str, Any] = {"task": task, "texts": texts, "rounds": rounds, "load": round(os.getloadavg()[0], 1)}
        if task.startswith("memory"):
            process = started("keras_vit", file.with_name("text.safetensors"))  # in which nothing was freed before
            yield row | {"rounds": 1, "memory": int(answer_of(process, "memory", file)["memory"])}
            process.communicate()
            continue
        word = "tokenize" if "captions" in task else "embed"
        seconds: dict[str, list[float]] = {kind: [] for kind in processes}
        outs = {kind: file.with_name(f"{kind}.npy") for kind in processes}
        for number in range(rounds):
            for kind in list(processes)[:: -1 if number % 2 else 1]:
                seconds[kind].append(answer_of(processes[kind], word, file, outs[kind])["processor_s"])
        ours, peers = (np.load(out).astype("float64") for out in outs.values())
        if word == "embed":
            ours, peers = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (ours, peers))
        ratios = [own / other for own, other in zip(*seconds.values(), strict=True)]
        found = {"processor_s": statistics.median(seconds["keras_vit"])}
        found |= {"peer_processor_s": statistics.median(seconds["open_clip"]), "ratio": statistics.median(ratios)}
        yield row | found | {"difference": float(np.abs(ours - peers).max())}


def versions() -> str:
    """Of the packages that count."""
    mine = {name: importlib.metadata.version(name) for name in ("keras", "tokenizers")}
    code = "import torch, open_clip; print('torch', torch.__version__ + '; open_clip', open_clip.__version__)"
    python = os.environ.get("KERAS_VIT_PEERS_PYTHON", sys.executable)
    peers = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return "; ".join([*(f"{name} {version}" for name, version in mine.items()), peers])


if __name__ == "__main__":
    main()
