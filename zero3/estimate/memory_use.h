// MemoryUse: bytes by tier and purpose.
//
//   use.At(Purpose::kMoments, Tier::kHost);
//   use.ModelState();   // without buffers
//   use.ToString();     // a table
#ifndef TESSERA_ZERO3_ESTIMATE_MEMORY_USE_H_
#define TESSERA_ZERO3_ESTIMATE_MEMORY_USE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "topology/config/options/named_enum.h"

namespace tessera::zero3 {

// Found by argument-dependent look-up for the enumerations of this namespace.
using topology::AbslParseFlag;
using topology::AbslUnparseFlag;
using topology::operator<<;

// Where bytes lie: in the memory that computes, in the host's, in files.
enum class Tier { kDevice, kHost, kFile };
inline constexpr size_t kTierCount = 3;

enum class Purpose {
  // Model state.
  kParameters,  // values that are the only copy
  kCopies,      // values in 16 bits or less, of which there is a master
  kGradients,
  kMasterWeights,  // float32 values of the optimizer
  kMoments,
  // Buffers.
  kGatherBuffers,    // parameters gathered for use
  kReduceBuckets,    // gradients on their way to their owners
  kPrefetchBuffers,  // state on its way between tiers
};
inline constexpr size_t kPurposeCount = 8;

constexpr bool IsModelState(Purpose purpose) {
  return purpose <= Purpose::kMoments;
}

class MemoryUse {
 public:
  // `bytes` may be negative, for a release.
  void Add(Purpose purpose, Tier tier, int64_t bytes) {
    bytes_[static_cast<size_t>(purpose)][static_cast<size_t>(tier)] += bytes;
  }
  int64_t At(Purpose purpose, Tier tier) const {
    return bytes_[static_cast<size_t>(purpose)][static_cast<size_t>(tier)];
  }
  // Sums.
  int64_t Of(Purpose purpose) const;
  int64_t Of(Tier tier) const;
  int64_t ModelState() const;
  int64_t Buffers() const;
  int64_t Total() const { return ModelState() + Buffers(); }

  // A table of the purposes that use anything, one on a line, in bytes.
  std::string ToString() const;

  friend bool operator==(const MemoryUse&, const MemoryUse&) = default;

 private:
  std::array<std::array<int64_t, kTierCount>, kPurposeCount> bytes_ = {};
};

}  // namespace tessera::zero3

template <>
struct tessera::topology::EnumNames<tessera::zero3::Tier> {
  static constexpr std::string_view kWhat = "memory tier";
  static constexpr auto kTable = std::to_array<NamedValue<zero3::Tier>>({
      {"device", zero3::Tier::kDevice},
      {"host", zero3::Tier::kHost},
      {"file", zero3::Tier::kFile},
  });
};

template <>
struct tessera::topology::EnumNames<tessera::zero3::Purpose> {
  static constexpr std::string_view kWhat = "purpose of memory";
  static constexpr auto kTable = std::to_array<NamedValue<zero3::Purpose>>({
      {"parameters", zero3::Purpose::kParameters},
      {"copies", zero3::Purpose::kCopies},
      {"gradients", zero3::Purpose::kGradients},
      {"master weights", zero3::Purpose::kMasterWeights},
      {"moments", zero3::Purpose::kMoments},
      {"gather buffers", zero3::Purpose::kGatherBuffers},
      {"reduce buckets", zero3::Purpose::kReduceBuckets},
      {"prefetch buffers", zero3::Purpose::kPrefetchBuffers},
  });
};

#endif  // TESSERA_ZERO3_ESTIMATE_MEMORY_USE_H_
