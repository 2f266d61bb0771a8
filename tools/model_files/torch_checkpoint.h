// Checkpoints of torch.distributed.checkpoint (DCP): a directory with .metadata
// and files *.distcp. FSDP, DeviceMesh and torchtitan write them, and
// Megatron-LM as --ckpt-format=torch_dist.
//
// clang-format off
//   TESSERA_ASSIGN_OR_RETURN(auto checkpoint, TorchCheckpoint::Open("step-9"));
//   TESSERA_RETURN_IF_ERROR(checkpoint.ReadRows("lm_head.weight", 0, rows.view()));
// clang-format on
//
// Source: torch/distributed/checkpoint/{metadata,filesystem}.py of
// PyTorch 2.15.
#ifndef TESSERA_TOOLS_MODEL_FILES_TORCH_CHECKPOINT_H_
#define TESSERA_TOOLS_MODEL_FILES_TORCH_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/atomic_file.h"
#include "base/os/unique_fd.h"
#include "base/tensor/tensor_view.h"
#include "tools/model_files/safetensors_header.h"

namespace tessera::model_files {

inline constexpr std::string_view kTorchMetadataFile = ".metadata";

// A part of a tensor, in one archive of one file.
struct TorchChunk {
  std::vector<int64_t> offsets = {};  // In each dimension of the tensor.
  std::vector<int64_t> sizes = {};
  std::string file = {};
  int64_t begin = 0;  // Bytes of the file.
  int64_t length = 0;
};

struct TorchEntry {
  StoredTensor spec = {};
  std::vector<TorchChunk> chunks = {};
};

// Parses .metadata: the tensors by name; other objects are left out.
// InvalidArgument, with the name of the tensor, if the pickle is malformed, a
// chunk is outside of its tensor, without a place in a file, in a file with a
// directory, or overlaps another, or chunks do not fill a tensor. Unimplemented
// for transformed (compressed) chunks.
absl::StatusOr<absl::btree_map<std::string, TorchEntry>> ParseTorchMetadata(
    std::string_view pickle);

// Reads the tensors of a checkpoint. Const calls are thread-safe.
class TorchCheckpoint {
 public:
  // Reads .metadata and opens the files. NotFound if a file is missing, the
  // errors of ParseTorchMetadata otherwise.
  static absl::StatusOr<TorchCheckpoint> Open(const std::string& directory);

  // All names, sorted.
  std::vector<std::string> Names() const;
  // Null if there is no such tensor.
  const StoredTensor* Find(std::string_view name) const;

  // Reads the rows [first, first + target.shape()[0]), converted to the dtype
  // of `target`, as SafetensorsFile::ReadRows does. The rows of a target of one
  // dimension are the elements of the tensor, whatever its shape.
  absl::Status ReadRows(std::string_view name, int64_t first,
                        TensorView target) const;

  // Removes `prefix` from the names that begin with it, and the tensors with
  // other names.
  void KeepUnder(std::string_view prefix);

 private:
  absl::Status ReadChunk(const TorchEntry& entry, const TorchChunk& chunk,
                         int64_t first, TensorView target) const;

  std::string directory_;
  absl::btree_map<std::string, TorchEntry> tensors_;
  absl::flat_hash_map<std::string, UniqueFd> files_;
};

// Writes a checkpoint. Each Write is a chunk. Not thread-safe.
class TorchCheckpointWriter {
 public:
  // The directory must exist. Starts a new file when one has `max_file_bytes`.
  static absl::StatusOr<TorchCheckpointWriter> Create(
      const std::string& directory, const std::vector<StoredTensor>& tensors,
      int64_t max_file_bytes);

  // Writes elements of a tensor from byte `begin` on: whole lines of the last
  // dimension, which do not cross an index of a dimension before the last two,
  // or a part of one line. Less than 4 GB.
  absl::Status Write(std::string_view name, int64_t begin,
                     std::span<const std::byte> bytes);
  // Writes an object that is not a tensor.
  absl::Status WriteObject(std::string_view name, std::string_view pickle);

  // Commits the files, and .metadata last. InvalidArgument if chunks do not
  // fill a tensor.
  absl::Status Commit();

 private:
  struct Object {
    std::string name = {};
    std::string file = {};
    int64_t begin = 0;
    int64_t length = 0;
  };

  // Appends an archive to the files and returns where it is.
  absl::StatusOr<Object> Append(std::string_view archive);
  std::string Metadata() const;

  std::string directory_;
  int64_t max_file_bytes_ = 0;
  std::vector<TorchEntry> entries_;
  absl::flat_hash_map<std::string, size_t> index_;
  std::vector<Object> objects_;
  std::vector<AtomicFile> files_;
  int64_t file_bytes_ = 0;  // Of the last file.
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_TORCH_CHECKPOINT_H_
