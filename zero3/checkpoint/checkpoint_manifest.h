// CheckpointManifest: what a checkpoint consists of.
//
//   manifest.json      written last: with it the checkpoint is complete
//   rank-00000.state   a shard of the part ""
//   tp1-pp0.rank-00000.state   a shard of the part "tp1-pp0"
//
// A part is the model of one shard group: a checkpoint of tensor and pipeline
// parallel training has one for each pair of coordinates, otherwise one.
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_MANIFEST_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/optimizer/moment.h"
#include "zero3/checkpoint/state_format.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr size_t kMaxPartName = 64;

// The caller's own: data position, state of random numbers, schedule. UTF-8.
using CheckpointMetadata = std::map<std::string, std::string>;

struct CheckpointFile {
  int64_t bytes = 0;
  uint32_t crc32c = 0;  // Of the whole file.
  // Of its index, which has those of all blocks: a reader of a few blocks
  // knows that they are of this checkpoint.
  uint32_t index_crc32c = 0;

  friend bool operator==(const CheckpointFile&,
                         const CheckpointFile&) = default;
};

struct CheckpointPart {
  std::string name = "";
  int64_t stage = 0;
  int64_t replicas = 1;  // Groups that had the same state; one wrote it.
  // Who wrote what: elements of the model by the ranks of the files. At stage
  // 0, where all ranks have everything, even chunks.
  StateLayout layout;
  offload::MomentFormat moments = {};
  int64_t moment_count = 2;  // Of each trained element: state_format.h.
  double loss_scale = 1;
  int64_t steps_since_scale_change = 0;
  CheckpointMetadata metadata = {};
  std::vector<CheckpointFile> files = {};  // By rank of the layout.

  const ModelParameters& model() const { return layout.model(); }
  MomentKinds moment_kinds() const { return {moments, moment_count}; }
  friend bool operator==(const CheckpointPart&,
                         const CheckpointPart&) = default;
};

struct CheckpointManifest {
  int64_t step = 0;
  int64_t world = 1;  // Ranks that took part.
  std::vector<CheckpointPart> parts = {};

  // The part of that name, or NotFound that lists some there are.
  absl::StatusOr<const CheckpointPart*> Find(std::string_view part) const;
  friend bool operator==(const CheckpointManifest&,
                         const CheckpointManifest&) = default;
};

// The file of a shard: "rank-00003.state", "tp1-pp0.rank-00003.state".
std::string ShardFileName(std::string_view part, int64_t rank);

// OK for up to kMaxPartName letters, digits, '-' and '_', and for none.
absl::Status CheckPartName(std::string_view part);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_MANIFEST_H_
