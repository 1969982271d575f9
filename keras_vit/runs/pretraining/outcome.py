"""How a training without labels ends: the encoder in its family's layout, its card, and the report of the run."""

import dataclasses
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.analysis.plots import draw_columns
from keras_vit.files import atomic_write, expand_path
from keras_vit.model.freezing import merge_lora
from keras_vit.model.layer_access import lora_layers
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.pages.cards import NOT_CHOSEN, Card, preprocessing_section, write_card
from keras_vit.pages.formatting import duration, markdown_text, plural, printable_json, table
from keras_vit.pages.html import Panel, Section, png_uri, write_page
from keras_vit.runs.messages import ENCODER, MEASURES, encoder_lines, kept_words, measure_rows
from keras_vit.runs.pretraining.guarding import PretrainPlan, RunGuard
from keras_vit.runs.pretraining.trainings import trained_parts
from keras_vit.runs.run_directory import RunDirectory, json_ready
from keras_vit.runs.run_files import BEST, CHECKPOINTS, CURVES, FINISHED, REPORT, RESULT
from keras_vit.weights.checkpoint import SAFETENSORS_NAME
from keras_vit.weights.families import FOLDERS, LAYOUTS
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.save import save_checkpoint

ENCODER_FILE, HEADS = "encoder.keras", "heads.npz"
_DINOV2 = ("huggingface_dinov2", "huggingface_dinov2_registers")  # which have a place for the mask token
_MEANINGS = (
    "kNN: share of held-out images whose nearest others have their label. Twins: share of views whose nearest other "
    "view is of the same image.",
    "Spread: 1 if features point in all directions alike, below 0.1 is collapse. RankMe: the directions they fill.",
    "Entropy of the mean target: ln K if all K prototypes are used, 0 if one is.",
)


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainResult:
    """What `keras_vit.pretrain` or `keras_vit.distil` came to.

    Example:
        >>> config = keras_vit.ViTConfig(8, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> how = {"image_size": 32, "steps": 1, "print_fn": lambda line: None}
        >>> result = keras_vit.pretrain(photos, "run", model=config, **how)
        >>> result.facts["steps"], result.encoder.output_shape
        (1, (None, 24))

    Attributes:
        out: the folder.
        encoder: the one that was kept, as in its folder `encoder`.
        facts: what `result.json` holds: `best_epoch`, 0 for the start; `start` and `best`, what was measured of both;
            `steps`, `seconds`, and `stopped` where it ended early.
    """

    out: Path
    encoder: VisionTransformer
    facts: dict[str, Any]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.facts[name]!r}" for name in ("best_epoch", "steps"))
        return f"PretrainResult({shown}, out={str(self.out)!r})"


def finish(
    run: RunDirectory,
    run_plan: PretrainPlan,
    guard: RunGuard | None,
    stopped: str | None,
    configuration: dict[str, Any],
    seconds: float,
    print_fn: Callable[[str], Any],
) -> PretrainResult:
    """Writes the encoder that is kept, and what the run came to."""
    encoder, rows = run_plan.training.encoder, run.rows()
    if guard is not None:
        encoder = keras.models.load_model(run.path / BEST, compile=False)
    whole: Any = merge_lora(encoder) if lora_layers(encoder) else encoder
    if whole is not encoder:
        whole.mask_token = encoder.mask_token
    whole.weights_layout = run_plan.training.layout
    layout = write_encoder(whole, run.path / ENCODER, run_plan.options.weights)
    run.save_model(whole, ENCODER_FILE)
    with atomic_write(run.path / HEADS, ".part.npz") as part:
        arrays: Any = {name.replace("/", "."): array for name, array in trained_parts(run_plan.training.model).items()}
        np.savez(part, **arrays)
    reason = stopped if guard is None or guard.stopped is None else guard.stopped
    best = 0 if guard is None else guard.best_epoch or 0
    facts: dict[str, Any] = {"best_epoch": len(rows) if guard is None else best}
    if guard is not None:
        names = tuple(guard.start)
        facts |= {"measure": guard.measure_name, "start": guard.start}
        facts["best"] = guard.start if not best else {name: rows[best - 1][name] for name in names}
    facts |= {"layout": layout, "epochs": len(rows), "steps": int(rows[-1]["step"]), "seconds": seconds}
    facts |= {} if reason is None else {"stopped": reason}
    run.write_json(RESULT, facts)
    drawn = [] if guard is None else [dict.fromkeys(run.columns) | guard.start | {"epoch": 0}]  # the start
    draw_columns(
        [*drawn, *rows], run.path / CURVES, {name: words for name, words in MEASURES.items() if name in run.columns}
    )
    config = json_ready(configuration)
    _write_report(run.path, facts, config, run_plan)
    write_card(run.path, _card(config, facts))
    (run.path / BEST).unlink(missing_ok=True)
    facts |= {"files": sorted({path.name for path in run.path.iterdir()} - {CHECKPOINTS})} | FINISHED
    run.write_json(RESULT, facts)
    for line in encoder_lines(run.path, facts):
        print_fn(line)
    return PretrainResult(run.path, whole, facts)


