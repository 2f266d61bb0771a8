// The header of a safetensors file: the names, element types, shapes and
// offsets of its tensors.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Header header,
//       LayOut({{"w", ElementType::kBF16, {4, 3}}}, {{"format", "pt"}}));
//   TESSERA_ASSIGN_OR_RETURN(std::string json, FormatHeader(header));
//   TESSERA_ASSIGN_OR_RETURN(header, ParseHeader(json, header.data_bytes()));
//
// A file consists of 8 bytes with the length of the header, little-endian; the
// header, a JSON object that maps tensor names to {"dtype", "shape",
// "data_offsets": [begin, end)} and "__metadata__" to an object of strings; and
// the data, which the tensors fill without overlaps or holes. Source: the
// format's description at https://github.com/huggingface/safetensors.
#ifndef TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_HEADER_H_
#define TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"

namespace tessera::model_files {

// The element types of the format. Types without a DType (BOOL, I16, U16, U32,
// U64) are read and written as bytes. Other types, such as C64, F8_E8M0 and F4,
// and those of later versions are kOther: their tensors are listed and read as
// bytes, and cannot be written.
enum class ElementType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kOther,
};

// The name in files, such as "BOOL", "F8_E5M2" or "BF16".
std::string_view ElementTypeName(ElementType type);
// 0 for kOther.
int64_t ElementBytes(ElementType type);

// InvalidArgument, with the known names, for an unknown name.
absl::StatusOr<ElementType> ParseElementType(std::string_view name);

// InvalidArgument if `dtype` is invalid.
absl::StatusOr<ElementType> FromDType(DType dtype);

inline std::ostream& operator<<(std::ostream& os, ElementType type) {
  return os << ElementTypeName(type);
}

// The largest header that the format allows.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

// A tensor of a file: its name, element type and shape.
struct StoredTensor {
  std::string name = {};
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape = {};
  std::string other_type = {};  // The name of the type if it is kOther.

  std::string_view type_name() const {
    return type == ElementType::kOther ? other_type : ElementTypeName(type);
  }
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

// Unimplemented, with the tensor and its type, if there is no corresponding
// DType.
absl::StatusOr<DType> DTypeOf(const StoredTensor& spec);

// The size of the data in bytes. InvalidArgument if a dimension is negative,
// the product exceeds 2^63-1, or the size of the type is unknown.
absl::StatusOr<int64_t> TensorBytes(const StoredTensor& spec);

struct TensorEntry {
  StoredTensor spec = {};
  int64_t begin = 0;  // Bytes from the start of the data.
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct Header {
  std::vector<TensorEntry> tensors = {};  // In the order of the data.
  std::map<std::string, std::string> metadata = {};

  int64_t data_bytes() const {
    return tensors.empty() ? 0 : tensors.back().end;
  }
  friend bool operator==(const Header&, const Header&) = default;
};

// Parses the JSON header of a file with `data_bytes` bytes of data.
// InvalidArgument, with the name of the tensor, if the JSON is not an object, a
// name is duplicate, a dtype is not a string, a dimension is not an integer in
// [0, 2^63), the offsets contradict the shape, or the tensors overlap, leave
// holes or do not end at the end of the data.
absl::StatusOr<Header> ParseHeader(std::string_view json, int64_t data_bytes);

// Assigns offsets to the tensors: wider elements first, so that each tensor is
// aligned to its element size, otherwise in the given order. InvalidArgument if
// a name is duplicate or "__metadata__", or the shapes are too large.
absl::StatusOr<Header> LayOut(std::vector<StoredTensor> tensors,
                              std::map<std::string, std::string> metadata);

// Formats the JSON, padded with spaces to a multiple of 8 bytes to align the
// data. InvalidArgument if a string is not UTF-8 or the JSON is longer than
// kMaxHeaderBytes.
absl::StatusOr<std::string> FormatHeader(const Header& header);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_HEADER_H_
