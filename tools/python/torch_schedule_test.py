"""Runs PyTorch's own pipeline runtime with schedules of tessera.pipeline, and compares the gradients with those of one process."""

import importlib.util
import os
import socket
import sys

if importlib.util.find_spec("torch") is None:
    print("skipped: this Python has no torch")
    sys.exit(0)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

from tessera import pipeline  # noqa: E402

LAYERS = 4
MICROBATCHES = 6


def make_layers():
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(LAYERS)]


def make_schedule(name, world):
    chunks = LAYERS // world
    if name != "auto":
        return pipeline.generate(name, world, MICROBATCHES, chunks)
    costs = {"forward": 1.0, "backward_input": 1.4, "backward_weight": 0.6}
    return pipeline.synthesize(world, MICROBATCHES, costs, chunks=chunks, placement="zigzag").schedule


def run_rank(rank, world, port, names):
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(MICROBATCHES * 3, 16, generator=generator) for _ in range(2))
    loss_of = torch.nn.functional.mse_loss
    for name in names:
        schedule = make_schedule(name, world)
        layers = make_layers()
        own = schedule.stages_of(rank)
        stages = [PipelineStage(layers[s], s, schedule.stages, torch.device("cpu")) for s in own]
        runtime = _PipelineScheduleRuntime(stages, n_microbatches=MICROBATCHES, loss_fn=loss_of, scale_grads=False)
        runtime._prepare_schedule_with_comms(pipeline.to_torch(schedule))
        losses = []
        last = {"target": targets, "losses": losses} if LAYERS - 1 in own else {}
        runtime.step(*([inputs] if 0 in own else []), **last)

        reference = make_layers()
        expected = []
        for part, target in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES)):
            for layer in reference:
                part = layer(part)
            loss = loss_of(part, target)
            loss.backward()
            expected.append(loss.detach())
        for s in own:
            for ours, theirs in zip(layers[s].parameters(), reference[s].parameters()):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
        if losses:
            torch.testing.assert_close(torch.stack(losses).detach(), torch.stack(expected))
        dist.barrier()
    dist.destroy_process_group()


def main():
    for world, names in ((2, ("interleaved_1f1b", "zb_v", "auto")), (4, ("gpipe", "1f1b", "zb_h1", "auto"))):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(run_rank, (world, port, names), nprocs=world)
        print("equal gradients on", world, "ranks:", ", ".join(names))


if __name__ == "__main__":
    main()
