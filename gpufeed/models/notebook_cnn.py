"""The network of the notebook on pipelining: two convolutions and a wide linear layer, for 224 pixels."""

from torch import nn

from gpufeed.core.errors import GpufeedError

SIDE = 224


def notebook_cnn(num_classes: int, image_size: tuple[int, int], dropout: float = 0.5) -> nn.Sequential:
    """Build the network: float (N, 3, 224, 224) to logits (N, num_classes).

    It has 25,710,922 weights for ten classes. Raises GpufeedError for images of another size.
    """
    if tuple(image_size) != (SIDE, SIDE):
        raise GpufeedError(
            f"images of {image_size[0]} x {image_size[1]} pixels for model notebook_cnn",
            f"{SIDE} x {SIDE}: its linear layer has that size",
            f"give the source `resize: [{SIDE}, {SIDE}]`, or choose another model",
        )
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(64 * (SIDE // 4) ** 2, 128), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(128, num_classes),
    )
