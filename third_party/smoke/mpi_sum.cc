// Sums the ranks with an all-reduce and checks the total on every rank.

#include <mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0, sum = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  const int expected = size * (size - 1) / 2;
  if (rank == 0) std::printf("%d ranks, sum %d\n", size, sum);
  MPI_Finalize();
  return sum == expected ? 0 : 1;
}
