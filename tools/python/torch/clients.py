"""Trains with libraries that use torch.distributed, unchanged, over gloo and over tessera alternately; compares losses and times.

    python clients.py [--ranks=2] [--repeats=3] [CLIENT...]     # default: all clients that are installed
    python clients.py --picotron=DIR picotron_tp                # a checkout of picotron
    RATE=10gbit python clients.py --hosts=2,2                   # on two simulated hosts (hosts_test.py)

The programs ask for gloo; TESSERA_REPLACE_GLOO=1 gives them tessera. Prints a table, and ends with 1 if losses differ.
"""

import argparse
import collections
import contextlib
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types

STEPS = 8


def llama(**changes):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, "num_key_value_heads": 4, **changes}))


def dataset(samples=64 * STEPS, length=64):
    import torch

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(512, (samples, length), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def loader(batch_size=4):
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    return torch.utils.data.DataLoader(dataset()[rank::size], batch_size=batch_size)


class Times:
    """The losses of all steps, and the median time of a step."""

    def __init__(self):
        self.losses, self.times, self.begin = [], [], time.perf_counter()

    def step(self, loss):
        self.losses.append(float(loss))
        now = time.perf_counter()
        self.times.append(now - self.begin)
        self.begin = now

    def report(self):
        if os.environ["RANK"] == "0":
            print("RESULT", json.dumps([self.losses, statistics.median(self.times[2:])]), flush=True)


def loop(model, optimizer, times, batches=None, backward=None):
    for _, batch in zip(range(STEPS), batches or loader()):
        loss = model(**batch).loss
        backward(loss) if backward else loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.step(loss.item())


def adamw(model):
    import torch

    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def ddp(times):
    """With parameters that are not used."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = llama()
    model.unused = torch.nn.Linear(3, 3)
    model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    loop(model, adamw(model), times)


def join(times):
    """Ranks have different numbers of batches."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.join import Join

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(llama())
    optimizer = adamw(model)
    with Join([model]):
        for batch, _ in zip(loader(), range(STEPS - dist.get_rank())):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.step(loss.item())


def fsdp(times):
    """FSDP2 over a mesh, and a distributed checkpoint."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = llama()
    for part in [*model.model.layers, model]:
        fully_shard(part, mesh=mesh)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no PREMUL_SUM.
    optimizer = adamw(model)
    loop(model, optimizer, times)
    directory = os.path.join(tempfile.gettempdir(), f"clients-{os.environ['MASTER_PORT']}")
    dcp.save({"model": model.state_dict()}, checkpoint_id=directory)
    with torch.no_grad():
        saved = [parameter.to_local().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.to_local().zero_()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=directory)
    model.load_state_dict(state["model"])
    if not all(torch.equal(parameter.to_local(), value) for parameter, value in zip(model.parameters(), saved)):
        raise AssertionError("the checkpoint restored other values")


def tensor_parallel(times):
    """Functional collectives, compiled."""
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = torch.compile(model, backend="eager")
    optimizer = adamw(model)
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    for _ in range(STEPS):
        loss = (compiled(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.step(loss.item())


def accelerate(times):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = llama()
    model, optimizer, batches = accelerator.prepare(model, adamw(model), loader())
    loop(model, optimizer, times, batches, accelerator.backward)


def trainer(times):
    import transformers

    class Report(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in logs:
                times.step(logs["loss"])

    with tempfile.TemporaryDirectory() as directory:
        arguments = transformers.TrainingArguments(
            directory, max_steps=STEPS, per_device_train_batch_size=4, use_cpu=True, ddp_backend="gloo", logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        transformers.Trainer(llama(), arguments, train_dataset=dataset(), callbacks=[Report()]).train()


def lightning(times):
    import lightning as pl
    from lightning.pytorch.strategies import DDPStrategy

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = llama()

        def training_step(self, batch, _):
            loss = self.model(**batch).loss
            times.step(loss.item())
            return loss

        def configure_optimizers(self):
            return adamw(self)

    import torch

    batches = torch.utils.data.DataLoader(dataset(), batch_size=4)
    pl.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=1, max_steps=STEPS, logger=False,
        strategy=DDPStrategy(process_group_backend="gloo"), enable_checkpointing=False, enable_progress_bar=False,
    ).fit(Module(), batches)  # fmt: skip


def deepspeed(times, stage, dtype="fp32"):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed as ds

    ds.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    model = llama()
    engine, *_ = ds.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _, batch in zip(range(STEPS), loader()):
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        times.step(loss.item())


def picotron(times, **axes):
    import torch
    import torch.distributed as dist

    os.environ.update(DEVICE="cpu", FLASH_ATTEN="0", CONTEXT_PARALLEL="0", DTYPE="float32")
    for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.layers", "flash_attn.layers.rotary",
                 "flash_attn.ops", "flash_attn.ops.triton", "flash_attn.ops.triton.layer_norm"):  # fmt: skip
        sys.modules[name] = types.ModuleType(name)  # Needs CUDA to be installed, and is not called on CPUs.
        for function in ("flash_attn_func", "apply_rotary_emb", "layer_norm_fn"):
            setattr(sys.modules[name], function, None)
    torch.cuda.synchronize = lambda: None  # Called on CPUs, too.
    import picotron.process_group_manager as pgm
    from picotron.context_parallel.context_parallel import apply_context_parallel
    from picotron.data_parallel.data_parallel import DataParallelBucket
    from picotron.model import Llama
    from picotron.pipeline_parallel.pipeline_parallel import PipelineParallel, train_step_pipeline_1f1b
    from picotron.tensor_parallel.tensor_parallel import apply_tensor_parallel

    dist.init_process_group("gloo")
    sizes = {f"{axis}_size": axes.get(axis, 1) for axis in ("tp", "cp", "pp", "dp")}
    pgm.setup_process_group_manager(**sizes)
    manager = pgm.process_group_manager
    torch.manual_seed(0)
    config = types.SimpleNamespace(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, rope_theta=10000.0, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = Llama(config)
    if sizes["tp_size"] > 1:
        model = apply_tensor_parallel(model)
    if sizes["pp_size"] > 1:
        model = PipelineParallel(model, config)
    if sizes["cp_size"] > 1:
        model = apply_context_parallel(model)
    if manager.cp_dp_world_size > 1:
        model = DataParallelBucket(model)
    optimizer = adamw(model)

    class Batches:
        grad_acc_steps = 2

        def __init__(self):
            rows = [sample["input_ids"] for sample in dataset(128, 65)][manager.dp_rank :: manager.dp_world_size]
            self.batches = (torch.stack(rows[i : i + 4]) for i in range(0, len(rows), 4))

        def __next__(self):
            tokens = next(self.batches)
            part = slice(manager.cp_rank * 64 // manager.cp_world_size, (manager.cp_rank + 1) * 64 // manager.cp_world_size)
            ids, targets = tokens[:, :-1][:, part], tokens[:, 1:][:, part]
            positions = torch.arange(64).expand(4, -1)[:, part]
            return {"input_ids": ids, "target_ids": targets.contiguous(), "position_ids": positions, "hidden_states": None}

    batches = Batches()
    shape = (4, 64 // sizes["cp_size"], 128)
    for _ in range(STEPS // 2):
        if sizes["pp_size"] > 1:
            loss = train_step_pipeline_1f1b(model, batches, shape, torch.device("cpu"), torch.float32)
        else:
            loss = 0.0
            for i in range(2):
                batch = next(batches)
                if manager.cp_dp_world_size > 1:
                    model.require_backward_grad_sync = i == 1
                logits = model(input_ids=batch["input_ids"])
                part = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["target_ids"].flatten()) / 2
                part.backward()
                loss += part.item()
        optimizer.step()
        optimizer.zero_grad()
        total = torch.tensor(loss)
        dist.all_reduce(total)
        times.step(total)
        if hasattr(model, "reset"):
            model.reset()


def torchtitan(times, axis):
    """torchtitan 0.2; attention of later versions has no backward pass on CPUs."""
    import torch
    import torch.distributed as dist
    from tokenizers import Tokenizer, models, pre_tokenizers

    # What it asks an accelerator for.
    torch._utils._get_available_device_type = lambda: "cpu"
    torch.cpu.current_device = lambda: 0
    torch.cpu.get_device_name = lambda *_: "CPU"
    torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1)
    torch.cpu.memory_stats = lambda *_: collections.defaultdict(int)
    torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
    from torchtitan.config import ConfigManager
    from torchtitan.train import Trainer

    files = tempfile.mkdtemp()
    os.makedirs(f"{files}/tests/assets/c4_test")
    os.chdir(files)
    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save("tokenizer.json")
    with open("tokenizer_config.json", "w") as file:
        json.dump({"bos_token": "<s>", "eos_token": "</s>"}, file)
    with open("tests/assets/c4_test/data.json", "w") as file:
        file.writelines(json.dumps({"text": f"line {i} of a text, line after line " * 8}) + "\n" for i in range(500))

    degree = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "dp": "data_parallel_shard"}[axis]
    flags = [f"--model.hf_assets_path={files}", f"--job.dump_folder={files}", "--training.dataset=c4_test", "--debug.seed=1",
             "--training.local_batch_size=4", "--training.seq_len=64", f"--training.steps={STEPS}", "--metrics.log_freq=1",
             "--parallelism.pipeline_parallel_schedule=1F1B",
             f"--parallelism.{degree}_degree={os.environ['WORLD_SIZE']}"]  # fmt: skip
    trainer = Trainer(ConfigManager().parse_args([part for flag in flags for part in flag.split("=")]))

    def log(step, loss, *_, **__):
        known = torch.tensor(loss)  # With a pipeline only on its last rank.
        dist.all_reduce(known, dist.ReduceOp.MAX)
        times.step(known)

    trainer.metrics_processor.log = log
    trainer.train()
    trainer.close()


CLIENTS = {
    "ddp": ddp,
    "join": join,
    "fsdp": fsdp,
    "tensor_parallel": tensor_parallel,
    "accelerate": accelerate,
    "trainer": trainer,
    "lightning": lightning,
    **{f"deepspeed_zero{stage}": functools.partial(deepspeed, stage=stage) for stage in (1, 2, 3)},
    "deepspeed_zero2_bf16": functools.partial(deepspeed, stage=2, dtype="bf16"),
    **{f"picotron_{axis}": functools.partial(picotron, **{axis: 0}) for axis in ("dp", "tp", "pp", "cp")},
    **{f"torchtitan_{axis}": functools.partial(torchtitan, axis=axis) for axis in ("dp", "tp", "pp")},
}
NEEDS = {"accelerate": "accelerate", "trainer": "accelerate", "lightning": "lightning", "deepspeed": "deepspeed", "torchtitan": "torchtitan"}


def run_rank(client):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    times = Times()
    call = CLIENTS[client]
    if client.startswith("picotron"):
        call = functools.partial(picotron, **{client.removeprefix("picotron_"): int(os.environ["WORLD_SIZE"])})
    call(times)
    backend = "tessera" if os.environ["TESSERA_REPLACE_GLOO"] == "1" else "gloo"
    if backend not in dist.get_backend():
        raise AssertionError(f"the backend is {dist.get_backend()}")
    times.report()
    dist.destroy_process_group()


def run(client, options, replaces):
    """Returns the losses and the time of a step, or the last lines of the output."""
    path = [os.environ.get("PYTHONPATH", ""), options.picotron or ""]
    env = dict(os.environ, TESSERA_REPLACE_GLOO=str(int(replaces)), OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, path)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}"]
    command += [os.path.abspath(__file__), "--rank", client]
    if options.hosts:
        hosts_test = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hosts_test.py")
        command = [sys.executable, hosts_test, "run", options.hosts, "clients.py", "--rank", client]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        for line in done.stdout.splitlines():
            if done.returncode == 0 and line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        errors = [line for line in done.stdout.splitlines() if "Error: " in line]
        return None, (errors or done.stdout.splitlines()[-1:])[0].strip()
    return None, "no end within 300 s"


def compare(client, options):
    gloo, tessera = [], []
    for _ in range(options.repeats):
        for results, replaces in ((gloo, False), (tessera, True)):
            losses, result = run(client, options, replaces)
            if losses is None:
                print(f"| {client} | {'tessera' if replaces else 'gloo'} fails: {result} |", flush=True)
                return False
            results.append((losses, result))
    difference = max(abs(a - b) / abs(b) for a, b in zip(tessera[0][0], gloo[0][0], strict=True))
    ratio = statistics.median(time for _, time in gloo) / statistics.median(time for _, time in tessera)
    print(f"| {client} | {difference:.1e} | {ratio:.2f} |", flush=True)
    return difference < options.tolerance


def is_available(client, options):
    if client.startswith("picotron"):
        return bool(options.picotron)
    return all(importlib.util.find_spec(package) for prefix, package in NEEDS.items() if client.startswith(prefix))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", nargs="*", help=", ".join(CLIENTS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", help="ranks on each of two simulated hosts, such as 2,2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of losses, relative")
    parser.add_argument("--picotron", help="a checkout of picotron")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(options.rank)
    if unknown := set(options.clients).difference(CLIENTS):
        parser.error(f"unknown clients: {', '.join(unknown)}; use {', '.join(CLIENTS)}")
    clients = options.clients or [client for client in CLIENTS if is_available(client, options)]
    print(f"| client, {options.hosts or options.ranks} ranks | difference of losses | gloo's time over tessera's |\n| --- | --- | --- |")
    sys.exit(0 if all([compare(client, options) for client in clients]) else 1)


if __name__ == "__main__":
    main()
