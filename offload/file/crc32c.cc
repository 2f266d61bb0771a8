#include "offload/file/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define TESSERA_CRC32C_TARGET "sse4.2"
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define TESSERA_CRC32C_TARGET "+crc"
#endif

namespace tessera::offload {
namespace {

// Polynomials are bit-reversed: the highest bit is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t kOne = uint32_t{1} << 31;

constexpr uint32_t TimesX(uint32_t a) {
  return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0);
}

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = TimesX(b);
  }
  return product;
}

// x^(8 n): the factor by which n zero bytes multiply a checksum.
constexpr uint32_t PowerOfBytes(uint64_t n) {
  uint32_t power = kOne;
  for (uint32_t square = kOne >> 8; n != 0; n >>= 1) {
    if ((n & 1) != 0) power = Multiply(power, square);
    square = Multiply(square, square);
  }
  return power;
}

using Table = std::array<uint32_t, 256>;

// tables[k][v]: the checksum of byte v followed by k zero bytes.
constexpr std::array<Table, 8> ZeroTables() {
  std::array<Table, 8> tables = {};
  for (uint32_t v = 0; v < 256; ++v) {
    uint32_t crc = v;
    for (int bit = 0; bit < 8; ++bit) crc = TimesX(crc);
    tables[0][v] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t v = 0; v < 256; ++v) {
      const uint32_t crc = tables[k - 1][v];
      tables[k][v] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kZeroTables = ZeroTables();

uint64_t Load64(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

uint32_t PortableState(uint32_t state, const std::byte* data, size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint32_t next = 0;
    for (size_t k = 0; k < 8; ++k) {
      const uint32_t mixed = k < 4 ? (state >> (8 * k)) & 0xff : 0;
      next ^= kZeroTables[7 - k][std::to_integer<uint32_t>(data[k]) ^ mixed];
    }
    state = next;
  }
  for (; bytes > 0; ++data, --bytes) {
    const uint32_t v = (state ^ std::to_integer<uint32_t>(*data)) & 0xff;
    state = (state >> 8) ^ kZeroTables[0][v];
  }
  return state;
}

#if defined(TESSERA_CRC32C_TARGET)

// The instruction has a latency of 3 and a throughput of 1: three streams of
// this many bytes hide it.
constexpr size_t kStream = 2048;

// Multiplies by x^(8 kStream), a byte at a time.
constexpr std::array<Table, 4> ShiftTables() {
  std::array<Table, 4> tables = {};
  constexpr uint32_t kPower = PowerOfBytes(kStream);
  for (size_t k = 0; k < 4; ++k) {
    for (size_t bit = 0; bit < 8; ++bit) {
      tables[k][size_t{1} << bit] =
          Multiply(kPower, uint32_t{1} << (8 * k + bit));
    }
    for (size_t v = 1; v < 256; ++v) {
      const size_t low = v & (~v + 1);
      if (low != v) tables[k][v] = tables[k][v ^ low] ^ tables[k][low];
    }
  }
  return tables;
}

constexpr std::array<Table, 4> kShiftTables = ShiftTables();

uint32_t ShiftByStream(uint32_t state) {
  return kShiftTables[0][state & 0xff] ^ kShiftTables[1][(state >> 8) & 0xff] ^
         kShiftTables[2][(state >> 16) & 0xff] ^ kShiftTables[3][state >> 24];
}

#if defined(__x86_64__)
bool HasInstruction() { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target(TESSERA_CRC32C_TARGET))) uint64_t Next(uint64_t state,
                                                             uint64_t word) {
  return _mm_crc32_u64(state, word);
}
__attribute__((target(TESSERA_CRC32C_TARGET))) uint32_t Next(uint32_t state,
                                                             uint8_t byte) {
  return _mm_crc32_u8(state, byte);
}
#else
bool HasInstruction() {
  constexpr unsigned long kCrc32 = 1 << 7;  // HWCAP_CRC32.
  return (getauxval(AT_HWCAP) & kCrc32) != 0;
}

__attribute__((target(TESSERA_CRC32C_TARGET))) uint64_t Next(uint64_t state,
                                                             uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(state), word);
}
__attribute__((target(TESSERA_CRC32C_TARGET))) uint32_t Next(uint32_t state,
                                                             uint8_t byte) {
  return __crc32cb(state, byte);
}
#endif

__attribute__((target(TESSERA_CRC32C_TARGET))) uint32_t InstructionState(
    uint32_t state, const std::byte* data, size_t bytes) {
  for (; bytes >= 3 * kStream; data += 3 * kStream, bytes -= 3 * kStream) {
    uint64_t a = state;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kStream; i += 8) {
      a = Next(a, Load64(data + i));
      b = Next(b, Load64(data + kStream + i));
      c = Next(c, Load64(data + 2 * kStream + i));
    }
    state = ShiftByStream(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    state = ShiftByStream(state) ^ static_cast<uint32_t>(c);
  }
  uint64_t tail = state;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    tail = Next(tail, Load64(data));
  }
  state = static_cast<uint32_t>(tail);
  for (; bytes > 0; ++data, --bytes) {
    state = Next(state, std::to_integer<uint8_t>(*data));
  }
  return state;
}

#endif  // defined(TESSERA_CRC32C_TARGET)

uint32_t FastState(uint32_t state, std::span<const std::byte> bytes) {
#if defined(TESSERA_CRC32C_TARGET)
  static const bool has_instruction = HasInstruction();
  if (has_instruction) {
    return InstructionState(state, bytes.data(), bytes.size());
  }
#endif
  return PortableState(state, bytes.data(), bytes.size());
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> b) {
  return ~FastState(~crc, b);
}

uint32_t CombineCrc32c(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
  return Multiply(PowerOfBytes(bytes_b), crc_a) ^ crc_b;
}

namespace crc32c_internal {

uint32_t ExtendPortable(uint32_t crc, std::span<const std::byte> b) {
  return ~PortableState(~crc, b.data(), b.size());
}

}  // namespace crc32c_internal

}  // namespace tessera::offload
