// The command //tools/train as a library.
//
//   int main(int argc, char** argv) {
//     return tessera::train::TrainMain(argc, argv);
//   }
#ifndef TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_
#define TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/cli/cli.h"
#include "tools/train/launch/nodes.h"
#include "tools/train/settings/settings_flags.h"

namespace tessera::train {

// The values of the tool's flags.
struct TrainFlags {
  SettingsFlags settings;
  NodePlace place;
};

// The name and summary of the tool, and its flags, which store their values in
// `flags`.
tools::Tool TrainTool(TrainFlags& flags);

// Trains as `flags` says, or predicts with --dry_run. Writes the summary and
// the sample to `out` and progress to `err`. In a process that a launcher
// started as a rank, it runs only that rank, and only rank 0 prints; with
// --nnodes it runs the ranks of one node, and that of rank 0 prints. Returns
// InvalidArgument, without starting anything, for invalid flags, data or
// models. Sets `exit_code` if a signal ended the run.
absl::Status RunTrainTool(const TrainFlags& flags, std::ostream& out,
                          std::ostream& err, int& exit_code);

// The whole program: the tool, or a rank in a process that the tool started.
// Returns the exit code: 0 on success, 1 if the run failed, 2 for bad usage,
// 128 + n if signal n ended the run.
int TrainMain(int argc, char** argv);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TRAIN_TOOL_H_
