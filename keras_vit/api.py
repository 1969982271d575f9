"""The public names by task, all imported; `config/public_names.py` says where `keras_vit` finds each.

The comments of `__all__` are titles of the reference, each with what its names are for.
"""

from keras_vit import analysis, dense, encoder_builders, layers, selfsupervised
from keras_vit.analysis import attention_maps, class_relevance, features
from keras_vit.analysis.look import look
from keras_vit.builders import (
    R26ViTB32,
    R26ViTS32,
    R50ViTB16,
    R50ViTL32,
    R50x1,
    R50x2,
    R50x3,
    R101x1,
    R101x3,
    R152x1,
    R152x2,
    R152x4,
    R200x3,
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
    build_resnet,
)
from keras_vit.config import studies
from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS, find_dataset
from keras_vit.config.flops import Flops, flops, training_exaflops
from keras_vit.config.position_tables import resize_pos_embed
from keras_vit.config.recipes import RECIPES, Recipe, find_recipe
from keras_vit.config.text import TextConfig
from keras_vit.config.variants import RESNETS, VARIANTS, ResNetConfig
from keras_vit.config.vit import ViTConfig
from keras_vit.data import BadImage, Source, load_dataset, open_source
from keras_vit.data.augmentation import AUGMENTATIONS, Augmentation
from keras_vit.data.naflex_batches import batches_by_size, naflex_batch
from keras_vit.data.shards.opening import shard_photos
from keras_vit.data.shards.packing import pack
from keras_vit.data.views import VIEWS, Views, load_views
from keras_vit.dense_models.builders import depth_estimator, keypoint_estimator, segmenter
from keras_vit.dense_models.detection import Detections, detect, detector
from keras_vit.dense_models.label_propagation import segment_like
from keras_vit.dense_models.photos import DepthMap, Segmentation, estimate_depth, segment
from keras_vit.embedding.embedder import Embedder
from keras_vit.embedding.inspection import Inspection, Inspector, inspector
from keras_vit.embedding.neighbors import Neighbors, nearest_neighbors
from keras_vit.embedding.search import search_photos
from keras_vit.encoder_builders import *  # noqa: F403
from keras_vit.evaluation import Evaluation, Probe, evaluate, probe, write_evaluation_page
from keras_vit.evaluation.zero_shot import tip_adapter, wise_ft
from keras_vit.exporting.engines.accelerate import accelerate
from keras_vit.exporting.engines.engine import Engine, EngineReport
from keras_vit.exporting.export import export
from keras_vit.exporting.report import ExportError, ExportReport
from keras_vit.images.preprocessing import Preprocessing, decode_predictions, preprocess_input
from keras_vit.images.read import read_image
from keras_vit.model.copies import merge_tokens, with_input_shape
from keras_vit.model.dense_model import DenseModel
from keras_vit.model.freezing import add_lora, freeze, merge_lora
from keras_vit.model.naflex import NaFlexModel, naflex
from keras_vit.model.resnet import ResNet
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.runs.callbacks import EpochRecord, StopTraining
from keras_vit.runs.finetune import finetune
from keras_vit.runs.options import DistilOptions, FinetuneOptions, PretrainOptions
from keras_vit.runs.pretraining.outcome import PretrainResult
from keras_vit.runs.pretraining.run import distil, pretrain
from keras_vit.runs.publishing import push_to_hub
from keras_vit.text_builders import build_text, tokenizer, zero_shot
from keras_vit.training.callbacks import NonFiniteGuard, StepFacts, TrainingDivergedError
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.contrastive import ContrastiveModel, recall
from keras_vit.training.devices import Devices, strategy
from keras_vit.training.distillation import DistillationLoss, Distiller
from keras_vit.training.hosts.layout_maps import check_layout, layout_map
from keras_vit.training.losses import SigmoidCrossentropy
from keras_vit.training.masked_patches import MaskedPatchPrediction
from keras_vit.training.memory import available_memory, check_memory, estimate_memory
from keras_vit.training.optimizers import SGD, AdamW
from keras_vit.training.plan import Plan, plan
from keras_vit.training.schedules import WarmupCosine, WarmupLinear, WarmupReciprocalSqrt
from keras_vit.training.selfsupervised.feature_distillation import FeatureDistillation
from keras_vit.training.selfsupervised.guard import CollapseGuard
from keras_vit.training.selfsupervised.lejepa import LeJEPA
from keras_vit.training.selfsupervised.masked_autoencoder import MaskedAutoencoder
from keras_vit.training.selfsupervised.self_distillation import SelfDistillation
from keras_vit.vtab_benchmark import Vtab, vtab
from keras_vit.weights.convert import convert_checkpoint
from keras_vit.weights.download import DownloadError, OfflineError
from keras_vit.weights.load import load_checkpoint
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import find_weights, list_weights
from keras_vit.weights.save import save_checkpoint
from keras_vit.weights.upload import UploadError

