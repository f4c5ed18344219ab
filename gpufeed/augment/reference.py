"""The augment `torch`: plain torch on any device. It defines what `chain` and `fused` compute.

The steps, their order and their options are described in amounts.py.
"""

import torch
from torch.nn.functional import pad

from gpufeed.augment import amounts
from gpufeed.augment.base import DeviceAugment, check_batch
from gpufeed.system import random_draws
from gpufeed.system.random_draws import philox


class TorchAugment(DeviceAugment):
    """All draws depend on (seed, epoch, id), so that batch size and order do not matter."""

    defaults = amounts.DEFAULTS

    def __call__(self, images: torch.Tensor, ids: torch.Tensor, epoch: int | torch.Tensor) -> torch.Tensor:
        """Return (N, 3, H, W), channels_last, of `dtype`.

        images: uint8 (N, H, W, 3), ids: int64 (N,), both on one device.
        """
        check_batch(images, ids)
        state, options = random_draws.sample_state(self.seed, epoch, ids), self.options
        values = self._window(images, state)
        if options["rotate_degrees"]:
            values = rotate(values.to(torch.float32), self.angles(state))
        if options["brightness"]:
            values = scale(values, self.factors(state, random_draws.BRIGHTNESS, "brightness"), 0.0)
        if options["contrast"]:
            pivot = 255 * options["contrast_pivot"]
            values = scale(values, self.factors(state, random_draws.CONTRAST, "contrast"), pivot)
        if options["salt_pepper"]:
            words = noise(self.seed, epoch, ids, values.shape[1], values.shape[2])
            values = salt_pepper(values, words, options["salt_pepper"])
        return self.normalise(values).to(amounts.DTYPES[options["dtype"]])

    def _window(self, images: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the crops, flipped or not, uint8 (N, H, W, 3)."""
        padding = self.options["crop_padding"]
        height, width = images.shape[1:3]
        top, left, flip = self._places(state)
        y = torch.arange(height, device=images.device)
        x = torch.arange(width, device=images.device)
        rows = top[:, None] + y  # (N, H)
        columns = left[:, None] + torch.where(flip[:, None], width - 1 - x, x)  # (N, W)
        padded = pad(images, (0, 0, padding, padding, padding, padding))  # (N, H + 2p, W + 2p, 3), black
        sample = torch.arange(len(images), device=images.device)[:, None, None]
        return padded[sample, rows[:, :, None], columns[:, None, :]]

    def crops(
        self, ids: torch.Tensor, epoch: int | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the top and left corner in the padded image, int64 (N,), and whether to flip, bool (N,)."""
        return self._places(random_draws.sample_state(self.seed, epoch, ids))

    def _places(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        which = torch.arange(random_draws.TOP, random_draws.FLIP + 1, device=state.device)[:, None]
        numbers = random_draws.draw(state, which)  # (3, N)
        places = 2 * self.options["crop_padding"] + 1
        top, left = random_draws.below(numbers[:2], places)
        return top, left, random_draws.chance(numbers[2], self.options["flip_probability"])

    def factors(self, state: torch.Tensor, which: int, option: str) -> torch.Tensor:
        """Return the factor of each sample, float32 (N,), between 1 - amount and 1 + amount."""
        amount = self.options[option]
        return random_draws.uniform(random_draws.draw(state, which), 1 - amount, 1 + amount)

    def angles(self, state: torch.Tensor) -> torch.Tensor:
        """Return the rotation of each sample in degrees, counter-clockwise, float32 (N,)."""
        most = self.options["rotate_degrees"]
        return random_draws.uniform(random_draws.draw(state, random_draws.ANGLE), -most, most)


def scale(values: torch.Tensor, factors: torch.Tensor, pivot: float) -> torch.Tensor:
    """Return (value - pivot) * factor + pivot, clamped to 0..255. float32 (N, H, W, 3), factors (N,)."""
    factors = factors[:, None, None, None]
    return (values * factors).add_(pivot * (1 - factors)).clamp_(0, 255)


def rotate(values: torch.Tensor, degrees: torch.Tensor) -> torch.Tensor:
    """Rotate about the centre, counter-clockwise, bilinear, black outside. float32 (N, H, W, 3), (N,)."""
    n, height, width = values.shape[:3]
    device = values.device
    turn = torch.deg2rad(degrees)[:, None, None]
    cos, sin = torch.cos(turn), torch.sin(turn)
    dy = (torch.arange(height, device=device) - (height - 1) / 2)[:, None]
    dx = torch.arange(width, device=device) - (width - 1) / 2
    x = cos * dx - sin * dy + (width - 1) / 2  # (N, H, W): where each pixel comes from
    y = sin * dx + cos * dy + (height - 1) / 2
    left, top = torch.floor(x), torch.floor(y)
    right_share, low_share = x - left, y - top
    sample = torch.arange(n, device=device)[:, None, None]
    result = torch.zeros_like(values)
    for row, row_share in ((top, 1 - low_share), (top + 1, low_share)):
        for column, column_share in ((left, 1 - right_share), (left + 1, right_share)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = row.clamp(0, height - 1).long(), column.clamp(0, width - 1).long()
            share = torch.where(inside, row_share * column_share, 0.0)
            result += values[sample, *at] * share[..., None]
    return result


def noise(seed: int, epoch: int | torch.Tensor, ids: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return a random word for each pixel, int64 (N, H, W) with values in 0..2**32-1.

    Philox with the seed as key and (pixel // 4, id, epoch, tag) as counter; the pixel's place among its
    four neighbours chooses the word.
    """
    blocks = torch.arange(-(-height * width // 4), device=ids.device)
    key = (seed & random_draws.MASK, (seed >> 32) & random_draws.MASK)
    counter = (
        blocks[None, :],
        (ids & random_draws.MASK)[:, None],
        epoch if isinstance(epoch, torch.Tensor) else torch.full((), epoch, device=ids.device),
        torch.full((), amounts.NOISE_TAG, device=ids.device),
    )
    words = torch.stack(philox(counter, key), dim=-1)  # (N, blocks, 4)
    return words.flatten(1)[:, : height * width].unflatten(1, (height, width))


def salt_pepper(values: torch.Tensor, words: torch.Tensor, probability: float) -> torch.Tensor:
    """Set pixels with the lowest words to 0, the highest to 255. values (N, H, W, 3), words (N, H, W)."""
    pepper, salt = amounts.pepper_and_salt(probability)
    words = words[..., None]
    values = values.masked_fill(words < pepper, 0)
    return values.masked_fill(words >= 2**32 - salt, 255)
