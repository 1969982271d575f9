"""Training: schedules, optimizers, plans, and what makes a model cheaper to train."""
