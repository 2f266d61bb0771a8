// ListRuns: the checkpoints of a directory.
#ifndef TESSERA_TOOLS_CHECKPOINT_LIST_RUNS_H_
#define TESSERA_TOOLS_CHECKPOINT_LIST_RUNS_H_

#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cli/output_format.h"

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

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CHECKPOINT_LIST_RUNS_H_
