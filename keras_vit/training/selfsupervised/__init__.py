"""Models that train an encoder without labels, by `fit`: LeJEPA, feature distillation, MAE and self-distillation."""
