// The smallest program: lists the ranks of a mesh that work together.

#include <iostream>

#include "topology/mesh.h"

int main() {
  using namespace tessera::topology;
  const auto axes = ParseAxes("dp2,pp2,tp2");
  const auto mesh = Mesh::Create(axes.value(), "tp-cp-ep-dp-pp");
  std::cout << "rank 5 is tensor rank " << *mesh->CoordinateOf(Rank(5), "tp")
            << " of pipeline stage " << *mesh->CoordinateOf(Rank(5), "pp")
            << "\n";
  for (const auto& group : mesh->GroupsAlong("tp,dp")->All()) {
    for (Rank rank : group) std::cout << rank << " ";
    std::cout << "hold one stage\n";
  }
}
