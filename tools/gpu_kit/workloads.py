"""The models, data and trainer flags that the kit measures, and their operation counts.

Everything is generated from fixed seeds without libraries, so that the trainer, the peer and the reference losses use
the same model and tokens on every machine.
"""

import array
import json
import os

PEAK_FLOPS = {"H200": 989.4e12, "H100": 989.4e12, "GH200": 989.4e12, "A100": 312e12}  # bf16, dense, NVIDIA's data sheets.
BYTE_VOCABULARY = 264
LARGE_VOCABULARY = 128256


def _llama(hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, tied):
    """config.json of Hugging Face."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": tied,
    }


MODELS = {
    # Has heads of 64 elements, which cuDNN supports, and layers small enough for a CPU.
    "parity": _llama(256, 704, 4, 4, 2, 64, BYTE_VOCABULARY, False),
    "1.2b": _llama(2048, 8192, 16, 32, 8, 64, LARGE_VOCABULARY, True),  # The shape of Llama 3.2 1B.
    "8b": _llama(4096, 14336, 32, 32, 8, 128, LARGE_VOCABULARY, False),  # Llama 3 8B.
    # For a card of 80 GB, on which 8 B does not fit.
    "8b_16": _llama(4096, 14336, 16, 32, 8, 128, LARGE_VOCABULARY, False),
    # Has kernels so short that launching them takes longer.
    "125m": _llama(768, 2048, 12, 12, 12, 64, BYTE_VOCABULARY, False),
    # Replaces all large models in rehearsals.
    "tiny": _llama(128, 256, 2, 2, 1, 64, BYTE_VOCABULARY, False),
    # Runs every kernel at the shapes of 1.2b, in few launches.
    "1.2b_one_layer": _llama(2048, 8192, 1, 32, 8, 64, LARGE_VOCABULARY, True),
}


def parameters(model):
    """The number of parameters of a model's config."""
    hidden, head = model["hidden_size"], model["head_dim"]
    rows = 2 * model["num_attention_heads"] * head + 2 * model["num_key_value_heads"] * head
    layer = hidden * (rows + 3 * model["intermediate_size"] + 2)
    tables = 1 if model["tie_word_embeddings"] else 2
    return model["num_hidden_layers"] * layer + hidden * (tables * model["vocab_size"] + 1)


def flops_per_token(model, length, causal=True):
    """Operations per token of a training step: 6 N + 12 L h s (PaLM, appendix B), halving the latter for causal attention."""
    attention = 12 * model["num_hidden_layers"] * model["num_attention_heads"] * model["head_dim"] * length
    return 6 * parameters(model) + (attention / 2 if causal else attention)


def peak_flops(gpu_name):
    """The peak of a GPU by its name; None if it is unknown."""
    for name, peak in PEAK_FLOPS.items():
        if name in gpu_name:
            return peak
    return None


def _tokens(count):
    """Random tokens of which three in four are a function of the previous one, so that the loss falls."""
    state, token = 1, 0
    values = array.array("H")
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        random = state >> 40
        token = (token * 5 + 1) % 256 if random % 4 else (random >> 2) % 256
        values.append(token)
    return values


def _byte_names():
    """The characters that stand for bytes in byte-level BPE (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


def _tokenizer(vocabulary):
    """A tokenizer.json with all bytes and with names that occur in no text, so that the trainer accepts the whole vocabulary."""
    names = _byte_names() + ["<%d>" % token for token in range(256, vocabulary)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {name: token for token, name in enumerate(names)}, "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}


def _write(path, write):
    """Writes a file atomically, unless it exists."""
    if os.path.exists(path):
        return
    write(path + ".part")
    os.replace(path + ".part", path)


def _write_json(path, value):
    def write(part):
        with open(part, "w", encoding="utf-8") as file:
            json.dump(value, file)

    _write(path, write)


def _write_array(path, make):
    def write(part):
        with open(part, "wb") as file:
            make().tofile(file)

    _write(path, write)


def model_directory(work, name):
    return os.path.join(work, "models", name)


def data_file(work, name):
    """The file of a model's tokens, with 16 bits per token for bytes, otherwise 32."""
    small = MODELS[name]["vocab_size"] == BYTE_VOCABULARY
    return os.path.join(work, "bytes.u16" if small else "large.u32")


def write_workload(work, name):
    """Writes a model's directory and data if they are missing."""
    directory = model_directory(work, name)
    os.makedirs(directory, exist_ok=True)
    model = MODELS[name]
    _write_json(os.path.join(directory, "config.json"), model)
    if model["vocab_size"] == BYTE_VOCABULARY:
        _write_array(data_file(work, name), lambda: _tokens(200_000))
        return
    _write_json(os.path.join(directory, "tokenizer.json"), _tokenizer(LARGE_VOCABULARY))
    # Spreads tokens over the vocabulary, so that gathers and scatters of embeddings resemble those for text.
    _write_array(data_file(work, name),
                 lambda: array.array("I", [(t * 501 + i * 7919) % LARGE_VOCABULARY
                                           for i, t in enumerate(_tokens(1_000_000))]))


def train_flags(work, name, run_dir, **flags):
    """The trainer's arguments: one rank that holds everything, no sample; `flags` override them."""
    settings = {
        "model": model_directory(work, name),
        "data": data_file(work, name),
        "mesh": "dp1",
        "engine": "in_process",
        "zero": 0,
        "offload": "none",
        "sample_tokens": 0,
        "timeout_seconds": 300,
        "run_dir": run_dir,
        "quiet": "true",
    }
    settings.update(flags)
    return ["--%s=%s" % (key, value) for key, value in settings.items()]


def parity_flags(work, run_dir, dtype, **flags):
    """The arguments for 20 steps of the small model; reference losses come from --device=cpu."""
    settings = {"dtype": dtype, "length": 256, "batch": 8, "micro_batch": 4, "steps": 20}
    settings.update(flags)
    return train_flags(work, "parity", run_dir, **settings)
