#include <iostream>

#include "tools/schedule/schedule_tool.h"

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunTool(ScheduleTool(), argc, argv,
                 [] { return RunScheduleTool(std::cout); });
}
