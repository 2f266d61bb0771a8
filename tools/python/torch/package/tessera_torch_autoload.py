"""Called when torch is imported (entry point torch.backends)."""

import os


def load():
    """Without TESSERA_REPLACE_GLOO=1, imports nothing."""
    value = os.environ.get("TESSERA_REPLACE_GLOO", "0")
    if value == "1":
        import tessera_torch

        tessera_torch.replace_gloo()
    elif value != "0":
        raise ValueError(f"TESSERA_REPLACE_GLOO={value}; use 1 or 0")
