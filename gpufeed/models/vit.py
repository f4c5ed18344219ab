"""Vision transformers of any size, for images of one size.

Sources: Dosovitskiy et al. 2020, arXiv:2010.11929 (the model); Touvron et al. 2020, arXiv:2012.12877 (the
sizes `tiny` and `small`, and the initialisation). Layers have timm's names, so that weights can be exchanged;
only the patch embedding has another shape.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpufeed import native
from gpufeed.core.errors import GpufeedError, Skip, first_line
from gpufeed.core.vit_options import BY_EXTENSION, check, hidden_width
from gpufeed.native.attention import attention_ops as attention
from gpufeed.native.attention.tiles import MOST_TOKENS
from gpufeed.system.devices import AUTOCAST


class Mlp(nn.Module):
    """linear, bias, GELU, linear: float (..., width) to (..., width), with the same weights in every form.

    activation: `gelu` (erf) and `gelu_tanh` are torch's, after a linear layer with its bias; `bias_gelu`
    (erf) is the kernel that adds the bias and applies GELU in one pass; `linear_bias_gelu` (tanh) does both
    in the matrix product, forward and backward.
    """

    def __init__(self, width: int, hidden: int, activation: str):
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.fc1, self.fc2
        if self.activation == "linear_bias_gelu":
            return native.gelu_mlp(x, first.weight, first.bias, second.weight, second.bias)
        if self.activation == "bias_gelu":
            return second(native.bias_gelu(F.linear(x, first.weight), first.bias, "none"))
        return second(F.gelu(first(x), approximate="tanh" if self.activation == "gelu_tanh" else "none"))


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
EPSILON = 1e-6  # of the layer norms, as in both papers' code
STD = 0.02  # of the truncated normal that initialises weights and positions


class PatchEmbedding(nn.Module):
    """Squares of the image as tokens: float (N, 3, H, W) to (N, tokens, width), row by row.

    It is a convolution with stride and kernel of one patch. `linear` computes it as a matrix product, so that
    forward and backward are plain GEMMs, and no search of convolution algorithms precedes a CUDA graph. In
    the channels_last layout tensor-core kernels pad convolutions of three channels first, and their weight
    gradient is slow. The weight is (width, patch * patch * 3), its columns ordered by row, column and
    channel, so that channels_last images are read in runs of patch * 3 values. `conv` is the convolution
    itself; its kernel is that weight, seen as (width, 3, patch, patch) in channels_last memory. So nothing is
    copied, and each form can load the other's weights.
    """

    def __init__(self, patch: int, width: int, form: str = "linear"):
        super().__init__()
        self.patch, self.form = patch, form
        # keeps torch's initialisation, as DeiT does: it is that of a convolution of this size
        self.proj = nn.Linear(patch * patch * 3, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = images.shape
        p = self.patch
        if self.form == "conv":
            kernel = self.proj.weight.view(-1, p, p, channels).permute(0, 3, 1, 2)
            return F.conv2d(images, kernel, self.proj.bias, stride=p).flatten(2).mT
        squares = images.permute(0, 2, 3, 1).reshape(n, height // p, p, width // p, p, channels)
        return self.proj(squares.transpose(2, 3).reshape(n, -1, p * p * channels))


class Norm(nn.LayerNorm):
    """Layer norm over (..., width) that keeps the type of its input, where autocast would return float32.

    Mean and variance are float32 inside the kernel whatever the type.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


