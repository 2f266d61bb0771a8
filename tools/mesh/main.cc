#include <iostream>

#include "tools/mesh/mesh_tool.h"

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunTool(MeshTool(), argc, argv, [] { return RunMeshTool(std::cout); });
}
