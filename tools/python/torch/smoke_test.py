"""Exercises the installed tessera_torch on three processes, and compares its results with those of gloo.

    python smoke_test.py [WORLD_SIZE]
    torchrun ... smoke_test.py  # On the ranks of torchrun.
"""

import datetime
import itertools
import os
import random
import sys
import unittest

import ranks
import torch
import torch.distributed as dist

REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
TYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def tensor_of(dtype, rank, count=11):
    """Small numbers that differ from rank to rank."""
    random.seed(rank)
    values = [random.randrange(1, 5) for _ in range(count)]
    if dtype == torch.bool:
        values = [value % 2 for value in values]
    return torch.tensor(values).to(dtype)


class RankTest(unittest.TestCase):
    """Runs on every rank; all ranks run the same tests in the same order."""

    rank = size = gloo = None

    def result_of(self, group, call):
        """The tensors that a call returns, or None if it is refused. Refusals must leave the group whole."""
        try:
            return call(group)
        except (RuntimeError, ValueError, TypeError):
            return None

    def compare(self, call, what):
        expected = self.result_of(self.gloo, call)
        actual = self.result_of(dist.group.WORLD, call)
        if expected is None:
            return  # Whatever gloo refuses may work here.
        self.assertIsNotNone(actual, what)
        for a, b in zip(actual, expected):
            if b.is_floating_point() or b.is_complex():
                torch.testing.assert_close(a, b, rtol=2e-2 if b.element_size() == 2 else 1e-6, atol=1e-6, msg=str(what))
            else:
                self.assertTrue(torch.equal(a, b), (what, a, b))

    def test_reductions_match_gloo(self):
        for name, dtype in itertools.product(REDUCTIONS, TYPES):
            op = getattr(dist.ReduceOp, name)

            def all_reduce(group):
                tensor = tensor_of(dtype, self.rank)
                dist.all_reduce(tensor, op=op, group=group)
                return [tensor]

            def reduce(group):
                tensor = tensor_of(dtype, self.rank)
                dist.reduce(tensor, 1, op=op, group=group)
                return [tensor] if self.rank == 1 else []

            def reduce_scatter(group):
                output = torch.empty(5, dtype=dtype)
                dist.reduce_scatter_tensor(output, tensor_of(dtype, self.rank, 5 * self.size), op=op, group=group)
                return [output]

            for call in (all_reduce, reduce, reduce_scatter):
                self.compare(call, (call.__name__, name, dtype))

    def test_moves_match_gloo(self):
        for dtype, count in itertools.product(TYPES, (0, 1, 7, 3000)):
            own = tensor_of(dtype, self.rank, count)

            def broadcast(group):
                tensor = own.clone()
                dist.broadcast(tensor, self.size - 1, group=group)
                return [tensor]

            def all_gather(group):
                outputs = [torch.empty_like(own) for _ in range(self.size)]
                dist.all_gather(outputs, own, group=group)
                return outputs

            def all_gather_into(group):
                output = torch.empty(count * self.size, dtype=dtype)
                dist.all_gather_into_tensor(output, own, group=group)
                return [output]

            def gather(group):
                outputs = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
                dist.gather(own, outputs, 0, group=group)
                return outputs or []

            def scatter(group):
                output = torch.empty_like(own)
                inputs = [tensor_of(dtype, r + 10, count) for r in range(self.size)] if self.rank == 1 else None
                dist.scatter(output, inputs, 1, group=group)
                return [output]

            def all_to_all(group):
                outputs = [torch.empty_like(own) for _ in range(self.size)]
                dist.all_to_all(outputs, [tensor_of(dtype, 10 * self.rank + r, count) for r in range(self.size)], group=group)
                return outputs

            for call in (broadcast, all_gather, all_gather_into, gather, scatter, all_to_all):
                self.compare(call, (call.__name__, dtype, count))

    def test_uneven_all_to_all(self):
        sent = [(self.rank + r) % 3 for r in range(self.size)]
        received = [(self.rank + r) % 3 for r in range(self.size)]
        data = torch.cat([torch.full((sent[r], 2), 10.0 * self.rank + r) for r in range(self.size)])
        output = torch.empty(sum(received), 2)
        dist.all_to_all_single(output, data, received, sent)
        expected = torch.cat([torch.full((received[r], 2), 10.0 * r + self.rank) for r in range(self.size)])
        self.assertTrue(torch.equal(output, expected))

    def test_views_keep_their_strides(self):
        whole = torch.zeros(6, 4)
        column = whole[:, 1]
        column.fill_(self.rank + 1)
        dist.all_reduce(column)
        self.assertEqual(whole.sum().item(), 6 * self.size * (self.size + 1) / 2)

    def test_works_run_in_order_and_complete_their_futures(self):
        tensors = [torch.full((1000,), float(i)) for i in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future().then(lambda f: f.value()[0].sum().item()) for work in works]
        for i, future in enumerate(futures):
            self.assertEqual(future.wait(), 1000.0 * i * self.size)

    def test_messages_match_by_tag_and_from_any_rank(self):
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        tensors = [torch.full((50_000,), float(self.rank * 10 + tag)) for tag in range(3)]
        works = [dist.isend(tensor, right, tag=tag) for tag, tensor in enumerate(tensors)]
        for tag in (2, 0, 1):
            tensor = torch.empty(50_000)
            dist.recv(tensor, left, tag=tag)
            self.assertEqual(tensor[7].item(), left * 10 + tag)
        for work in works:
            work.wait()
        if self.rank == 0:
            seen = set()
            for _ in range(1, self.size):
                tensor = torch.empty(3)
                source = dist.recv(tensor)
                self.assertEqual(tensor[0].item(), source)
                seen.add(source)
            self.assertEqual(seen, set(range(1, self.size)))
        else:
            dist.send(torch.full((3,), float(self.rank)), 0)

    def test_groups(self):
        everyone = list(range(self.size))
        for members in (everyone[::2], everyone[1:], everyone[:2], everyone[-2:], [0, self.size - 1]):
            group = dist.new_group(members)
            if self.rank in members:
                tensor = torch.full((4,), float(self.rank))
                dist.all_reduce(tensor, group=group)
                self.assertEqual(tensor[0].item(), sum(members))
                parts = [torch.empty(1) for _ in members]
                dist.all_gather(parts, tensor[:1] + self.rank, group=group)
                self.assertEqual([part.item() for part in parts], [sum(members) + member for member in members])
                to, source = (members[(members.index(self.rank) + step) % len(members)] for step in (1, -1))
                work = dist.isend(torch.full((3,), float(self.rank)), to, group=group, tag=7)
                received = torch.empty(3)
                dist.recv(received, source, group=group, tag=7)
                work.wait()
                self.assertEqual(received[0].item(), source)
        objects = [None] * self.size
        dist.all_gather_object(objects, {"rank": self.rank})
        self.assertEqual([o["rank"] for o in objects], list(range(self.size)))

    def test_sparse_tensors(self):
        for values in ([1.0], [[1.0, 2.0]]):
            dense = (self.size,) + (() if not isinstance(values[0], list) else (2,))
            tensor = torch.sparse_coo_tensor([[self.rank]], values, dense, check_invariants=True)
            dist.all_reduce(tensor)
            expected = torch.tensor(values).expand(self.size, *dense[1:])
            self.assertTrue(torch.equal(tensor.to_dense(), expected))

    def test_training_matches_gloo(self):
        losses = []
        for group in (dist.group.WORLD, self.gloo):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
            model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(self.rank))
            for _ in range(5):
                optimizer.zero_grad()
                loss = (model(data) ** 2).mean()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-6 * abs(losses[1]))

    def test_powersgd_hook_trains_with_several_buckets(self):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(200, 200) for _ in range(4)])
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for step in range(8):
            optimizer.zero_grad()
            data = torch.randn(4, 200, generator=torch.Generator().manual_seed(10 * step + self.rank))
            (model(data) ** 2).mean().backward()
            optimizer.step()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        largest = weights.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        self.assertTrue(torch.equal(weights, largest))

    def test_shared_tensors_and_the_operator(self):
        import tessera_torch

        tensor = tessera_torch.empty_shared(1000, 3)
        tensor.fill_(2)
        dist.all_reduce(tensor)
        torch.ops.tessera.all_reduce_(tensor, "max", dist.group.WORLD.group_name)
        self.assertTrue((tensor == 2 * self.size).all())
        with self.assertRaisesRegex((ValueError, RuntimeError), 'reduction "median"'):
            torch.ops.tessera.all_reduce_(tensor, "median", dist.group.WORLD.group_name)

    def test_bad_calls_are_rejected_without_breaking_group(self):
        with self.assertRaisesRegex((ValueError, RuntimeError), "invalid tensor size"):
            dist.all_gather([torch.ones(2) for _ in range(self.size)], torch.ones(3))
        with self.assertRaisesRegex((ValueError, RuntimeError), "complex numbers are reduced by SUM and AVG"):
            torch.ops.tessera.all_reduce_(torch.ones(2, dtype=torch.complex64), "max", dist.group.WORLD.group_name)
        with self.assertRaisesRegex(RuntimeError, "Invalid scalar type"):
            dist.all_reduce(torch.ones(2, dtype=torch.int16))
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), self.size)

    def test_monitored_barrier(self):
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend.monitored_barrier(datetime.timedelta(seconds=20))
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Rank 1 failed to pass monitoredBarrier"):
                backend.monitored_barrier(datetime.timedelta(seconds=1))
        elif self.rank != 1:
            with self.assertRaisesRegex(RuntimeError, "Rank 1 failed to pass monitoredBarrier"):
                backend.monitored_barrier(datetime.timedelta(seconds=1))
        dist.barrier()

    def test_zz_names_differing_calls(self):
        group = dist.new_group(list(range(self.size)))
        with self.assertRaisesRegex(RuntimeError, "differ in count"):
            dist.all_reduce(torch.ones(1024 if self.rank else 1000), group=group)
        dist.barrier()  # Other hosts learn later of it.

    def test_zzz_names_late_rank(self):
        group = dist.new_group(list(range(self.size)), timeout=datetime.timedelta(seconds=3))
        if self.rank == 0:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 3000ms: rank 0: group .*all_reduce #1.*rank 1"):
                dist.all_reduce(torch.ones(10), group=group)
        dist.barrier()
        if self.rank == 1:
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 3000ms: rank 1 creates group .*rank 0"):
                dist.new_group([0, 1], timeout=datetime.timedelta(seconds=3))
        dist.barrier()

    def test_limited_wait_names_the_collective(self):
        group = dist.new_group([0, 1])
        if self.rank == 0:
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            with self.assertRaisesRegex(RuntimeError, "Timed out waiting 100ms: rank 0: group .*: all_reduce #1 has not ended"):
                work.wait(datetime.timedelta(milliseconds=100))
        dist.barrier()
        if self.rank == 1:
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        if self.rank < 2:
            work.wait()


def run_rank():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    ranks.register()
    dist.init_process_group("tessera", timeout=datetime.timedelta(seconds=60))
    RankTest.rank, RankTest.size = rank, size
    RankTest.gloo = dist.new_group(list(range(size)), backend="gloo")
    ranks.run_tests(RankTest)


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ranks.run(size, run_rank)
    if "RANK" not in os.environ:
        print("passed on", size, "ranks")


if __name__ == "__main__":
    main()
