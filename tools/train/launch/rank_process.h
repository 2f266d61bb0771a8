// A process that holds ranks of a job which another process started: one rank,
// or all of them as threads.
//
//   int main(int argc, char** argv) {
//     if (IsRankProcess(argc, argv)) return RankProcessMain(argc, argv, make);
//     ...
//   }
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROCESS_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROCESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/train/launch/attempt_files.h"
#include "tools/train/launch/rank_program.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The arguments, behind the program's name, that make it a rank of `files`,
// whose standard output reaches a terminal or not.
std::vector<std::string> RankArguments(const AttemptFiles& files,
                                       bool is_terminal);
bool IsRankProcess(int argc, char** argv);

// Takes the settings from the attempt's files, joins the others, and leaves
// what rank 0 returns, or why a rank failed, in the files. Prints nothing. The
// process's exit code: 0, or 1 where a rank failed.
int RankProcessMain(int argc, char** argv, const MakeRankProgram& make);

// All ranks of the settings' mesh as threads of this process. Returns what rank
// 0 returned, or the error that explains the others', with its rank in front.
absl::StatusOr<std::string> RunThreads(const Settings& settings,
                                       const RankProgram& program);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RANK_PROCESS_H_
