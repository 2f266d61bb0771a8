#!/usr/bin/env python3
"""PyTorch on the kit's models: tokens/s and MFU by the same count as the trainer's.

    peer_torch.py --model=1.2b --batch=4 --precision=autocast --compile --json=peer.json

The architectures are MODELS in workloads.py, with RMSNorm, rotary positions, grouped heads and SwiGLU. Attention is
scaled_dot_product_attention, the optimizer fused AdamW. --precision=autocast keeps weights and moments in f32, like the
trainer; --precision=bf16 keeps nothing in f32, which takes less memory and time than the trainer's state.
"""

import argparse
import json
import os
import statistics
import sys
import time

import workloads


def build(torch, model):
    """The model as a module, from a config of workloads.MODELS."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, head = model["hidden_size"], model["head_dim"]
    heads, kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
    epsilon = model["rms_norm_eps"]

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return functional.rms_norm(x, (hidden,), self.weight.to(x.dtype), epsilon)

    def rotate(x, cosine, sine):
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = Norm(), Norm()
            self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head, bias=False)
            self.out = nn.Linear(heads * head, hidden, bias=False)
            self.gate_up = nn.Linear(hidden, 2 * model["intermediate_size"], bias=False)
            self.down = nn.Linear(model["intermediate_size"], hidden, bias=False)

        def attention(self, x, cosine, sine):
            sequences, length, _ = x.shape
            q, k, v = self.qkv(x).split([heads * head, kv_heads * head, kv_heads * head], dim=-1)
            q = rotate(q.view(sequences, length, heads, head).transpose(1, 2), cosine, sine)
            k = rotate(k.view(sequences, length, kv_heads, head).transpose(1, 2), cosine, sine)
            v = v.view(sequences, length, kv_heads, head).transpose(1, 2)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
            return self.out(y.transpose(1, 2).reshape(sequences, length, heads * head))

        def forward(self, x, cosine, sine):
            x = x + self.attention(self.norm1(x), cosine, sine)
            gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
            return x + self.down(functional.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(model["vocab_size"], hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(model["num_hidden_layers"]))
            self.norm = Norm()
            self.head = nn.Linear(hidden, model["vocab_size"], bias=False)
            if model["tie_word_embeddings"]:
                self.head.weight = self.embedding.weight
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids, targets, cosine, sine, dtype):
            x = self.embedding(ids).to(dtype)
            for layer in self.layers:
                x = layer(x, cosine, sine)
            logits = self.head(self.norm(x))
            return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))

    return Llama()


def rotations(torch, model, length, dtype, device):
    half = model["head_dim"] // 2
    rates = model["rope_theta"] ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float64), rates)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def batches(torch, path, batch, length, device):
    """Yields batches of consecutive sequences and starts again at the end."""
    import array
    values = array.array("H" if path.endswith(".u16") else "I")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    tokens = torch.tensor(values.tolist(), dtype=torch.long)
    at = 0
    while True:
        if at + batch * (length + 1) > len(tokens):
            at = 0
        block = tokens[at:at + batch * (length + 1)].view(batch, length + 1).to(device)
        at += batch * (length + 1)
        yield block[:, :-1].contiguous(), block[:, 1:].contiguous()


def train(torch, options):
    """Seconds and losses of each step."""
    device = options.device
    model = workloads.MODELS[options.model]
    torch.manual_seed(1)
    bf16 = torch.bfloat16
    with torch.device(device):
        default = torch.get_default_dtype()
        torch.set_default_dtype(bf16 if options.precision == "bf16" else torch.float32)
        llama = build(torch, model)
        torch.set_default_dtype(default)
    # Only the compiler fuses SwiGLU, norms and the loss.
    step_model = torch.compile(llama) if options.compile else llama
    optimizer = torch.optim.AdamW(llama.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=device == "cuda")
    cosine, sine = rotations(torch, model, options.length, bf16, device)
    data = batches(torch, options.data, options.batch, options.length, device)
    seconds, losses = [], []
    for _ in range(options.steps):
        ids, targets = next(data)
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast(device, bf16, enabled=options.precision == "autocast"):
            loss = step_model(ids, targets, cosine, sine, bf16)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())  # Waits for the device.
        seconds.append(time.perf_counter() - start)
    return seconds, losses, sum(p.numel() for p in llama.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(workloads.MODELS), default="1.2b")
    parser.add_argument("--work", default=".", help="directory for generated data")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=5, help="steps that are not counted")
    parser.add_argument("--precision", choices=["autocast", "bf16"], default="autocast")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", help="file for the results")
    options = parser.parse_args()
    if not 0 <= options.warmup < options.steps:
        parser.error("--warmup=%d: must be below --steps=%d" % (options.warmup, options.steps))
    try:
        import torch
    except ImportError as error:
        print("peer_torch: %s; install PyTorch or choose a Python that has it" % error, file=sys.stderr)
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        print("peer_torch: torch %s sees no GPU; --device=cpu checks the program" % torch.__version__, file=sys.stderr)
        return 2
    workloads.write_workload(options.work, options.model)
    options.data = workloads.data_file(options.work, options.model)
    seconds, losses, count = train(torch, options)
    model = workloads.MODELS[options.model]
    if count != workloads.parameters(model):
        print("peer_torch: the model has %d parameters, not %d" % (count, workloads.parameters(model)), file=sys.stderr)
        return 1
    step = statistics.median(seconds[options.warmup:])
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    result = {
        "torch": torch.__version__,
        "gpu": name,
        "precision": options.precision,
        "compile": options.compile,
        "seconds_per_step": step,
        "tokens_per_second": options.batch * options.length / step,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "memory_bytes": torch.cuda.max_memory_allocated() if options.device == "cuda" else None,
    }
    text = json.dumps(result)
    print(text)
    if options.json:
        with open(options.json + ".part", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(options.json + ".part", options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
