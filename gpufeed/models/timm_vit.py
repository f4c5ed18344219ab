"""timm's vision transformers, to compare ours with. Source: R. Wightman, PyTorch Image Models.

Importing this module imports timm, which the extra `all` installs: a node without it skips the cell.
"""

import timm
from torch import nn

from gpufeed.core.errors import GpufeedError


def timm_vit(
    num_classes: int,
    image_size: tuple[int, int],
    *,
    architecture: str,
    patch: int,
    pool: str,
    activation: str,
) -> nn.Module:
    """Return timm's model of that name, untrained, over float (N, 3, H, W), giving logits (N, num_classes).

    pool: `mean` over the patches or `class_token`, activation: `gelu` or `gelu_tanh`, as in
    gpufeed.models.vit. Raises GpufeedError for a name that is not one of timm's vision transformers, and for
    sides that are not multiples of `patch`.
    """
    if architecture not in timm.list_models("vit_*"):
        near = timm.list_models("vit_*patch16_224")[:4]
        raise GpufeedError(
            f"model.architecture {architecture!r}",
            f"a vision transformer of timm's, such as {', '.join(near)}",
            "change model.architecture",
        )
    if any(side % patch for side in image_size):
        raise GpufeedError(
            f"images of {image_size[0]} x {image_size[1]} pixels for model.patch {patch}",
            "a height and a width that are multiples of the patch",
            "change model.patch, or give the source `resize`",
        )
    token = pool == "class_token"
    return timm.create_model(
        architecture,
        pretrained=False,
        num_classes=num_classes,
        img_size=image_size,
        patch_size=patch,
        class_token=token,
        global_pool="token" if token else "avg",
        act_layer=activation,  # timm has these two under our names
    )
