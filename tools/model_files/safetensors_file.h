// Safetensors files: SafetensorsFile reads single tensors or parts of them,
// SafetensorsWriter writes tensors in pieces.
//
//   TESSERA_ASSIGN_OR_RETURN(auto file,
//                            SafetensorsFile::Open("model.safetensors"));
//   std::vector<float> bias(1024);
//   TESSERA_RETURN_IF_ERROR(
//       file.Read("bias", std::as_writable_bytes(std::span(bias))));
//   TESSERA_RETURN_IF_ERROR(file.ReadRows("weight", 512, shard.view()));
//
// Every error names the file, and the tensor if there is one.
#ifndef TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_FILE_H_
#define TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/atomic_file.h"
#include "base/os/unique_fd.h"
#include "base/tensor/tensor_view.h"
#include "tools/model_files/safetensors_header.h"

namespace tessera::model_files {

// Reads the tensors of one file, directly into the caller's memory. Const calls
// are thread-safe.
class SafetensorsFile {
 public:
  // Reads only the header. The system's error if the file cannot be opened;
  // InvalidArgument if it is too short, its header is too long, or ParseHeader
  // rejects it.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Header& header() const { return header_; }

  // Null if there is no such tensor. Valid as long as this object.
  const TensorEntry* Find(std::string_view name) const;
  // NotFound if there is no such tensor.
  absl::StatusOr<const TensorEntry*> Get(std::string_view name) const;

  // Reads the bytes [begin, begin + target.size()) of a tensor, little-endian
  // as in the file. NotFound if there is no such tensor, OutOfRange if the
  // range is not inside it, DataLoss if the file has become shorter.
  absl::Status ReadBytes(std::string_view name, int64_t begin,
                         std::span<std::byte> target) const;
  // Reads all bytes; InvalidArgument if `target` has another size.
  absl::Status Read(std::string_view name, std::span<std::byte> target) const;

  // Reads the rows [first, first + target.shape()[0]) of a tensor with at least
  // one dimension, converted to the dtype of `target`. `target` is contiguous,
  // in host memory, and has the tensor's shape except for the first dimension.
  // For a target of two or more dimensions, further first dimensions of the
  // tensor are read as one: the rows of [experts, rows, columns] are those of
  // [experts * rows, columns].
  // Errors as above; InvalidArgument if the shapes differ, Unimplemented if the
  // tensor's type has no DType.
  absl::Status ReadRows(std::string_view name, int64_t first,
                        TensorView target) const;

 private:
  SafetensorsFile(std::string path, UniqueFd fd, int64_t data_start,
                  Header header);

  absl::Status ReadConverted(const TensorEntry& entry, DType from,
                             int64_t begin, TensorView target) const;

  std::string path_;
  UniqueFd fd_;
  int64_t data_start_;
  Header header_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// The shape in which ReadRows sees a tensor: further first dimensions are one.
// InvalidArgument if `target` is not for rows of it, OutOfRange if the rows
// from `first` on are not inside it.
absl::StatusOr<std::vector<int64_t>> ShapeInRows(const StoredTensor& tensor,
                                                 int64_t first,
                                                 const TensorView& target);

// Writes a file atomically (AtomicFile).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer,
//       SafetensorsWriter::Create(path, {{"w", ElementType::kF32, {2, 8}}}));
//   TESSERA_RETURN_IF_ERROR(writer.Write("w", 32, second_row));
//   TESSERA_RETURN_IF_ERROR(writer.Write("w", 0, first_row));
//   TESSERA_RETURN_IF_ERROR(writer.Commit());
//
// Every byte must be written exactly once. Without Commit the old file stays.
// Not thread-safe.
class SafetensorsWriter {
 public:
  // Reserves the whole size of the file. Returns the errors of LayOut,
  // FormatHeader and AtomicFile::Create.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, std::vector<StoredTensor> tensors,
      std::map<std::string, std::string> metadata = {});

  const std::string& path() const { return file_.path(); }
  const Header& header() const { return header_; }

  // Writes `bytes` at byte `begin` of a tensor. NotFound if there is no such
  // tensor, OutOfRange if the range is not inside it, AlreadyExists if a part
  // of it was written before.
  absl::Status Write(std::string_view name, int64_t begin,
                     std::span<const std::byte> bytes);
  // Writes a whole tensor; InvalidArgument if `bytes` has another size.
  absl::Status Write(std::string_view name, std::span<const std::byte> bytes);

  // OK if every byte was written; otherwise FailedPrecondition with the tensor
  // and its first missing byte.
  absl::Status CheckComplete() const;

  // Replaces path(). Must be the last call; only after an error of
  // CheckComplete may writing continue.
  absl::Status Commit();

 private:
  // The disjoint written ranges of a tensor, a map from begin to end.
  struct Progress {
    const TensorEntry* entry;
    std::map<int64_t, int64_t> written;
  };

  SafetensorsWriter(AtomicFile file, int64_t data_start, Header header);

  absl::StatusOr<Progress*> Find(std::string_view name);

  AtomicFile file_;
  int64_t data_start_;
  Header header_;
  absl::flat_hash_map<std::string, Progress> progress_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_FILE_H_
