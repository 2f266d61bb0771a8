// Header: what a safetensors file holds, and where.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       Header header,
//       LayOut({{"w", ElementType::kBF16, {4, 3}}}, {{"format", "pt"}}));
//   TESSERA_ASSIGN_OR_RETURN(std::string json, FormatHeader(header));
//   TESSERA_ASSIGN_OR_RETURN(header, ParseHeader(json, header.data_bytes()));
//
// A file is 8 bytes of the header's length, little-endian; the header, a JSON
// object of {"dtype", "shape", "data_offsets": [begin, end)} by tensor name and
// of texts under "__metadata__"; and the data, which the tensors fill without
// overlap or hole. Source: the format's description at
// https://github.com/huggingface/safetensors.
#ifndef TESSERA_TOOLS_MODEL_FILES_HEADER_H_
#define TESSERA_TOOLS_MODEL_FILES_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/model_files/element_type.h"

namespace tessera::model_files {

// Of the header's JSON; the format's own bound.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

struct TensorSpec {
  std::string name = {};
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape = {};

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// The bytes of its elements. InvalidArgument where a size is negative or the
// product exceeds 2^63-1.
absl::StatusOr<int64_t> TensorBytes(const TensorSpec& spec);

struct TensorEntry {
  TensorSpec spec = {};
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

// Reads the JSON of a header whose file has `data_bytes` bytes of data.
// InvalidArgument, naming the tensor, where it is no JSON object, a name comes
// twice, a dtype is not known, a size is no integer in [0, 2^63), the offsets
// are not those of the shape, tensors overlap or leave holes, or their end is
// not that of the data.
absl::StatusOr<Header> ParseHeader(std::string_view json, int64_t data_bytes);

// Gives the tensors their places: wider elements first, so that each tensor is
// aligned to its elements, else in the given order. InvalidArgument where a
// name comes twice or is "__metadata__", or the shapes are too large.
absl::StatusOr<Header> LayOut(std::vector<TensorSpec> tensors,
                              std::map<std::string, std::string> metadata);

// The JSON, with spaces up to a multiple of 8 bytes, so that the data is
// aligned. InvalidArgument where a text is not UTF-8 or the JSON is longer than
// kMaxHeaderBytes.
absl::StatusOr<std::string> FormatHeader(const Header& header);

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_HEADER_H_
