"""ZeRO for torch modules: tessera_torch.zero under the name of this package. Needs tessera_torch."""

from __future__ import annotations

try:
    from tessera_torch.zero import ZeroOptimizer, predict, shard
except ImportError as error:
    raise ImportError("tessera.zero needs tessera_torch: install its wheel for this torch") from error

__all__ = ["ZeroOptimizer", "predict", "shard"]
