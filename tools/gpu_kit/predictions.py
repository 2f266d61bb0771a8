"""The predictions for each card: rates from published figures, and step times computed from them.

The time of a step is the sum of the times of products, of attention, of the bytes that other operations move, and of the
optimizer. A range covers the range of the rate of products.
"""

import workloads

GIB = 1 << 30

# Memory as the driver reports it, and the data sheet's bandwidth in bytes per second.
CARDS = {
    "H100": {"memory": 79.6 * GIB, "bandwidth": 3.35e12},
    "H200": {"memory": 140.4 * GIB, "bandwidth": 4.8e12},
}
HOST_BYTES = 128 * GIB  # The host for which the plans of run_kit.py are made.
# Shares of the bandwidth that cuDNN's RMSNorm on an H200 and copies reach.
_STREAM, _COPY = 0.77, (0.87, 0.90)
_PRODUCTS = (630e12, 690e12)  # cuBLASLt in bf16 at a model's shapes: 769 to 798 at 8192 cubed on random data.
# From cuDNN 9.19's benchmark: causal, 4096 tokens, heads of 128; two thirds of these rates for heads of 64.
_ATTENTION = {128: (591e12, 474e12), 64: (400e12, 300e12)}
# Bytes per token and layer moved outside of products and cuDNN, as multiples of the model's and the MLP's width: those that
# //tensor_parallel/blocks:block_traffic_test counts.
_WIDTH_BYTES, _MLP_BYTES = 44, 16
_LOGITS_PASSES = 3  # Two bytes each.
_OPTIMIZER_BYTES = 30  # Per parameter: f32 gradient, weight and moments, bf16 weight.
_TOKENS = 4096


def usable_memory(card):
    """Bytes that programs can use: the card's memory without the driver and its per-process state."""
    return CARDS[card]["memory"] - GIB


def card_of(gpu_name):
    """The name of a GPU in CARDS; None if it is not there."""
    return next((card for card in CARDS if card in gpu_name), None)


def step_seconds(name, sequences, card, products):
    """The predicted time of a step of one micro-batch of `sequences` of 4096 tokens, optimizer included."""
    model = workloads.MODELS[name]
    tokens, layers, hidden = sequences * _TOKENS, model["num_hidden_layers"], model["hidden_size"]
    vocabulary = model["vocab_size"]
    stream = _STREAM * CARDS[card]["bandwidth"]
    parameters = workloads.parameters(model)
    multiplied = parameters - (0 if model["tie_word_embeddings"] else vocabulary * hidden)  # The embedding needs no products.
    forward, backward = attention_seconds(model, sequences)
    moved = tokens * layers * (_WIDTH_BYTES * hidden + _MLP_BYTES * model["intermediate_size"])
    moved += 2 * _LOGITS_PASSES * tokens * vocabulary + 8 * multiplied  # f32 weight gradients: read and written.
    moved += _OPTIMIZER_BYTES * parameters
    return 6 * multiplied * tokens / products + layers * (forward + backward) + moved / stream


def attention_seconds(model, sequences):
    """(forward, backward) of one layer, by cuDNN alone."""
    head = model["head_dim"]
    flops = 2 * sequences * model["num_attention_heads"] * _TOKENS**2 * head
    forward, backward = _ATTENTION[head]
    return flops / forward, 2.5 * flops / backward


def attention_share(name, sequences, card):
    """(forward, backward): cuDNN's time divided by the time including conversions from and to f32 and rows of heads."""
    model = workloads.MODELS[name]
    queries = sequences * _TOKENS * model["num_attention_heads"] * model["head_dim"]
    keys = queries * model["num_key_value_heads"] / model["num_attention_heads"]
    stream = _STREAM * CARDS[card]["bandwidth"]
    forward, backward = attention_seconds(model, sequences)
    merge = 12 * queries / stream  # Reads the result and the state in f32, writes the state.
    pack = (6 * queries + 10 * queries + 20 * keys) / stream  # The output to bf16; gradients from bf16, added in f32.
    return forward / (forward + merge), backward / (backward + pack)


def _near(value):
    """A range of 5 % on both sides, for computed figures."""
    return [0.95 * value, 1.05 * value]


