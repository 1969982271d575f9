"""The public names, in reading order, all imported; `config/public_names.py` says where `keras_vit` finds each."""

from keras_vit import analysis, encoder_builders, layers
from keras_vit.analysis import attention_maps, class_relevance, features
from keras_vit.analysis.look import look
from keras_vit.builders import (
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTL32,
    RViTTi16,
    ViTB8,
    ViTB16,
    ViTB32,
    ViTG14,
    ViTg14,
    ViTH14,
    ViTL16,
    ViTL32,
    ViTS16,
    ViTS32,
    ViTTi16,
    build,
)
from keras_vit.config import studies
from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS, find_dataset
from keras_vit.config.flops import Flops, flops, training_exaflops
from keras_vit.config.posembed import resize_pos_embed
from keras_vit.config.recipes import RECIPES, Recipe, find_recipe
from keras_vit.config.resnets import RESNETS, ResNetConfig
from keras_vit.config.variants import VARIANTS
from keras_vit.config.vit import ViTConfig
from keras_vit.data import BadImage, Source, load_dataset, open_source
from keras_vit.data.augmentation import AUGMENTATIONS, Augmentation
from keras_vit.data.own_sizes import batches_by_size, naflex_batch
from keras_vit.data.shard_files.opening import shard_photos
from keras_vit.data.shard_files.packing import pack
from keras_vit.embedding.embedder import Embedder
from keras_vit.embedding.neighbours import Neighbours, nearest
from keras_vit.encoder_builders import *  # noqa: F403
from keras_vit.evaluation import Evaluation, Probe, evaluate, probe, write_evaluation_page
from keras_vit.exporting.engines.accelerate import accelerate
from keras_vit.exporting.engines.engine import Engine, EngineReport
from keras_vit.exporting.export import export
from keras_vit.exporting.report import ExportError, ExportReport
from keras_vit.images.preprocessing import Preprocessing, decode_predictions, preprocess_input
from keras_vit.images.read import read_image
from keras_vit.model.copies import with_input_shape
from keras_vit.model.freezing import freeze
from keras_vit.model.lora import add_lora, merge_lora
from keras_vit.model.merging import merge_tokens
from keras_vit.model.naflex import NaFlexModel, naflex
from keras_vit.model.resnet import ResNet
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.model.zero_shot import zero_shot
from keras_vit.resnet_builders import R50x1, R50x2, R50x3, R101x1, R101x3, R152x1, R152x2, R152x4, R200x3, build_resnet
from keras_vit.runs.epoch_calls import EpochRecord, StopRun
from keras_vit.runs.finetune import finetune
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.publishing import push_to_hub
from keras_vit.runs.vtab import Vtab, vtab
from keras_vit.training.callbacks import NonFiniteGuard, StepFacts, TrainingDivergedError
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.devices import Devices, strategy
from keras_vit.training.distillation import DistillationLoss, Distiller
from keras_vit.training.hosts.layout_maps import check_layout, layout_map
from keras_vit.training.losses import SigmoidCrossentropy
from keras_vit.training.masked_patches import MaskedPatchPrediction
from keras_vit.training.memory import available_memory, check_memory, estimate_memory
from keras_vit.training.optimizers import SGD, AdamW
from keras_vit.training.plan import Plan, plan
from keras_vit.training.schedules import WarmupCosine, WarmupLinear, WarmupReciprocalSqrt
from keras_vit.weights.conversion import convert_checkpoint
from keras_vit.weights.fetch import DownloadError, OfflineError
from keras_vit.weights.hub import find_weights, list_weights
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.save import save_checkpoint
from keras_vit.weights.upload import UploadError

__all__ = [
    # the model
    "build",
    "ViTTi16",
    "ViTS16",
    "ViTS32",
    "ViTB8",
    "ViTB16",
    "ViTB32",
    "ViTL16",
    "ViTL32",
    "ViTH14",
    "ViTg14",
    "ViTG14",
    "RViTTi16",
    "R26ViTS32",
    "R26ViTB32",
    "R50ViTB16",
    "R50ViTL32",
    "build_resnet",
    "R50x1",
    "R50x2",
    "R50x3",
    "R101x1",
    "R101x3",
    "R152x1",
    "R152x2",
    "R152x4",
    "R200x3",
    "with_input_shape",
    "merge_tokens",
    "zero_shot",
    "naflex",
    "naflex_batch",
    "VisionTransformer",
    "NaFlexModel",
    "ViTConfig",
    "VARIANTS",
    "ResNet",
    "ResNetConfig",
    "RESNETS",
    "layers",
    # how much a model computes
    "flops",
    "Flops",
    "training_exaflops",
    # images in, names out
    "read_image",
    "preprocess_input",
    "decode_predictions",
    "Preprocessing",
    # looking inside
    "features",
    "attention_maps",
    "class_relevance",
    "look",
    "analysis",
    # the paper's ablations
    "studies",
    # weights
    "list_weights",
    "find_weights",
    "load_checkpoint",
    "save_checkpoint",
    "convert_checkpoint",
    "resize_pos_embed",
    "CheckpointError",
    "DownloadError",
    "OfflineError",
    # from a folder of photos to a trained model
    "finetune",
    "FinetuneOptions",
    "EpochRecord",
    "StopRun",
    "evaluate",
    "Evaluation",
    "probe",
    "Probe",
    "write_evaluation_page",
    "vtab",
    "Vtab",
    "push_to_hub",
    "UploadError",
    "open_source",
    "load_dataset",
    "batches_by_size",
    "pack",
    "shard_photos",
    "Source",
    "BadImage",
    "OFFICIAL_DATASETS",
    "VTAB_TASKS",
    "find_dataset",
    "AUGMENTATIONS",
    "Augmentation",
    # recipes, and what they are made of
    "RECIPES",
    "Recipe",
    "find_recipe",
    "plan",
    "Plan",
    "SGD",
    "AdamW",
    "WarmupCosine",
    "WarmupLinear",
    "WarmupReciprocalSqrt",
    "SigmoidCrossentropy",
    "Checkpoints",
    "strategy",
    "Devices",
    "NonFiniteGuard",
    "StepFacts",
    "TrainingDivergedError",
    "freeze",
    "add_lora",
    "merge_lora",
    "estimate_memory",
    "available_memory",
    "check_memory",
    # many devices and hosts, on JAX
    "layout_map",
    "check_layout",
    # to a server or a phone
    "export",
    "ExportReport",
    "ExportError",
    # the same answers sooner, on this machine
    "accelerate",
    "Engine",
    "EngineReport",
    # millions of photos
    "Embedder",
    "nearest",
    "Neighbours",
    # training by a teacher
    "Distiller",
    "DistillationLoss",
    # training without labels
    "MaskedPatchPrediction",
]
__all__ += encoder_builders.__all__
