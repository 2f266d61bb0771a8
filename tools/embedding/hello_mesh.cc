// A program of an embedding workspace that uses only rank mapping.

#include <iostream>

#include "absl/base/config.h"
#include "topology/mesh.h"

#ifndef EMBEDDING_WORKSPACE_OWN_ABSEIL
#error "Tessera did not take the workspace's own Abseil"
#endif

int main() {
  using tessera::topology::Mesh;
  using tessera::topology::ParseAxes;
  const auto mesh = Mesh::Create(*ParseAxes("tp2,dp2,pp4"), "tp-cp-ep-dp-pp");
  if (!mesh.ok()) {
    std::cerr << mesh.status() << "\n";
    return 1;
  }
  const auto groups = mesh->GroupsAlong("tp,pp");
  for (const auto& group : groups->All()) {
    for (const auto rank : group) std::cout << rank << " ";
    std::cout << "\n";
  }
}
