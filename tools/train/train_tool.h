// //tools/train as a library: its flags and what it does.
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

// What the flags say: trains, or predicts with --dry_run. The table, summary
// and sample go to `out`, what is being done to `err`. In a process that a
// launcher started as a rank: that rank's part of it; rank 0 prints.
// InvalidArgument for flags, data or a model that make no sense, before
// anything was started. Sets `exit_code` where a signal ended the run.
absl::Status RunTrainTool(std::ostream& out, std::ostream& err, int& exit_code);

// The whole program: the tool, and in processes that it starts, their ranks.
// Exit codes: 0; 1 for a failed run; 2 for bad usage; 128 + n where signal n
// ended it.
int TrainMain(int argc, char** argv);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_