__all__ = [
    # Build a model
    # Give the name of a variant or sizes of your own, and get a Keras model.
    "build",
    "ViTConfig",
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
    "VARIANTS",
    "with_input_shape",
    "VisionTransformer",
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
    "ResNetConfig",
    "RESNETS",
    "ResNet",
    # Words and photos
    # Classify photos by what their classes are called, and embed texts.
    "zero_shot",
    "build_text",
    "tokenizer",
    "TextConfig",
    "TextTransformer",
    "search_photos",
    "ContrastiveModel",
    "recall",
    "wise_ft",
    "tip_adapter",
    # Load and save weights
    # Find published weights, read a file into a model, and write files for timm, transformers and the Hub.
    "list_weights",
    "find_weights",
    "load_checkpoint",
    "save_checkpoint",
    "convert_checkpoint",
    "push_to_hub",
    "resize_pos_embed",
    "CheckpointError",
    "DownloadError",
    "OfflineError",
    "UploadError",
    # Prepare images and read answers
    # Bring a photo to what a model takes, and its scores to names.
    "read_image",
    "preprocess_input",
    "Preprocessing",
    "decode_predictions",
    # Keep the aspect of photos
    # Run photos of many sizes in one batch instead of one size for all.
    "naflex_batch",
    "naflex",
    "NaFlexModel",
    "batches_by_size",
    # Fine-tune on a folder of photos
    # One call trains a classifier, measures it, and writes a folder with model and report.
    "finetune",
    "FinetuneOptions",
    "EpochRecord",
    "StopTraining",
    # Open and pack data
    # Turn a folder, a table, shards or arrays into checked batches.
    "open_source",
    "load_dataset",
    "Source",
    "BadImage",
    "Augmentation",
    "AUGMENTATIONS",
    "pack",
    "shard_photos",
    "find_dataset",
    "OFFICIAL_DATASETS",
    "VTAB_TASKS",
    # Evaluate
    # Measure a classifier, or how good the features of a model are.
    "evaluate",
    "Evaluation",
    "probe",
    "Probe",
    "vtab",
    "Vtab",
    "write_evaluation_page",
    # Look inside a model
    # Get features, attention and relevance as arrays, or a page with pictures.
    "features",
    "attention_maps",
    "class_relevance",
    "look",
    "analysis",
    # Masks and depths
    # Answer for each pixel of a photo, or by boxes or points; compute, measure and read masks and depths as functions
    # of arrays.
    "segmenter",
    "depth_estimator",
    "DenseModel",
    "segment",
    "Segmentation",
    "segment_like",
    "estimate_depth",
    "DepthMap",
    "detector",
    "detect",
    "Detections",
    "inspector",
    "Inspector",
    "Inspection",
    "keypoint_estimator",
    "dense",
    # Embed and search many photos
    # Compute one vector for each photo, and find the nearest ones.
    "Embedder",
    "nearest_neighbors",
    "Neighbors",
    # Export and accelerate
    # Write a file for a server or a phone, or get the same answers sooner on this machine.
    "export",
    "ExportReport",
    "accelerate",
    "Engine",
    "EngineReport",
    "merge_tokens",
    "ExportError",
    # Train with fit
    # Use these optimizers, schedules and callbacks with `compile` and `fit` of Keras, and choose what learns.
    "freeze",
    "add_lora",
    "merge_lora",
    "SGD",
    "AdamW",
    "WarmupCosine",
    "WarmupLinear",
    "WarmupReciprocalSqrt",
    "SigmoidCrossentropy",
    "Checkpoints",
    "NonFiniteGuard",
    "StepFacts",
    "TrainingDivergedError",
    # Follow a published recipe
    # Fit the hyper-parameters of a paper to your number of images and your batch size.
    "plan",
    "Plan",
    "find_recipe",
    "Recipe",
    "RECIPES",
    # Train by a teacher or without labels
    # Distil a larger model into a smaller one, or pre-train on images alone.
    "Distiller",
    "DistillationLoss",
    "MaskedPatchPrediction",
    "pretrain",
    "PretrainOptions",
    "PretrainResult",
    "distil",
    "DistilOptions",
    "load_views",
    "Views",
    "VIEWS",
    "SelfDistillation",
    "LeJEPA",
    "FeatureDistillation",
    "MaskedAutoencoder",
    "CollapseGuard",
    "selfsupervised",
    # Choose devices and check memory
    # Choose GPUs, TPUs and precision, share a model among devices, and see whether a batch fits.
    "strategy",
    "Devices",
    "estimate_memory",
    "check_memory",
    "available_memory",
    "layout_map",
    "check_layout",
    # Count the compute
    # Count the FLOPs of a forward pass, and of a whole training.
    "flops",
    "Flops",
    "training_exaflops",
    # Repeat the paper's studies
    # Get the configurations of the paper's ablations, ready to build.
    "studies",
    # Use single layers
    # Build a model of your own from the layers.
    "layers",
]
__all__ += encoder_builders.__all__
