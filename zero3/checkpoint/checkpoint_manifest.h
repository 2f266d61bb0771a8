// CheckpointManifest: the contents of a checkpoint, which is a directory of
// files:
//
//   manifest.json      written last, which completes the checkpoint
//   rank-00000.state   a shard of the part ""
//   tp1-pp0.rank-00000.state   a shard of the part "tp1-pp0"
//
// A part is the model of one shard group: a checkpoint of tensor and pipeline
// parallel training has a part for each pair of coordinates, otherwise there is
// a single part.
//
// The manifest is a JSON document (RFC 8259) whose second line has a checksum
// of all bytes after that line, so that it can be verified and is still plain
// JSON. README.md lists all keys.
//
//   {
//     "crc32c": "0a1b2c3d",
//     "format": "tessera checkpoint",
//     "version": 1,
//     "step": 20,
//     ...
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_MANIFEST_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/layout/state_format.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr size_t kMaxPartName = 64;

// The caller's entries, for example data position, random state and schedule.
// UTF-8.
using CheckpointMetadata = std::map<std::string, std::string>;

struct CheckpointFile {
  int64_t bytes = 0;
  uint32_t crc32c = 0;  // Of the whole file.
  // The checksum of the file's index, which has the checksums of all blocks, so
  // that a reader of a few blocks can verify that they belong to this
  // checkpoint.
  uint32_t index_crc32c = 0;

  friend bool operator==(const CheckpointFile&,
                         const CheckpointFile&) = default;
};

struct CheckpointPart {
  std::string name = "";
  int64_t stage = 0;
  int64_t replicas = 1;  // Groups with the same state, of which one wrote it.
  // The elements of the model that each rank wrote to its file. At stage 0,
  // where every rank has all elements, these are even chunks.
  StateLayout layout;
  offload::MomentFormat moments = {};
  int64_t moment_count = 2;  // Per trained element (state_format.h).
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
  int64_t world = 1;  // Ranks that participated.
  std::vector<CheckpointPart> parts = {};

  // The part named `part`, or NotFound with the names of some existing parts.
  absl::StatusOr<const CheckpointPart*> Find(std::string_view part) const;
  friend bool operator==(const CheckpointManifest&,
                         const CheckpointManifest&) = default;
};

// The file of a shard: "rank-00003.state", "tp1-pp0.rank-00003.state".
std::string ShardFileName(std::string_view part, int64_t rank);

// OK for "" and for up to kMaxPartName letters, digits, '-' and '_'.
absl::Status CheckPartName(std::string_view part);

inline constexpr int64_t kManifestVersion = 1;
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

// InvalidArgument if a string is not UTF-8 or a value is invalid, so that
// ParseManifest accepts every result.
absl::StatusOr<std::string> FormatManifest(const CheckpointManifest& manifest);

// DataLoss if the checksum is wrong. InvalidArgument, with the position, if the
// document is too long or too deep, has another version, lacks a key or has an
// invalid value.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text);

// Text of a part without its files and without a checksum, which ranks
// exchange.
absl::StatusOr<std::string> FormatPart(const CheckpointPart& part);
absl::StatusOr<CheckpointPart> ParsePart(std::string_view text);

// A checksum as text: "0a1b2c3d". ReadHex32 reads it from a field; invalid text
// is reported as an error of the reader and returns 0.
std::string FormatHex32(uint32_t value);
uint32_t ReadHex32(JsonReader& fields, std::string_view key);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_MANIFEST_H_
