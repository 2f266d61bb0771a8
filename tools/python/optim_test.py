"""Compares tessera.optim.CPUAdamW with torch.optim.AdamW."""

import copy
import importlib.util
import io
import os
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("skipped: this Python has no torch")
    sys.exit(0)

import torch  # noqa: E402

from tessera.errors import InvalidArgument, StatusError  # noqa: E402
from tessera.optim import CPUAdamW  # noqa: E402


def parameters(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 13), (1,), (64, 33), (0, 4), ()]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def set_gradients(params, step, dtype=None):
    generator = torch.Generator().manual_seed(100 + step)
    for number, parameter in enumerate(params):
        gradient = torch.randn(parameter.shape, generator=generator)
        # A parameter without a gradient in some steps.
        parameter.grad = None if number == 1 and step % 3 == 1 else gradient.to(dtype or parameter.dtype)


class CPUAdamWTest(unittest.TestCase):
    def check_equal(self, ours, theirs, bound):
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.detach(), b.detach(), rtol=bound, atol=bound)

    def test_matches_torch(self):
        for dtype, bound in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            for options in ({}, {"weight_decay": 0.3, "betas": (0.7, 0.95), "eps": 1e-4}, {"weight_decay": 0.0}):
                ours, theirs = parameters(dtype), parameters(dtype)
                groups = [[{"params": p[:2], "lr": 3e-3}, {"params": p[2:]}] for p in (ours, theirs)]
                mine = CPUAdamW(groups[0], **options)
                reference = torch.optim.AdamW(groups[1], **options)
                schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in (mine, reference)]
                for step in range(12):
                    set_gradients(ours, step)
                    set_gradients(theirs, step)
                    mine.step()
                    reference.step()
                    for schedule in schedules:
                        schedule.step()
                self.check_equal(ours, theirs, bound)

    def test_narrow_parameters_have_masters(self):
        for dtype in (torch.bfloat16, torch.float16):
            ours = parameters(dtype)
            theirs = [torch.nn.Parameter(p.detach().float()) for p in ours]
            mine, reference = CPUAdamW(ours, lr=1e-2), torch.optim.AdamW(theirs, lr=1e-2)
            for step in range(8):
                set_gradients(ours, step)
                for a, b in zip(ours, theirs):
                    b.grad = None if a.grad is None else a.grad.float()
                mine.step()
                reference.step()
            masters = [mine.state[p].get("master", p.detach().float()) for p in ours]
            self.check_equal(masters, theirs, 1e-6)
            self.check_equal(ours, [m.to(dtype) for m in masters], 0)

    def test_narrow_moments_stay_near(self):
        for moments, bound in (("bfloat16", 5e-3), ("int8", 2e-2)):
            ours, theirs = parameters(), parameters()
            mine, reference = CPUAdamW(ours, moments=moments), torch.optim.AdamW(theirs)
            for step in range(10):
                set_gradients(ours, step)
                set_gradients(theirs, step)
                mine.step()
                reference.step()
            self.check_equal(ours, theirs, bound)
            self.assertEqual(mine.state[ours[2]]["exp_avg"].dtype, torch.uint8 if moments == "int8" else torch.bfloat16)

    def test_threads_do_not_change_a_bit(self):
        results = []
        for threads in (1, 2, 5):
            params = parameters(torch.bfloat16)
            optimizer = CPUAdamW(params, threads=threads, moments="bfloat16")
            for step in range(4):
                set_gradients(params, step)
                optimizer.step()
            results.append(params)
        for other in results[1:]:
            self.check_equal(results[0], other, 0)

    def test_restored_state_continues_bit_for_bit(self):
        for dtype, moments in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.bfloat16, "int8")):
            params = parameters(dtype)
            optimizer = CPUAdamW(params, moments=moments)
            for step in range(3):
                set_gradients(params, step)
                optimizer.step()
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            again = copy.deepcopy(params)
            other = CPUAdamW(again, moments=moments)
            other.load_state_dict(torch.load(file))
            for step in range(3, 6):
                for p, o in ((params, optimizer), (again, other)):
                    set_gradients(p, step)
                    o.step()
            self.check_equal(params, again, 0)

    def test_clipping_matches_torch(self):
        for max_norm in (0.5, 1e6):
            ours, theirs = parameters(), parameters()
            mine, reference = CPUAdamW(ours, max_norm=max_norm), torch.optim.AdamW(theirs)
            for step in range(6):
                set_gradients(ours, step)
                set_gradients(theirs, step)
                kept = [None if p.grad is None else p.grad.clone() for p in ours]
                mine.step()
                norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
                reference.step()
                self.assertAlmostEqual(mine.last_norm, norm.item(), delta=1e-5 * norm.item())
                for before, parameter in zip(kept, ours):
                    if before is not None:
                        self.check_equal([before], [parameter.grad], 0)
            self.check_equal(ours, theirs, 1e-6)
        before = [p.detach().clone() for p in ours]
        ours[2].grad[3, 4] = float("inf")
        with self.assertRaisesRegex(InvalidArgument, "1 elements of the gradients are infinite"):
            mine.step()
        self.check_equal(ours, before, 0)

    def test_states_in_files_give_the_same_bits(self):
        for dtype, moments in (
            (torch.float32, "float32"),
            (torch.bfloat16, "float32"),
            (torch.float16, "bfloat16"),
            (torch.bfloat16, "int8"),
            (torch.float64, "float32"),
        ):
            # One parameter has several blocks, and more than the memory for them.
            big = [torch.nn.Parameter(torch.linspace(-1, 1, 5_000_001).to(dtype))] if dtype == torch.bfloat16 else []
            near, far = ([*parameters(dtype), *copy.deepcopy(big)] for _ in range(2))
            inside = CPUAdamW(near, moments=moments, max_norm=1.0)
            outside = CPUAdamW(far, moments=moments, max_norm=1.0, offload_dir=".", near_bytes=1 << 20)
            for step in range(5):
                for params, optimizer in ((near, inside), (far, outside)):
                    set_gradients(params, step)
                    optimizer.step()
                self.check_equal(near, far, 0)
            ours, theirs = inside.state_dict()["state"], outside.state_dict()["state"]
            self.assertEqual(sorted(ours), sorted(theirs))
            for number, state in ours.items():
                self.assertEqual(sorted(state), sorted(theirs[number]))
                self.assertEqual(state["step"], theirs[number]["step"])
                self.check_equal([v for v in state.values() if isinstance(v, torch.Tensor)],
                                 [theirs[number][k] for k, v in state.items() if isinstance(v, torch.Tensor)], 0)
            # From memory into files and back, and on.
            again = copy.deepcopy(far)
            for params in (far, again):
                for parameter in params:
                    parameter.grad = None
            other = CPUAdamW(again, moments=moments, max_norm=1.0, offload_dir=".")
            other.load_state_dict(inside.state_dict())
            inside.load_state_dict(outside.state_dict())
            for params, optimizer in ((near, inside), (again, other)):
                set_gradients(params, 5)
                optimizer.step()
            self.check_equal(near, again, 0)
            self.assertFalse(any(name.endswith(".tmp") for name in os.listdir(".")))
        with self.assertRaisesRegex(StatusError, "nowhere"):
            CPUAdamW(parameters(), offload_dir="/nowhere")

    def test_follows_moved_memory(self):
        for options in ({}, {"offload_dir": "."}):
            ours, theirs = parameters(), parameters()
            mine, reference = CPUAdamW(ours, **options), torch.optim.AdamW(theirs)
            for step in range(6):
                set_gradients(ours, step)
                set_gradients(theirs, step)
                if step == 2:
                    for parameter in ours:
                        parameter.data = parameter.data.clone()
                if step == 4 and not options:
                    for state in mine.state.values():
                        state["exp_avg"] = state["exp_avg"].clone()
                mine.step()
                reference.step()
            self.check_equal(ours, theirs, 1e-6)

    def test_closures(self):
        params = parameters()
        set_gradients(params, 0)
        self.assertEqual(CPUAdamW(params).step(lambda: 7), 7)

    def test_bad_input(self):
        good = torch.nn.Parameter(torch.zeros(4, 4))
        for call, text in (
            (lambda: CPUAdamW([torch.nn.Parameter(torch.zeros(2, device="meta"))]), "meta"),
            (lambda: CPUAdamW([torch.nn.Parameter(torch.zeros(4, 4).t()[1:])]), "strides"),
            (lambda: CPUAdamW([torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))]), "complex64"),
            (lambda: CPUAdamW([good], lr=-1), "learning"),
            (lambda: CPUAdamW([good], betas=(1.0, 0.9)), "beta"),
            (lambda: CPUAdamW([good], moments="float8"), "float8"),
            (lambda: CPUAdamW([good], threads=0), "0 threads"),
            (lambda: CPUAdamW([good], max_norm=-1), "max_norm=-1"),
            (lambda: CPUAdamW([good], offload_dir=".", near_bytes=0), "near_bytes=0"),
        ):
            with self.assertRaisesRegex(InvalidArgument, text):
                call()
        optimizer = CPUAdamW([good])
        good.grad = torch.zeros(4, 4).to_sparse()
        with self.assertRaisesRegex(InvalidArgument, "gradient of parameter 0 is torch.sparse_coo"):
            optimizer.step()
        self.assertEqual(good.abs().sum().item(), 0)

    def test_rejects_changed_parameters(self):
        for options in ({}, {"offload_dir": "."}):
            good = torch.nn.Parameter(torch.ones(4, 6))
            optimizer = CPUAdamW([good], **options)
            good.grad = torch.ones(4, 6)
            optimizer.step()
            whole = good.data
            for changed, text in ((whole[:2], "12 elements, its gradient 24"), (whole.t(), "strides")):
                good.data = changed
                with self.assertRaisesRegex(InvalidArgument, text):
                    optimizer.step()
            good.grad = None
            good.data = whole[:2]
            good.grad = torch.ones(2, 6)
            with self.assertRaises(InvalidArgument):
                optimizer.step()
            good.grad = None
            good.data = whole
            good.grad = torch.ones(4, 6)
            optimizer.step()


if __name__ == "__main__":
    unittest.main(verbosity=2)
