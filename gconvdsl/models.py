"""Where trained models lie: GCONV_MODELS, else those that come with the package; one directory for each arch."""

from __future__ import annotations

from pathlib import Path

from . import env

__all__ = ["directory_of"]

_BUILT_IN = Path(__file__).parent / "data" / "models"


def directory_of(arch: str) -> Path | None:
    """The directory of the model for an arch ("cpu", "sm_90"); None where there is none. Loads nothing."""
    chosen = env.get("GCONV_MODELS")
    place = (Path(chosen) if chosen else _BUILT_IN) / arch
    return place if place.is_dir() else None
