"""What other software calls the arguments and choices of this package, so that an error can name the word here."""

import re
from collections.abc import Collection, Mapping

# word of this package: those of timm, torchvision, transformers, Keras, PyTorch and TensorFlow
_OTHERS = {
    "accumulation_steps": "accum_iter accumulate grad_accum grad_accum_steps gradient_accumulation_steps",
    "activation": "act act_layer hidden_act",
    "attention_dropout_rate": "attention_dropout attention_probs_dropout_prob attn_drop attn_drop_rate",
    "augmentation": "aa aug augment auto_augment data_augmentation randaugment",
    "base_rate": "base_lr initial_learning_rate learning_rate lr max_lr peak_lr",
    "batch_size": "batch bs per_device_train_batch_size",
    "beta_1": "b1 beta1",
    "beta_2": "b2 beta2",
    "bfloat16": "bf16",
    "norm_position": "post_norm res_post_norm use_post_norm",
    "class_token": "cls_token use_cls_token",
    "classes": "n_classes nb_classes num_class num_classes num_labels",
    "classifier_activation": "head_activation top_activation",
    "clip_norm": "clip_grad clip_grad_norm clipnorm global_clipnorm grad_clip max_grad_norm",
    "data": "data_dir data_path dataset image_folder imagefolder root train_dir",
    "dropout_rate": "drop drop_rate dropout hidden_dropout_prob pos_drop_rate proj_drop_rate",
    "ema_momentum": "ema ema_decay model_ema model_ema_decay use_ema",
    "epochs": "max_epochs n_epochs num_epochs num_train_epochs",
    "epsilon": "eps",
    "evaluate": "eval score test val validate validation",
    "export": "convert save serve",
    "finetune": "fine_tune finetuning fit train training transfer",
    "final_rate": "alpha end_lr final_lr min_lr",
    "float16": "amp fp16 half",
    "float32": "fp32 full single",
    "global_clipnorm": "clip_grad clip_grad_norm clip_norm clipnorm grad_clip max_grad_norm",
    "hidden_size": "d_model dim embed_dim embedding_dim hidden_dim width",
    "include_top": "head with_head",
    "input_shape": "channels image_size img_size in_channels in_chans input_size num_channels",
    "json": "report result results",
    "layer_decay": "layer_wise_decay layerwise_lr_decay llrd lr_layer_decay",
    "layer_norm_epsilon": "layer_norm_eps norm_eps",
    "learning_rate": "base_learning_rate base_lr eta lr max_lr peak_lr",
    "lora_rank": "lora lora_r r rank",
    "mixed_bfloat16": "bf16 bfloat16 half",
    "mixed_float16": "amp float16 fp16 half mixed",
    "mirrored": "cuda ddp dp gpu gpus mirroredstrategy multi multi_gpu",
    "mixup": "cutmix mix_up mixup_alpha mixup_prob cutmix_alpha",
    "mlp_dim": "dim_feedforward intermediate_size mlp_ratio mlp_width",
    "model": "arch architecture backbone model_name variant",
    "neighbours": "k n_neighbors neighbors num_neighbors",
    "num_neighbors": "k n_neighbors neighbors neighbours",
    "num_heads": "heads n_heads num_attention_heads",
    "num_layers": "depth layers n_layers num_hidden_layers",
    "one": "cpu cuda default gpu none single",
    "out": "dest log_dir logdir out_dir outdir out_path output output_dir output_folder output_path run_dir save_dir",
    "patch_dropout_rate": "patch_drop_rate patch_dropout",
    "pooling": "global_pool pool pool_type",
    "position_embedding": "pos_embed posemb",
    "predict": "classify infer inference",
    "precision": "amp dtype fp16 half mixed_precision policy",
    "rematerialize": "checkpoint_activations grad_checkpointing gradient_checkpointing remat",
    "representation_size": "pre_logits",
    "seed": "random_seed random_state",
    "class_weights": "class_weight balanced weighted",
    "stop_early": "early_stop early_stopping early_stopping_patience patience",
    "steps": "iterations max_steps num_steps num_train_steps total_steps",
    "stochastic_depth_rate": "drop_connect_rate drop_path drop_path_rate droppath path_dropout_rate stochastic_depth",
    "strategy": "device devices distribute gpus num_gpus",
    "tensorfloat32": "allow_tf32 tensor_float_32 tensorfloat_32 tf32",
    "top": "k top_k topk",
    "total_steps": "decay_steps max_steps num_steps num_training_steps steps",
    "trainable": "freeze freeze_backbone unfreeze",
    "warmup_steps": "num_warmup_steps warmup warmup_iters",
    "weight_decay": "decay wd",
    "weights": "checkpoint checkpoint_path ckpt pretrained pretrained_weights",
    "workers": "dataloader_num_workers n_workers num_parallel_calls num_workers threads",
}
_OF_A_RUN = {  # what it takes no argument for
    "classes": "The data say how many classes there are, by their names.",
    "workers": "TensorFlow reads photos with as many threads as suit the processor.",
    "json": "The folder of the run has all figures in result.json.",
    "mixup": "The augmentation says it, as augreg-medium1 with MixUp; regression takes none with MixUp or CutMix.",
}
_OF_A_BUILDER = {  # but not of a config
    "classes": "keras_vit.build(config, classes=...) takes it.",
    "input_shape": "keras_vit.build(config, input_shape=(H, W, C)) takes it.",
}
_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G"}
_SIZES |= {size.lower(): size for size in ("Ti", "S", "B", "L", "H")}
_SIZE = rf"(?P<size>{'|'.join(sorted(_SIZES, key=len, reverse=True))}|g)"
_ENDING = r"(?:[-_](?:224|240|384|in\d+k|imagenet\w*))*(?:\.(?:augreg|fb|orig|sam)\w*)?"
_PLAIN = re.compile(
    rf"(?:(?:vit|deit)[-_]?)?{_SIZE}(?:[-_](?:distilled))?[-_/]?(?:patch)?(?P<patch>8|14|16|32){_ENDING}", re.I
)
_SIZE_ALONE = re.compile(rf"(?:(?:vit|deit)[-_]?)?{_SIZE}", re.I)
_HYBRID = re.compile(rf"vit[-_]{_SIZE}[-_]r(?P<stages>\d*)[-_]s(?P<patch>\d+)(?:_p\d+)?{_ENDING}", re.I)

