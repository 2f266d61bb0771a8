"""A rank of a job whose messages have all kinds; hosts_test.py starts it."""

import datetime

import torch
import torch.distributed as dist

import tessera_torch  # noqa: F401


def values(sender, size):
    return torch.arange(size, dtype=torch.float64) + 1000 * sender


def ring(rank, size):
    """Every rank sends to the next, without waiting; tags are received in another order than they are sent."""
    after, before = (rank + 1) % size, (rank - 1) % size
    sizes = [1, 0, 77, 20000]
    works = [dist.isend(values(rank, n) + tag, after, tag=tag) for tag, n in enumerate(sizes)]
    received = [torch.full((n,), -1.0, dtype=torch.float64) for n in sizes]
    receives = [dist.irecv(received[tag], before, tag=tag) for tag in reversed(range(len(sizes)))]
    for work in works + receives:
        work.wait()
    for tag, n in enumerate(sizes):
        torch.testing.assert_close(received[tag], values(before, n) + tag, rtol=0, atol=0)


def in_order(rank, size):
    """Messages with one tag keep their order, if the receiver waits for the last one first."""
    if rank == size - 1:
        for number in range(5):
            dist.send(values(number, 9), 0)
    if rank == 0:
        received = [torch.empty(9, dtype=torch.float64) for _ in range(5)]
        for work in reversed([dist.irecv(tensor, size - 1) for tensor in received]):
            work.wait()
        for number, tensor in enumerate(received):
            torch.testing.assert_close(tensor, values(number, 9), rtol=0, atol=0)


def any_source(rank, size):
    if rank > 0:
        dist.send(values(rank, 5), 0, tag=3)
        return
    sources = set()
    for _ in range(size - 1):
        tensor = torch.empty(5, dtype=torch.float64)
        source = dist.recv(tensor, tag=3)
        torch.testing.assert_close(tensor, values(source, 5), rtol=0, atol=0)
        sources.add(source)
    assert sources == set(range(1, size)), sources


def strided(rank, size):
    """Tensors that are not contiguous, in both directions at once."""
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(6, 4, dtype=torch.bfloat16).t()
    operations = [
        dist.P2POp(dist.isend, torch.full((6, 4), rank + 0.5, dtype=torch.bfloat16).t(), after),
        dist.P2POp(dist.irecv, received, before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.all(received == before + 0.5), received


def main():
    torch.set_num_threads(1)
    dist.init_process_group("tessera", timeout=datetime.timedelta(seconds=60))
    for check in (ring, in_order, any_source, strided):
        check(dist.get_rank(), dist.get_world_size())
        dist.barrier()
    print("messages passed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
