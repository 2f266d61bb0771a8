// CheckpointReader: reads any elements of a checkpoint.
#ifndef TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_READER_H_
#define TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/shard_file.h"
#include "zero3/checkpoint/shard_format.h"
#include "zero3/layout/state_format.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Reads any elements of a checkpoint; reads only the blocks that contain them.
//
//   TESSERA_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path, "tp0"));
//   TESSERA_RETURN_IF_ERROR(reader->Read(id, StatePart::kValue, 100, 200,
//                                        array));
//
// All data is verified: DataLoss names the file, the offset and the parameter.
// One thread at a time.
class CheckpointReader {
 public:
  // Opens one part of the checkpoint in the directory `path`. Errors as for
  // ReadManifest and CheckpointManifest::Find.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      std::string path, std::string_view part);

  const CheckpointManifest& manifest() const { return manifest_; }
  const CheckpointPart& part() const { return *part_; }

  // Reads elements [begin, end) of one part of a parameter's state into `to`.
  // InvalidArgument, before anything is read, if the elements or the state do
  // not exist, `to` has another format or size, or `begin` or `end` is inside a
  // block of the format.
  absl::Status Read(ParameterId parameter, StatePart part, int64_t begin,
                    int64_t end, const StateArray& to);

 private:
  CheckpointReader(std::string path, CheckpointManifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  absl::Status CheckRead(ParameterId parameter, StatePart part, int64_t begin,
                         int64_t end, const StateArray& to) const;
  absl::StatusOr<const ShardFile*> FileOf(int64_t rank);
  absl::Status ReadOverlap(const ShardFile& file, const BlockEntry& entry,
                           int64_t begin, int64_t end, const StateArray& to);

  const std::string path_;
  const CheckpointManifest manifest_;
  const CheckpointPart* part_ = nullptr;
  std::map<int64_t, std::unique_ptr<ShardFile>> files_;  // By rank; open.
  std::vector<std::byte> block_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_CHECKPOINT_READER_H_
