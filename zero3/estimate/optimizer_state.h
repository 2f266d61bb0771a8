// OptimizerState: what an optimizer keeps for each trained element.
//
//   OptimizerState adamw;                       // two float32 moments
//   MomentBytes({.type = MomentType::kBlock8, .block = 256}, 1024);  // 2080
#ifndef TESSERA_ZERO3_ESTIMATE_OPTIMIZER_STATE_H_
#define TESSERA_ZERO3_ESTIMATE_OPTIMIZER_STATE_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "topology/config/options/named_enum.h"

namespace tessera::zero3 {

// Found by argument-dependent look-up for the enumerations of this namespace.
using topology::AbslParseFlag;
using topology::AbslUnparseFlag;
using topology::operator<<;

enum class MomentType {
  kFp32,
  kBf16,
  // One byte an element and one float32 scale a block; arXiv 2110.02861.
  kBlock8,
};

struct OptimizerState {
  // AdamW has two, SGD with momentum one, plain SGD none.
  int64_t moments = 2;
  MomentType type = MomentType::kFp32;
  // Elements of a block of kBlock8.
  int64_t block = 256;

  friend bool operator==(const OptimizerState&,
                         const OptimizerState&) = default;
};

// Bytes of all moments of a slot of that many elements. With kBlock8 the blocks
// begin where the slot does, and the last may be shorter. Precondition: no
// argument is negative, and block is at least 1.
constexpr int64_t MomentBytes(const OptimizerState& state, int64_t elements) {
  if (state.type == MomentType::kFp32) return state.moments * elements * 4;
  if (state.type == MomentType::kBf16) return state.moments * elements * 2;
  const int64_t blocks =
      elements / state.block + (elements % state.block == 0 ? 0 : 1);
  return state.moments * (elements + blocks * 4);
}

}  // namespace tessera::zero3

template <>
struct tessera::topology::EnumNames<tessera::zero3::MomentType> {
  static constexpr std::string_view kWhat = "type of the optimizer's moments";
  static constexpr auto kTable = std::to_array<NamedValue<zero3::MomentType>>({
      {"fp32", zero3::MomentType::kFp32},
      {"bf16", zero3::MomentType::kBf16},
      {"block8", zero3::MomentType::kBlock8},
  });
};

#endif  // TESSERA_ZERO3_ESTIMATE_OPTIMIZER_STATE_H_
