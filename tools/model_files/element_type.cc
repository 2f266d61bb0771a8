#include "tools/model_files/element_type.h"

#include <iterator>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"

namespace tessera::model_files {
namespace {

struct Entry {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};

// By ElementType.
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

const Entry& EntryOf(ElementType type) {
  return kEntries[static_cast<size_t>(type)];
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

absl::StatusOr<DType> ToDType(ElementType type) {
  if (EntryOf(type).dtype.has_value()) return *EntryOf(type).dtype;
  return absl::UnimplementedError(absl::StrCat("tensors have no dtype ",
                                               ElementTypeName(type),
                                               "; read the bytes instead"));
}

absl::StatusOr<ElementType> FromDType(DType dtype) {
  for (size_t i = 0; i < std::size(kEntries); ++i) {
    if (kEntries[i].dtype == dtype) return static_cast<ElementType>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", static_cast<int>(dtype), " is no valid DType"));
}

}  // namespace tessera::model_files
