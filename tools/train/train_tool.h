// //tools/train as a library.
//
//   int main(int argc, char** argv) {
//     return tessera::train::TrainMain(argc, argv);
//   }
#ifndef TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_
#define TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"

namespace tessera::train {

// Name, summary and flags of the tool.
const tools::Tool& TrainTool();

// Trains, or predicts with --dry_run. The summary and the sample go to `out`,
// progress to `err`. In a process that a launcher started as a rank it runs
// that rank only, and rank 0 prints. InvalidArgument for invalid flags, data or
// models; nothing was started then. Sets `exit_code` if a signal ended the run.
absl::Status RunTrainTool(std::ostream& out, std::ostream& err, int& exit_code);

// The whole program: the tool, or a rank in processes that the tool started.
// Exit codes: 0; 1 for a failed run; 2 for bad usage; 128 + n if signal n ended
// it.
int TrainMain(int argc, char** argv);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_
