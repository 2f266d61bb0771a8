"""Trains sharded modules on several processes and compares them with torch.optim on one process, and with FSDP2.

    python zero_test.py [WORLD_SIZE...]
    torchrun ... zero_test.py  # On the ranks of torchrun.
"""

import copy
import datetime
import itertools
import os
import shutil
import sys
import tempfile
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

STAGES = (0, 1, 2, 3)
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=0.1),
}
ARGUMENTS = {"adamw": {}, "sgd": {"momentum": 0.9}}


class Block(nn.Module):
    def __init__(self, width, has_unused):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width + 1)
        self.down = nn.Linear(3 * width + 1, width, bias=False)
        self.unused = nn.Parameter(torch.ones(3)) if has_unused else None
        self.empty = nn.Parameter(torch.ones(0, 2)) if has_unused else None

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


class Model(nn.Module):
    """A small decoder with a tied embedding and odd sizes, which are hard to shard."""

    def __init__(self, checkpointing=None, width=5, layers=3, has_unused=True):
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.layers = nn.ModuleList(Block(width, has_unused) for _ in range(layers))
        self.head = nn.Linear(width, 11)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(1.5))
        self.checkpointing = checkpointing

    def forward(self, tokens):
        x = self.embedding(tokens) * self.scale
        for layer in self.layers:
            if self.checkpointing is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.checkpointing)
        return {"logits": self.head(x)}


def make(seed=0, dtype=torch.float64, **arguments):
    torch.manual_seed(seed)
    return Model(**arguments).to(dtype)


