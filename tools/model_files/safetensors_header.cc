#include "tools/model_files/safetensors_header.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::model_files {

namespace {

struct Entry {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};

// Indexed by ElementType.
constexpr Entry kEntries[] = {
    {"BOOL", 1, std::nullopt},      {"U8", 1, DType::kU8},
    {"I8", 1, DType::kI8},          {"F8_E5M2", 1, DType::kF8E5M2},
    {"F8_E4M3", 1, DType::kF8E4M3}, {"I16", 2, std::nullopt},
    {"U16", 2, std::nullopt},       {"F16", 2, DType::kF16},
    {"BF16", 2, DType::kBF16},      {"I32", 4, DType::kI32},
    {"U32", 4, std::nullopt},       {"F32", 4, DType::kF32},
    {"I64", 8, DType::kI64},        {"U64", 8, std::nullopt},
    {"F64", 8, DType::kF64},
};

constexpr Entry kOtherType = {"other", 0, std::nullopt};

const Entry& EntryOf(ElementType type) {
  return type == ElementType::kOther ? kOtherType
                                     : kEntries[static_cast<size_t>(type)];
}

}  // namespace

std::string_view ElementTypeName(ElementType type) {
  return EntryOf(type).name;
}

int64_t ElementBytes(ElementType type) { return EntryOf(type).bytes; }

absl::StatusOr<ElementType> ParseElementType(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < std::size(kEntries); ++i) {
    if (kEntries[i].name == name) return static_cast<ElementType>(i);
    absl::StrAppend(&known, i == 0 ? "" : " ", kEntries[i].name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dtype ", Quoted(name), " is not known; the known ones are ", known));
}

absl::StatusOr<ElementType> FromDType(DType dtype) {
  for (size_t i = 0; i < std::size(kEntries); ++i) {
    if (kEntries[i].dtype == dtype) return static_cast<ElementType>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", static_cast<int>(dtype), " is not a valid DType"));
}

namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";

absl::Status Malformed(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Quoted(name), ": ", what));
}

// Reads `key`, which must be an array of non-negative integers.
absl::StatusOr<std::vector<int64_t>> ReadSizes(const Json& tensor,
                                               const char* key) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"", key, "\" must be an array of integers, found ",
                     found == tensor.end() ? "none" : DescribeJson(*found)));
  }
  std::vector<int64_t> sizes;
  for (const Json& value : *found) {
    const std::optional<int64_t> size = JsonInteger(value);
    if (!size.has_value() || *size < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "key \"", key, "\" must hold integers from 0 to 2^63-1, found ",
          DescribeJson(value)));
    }
    sizes.push_back(*size);
  }
  return sizes;
}

absl::Status CheckOffsets(const TensorEntry& entry) {
  if (entry.spec.type == ElementType::kOther) {
    if (entry.begin <= entry.end) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets are [", entry.begin, ", ", entry.end, ")"));
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(entry.spec));
  if (entry.begin <= entry.end && entry.bytes() == bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "shape [", absl::StrJoin(entry.spec.shape, ", ").substr(0, 100), "] of ",
      entry.spec.type_name(), " takes ", bytes, " bytes, data_offsets are [",
      entry.begin, ", ", entry.end, ")"));
}

absl::StatusOr<TensorEntry> ReadTensor(const std::string& name,
                                       const Json& tensor) {
  if (!tensor.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected an object with dtype, shape and data_offsets, found ",
        DescribeJson(tensor)));
  }
  for (const auto& [key, value] : tensor.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown key ", Quoted(key),
                       "; the format has dtype, shape and data_offsets"));
    }
  }
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end() || !dtype->is_string()) {
    return absl::InvalidArgumentError("key \"dtype\" must be a string");
  }
  TensorEntry entry = {.spec = {.name = name}};
  const auto& type = dtype->get_ref<const std::string&>();
  entry.spec.type = ParseElementType(type).value_or(ElementType::kOther);
  if (entry.spec.type == ElementType::kOther) entry.spec.other_type = type;
  TESSERA_ASSIGN_OR_RETURN(entry.spec.shape, ReadSizes(tensor, "shape"));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                           ReadSizes(tensor, "data_offsets"));
  if (offsets.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data_offsets has ", offsets.size(), " numbers; it needs 2"));
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  TESSERA_RETURN_IF_ERROR(CheckOffsets(entry));
  return entry;
}

absl::Status ReadMetadata(const Json& value, Header& header) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("__metadata__ must be an object of strings, found ",
                     DescribeJson(value)));
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("__metadata__ ", Quoted(key),
                       " must be a string, found ", DescribeJson(text)));
    }
    header.metadata[key] = text.get<std::string>();
  }
  return absl::OkStatus();
}

