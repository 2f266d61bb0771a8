// SafetensorsFile: the tensors of one file, read one by one.
//
//   TESSERA_ASSIGN_OR_RETURN(auto file,
//                            SafetensorsFile::Open("model.safetensors"));
//   std::vector<float> bias(1024);
//   TESSERA_RETURN_IF_ERROR(
//       file.Read("bias", std::as_writable_bytes(std::span(bias))));
//   TESSERA_RETURN_IF_ERROR(file.ReadRows("weight", 512, shard.view()));
//
// Opening reads the header alone. Data is read where it is asked for, straight
// into the caller's memory. Const calls may be made by several threads at once.
// Every error names the file, and the tensor where there is one.
#ifndef TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_FILE_H_
#define TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "base/tensor/tensor_view.h"
#include "tools/model_files/header.h"

namespace tessera::model_files {

class SafetensorsFile {
 public:
  // NotFound or PermissionDenied (or another code) where the file cannot be
  // opened; InvalidArgument where it is too short, its header is too long or is
  // refused by ParseHeader.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Header& header() const { return header_; }

  // Good for as long as the file lives; null where there is none.
  const TensorEntry* Find(std::string_view name) const;
  // NotFound where there is none.
  absl::StatusOr<const TensorEntry*> Get(std::string_view name) const;

  // The bytes [begin, begin + target.size()) of a tensor, as they are in the
  // file (little-endian). NotFound where there is no such tensor, OutOfRange
  // where the range is not inside it, DataLoss where the file has become
  // shorter.
  absl::Status ReadBytes(std::string_view name, int64_t begin,
                         std::span<std::byte> target) const;
  // All of its bytes; InvalidArgument where `target` has another size.
  absl::Status Read(std::string_view name, std::span<std::byte> target) const;

  // The rows [first, first + target.shape()[0]) of a tensor with at least one
  // dimension, converted to the dtype of `target`, which is contiguous, on the
  // host, and of the tensor's shape but for the first dimension. Errors as
  // above; InvalidArgument where the shapes do not fit, Unimplemented where the
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

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_FILE_H_