def write_encoder(encoder: VisionTransformer, folder: Path, weights: Any) -> str:
    """Writes an encoder into a folder that `build` and the software of its family open; gives the layout.

    Of weights in a folder that is their layout with the JSON of their software: else that of DINOv2 in transformers,
    timm's, or the first that has a place for every weight. A single file of their own layout where there is none.
    """
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped as it wrote this
    own, source = encoder.weights_layout, None if weights is None else expand_path(weights)
    if own and own not in FOLDERS and source is not None and (source / "config.json").is_file():
        folder.mkdir()
        save_checkpoint(encoder, folder / SAFETENSORS_NAME, own)
        for name in ("config.json", "preprocessor_config.json"):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return own
    faults = []
    for layout in dict.fromkeys((*([own] if own in FOLDERS else []), *_DINOV2, "timm", *FOLDERS)):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*prepares photos otherwise")  # which a file in the folder says
                save_checkpoint(encoder, folder, layout)
            return layout
        except CheckpointError as error:
            faults.append(str(error))
    if not own or LAYOUTS[own].suffix != ".safetensors":
        warnings.warn(f"{ENCODER_FILE} alone has the encoder: {faults[0]}", UserWarning, stacklevel=2)
        return "keras"
    folder.mkdir(exist_ok=True)
    save_checkpoint(encoder, folder / SAFETENSORS_NAME, own)
    return own


def _write_report(folder: Path, facts: dict[str, Any], config: dict[str, Any], run_plan: PretrainPlan) -> None:
    rows = [list(row) for row in measure_rows(facts)]
    sections = [Section("Measured", header=("measure", "start", "kept"), rows=rows)] if rows else []
    figures = [("steps", f"{facts['steps']:,}"), ("time in all", duration(facts["seconds"]))]
    answer = kept_words(facts) + (f" It was stopped: {facts['stopped']}." if "stopped" in facts else "")
    write_page(
        folder / REPORT,
        "report",
        title=f"{config['data']['name']}, {config['model']['name']}",
        subtitle=f"{config['recipe']['method']} without labels; {plural(facts['steps'], 'step')}",
        panel=Panel(answer, figures, _MEANINGS if rows else (), sections),
        curves=Section("Training", picture=png_uri((folder / CURVES).read_bytes()), alt="measures by epoch"),
        left_out=[(str(image.path), image.reason) for image in run_plan.source.bad_images],
        configuration=printable_json(config).split("\n"),
    )


def _card(config: dict[str, Any], facts: dict[str, Any]) -> Card:
    data, origin, plan = config["data"], config["weights_from"], config["plan"]
    base = f" Those it began with are under {markdown_text(origin['license'])}." if origin.get("license") else ""
    began = {"random": "random weights", "model": "the weights of a model that was built before"}
    start = began.get(origin["kind"], f"the weights {markdown_text(origin.get('name'))}")
    rows = [
        ("method", config["recipe"]["method"]),
        ("data", markdown_text(data["name"])),
        ("images", f"{data['sizes']['train']:,}"),
        ("steps", f"{facts['steps']:,} of {plural(plan['batch_size'], 'image')}"),
        ("learning rate", f"{plan['learning_rate']:g}"),
        ("seed", str(config["seed"])),
        *([("stopped", markdown_text(facts["stopped"]))] if "stopped" in facts else []),
    ]
    use = f'import keras_vit\n\nencoder = keras_vit.build(weights="{ENCODER}", include_top=False)'
    return Card(
        title=f"{config['model']['name']}, {data['name']}",
        library="keras",
        sections={
            "Model": f"A Vision Transformer that gives features, trained without labels from {start}.",
            "Use": f"```python\n{use}\n```",
            "Results": kept_words(facts)
            + ("\n\n" + table(("measure", "start", "kept"), [*measure_rows(facts)]) if "start" in facts else ""),
            "Training": table(("what", "value"), rows),
            "Preprocessing": preprocessing_section(config["preprocessing"]),
        },
        classifies=False,
        limits=f"- It was trained on {data['sizes']['train']:,} images.\n- The encoder was chosen on the images that "
        "the table is of, so its figures are too high for others.",
        licence=f"{NOT_CHOSEN}{base} Mind the licences of the images.",
        metadata={"base_model": origin["repository"]} if origin.get("repository") else {},
    )
