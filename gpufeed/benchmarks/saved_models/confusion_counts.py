"""Counts of true and predicted classes, and what follows from them."""

import numpy as np


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """int64 (classes, classes): images of true class [row] that were predicted to be of class [column].

    labels, predicted: int64 (n,), each in 0..classes-1.
    """
    pairs = labels * classes + predicted
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def recall(matrix: np.ndarray) -> list[float | None]:
    """By class, the share of its images that were predicted to be of it; None for a class without images."""
    return shares(matrix.diagonal(), matrix.sum(axis=1))


def precision(matrix: np.ndarray) -> list[float | None]:
    """By class, the share of those predicted to be of it that are; None for one that was never predicted."""
    return shares(matrix.diagonal(), matrix.sum(axis=0))


def shares(parts: np.ndarray, wholes: np.ndarray) -> list[float | None]:
    """parts / wholes as Python numbers, None where the whole is 0."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]
