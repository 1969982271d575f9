"""Where each public name is: `import keras_vit` brings what Keras must know, and a name's module when it is asked for.

Importing all of them, as `api.py` does, doubles the time and quadruples the objects, which triggers garbage collection
earlier. A test compares both.
"""

from keras_vit.config.variants import ENCODERS

# Modules whose classes register with Keras, so that a saved model reloads after `import keras_vit`.
REGISTERED = (
    *("layers", "dense", "model.vision_transformer", "model.naflex", "model.resnet", "model.two_towers.text_tower"),
    "model.dense_model",
    *("training.optimizers", "training.schedules", "training.losses", "training.callbacks"),
    *("training.distillation", "training.masked_patches", "training.contrastive"),
)
MODULES = {
    "analysis": "analysis",
    "dense": "dense",
    "layers": "layers",
    "selfsupervised": "selfsupervised",
    "studies": "config.studies",
}  # that are public as a whole
_NAMES = {
    "analysis": "attention_maps class_relevance features",
    "analysis.look": "look",
    "builders": (
        "R26ViTB32 R26ViTS32 R50ViTB16 R50ViTL32 RViTTi16 ViTB8 ViTB16 ViTB32 ViTG14 ViTg14 ViTH14 ViTL16 "
        "ViTL32 ViTS16 ViTS32 ViTTi16 build "
        "R50x1 R50x2 R50x3 R101x1 R101x3 R152x1 R152x2 R152x4 R200x3 build_resnet"
    ),
    "config.datasets": "OFFICIAL_DATASETS VTAB_TASKS find_dataset",
    "config.flops": "Flops flops training_exaflops",
    "config.position_tables": "resize_pos_embed",
    "config.recipes": "RECIPES Recipe find_recipe",
    "config.variants": "RESNETS ResNetConfig VARIANTS",
    "config.vit": "ViTConfig",
    "config.text": "TextConfig",
    "text_builders": "build_text tokenizer zero_shot",
    "data": "BadImage Source load_dataset open_source",
    "data.augmentation": "AUGMENTATIONS Augmentation",
    "data.naflex_batches": "batches_by_size naflex_batch",
    "data.shards.opening": "shard_photos",
    "data.shards.packing": "pack",
    "data.views": "VIEWS Views load_views",
    "dense_models.label_propagation": "segment_like",
    "dense_models.builders": "depth_estimator keypoint_estimator segmenter",
    "dense_models.detection": "Detections detect detector",
    "dense_models.photos": "DepthMap Segmentation estimate_depth segment",
    "embedding.embedder": "Embedder",
    "embedding.inspection": "Inspection Inspector inspector",
    "embedding.neighbors": "Neighbors nearest_neighbors",
    "embedding.search": "search_photos",
    "evaluation": "Evaluation Probe evaluate probe write_evaluation_page",
    "evaluation.zero_shot": "tip_adapter wise_ft",
    "exporting.engines.accelerate": "accelerate",
    "exporting.engines.engine": "Engine EngineReport",
    "exporting.export": "export",
    "exporting.report": "ExportError ExportReport",
    "images.preprocessing": "Preprocessing decode_predictions preprocess_input",
    "images.read": "read_image",
    "model.copies": "merge_tokens with_input_shape",
    "model.dense_model": "DenseModel",
    "model.freezing": "add_lora freeze merge_lora",
    "model.naflex": "NaFlexModel naflex",
    "model.resnet": "ResNet",
    "model.vision_transformer": "VisionTransformer",
    "model.two_towers.text_tower": "TextTransformer",
    "runs.callbacks": "EpochRecord StopTraining",
    "runs.finetune": "finetune",
    "runs.options": "DistilOptions FinetuneOptions PretrainOptions",
    "runs.pretraining.outcome": "PretrainResult",
    "runs.pretraining.run": "distil pretrain",
    "runs.publishing": "push_to_hub",
    "vtab_benchmark": "Vtab vtab",
    "training.callbacks": "NonFiniteGuard StepFacts TrainingDivergedError",
    "training.checkpoints": "Checkpoints",
    "training.contrastive": "ContrastiveModel recall",
    "training.devices": "Devices strategy",
    "training.distillation": "DistillationLoss Distiller",
    "training.hosts.layout_maps": "check_layout layout_map",
    "training.losses": "SigmoidCrossentropy",
    "training.masked_patches": "MaskedPatchPrediction",
    "training.memory": "available_memory check_memory estimate_memory",
    "training.optimizers": "SGD AdamW",
    "training.plan": "Plan plan",
    "training.selfsupervised.feature_distillation": "FeatureDistillation",
    "training.selfsupervised.guard": "CollapseGuard",
    "training.selfsupervised.lejepa": "LeJEPA",
    "training.selfsupervised.masked_autoencoder": "MaskedAutoencoder",
    "training.selfsupervised.self_distillation": "SelfDistillation",
    "training.schedules": "WarmupCosine WarmupLinear WarmupReciprocalSqrt",
    "weights.convert": "convert_checkpoint",
    "weights.download": "DownloadError OfflineError",
    "weights.registry": "find_weights list_weights",
    "weights.load": "load_checkpoint",
    "weights.read": "CheckpointError",
    "weights.save": "save_checkpoint",
    "weights.upload": "UploadError",
}
PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}
PLACES |= dict.fromkeys(ENCODERS.values(), "encoder_builders")
