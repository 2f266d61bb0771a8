#include "tools/cli/tool_registry.h"
#include "tools/train/train_tool.h"

TESSERA_TOOL(train) { return tessera::train::TrainMain(argc, argv); }
