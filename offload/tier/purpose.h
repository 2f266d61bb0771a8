// Purpose: what bytes are held for. Every tier counts them apart.
#ifndef TESSERA_OFFLOAD_TIER_PURPOSE_H_
#define TESSERA_OFFLOAD_TIER_PURPOSE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace tessera::offload {

// The values are stable: block files store them.
enum class Purpose : uint8_t {
  kParameters = 0,
  kGradients = 1,
  kOptimizer = 2,
  kActivations = 3,
  kBuffers = 4,  // whatever comes and goes: staging, bounce buffers
};

inline constexpr std::array<Purpose, 5> kAllPurposes = {
    Purpose::kParameters, Purpose::kGradients, Purpose::kOptimizer,
    Purpose::kActivations, Purpose::kBuffers};

// False for a number that names no purpose, as one read from a file may be.
constexpr bool IsValid(Purpose purpose) {
  return static_cast<size_t>(purpose) < kAllPurposes.size();
}

// "parameters", "gradients", "optimizer", "activations", "buffers"; "invalid"
// where `purpose` is not valid.
constexpr std::string_view PurposeName(Purpose purpose) {
  constexpr std::array<std::string_view, kAllPurposes.size()> kNames = {
      "parameters", "gradients", "optimizer", "activations", "buffers"};
  return IsValid(purpose) ? kNames[static_cast<size_t>(purpose)] : "invalid";
}

inline std::ostream& operator<<(std::ostream& os, Purpose purpose) {
  return os << PurposeName(purpose);
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_PURPOSE_H_
