// Fnv1a: the 64-bit FNV-1a hash (Fowler, Noll, Vo; draft-eastlake-fnv). Equal
// on all machines and in all builds, unlike absl::Hash, so that ranks and files
// agree on it. Detects damage, not tampering.
//
//   const uint64_t key = Fnv1a("layers.0.norm.weight");
#ifndef TESSERA_BASE_FNV1A_H_
#define TESSERA_BASE_FNV1A_H_

#include <cstdint>
#include <string_view>

namespace tessera {

constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace tessera

#endif  // TESSERA_BASE_FNV1A_H_
