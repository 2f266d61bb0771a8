// Places the pipeline stages of a job on the devices of a machine, one of which
// is missing.

#include <iostream>
#include <string_view>
#include <vector>

#include "topology/device_mesh.h"
#include "topology/mesh.h"

int main() {
  using namespace tessera::topology;
  const auto line = DeviceMesh::Parse("0,1,2,4,5,6,7");
  const auto grid = DeviceMesh::Grid(2, 4, line->devices());
  std::cout << grid->ToString() << "GPU 5 is in row "
            << (*grid->CoordinatesOf(DeviceId(5)))[0] << "; column 0 has";
  const std::vector<DeviceId> column = grid->Columns()[0];
  for (const DeviceId device : column) std::cout << " " << device;

  // The ranks of a mesh on the same kind of grid: a row for each stage.
  const auto mesh = Mesh::Create(*ParseAxes("pp2,tp3"), "tp-pp");
  const std::vector<std::string_view> axes = {"pp", "tp"};
  const auto ranks = DeviceMesh::FromMesh(*mesh, axes, Rank(0));
  std::cout << "\nrank " << *ranks->At({1, 2}) << " of stage 1 uses GPU "
            << line->devices()[5] << "\n"
            << ranks->ToString();
}
