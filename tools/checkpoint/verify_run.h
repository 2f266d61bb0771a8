// VerifyRun: reads and checks every byte of a run's checkpoint.
#ifndef TESSERA_TOOLS_CHECKPOINT_VERIFY_RUN_H_
#define TESSERA_TOOLS_CHECKPOINT_VERIFY_RUN_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tessera::tools {

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

#endif  // TESSERA_TOOLS_CHECKPOINT_VERIFY_RUN_H_
