"""How like two screenshots of one view are, whose texts and numbers differ: where something is drawn, and on what ground."""

import io

import numpy as np
from PIL import Image

_CELLS = (32, 20)
"""Across and down."""
ALIKE = 0.5
"""The same view of another run has 0.65 at least; without its style, its data or anything at all it has 0.23 at most."""


def likeness(one: bytes, other: bytes) -> float:
    """From 0, nothing in common, to 1. Pictures of different sizes are not alike."""
    first, second = (np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float) for png in (one, other))
    if first.shape != second.shape or _is_dark(first) != _is_dark(second):
        return 0.0
    drawn, expected = _drawn(first), _drawn(second)
    both, either = np.minimum(drawn, expected).sum(), np.maximum(drawn, expected).sum()
    return float(both / either) if either else 0.0


def _is_dark(picture: np.ndarray) -> bool:
    return float(np.median(picture)) < 128


def _drawn(picture: np.ndarray) -> np.ndarray:
    """How much each cell's brightness varies, from 0 to 1."""
    across, down = _CELLS
    height, width = picture.shape
    cut = picture[: height // down * down, : width // across * across]
    cells = cut.reshape(down, height // down, across, width // across)
    return np.minimum(cells.std(axis=(1, 3)) / 24, 1.0)
