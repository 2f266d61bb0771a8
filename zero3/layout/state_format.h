// StateFormat describes how the elements of one part of a parameter's state are
// stored; CopyElements copies ranges of them.
//
//   StateFormatOf(parameter, moments, StatePart::kFirstMoment);  // "8-bit/256"
//   CopyElements(from, to, 512, 1024);
//
// A part is an array over the elements of the parameter. A block-wise format
// stores the scales of the blocks first, one f32 each, then one byte per
// element (offload/optimizer/parameter_range.h).
#ifndef TESSERA_ZERO3_LAYOUT_STATE_FORMAT_H_
#define TESSERA_ZERO3_LAYOUT_STATE_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype/dtype.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// The kinds of state of an element. The enumerators' values are stored in files
// and must not change.
enum class StatePart : uint8_t {
  kValue = 0,
  kMaster = 1,
  kFirstMoment = 2,
  kSecondMoment = 3,
};

inline constexpr std::array<StatePart, 4> kAllStateParts = {
    StatePart::kValue, StatePart::kMaster, StatePart::kFirstMoment,
    StatePart::kSecondMoment};

constexpr bool IsValid(StatePart part) {
  return static_cast<size_t>(part) < kAllStateParts.size();
}

// "value", "master", "first_moment", "second_moment"; "invalid" otherwise.
std::string_view StatePartName(StatePart part);

struct StateFormat {
  DType dtype = DType::kF32;
  int64_t block = 0;  // Elements that share a scale; 0: no scales.

  int64_t ScaleBytes(int64_t elements) const {
    return block == 0 ? 0 : 4 * (elements / block + (elements % block != 0));
  }
  // Precondition: 0 <= elements <= kMaxLayoutElements.
  int64_t BytesOf(int64_t elements) const {
    return ScaleBytes(elements) + elements * SizeInBytes(dtype);
  }
  // "f32", "8-bit/256".
  std::string ToString() const;

  friend bool operator==(const StateFormat&, const StateFormat&) = default;
};

// The moments that an optimizer keeps for each trained element.
struct MomentKinds {
  // Implicit: two moments of one format, as for AdamW.
  MomentKinds(const offload::MomentFormat& of = {}, int64_t moments = 2)
      : format(of), count(moments) {}

  offload::MomentFormat format;
  // Two for AdamW and Muon, one (the first moment) for Lion and SGD with
  // momentum, 0 for SGD without and Adafactor. Parameters that Muon
  // orthogonalizes have at most the first.
  int64_t count;

  // "2 of f32".
  std::string ToString() const;
  friend bool operator==(const MomentKinds&, const MomentKinds&) = default;
};

// nullopt if the parameter has no such part: frozen parameters have only a
// value, only trained 16-bit parameters have a master weight, and a second
// moment exists if there are two and the parameter is not orthogonalized.
std::optional<StateFormat> StateFormatOf(const ModelParameter& parameter,
                                         const MomentKinds& moments,
                                         StatePart part);

// Memory for elements [begin, begin + capacity) of a parameter. `Byte` is
// std::byte or const std::byte.
template <typename Byte>
struct BasicStateArray {
  StateFormat format = {};
  int64_t begin = 0;
  int64_t capacity = 0;
  Byte* bytes = nullptr;
};
using StateArray = BasicStateArray<std::byte>;
using ConstStateArray = BasicStateArray<const std::byte>;

// A copy of bytes; empty if `bytes` is 0.
struct ByteCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

// The copies of elements [begin, end): their scales and their values.
// Preconditions: both arrays have the same format and hold these elements; in a
// block-wise format, the distances of `begin` and `end` from the begin of both
// arrays are multiples of the block, except for an `end` at the end of the
// parameter.
std::array<ByteCopy, 2> CopiesOf(const ConstStateArray& from,
                                 const StateArray& to, int64_t begin,
                                 int64_t end);

// Executes these copies, in memory of the host.
void CopyElements(const ConstStateArray& from, const StateArray& to,
                  int64_t begin, int64_t end);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_LAYOUT_STATE_FORMAT_H_