// Checks that the tensors, which are sorted by begin, fill [0, data_bytes).
absl::Status CheckTiling(const Header& header, int64_t data_bytes) {
  int64_t end = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != end) {
      return Malformed(
          entry.spec.name,
          absl::StrCat("begins at byte ", entry.begin, " of the data, ",
                       entry.begin < end ? "inside the tensor before it, which"
                                         : "after a gap: the tensor before it",
                       " ends at ", end));
    }
    end = entry.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the tensors take ", end, " bytes, the file holds ", data_bytes,
      " bytes of data: it is ", end > data_bytes ? "cut short" : "too long"));
}

}  // namespace

absl::StatusOr<DType> DTypeOf(const StoredTensor& spec) {
  const std::optional<DType> dtype = EntryOf(spec.type).dtype;
  if (dtype.has_value()) return *dtype;
  std::string known;
  for (const Entry& entry : kEntries) {
    if (entry.dtype.has_value()) absl::StrAppend(&known, " ", entry.name);
  }
  return absl::UnimplementedError(absl::StrCat(
      "tensor ", Quoted(spec.name), " is of type ", Quoted(spec.type_name()),
      ", which is not supported for "
      "weights; supported are",
      known));
}

absl::StatusOr<int64_t> TensorBytes(const StoredTensor& spec) {
  if (spec.type == ElementType::kOther) {
    return Malformed(spec.name,
                     absl::StrCat("the size of type ", Quoted(spec.type_name()),
                                  " is not known"));
  }
  int64_t bytes = ElementBytes(spec.type);
  bool overflow = false;
  // A zero makes the product zero, however large the other dimensions are.
  const bool empty =
      std::find(spec.shape.begin(), spec.shape.end(), 0) != spec.shape.end();
  for (const int64_t size : spec.shape) {
    if (size < 0) {
      return Malformed(spec.name, absl::StrCat("size ", size, " is negative"));
    }
    if (!empty) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (empty) return 0;
  if (!overflow) return bytes;
  return Malformed(
      spec.name,
      absl::StrCat("shape [", absl::StrJoin(spec.shape, ", ").substr(0, 100),
                   "] takes more than 2^63-1 bytes"));
}

absl::StatusOr<Header> ParseHeader(std::string_view json, int64_t data_bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      const Json document,
      ParseJson(json, {.max_bytes = kMaxHeaderBytes, .max_depth = 4}));
  if (!document.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected an object of tensors, found ", DescribeJson(document)));
  }
  Header header;
  for (const auto& [name, value] : document.items()) {
    if (name == kMetadata) {
      TESSERA_RETURN_IF_ERROR(ReadMetadata(value, header));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(TensorEntry entry, ReadTensor(name, value),
                             Malformed(name, _.message()));
    header.tensors.push_back(std::move(entry));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.spec.name) <
                     std::tie(b.begin, b.end, b.spec.name);
            });
  TESSERA_RETURN_IF_ERROR(CheckTiling(header, data_bytes));
  return header;
}

absl::StatusOr<Header> LayOut(std::vector<StoredTensor> tensors,
                              std::map<std::string, std::string> metadata) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return ElementBytes(a.type) > ElementBytes(b.type);
                   });
  Header header = {.metadata = std::move(metadata)};
  std::set<std::string_view> names = {kMetadata};
  int64_t end = 0;
  for (StoredTensor& spec : tensors) {
    if (!names.insert(spec.name).second) {
      return Malformed(spec.name,
                       spec.name == kMetadata
                           ? "the format reserves this name for texts"
                           : "comes twice; give it once");
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(spec));
    const int64_t begin = end;
    if (__builtin_add_overflow(end, bytes, &end)) {
      return Malformed(spec.name, "the file would exceed 2^63-1 bytes");
    }
    header.tensors.push_back({.spec = spec, .begin = begin, .end = end});
  }
  return header;
}

absl::StatusOr<std::string> FormatHeader(const Header& header) {
  Json document = Json::object();
  if (!header.metadata.empty())
    document[std::string(kMetadata)] = header.metadata;
  for (const TensorEntry& entry : header.tensors) {
    document[entry.spec.name] = {
        {"dtype", entry.spec.type_name()},
        {"shape", entry.spec.shape},
        {"data_offsets", {entry.begin, entry.end}},
    };
  }
  std::string json = DumpJson(document);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  // Rejects strings that do not survive a round trip, above all invalid UTF-8.
  TESSERA_ASSIGN_OR_RETURN(const Header back,
                           ParseHeader(json, header.data_bytes()));
  if (back.metadata == header.metadata &&
      std::is_permutation(back.tensors.begin(), back.tensors.end(),
                          header.tensors.begin(), header.tensors.end())) {
    return json;
  }
  return absl::InvalidArgumentError(
      "a name or a text of the metadata is not UTF-8, or comes twice");
}

}  // namespace tessera::model_files
