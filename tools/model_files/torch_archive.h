// A tensor as torch.save writes it: a zip archive, without compression, of the
// pickle data.pkl and the bytes data/0. DCP's files are sequences of these.
//
//   TESSERA_ASSIGN_OR_RETURN(const TorchTensor tensor,
//                            OpenTorchTensor(fd, /*begin=*/0, file_bytes));
//   TESSERA_RETURN_IF_ERROR(ReadAt(fd, tensor.data_begin, bytes));
//
// Source: torch/serialization.py, caffe2/serialize/inline_container.cc, and
// APPNOTE.TXT 6.3.10 of PKWARE for zip and zip64.
#ifndef TESSERA_TOOLS_MODEL_FILES_TORCH_ARCHIVE_H_
#define TESSERA_TOOLS_MODEL_FILES_TORCH_ARCHIVE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"

namespace tessera::model_files {

struct TorchTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape = {};
  int64_t data_begin = 0;  // The byte of the file at which its elements begin.
};

// Finds the tensor in the archive of `length` bytes at byte `begin` of a file.
// InvalidArgument if the archive is malformed or holds something other than a
// tensor; Unimplemented if it is compressed, or the tensor is not contiguous or
// has a type without a DType.
absl::StatusOr<TorchTensor> OpenTorchTensor(int fd, int64_t begin,
                                            int64_t length);

// The archive of a tensor, which torch.load reads also with weights_only.
// `bytes` are its elements, fewer than 4 GB; `dtype` is one that
// ParseTorchType returns.
std::string TorchTensorArchive(DType dtype, std::span<const int64_t> shape,
                               std::span<const std::byte> bytes);

// The archive of any other pickle.
std::string TorchObjectArchive(std::string_view pickle);

// "float32" of torch.float32; `dtype` is one that ParseTorchType returns.
std::string_view TorchTypeName(DType dtype);
// Unimplemented, with the name, for types of 8-bit floats, complex numbers and
// booleans.
absl::StatusOr<DType> ParseTorchType(std::string_view name);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_TORCH_ARCHIVE_H_
