// Divides one set of ranks in three ways: dense layers by data and tensor,
// their optimizer state by shards and replicas, and experts over the ranks of a
// stage.

#include <iostream>

#include "topology/mesh.h"

namespace {

using namespace tessera::topology;

absl::StatusOr<Mesh> MakeMesh() {
  const auto axes = ParseAxes("dp8,tp2,pp2");
  if (!axes.ok()) return axes.status();
  const auto dense = Mesh::Create(*axes, "tp-dp-pp");
  if (!dense.ok()) return dense.status();

  // Shards lie on near ranks (fastest), replicas far apart.
  const std::vector<Axis> parts = {{"dp_shard", AxisSize(4)},
                                   {"dp_replicate", AxisSize(2)}};
  const auto hybrid = dense->Redivide("dp", parts);
  if (!hybrid.ok()) return hybrid.status();
  return WithExpertAxes(*hybrid, AxisSize(8));
}

}  // namespace

int main() {
  const auto mesh = MakeMesh();
  if (!mesh.ok()) {
    std::cerr << mesh.status() << "\n";
    return 1;
  }
  const Rank rank(21);
  for (const char* axes : {"tp", "dp_shard", "dp_replicate", "ep", "edp"}) {
    std::cout << *GroupName(*mesh, axes, rank) << ":";
    const auto members = mesh->GroupsAlong(axes)->MembersWith(rank);
    for (const Rank member : *members) std::cout << " " << member;
    std::cout << "\n";
  }
}