def figures(card):
    """The predicted figures of a card (None: only limits), each with key, text, unit, and range, at_least or at_most."""
    result = []

    def add(key, figure, unit="", predicted=None, **limits):
        entry = {"key": key, "figure": figure, "unit": unit}
        if card is not None or predicted is None:
            entry.update(limits)
        if predicted is not None and card is not None:
            entry["range"] = predicted() if callable(predicted) else predicted
        result.append(entry)

    def stream(shares):
        return [share * CARDS[card]["bandwidth"] / 1e9 for share in shares]

    add("copy", "copy in device memory, bytes read and written", "GB/s", lambda: stream(_COPY))
    add("pcie_up", "PCIe, host to device, page-locked", "GB/s", [50, 55])
    add("pcie_down", "PCIe, device to host, page-locked", "GB/s", [50, 55])
    add("pcie_both", "PCIe, both ways at once, sum", "GB/s", [80, 110])
    for name, text in (("8b", "8 B, 8192"), ("1.2b", "1.2 B, 16384")):
        add("products_" + name, "products of %s tokens" % text, "Tflop/s", [rate / 1e12 for rate in _PRODUCTS])
    for head, (name, sequences) in ((128, ("8b", 2)), (64, ("1.2b", 4))):
        for index, way in enumerate(("forward", "backward")):
            rate = _ATTENTION[head][index] / 1e12
            add("attention_%d_%s" % (head, way), "cuDNN's attention alone, heads of %d, 4096 tokens, %s" % (head, way),
                "Tflop/s", _near(rate))
            add("attention_share_%d_%s" % (head, way),
                "attention with its conversions, heads of %d, %s: share of cuDNN alone" % (head, way), "",
                lambda name=name, sequences=sequences, index=index:
                    _near(attention_share(name, sequences, card)[index]))
    add("adamw", "AdamW with f32 moments", "GB/s", lambda: _near(stream([_STREAM])[0]))
    for name, text, sequences in (("1.2b", "1.2 B", 4), ("8b_16", "8 B with 16 layers", 2), ("8b", "8 B", 2)):
        _add_step(add, name, text, sequences, card)
    add("parity_fp32", "losses of 20 steps in f32, largest relative difference from the CPU", at_most=1e-5)
    add("parity_bf16", "losses of 20 steps in bf16, largest relative difference from the CPU", at_most=2e-2)
    add("bias_bf16", "distance of bf16's losses from f32's, over 1.25 times that of the CPU + 1e-3", at_most=1)
    add("parity_fp8", "losses of 20 steps in fp8, largest relative difference from bf16 on the CPU", at_most=5e-2)
    add("repeats", "repeated runs whose losses and gradient norms have other bits", at_most=0)
    add("variants", "losses of large models, largest relative difference between variants", at_most=2e-2)
    add("graphs", "tokens/s with CUDA graphs over without, 125 M")
    add("graphs_bits", "steps by CUDA graphs whose losses and gradient norms have other bits", at_most=0)
    add("offload_loss", "tokens/s lost by --offload=optimizer, 1.2 B, 16 x 4096 tokens", at_most=0.15)
    add("collectives", "collectives of threads on one GPU: least share of the copy rate", at_least=0.7)
    add("peer", "tokens/s of 1.2 B over compiled PyTorch with autocast", at_least=1)
    add("tests", "GPU tests that failed", at_most=0)
    add("sanitizer", "errors that compute-sanitizer reported", at_most=0)
    return result


def _add_step(add, name, text, sequences, card):
    if (name, card) == ("8b", "H100"):  # Does not fit.
        add("step_8b", "step of %s, for %d x 4096 tokens" % (text, sequences), "s")
        add("mfu_8b", "MFU of " + text)
        return
    flops = workloads.flops_per_token(workloads.MODELS[name], _TOKENS) * sequences * _TOKENS

    def seconds():
        return [step_seconds(name, sequences, card, rate) for rate in reversed(_PRODUCTS)]

    add("step_" + name, "step of %s, for %d x 4096 tokens" % (text, sequences), "s", seconds)
    add("mfu_" + name, "MFU of " + text, "",
        lambda: [flops / time / workloads.PEAK_FLOPS[card] for time in reversed(seconds())],
        at_least=0.4 if (name, card) == ("1.2b", "H100") else 0.5)
