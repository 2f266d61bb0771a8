#include <iostream>

#include "tools/checkpoint/checkpoint_tool.h"

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunTool(CheckpointTool(), argc, argv,
                 [] { return RunCheckpointTool(std::cout, std::cerr); });
}