_RESNET = re.compile(
    r"(?:bit[-_]?[ms]?[-_]?)?r(?:es)?(?:net)?(?:v2)?[-_]?(?P<depth>\d+)(?:[-_]?x?(?P<factor>\d))?\b.*", re.I
)
_OWNER = re.compile(r"^(?:hf:)?[\w.-]+/(?=vit|deit)")


def lookup(word: str, choices: Collection[str]) -> list[str]:
    """Those of `choices` that other software calls `word`, whose case, dashes and device number do not matter."""
    word = re.sub(r"^/|:\d+$", "", word.lower()).replace("-", "_").strip("_")
    return [name for name, others in _OTHERS.items() if word in others.split() and name in choices]


def find_variant(name: str) -> str | None:
    """The variant of a model's name in timm, transformers or torchvision; `None` for others.

    As `"B/16"` for `"vit_base_patch16_224.augreg_in21k"`, `"google/vit-base-patch16-224"` or `"vit_b_16"`.
    """
    name = _OWNER.sub("", name)
    if found := _HYBRID.fullmatch(name):
        return f"R{found['stages']}+{_size(found)}/{found['patch']}"
    found = _PLAIN.fullmatch(name)
    return found and f"{_size(found)}/{found['patch']}"


def find_resnets(name: str, choices: Collection[str]) -> list[str]:
    """Those of `choices` that are ResNets of the depth, and the width if it has one, of a name as `"resnet50"`."""
    found = _RESNET.fullmatch(name.replace("_", "-"))
    if found is None:
        return []
    same = [choice for choice in choices if choice.startswith(f"R{found['depth']}x")]
    return [choice for choice in same if choice.endswith(f"x{found['factor']}")] or same[:1]


def find_variants_of_size(name: str, choices: Collection[str]) -> list[str]:
    """Those of `choices` that are variants of a size in words without a patch side, as `"vit-base"` or `"large"`."""
    found = _SIZE_ALONE.fullmatch(name)
    return [choice for choice in choices if choice.startswith(f"{_size(found)}/")] if found else []


def run_option_hint(word: str) -> str:
    """What a run has in place of another library's argument, as a sentence after a space, or `''`."""
    return _sentence(word, _OF_A_RUN)


def builder_option_hint(word: str) -> str:
    """Which argument of a builder is what a user took for a field of its config, or `''`."""
    return _sentence(word, _OF_A_BUILDER)


def _sentence(word: str, sentences: Mapping[str, str]) -> str:
    names = [word] if word in sentences else lookup(word, sentences)
    return f" {sentences[names[0]]}" if names else ""


def find_hub_weights(name: str) -> str | None:
    """What `weights=` takes for the name of a model on the Hugging Face Hub, as timm and transformers write it."""
    if find_variant(name) is None or not (_OWNER.match(name) or "." in name):
        return None
    return f"hf:{name.removeprefix('hf:')}" if _OWNER.match(name) else f"hf:timm/{name}"


def _size(found: re.Match[str]) -> str:
    return "G" if found["size"] == "G" else _SIZES.get(found["size"].lower(), "g")
