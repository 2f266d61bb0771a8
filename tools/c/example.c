/* Sums the ranks of a job; started by `tessera launch --np=4 -- ./example`. */
#include <stdio.h>

#include "tessera.h"

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, tessera_error_message());
  return 1;
}

int main(void) {
  tessera_communicator *world = NULL;
  tessera_mesh *mesh = NULL;
  int64_t group[2], size = 0;
  float sum = 0;

  if (tessera_communicator_join("shared_memory", 60, &world) != TESSERA_OK) {
    return fail("join");
  }
  const int64_t rank = tessera_communicator_rank(world);
  sum = (float)rank;
  if (tessera_all_reduce(world, &sum, &sum, 1, TESSERA_F32, TESSERA_SUM) !=
      TESSERA_OK) {
    return fail("all_reduce");
  }
  if (tessera_mesh_create("dp2,tp2", NULL, &mesh) != TESSERA_OK ||
      tessera_mesh_group(mesh, rank, "tp", group, 2, &size) != TESSERA_OK) {
    return fail("mesh");
  }
  printf("rank %d: the sum of all ranks is %g; tensor group %d and %d\n",
         (int)rank, sum, (int)group[0], (int)group[1]);
  tessera_mesh_destroy(mesh);
  tessera_communicator_destroy(world);
  return 0;
}
