// SaveReport: what a rank tells the others about its part of a checkpoint.
#ifndef TESSERA_ZERO3_CHECKPOINT_SAVE_REPORT_H_
#define TESSERA_ZERO3_CHECKPOINT_SAVE_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::zero3 {

struct SaveReport {
  absl::Status status = absl::OkStatus();
  int64_t step = 0;
  // The shard that this rank has: its part, and its place there.
  std::string part = "";
  int64_t shard_rank = 0;
  int64_t shard_ranks = 1;
  // Whether it writes the shard: the first of the replicas does.
  bool writes = true;
  CheckpointFile file = {};  // Once it is written.
  // FormatPart, of the rank that writes shard 0.
  std::string description = "";

  friend bool operator==(const SaveReport&, const SaveReport&) = default;
};

std::string FormatReport(const SaveReport& report);
absl::StatusOr<SaveReport> ParseReport(std::string_view text);

// OK where the ranks are at one step and write each shard of each part once.
// FailedPrecondition that names the rank and what to change.
absl::Status CheckReports(const std::vector<SaveReport>& by_rank);

// The manifest of what they have written. Preconditions: CheckReports is OK,
// and all statuses are.
absl::StatusOr<CheckpointManifest> ManifestOf(
    const std::vector<SaveReport>& by_rank);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SAVE_REPORT_H_
