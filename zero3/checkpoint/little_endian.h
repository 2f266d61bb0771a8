// Integers as bytes, the lowest first, on any processor.
#ifndef TESSERA_ZERO3_CHECKPOINT_LITTLE_ENDIAN_H_
#define TESSERA_ZERO3_CHECKPOINT_LITTLE_ENDIAN_H_

#include <concepts>
#include <cstddef>

namespace tessera::zero3 {

template <std::unsigned_integral T>
void StoreLittleEndian(T value, std::byte* to) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
}

template <std::unsigned_integral T>
T LoadLittleEndian(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<T>(from[i]) << (8 * i));
  }
  return value;
}

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_LITTLE_ENDIAN_H_