def batch_of(step, ranks, rank=None):
    """Two samples a rank; without a rank those of all ranks."""
    tokens = torch.randint(11, (ranks, 2, 7), generator=torch.Generator().manual_seed(step))
    return tokens.flatten(0, 1) if rank is None else tokens[rank]


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])["logits"].double()
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def freeze(model):
    """As adapters do: only a few parameters are trained, some of them before frozen ones."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "down" in name or "norm.bias" in name or name == "head.bias"


class RankTest(unittest.TestCase):
    """Runs on every rank; all ranks run the same tests in the same order."""

    rank = size = directory = None

    def values_of(self, optimizer):
        with optimizer.full_parameters():
            return {name: value.clone() for name, value in optimizer.module.named_parameters()}

    def train(self, model, optimizer, steps=3, first=0):
        for step in range(first, first + steps):
            loss_of(model, batch_of(step, self.size, self.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def values_after(self, model, optimizer, steps=3, first=0):
        self.train(model, optimizer, steps, first)
        return self.values_of(optimizer)

    def reference(self, optimizer="adamw", steps=3, change=None, clip=0):
        model = make()
        if change:
            change(model)
        optimizer = OPTIMIZERS[optimizer]([value for value in model.parameters() if value.requires_grad])
        norms = []
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, batch_of(step, self.size)).backward()
            for parameter in model.parameters():  # Unused parameters decay as if their gradients were zero.
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf")).item())
            optimizer.step()
        return dict(model.named_parameters()), norms

    def assert_equal(self, actual, expected, tolerance=1e-10):
        self.assertEqual(actual.keys(), expected.keys())
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value.detach(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")

    def shard(self, model, name="adamw", **arguments):
        return zero.shard(model, name, lr=1e-2, weight_decay=0.1, **ARGUMENTS[name], **arguments)

    def test_every_stage_equals_one_process(self):
        for name, stage in itertools.product(OPTIMIZERS, STAGES):
            with self.subTest(name=name, stage=stage):
                model = make()
                self.assert_equal(self.values_after(model, self.shard(model, name, stage=stage)), self.reference(name)[0])

    def test_ranks_start_from_the_values_of_rank_0(self):
        model = make(seed=self.rank)
        model.scale += self.rank
        self.assert_equal(self.values_after(model, self.shard(model)), self.reference()[0])

    def test_recomputed_layers(self):
        for reentrant, stage in itertools.product((False, True), (1, 3)):
            with self.subTest(reentrant=reentrant, stage=stage):
                model = make(checkpointing=reentrant)
                self.assert_equal(self.values_after(model, self.shard(model, stage=stage)), self.reference()[0])

    def test_frozen_parameters(self):
        for checkpointing, stage in itertools.product((None, False), STAGES):
            with self.subTest(checkpointing=checkpointing, stage=stage):
                model = make(checkpointing=checkpointing)
                freeze(model)
                self.assert_equal(self.values_after(model, self.shard(model, stage=stage)), self.reference(change=freeze)[0])

    def test_units(self):
        for units in ([], [nn.Linear, nn.Embedding], [Block, nn.Linear]):
            model = make()
            self.assert_equal(self.values_after(model, self.shard(model, units=units)), self.reference()[0])

    def test_module_with_parameters_in_layers_only(self):
        x = torch.randn(4 * self.size, 5, generator=torch.Generator().manual_seed(1)).double()
        torch.manual_seed(0)
        expected = nn.Sequential(Block(5, False), nn.GELU(), nn.Linear(5, 5)).double()
        reference = OPTIMIZERS["adamw"](expected.parameters())
        model = copy.deepcopy(expected)
        optimizer = self.shard(model)
        for _ in range(3):
            reference.zero_grad()
            (expected(x) - x).square().mean().backward()
            reference.step()
            own = x.chunk(self.size)[self.rank]
            (model(own) - own).square().mean().backward()
            optimizer.step()
        self.assert_equal(self.values_of(optimizer), dict(expected.named_parameters()))

    def test_gradients_of_micro_batches_add_up(self):
        for stage, quiet in itertools.product(STAGES, (False, True)):
            if stage < 2 and not quiet:
                continue
            with self.subTest(stage=stage, quiet=quiet):
                model = make()
                optimizer = self.shard(model, stage=stage)
                for step in range(3):
                    first, second = batch_of(step, self.size, self.rank).split(1)
                    if quiet:
                        with optimizer.no_sync():
                            (loss_of(model, first) / 2).backward()
                    else:
                        (loss_of(model, first) / 2).backward()
                    (loss_of(model, second) / 2).backward()
                    optimizer.step()
                self.assert_equal(self.values_of(optimizer), self.reference()[0])

    def test_step_reduces_what_no_sync_has_left(self):
        model = make()
        optimizer = self.shard(model)
        for step in range(3):
            with optimizer.no_sync():
                loss_of(model, batch_of(step, self.size, self.rank)).backward()
            optimizer.step()
        self.assert_equal(self.values_of(optimizer), self.reference()[0])

    def test_clips_the_norm_of_all_gradients(self):
        for stage in STAGES:
            model = make()
            optimizer = self.shard(model, stage=stage, clip_norm=0.05)
            expected, norms = self.reference(clip=0.05)
            for step in range(3):
                loss_of(model, batch_of(step, self.size, self.rank)).backward()
                optimizer.step()
                self.assertAlmostEqual(optimizer.last_norm, norms[step], places=10)
            self.assert_equal(self.values_of(optimizer), expected, 1e-6)  # torch adds 1e-6 to the norm.

    def test_skips_steps_with_infinite_gradients(self):
        model = make()
        optimizer = self.shard(model)
        before = self.values_of(optimizer)
        (loss_of(model, batch_of(0, self.size, self.rank)) * float("inf" if self.rank == 0 else 1)).backward()
        optimizer.step()
        self.assertTrue(optimizer.last_step_skipped)
        self.assert_equal(self.values_of(optimizer), before, 0)
        self.train(model, optimizer, 1)
        self.assertFalse(optimizer.last_step_skipped)

    def test_schedules_change_the_learning_rate(self):
        model, other = make(), make()
        optimizer, halved = self.shard(model), self.shard(other)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(3):
            self.train(model, optimizer, 1, step)
            schedule.step()
            self.train(other, halved, 1, step)
            halved.param_groups[0]["lr"] /= 2
        self.assertEqual(optimizer.param_groups[0]["lr"], 1e-2 / 8)
        self.assert_equal(self.values_of(optimizer), self.values_of(halved), 0)

    def test_bfloat16_has_equal_bits_at_every_stage(self):
        results = []
        for stage, moments in itertools.product(STAGES, ("float32", "bfloat16", "int8")):
            model = make(dtype=torch.bfloat16)
            results.append((moments, self.values_after(model, self.shard(model, stage=stage, moments=moments))))
        for moments in ("float32", "bfloat16", "int8"):
            first, *others = [values for name, values in results if name == moments]
            for other in others:
                self.assert_equal(other, first, 0)

    def test_evaluation_keeps_parameters_sharded(self):
        model = make()
        optimizer = self.shard(model)
        with torch.no_grad():
            loss = loss_of(model, batch_of(0, self.size, self.rank))
        torch.testing.assert_close(loss, loss_of(make(), batch_of(0, self.size, self.rank)).detach(), rtol=1e-12, atol=0)
        self.assertEqual(sum(parameter.numel() for parameter in model.parameters()), 0)
        loss_of(model, batch_of(0, self.size, self.rank))  # A forward pass without a backward pass.
        self.assert_equal(self.values_after(model, optimizer), self.reference()[0])

    def test_checkpoints_are_loaded_by_other_stages_and_units(self):
        model = make()
        optimizer = self.shard(model, stage=2)
        self.train(model, optimizer, 2)
        path = optimizer.save(self.directory, metadata={"data": "position 2"})
        self.assertEqual(os.path.dirname(path), self.directory)
        expected = self.values_after(model, optimizer, 2, 2)
        for stage, units in ((0, None), (3, None), (3, [])):
            other = make(seed=1)
            resumed = self.shard(other, stage=stage, units=units)
            self.assertEqual(resumed.load(self.directory)["data"], "position 2")
            self.assertEqual(resumed.steps, 2)
            self.assert_equal(self.values_after(other, resumed, 2, 2), expected, 0)

    def test_checkpoints_are_loaded_by_fewer_ranks(self):
        model = make()
        optimizer = self.shard(model)
        self.train(model, optimizer, 2)
        optimizer.save(self.directory)
        saved = self.values_of(optimizer)
        alone = dist.new_group([0], timeout=datetime.timedelta(seconds=60))
        if self.rank == 0:
            one = zero.shard(make(seed=1), lr=1e-2, group=alone)
            one.load(self.directory)
            self.assert_equal(self.values_of(one), saved, 0)

    def test_offloaded_state_gives_the_same_bits(self):
        model = make()
        expected = self.values_after(model, self.shard(model))
        for codec in ("none", "lossless"):
            files = {"optimizer": True, "parameters": True, "gradients": True, "directory": self.directory, "codec": codec}
            model = make()
            optimizer = self.shard(model, offload=files)
            self.assert_equal(self.values_after(model, optimizer), expected, 0)
            self.assertLess(optimizer.memory["current"], optimizer.memory["peak"])

    def test_memory_is_predicted(self):
        for stage in STAGES:
            model = make(width=64, has_unused=False)  # Layers with unused parameters keep all gradients until the end.
            predicted = zero.predict(model, self.size, stage=stage)
            optimizer = self.shard(model, stage=stage)
            self.train(model, optimizer)
            self.assertEqual(optimizer.memory["current"], predicted["current"], stage)
            self.assertEqual(optimizer.memory["peak"], predicted["peak"], stage)

    def test_equals_fsdp(self):
        from torch.distributed.fsdp import fully_shard

        model, other = make(dtype=torch.float32), make(dtype=torch.float32)
        optimizer = self.shard(model)
        mesh = dist.init_device_mesh("cpu", (self.size,))
        for layer in other.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(other, mesh=mesh)
        fsdp = OPTIMIZERS["adamw"](other.parameters())
        for step in range(10):
            tokens = batch_of(step, self.size, self.rank)
            loss, expected = loss_of(model, tokens), loss_of(other, tokens)
            self.assertAlmostEqual(loss.item(), expected.item(), delta=1e-6 * expected.item())
            loss.backward()
            expected.backward()
            optimizer.step()
            fsdp.step()
            fsdp.zero_grad()

    def test_errors(self):
        model = make()
        before = copy.deepcopy(model.state_dict())
        for call, error, message in (
            (lambda: self.shard(model, stage=4), ValueError, "stage"),
            (lambda: zero.shard(model, "adam"), ValueError, "use adamw, sgd or lion"),
            (lambda: self.shard(model, moments="fp8"), ValueError, "float32, bfloat16, int8"),
            (lambda: self.shard(model, learning_rate=1), TypeError, "use betas"),
            (lambda: self.shard(model, offload={"directry": "/tmp"}), ValueError, "directry"),
            (lambda: self.shard(model, units=[nn.Linear(1, 1)]), ValueError, "units=Linear"),
            (lambda: self.shard(model, parameter_groups="nose*:lr=2"), ValueError, "nose"),
            (lambda: self.shard(nn.Linear(2, 2, device="meta")), ValueError, "meta device"),
            (lambda: self.shard(make(dtype=torch.float16)), ValueError, "float64, float32 or bfloat16"),
            (lambda: self.shard(nn.Identity()), ValueError, "no parameters"),
        ):
            with self.subTest(message=message), self.assertRaisesRegex(error, message):
                call()
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]))
        optimizer = self.shard(model)
        with self.assertRaisesRegex(RuntimeError, "call backward"):
            optimizer.step()
        with self.assertRaisesRegex(NotImplementedError, "save"):
            optimizer.state_dict()
        loss_of(model, batch_of(0, self.size, self.rank)).backward()
        with self.assertRaisesRegex(RuntimeError, "call step"):
            optimizer.zero_grad()

    def test_stage_1_reduces_once_a_step(self):
        model = make()
        self.shard(model, stage=1)
        loss_of(model, batch_of(0, self.size, self.rank)).backward()
        with self.assertRaisesRegex(RuntimeError, "no_sync"):
            loss_of(model, batch_of(0, self.size, self.rank)).backward()

    def setUp(self):
        RankTest.directory = os.path.join(RankTest.root, self._testMethodName)
        os.makedirs(self.directory, exist_ok=True)


def run_rank(root):
    torch.set_num_threads(1)
    global zero
    from tessera_torch import zero

    dist.init_process_group("tessera", timeout=datetime.timedelta(seconds=60))
    RankTest.rank, RankTest.size, RankTest.root = dist.get_rank(), dist.get_world_size(), root
    ranks.run_tests(RankTest)


def main():
    if "RANK" in os.environ:
        root = os.path.join(tempfile.gettempdir(), f"zero-{os.environ['MASTER_PORT']}")
        run_rank(root)
        return shutil.rmtree(root, ignore_errors=True)
    for size in [int(size) for size in sys.argv[1:]] or (1, 3):
        with tempfile.TemporaryDirectory(prefix="zero-") as root:
            ranks.run(size, run_rank, root)
        print("passed on", size, "ranks")


if __name__ == "__main__":
    main()