def split(qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Split (N, tokens, 3, heads, width / heads) into views q, k, v, (N, heads, tokens, width / heads)."""
    return qkv.permute(2, 0, 3, 1, 4).unbind()


class Attention(nn.Module):
    """Multi-head self-attention: float (N, tokens, width) to the same, one matrix product for q, k and v.

    packed: use the kernels of gpufeed.native.attention, which read that product in place.
    """

    def __init__(self, width: int, heads: int, packed: bool):
        super().__init__()
        self.heads, self.packed = heads, packed
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads)
        if self.packed:
            mixed = attention.packed_attention(qkv)
        else:
            mixed = F.scaled_dot_product_attention(*split(qkv)).transpose(1, 2)
        return self.proj(mixed.reshape(n, tokens, width))


class Block(nn.Module):
    """Pre-norm: attention and MLP, each added to its input."""

    def __init__(
        self, width: int, heads: int, hidden: int, activation: str, norm: type[nn.LayerNorm], packed: bool
    ):
        super().__init__()
        self.norm1 = norm(width, eps=EPSILON)
        self.attn = Attention(width, heads, packed)
        self.norm2 = norm(width, eps=EPSILON)
        self.mlp = Mlp(width, hidden, activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """A vision transformer over float (N, 3, H, W) of one size, giving logits (N, num_classes).

    image_size: (height, width), multiples of `patch`. pool: `mean` over the patches, or a `class_token`
    before them, which makes their number odd. patches: form of PatchEmbedding. activation: see Mlp. residual:
    type of the residual stream: `float32`, as in timm under autocast, or `autocast`, the type of the matrix
    products. sdpa: one of torch's attention kernels, or `packed`, ours; `auto` lets torch choose, any other
    runs or is an error.

    Weights, names and random numbers are the same for every form of patches, activation, residual and sdpa.
    Raises GpufeedError for options that gpufeed.core.vit_options.check refuses, for an image size that is no
    multiple of the patch, and for too many tokens.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: tuple[int, int],
        *,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        pool: str,
        activation: str,
        residual: str,
        sdpa: str,
        patches: str = "linear",  # older saved models do not have this option
    ):
        check(locals(), "a vision transformer")
        super().__init__()
        if any(side < patch or side % patch for side in image_size):
            raise GpufeedError(
                f"images of {image_size[0]} x {image_size[1]} pixels for model.patch {patch}",
                "a height and a width that are multiples of the patch",
                "change model.patch, or give the source `resize`",
            )
        self.image_size, self.activation = tuple(image_size), activation
        self.residual, self.sdpa = residual, sdpa
        self.tokens = (image_size[0] // patch) * (image_size[1] // patch) + (pool == "class_token")
        if sdpa == "packed" and self.tokens > MOST_TOKENS:
            raise GpufeedError(
                f"{self.tokens} tokens with model.sdpa packed",
                f"at most {MOST_TOKENS}",
                "raise model.patch, or use model.sdpa flash",
            )
        norm = Norm if residual == "autocast" else nn.LayerNorm
        self.patch_embed = PatchEmbedding(patch, width, patches)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if pool == "class_token" else None
        self.pos_embed = nn.Parameter(torch.zeros(1, self.tokens, width))
        hidden = hidden_width(width, mlp_ratio)
        packed = sdpa == "packed"
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, activation, norm, packed) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.head = nn.Linear(width, num_classes)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw positions, class token and all linear layers but the patches' from a truncated normal
        of STD.
        """
        for module in [*self.blocks.modules(), self.head]:
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=STD)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=STD)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=STD)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[-2:] != self.image_size:
            raise GpufeedError(
                f"images of {images.shape[-2]} x {images.shape[-1]} pixels",
                f"{self.image_size[0]} x {self.image_size[1]}, the size of the model's positions",
                "do not resize images in the augment",
            )
        x = self.patch_embed(images)  # (N, patches, width)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        positions = self.pos_embed if self.residual == "float32" else self.pos_embed.to(x.dtype)
        x = x + positions  # (N, tokens, width), under autocast float32 unless residual says otherwise
        with self.attention():
            for block in self.blocks:
                x = block(x)
        # only the head's input is normalised
        pooled = x.mean(1, dtype=torch.float32) if self.cls_token is None else x[:, 0]
        return self.head(self.norm(pooled))  # (N, num_classes)

    def attention(self) -> AbstractContextManager:
        """Return a context in which attention runs by the kernel that `sdpa` names, or raises."""
        return sdpa_kernel(BACKENDS[self.sdpa]) if self.sdpa in BACKENDS else nullcontext()

    def require(self, device: torch.device, precision: str) -> None:
        """Raise Skip if this node cannot run the kernels that activation and sdpa name.

        Otherwise, without the extension, its reference would be timed under the extension's name. precision:
        fp32 | tf32 | fp16 | bf16.
        """
        sentence = native.status(device).sentence if self.activation in BY_EXTENSION else None
        if sentence is not None:
            raise Skip(f"Activation {self.activation} needs the extension gpufeed.native: {sentence}")
        dtype = AUTOCAST.get(precision, torch.float32)
        if self.activation == "linear_bias_gelu":
            self._try_product(device, dtype)
        if self.sdpa == "packed":
            heads = self.blocks[0].attn.heads
            attention.require(device, dtype, self.tokens, heads, self.head.in_features // heads)
        elif self.sdpa != "auto":
            self._try_attention(device, dtype)

    def _try_product(self, device: torch.device, dtype: torch.dtype) -> None:
        """Run the MLP's products forward and backward on zeros of one image."""
        mlp = self.blocks[0].mlp
        shapes = [parameter.shape for layer in (mlp.fc1, mlp.fc2) for parameter in (layer.weight, layer.bias)]
        shapes.insert(0, (self.tokens, self.head.in_features))
        zeros = [torch.zeros(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]
        try:
            native.gelu_mlp(*zeros).sum().backward()
        except RuntimeError as error:
            raise Skip(
                f"Activation linear_bias_gelu does not run on this node's {device.type} with "
                f"{str(dtype).removeprefix('torch.')}: {first_line(error)}"
            ) from error

    def _try_attention(self, device: torch.device, dtype: torch.dtype) -> None:
        """Run attention forward and backward on zeros of one image, laid out as in training."""
        width, heads = self.head.in_features, self.blocks[0].attn.heads
        shape = (1, self.tokens, 3, heads, width // heads)
        q, k, v = split(torch.zeros(shape, device=device, dtype=dtype, requires_grad=True))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with self.attention():
                    mixed = F.scaled_dot_product_attention(q, k, v)
                mixed.backward(torch.zeros_like(mixed))
            except RuntimeError as error:
                reasons = [str(warning.message).split(" (Triggered")[0] for warning in said]
                raise Skip(
                    f"SDPA backend {self.sdpa} does not run on this node's {device.type} with "
                    f"{str(dtype).removeprefix('torch.')} and {heads} heads of {width // heads} values: "
                    f"{' '.join([first_line(error), *reasons])}"
                ) from error
