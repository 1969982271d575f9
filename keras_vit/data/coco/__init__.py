"""Annotations as COCO publishes them, read as masks of classes."""
