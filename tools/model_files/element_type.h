// ElementType: the element types that a safetensors file can name.
//
//   TESSERA_ASSIGN_OR_RETURN(ElementType type, ParseElementType("BF16"));
//   TESSERA_ASSIGN_OR_RETURN(DType dtype, ToDType(type));
//
// Those that base has no DType for (BOOL, I16, U16, U32, U64) are read and
// written as bytes. Types below a byte (F4, F6) are not known.
#ifndef TESSERA_TOOLS_MODEL_FILES_ELEMENT_TYPE_H_
#define TESSERA_TOOLS_MODEL_FILES_ELEMENT_TYPE_H_

#include <cstdint>
#include <ostream>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"

namespace tessera::model_files {

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
};

// As in the files: "BOOL", "F8_E5M2", "BF16".
std::string_view ElementTypeName(ElementType type);
int64_t ElementBytes(ElementType type);

// InvalidArgument lists the names.
absl::StatusOr<ElementType> ParseElementType(std::string_view name);

// Unimplemented where base has no such DType.
absl::StatusOr<DType> ToDType(ElementType type);
// InvalidArgument where `dtype` is not valid.
absl::StatusOr<ElementType> FromDType(DType dtype);

inline std::ostream& operator<<(std::ostream& os, ElementType type) {
  return os << ElementTypeName(type);
}

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_ELEMENT_TYPE_H_
