// ListRuns: the checkpoints of a directory.
#ifndef TESSERA_TOOLS_CHECKPOINT_INSPECT_RUNS_H_
#define TESSERA_TOOLS_CHECKPOINT_INSPECT_RUNS_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

struct ListedRun {
  std::string path = "";
  std::string state = "";  // "complete", or why it is not.
  int64_t step = 0;
  int64_t ranks = 0;      // That wrote it.
  std::string mesh = "";  // Empty where it is of no run.
  int64_t zero = 0;
  int64_t parameters = 0;  // Of the model; 0 where it is of no run.
  int64_t bytes = 0;       // Of its files.

  friend bool operator==(const ListedRun&, const ListedRun&) = default;
};

// In the order of their names, with those that were interrupted. A checkpoint
// is listed alone. The system's code where the directory cannot be read,
// NotFound where there is none.
absl::StatusOr<std::vector<ListedRun>> ListRuns(const std::string& path);

// JSON: an array of objects with the fields above.
void PrintRuns(std::span<const ListedRun> runs, OutputFormat format,
               std::ostream& out);

// VerifyRun: reads and checks every byte of a run's checkpoint.

struct VerifiedBytes {
  int64_t files = 0;
  int64_t all_files = 0;
  int64_t bytes = 0;  // Of those files.
  int64_t all_bytes = 0;
};

// Of the checkpoint at `path`. After each file `progress` is told how far it
// is. Checked are the manifest, that there are no other files, each block's
// place, format and checksum, those of whole files, and that the parts have
// each element of each tensor once. DataLoss with the first mistake, and how
// many files have one; InvalidArgument where it is of no run.
absl::StatusOr<VerifiedBytes> VerifyRun(
    const std::string& path,
    absl::FunctionRef<void(const VerifiedBytes&)> progress);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_INSPECT_RUNS_H_
