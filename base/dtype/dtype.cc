#include "base/dtype/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, kAllDTypes.size()> kNames = {
    "f64",      "f32", "f16", "bf16", "fp8_e4m3",
    "fp8_e5m2", "i64", "i32", "i8",   "u8"};

struct Synonym {
  std::string_view name;
  DType dtype;
};

constexpr std::array<Synonym, 15> kSynonyms = {{
    {"float64", DType::kF64},
    {"double", DType::kF64},
    {"float32", DType::kF32},
    {"float", DType::kF32},
    {"float16", DType::kF16},
    {"half", DType::kF16},
    {"bfloat16", DType::kBF16},
    {"float8_e4m3fn", DType::kF8E4M3},
    {"float8_e5m2", DType::kF8E5M2},
    {"f8e4m3", DType::kF8E4M3},
    {"f8e5m2", DType::kF8E5M2},
    {"int64", DType::kI64},
    {"int32", DType::kI32},
    {"int8", DType::kI8},
    {"uint8", DType::kU8},
}};

std::string SynonymList() {
  return absl::StrJoin(kSynonyms, ", ",
                       [](std::string* out, const Synonym& synonym) {
                         absl::StrAppend(out, synonym.name);
                       });
}

}  // namespace

std::string_view DTypeName(DType dtype) {
  return IsValid(dtype) ? kNames[static_cast<uint8_t>(dtype)] : "invalid";
}

absl::StatusOr<DType> ParseDType(std::string_view text) {
  for (DType dtype : kAllDTypes) {
    if (text == DTypeName(dtype)) return dtype;
  }
  for (const Synonym& synonym : kSynonyms) {
    if (text == synonym.name) return synonym.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype \"", text.substr(0, 40), "\"; expected ",
                   absl::StrJoin(kNames, ", "), ", or ", SynonymList()));
}

bool AbslParseFlag(std::string_view text, DType* dtype, std::string* error) {
  absl::StatusOr<DType> parsed = ParseDType(text);
  if (!parsed.ok()) {
    *error = std::string(parsed.status().message());
    return false;
  }
  *dtype = *parsed;
  return true;
}

std::string AbslUnparseFlag(DType dtype) {
  return std::string(DTypeName(dtype));
}

}  // namespace tessera
