#include <iostream>

#include "tools/plan/plan_tool.h"

int main(int argc, char** argv) {
  using namespace tessera;
  return tools::RunTool(plan::PlanTool(), argc, argv,
                        [] { return plan::RunPlanTool(std::cout); });
}
