// CRC-32C (Castagnoli): the checksum of stored blocks.
//
//   uint32_t crc = Crc32c(bytes);
//   crc = ExtendCrc32c(crc, more);
//
// Source: RFC 3720, appendix B.4 (test vectors), polynomial 0x1edc6f41. On
// x86-64 with SSE 4.2 the crc32 instruction processes three interleaved
// streams; other processors use eight tables. The results are identical.
#ifndef TESSERA_OFFLOAD_FILE_CRC32C_H_
#define TESSERA_OFFLOAD_FILE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::offload {

// Returns the checksum of a followed by b, where `crc` is the checksum of a (0
// if a is empty).
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> b);

inline uint32_t Crc32c(std::span<const std::byte> bytes) {
  return ExtendCrc32c(0, bytes);
}

// Returns the checksum of a followed by b, from their checksums and the length
// of b. O(log n).
uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);

namespace crc32c_internal {
// ExtendCrc32c without the crc32 instruction.
uint32_t ExtendPortable(uint32_t crc, std::span<const std::byte> b);
}  // namespace crc32c_internal

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_CRC32C_H_
