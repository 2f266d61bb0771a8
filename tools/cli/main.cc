#include "tools/cli/tool_registry.h"

int main(int argc, char** argv) { return tessera::tools::RunTools(argc, argv); }
