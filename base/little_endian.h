// Integers as little-endian bytes, lowest byte first: the encoding of files and
// messages that other machines read.
//
//   std::string bytes;
//   AppendLittleEndian(uint32_t{7}, &bytes);          // "\7\0\0\0"
//   std::string_view rest = bytes;
//   uint32_t value = 0;
//   if (!TakeLittleEndian(&rest, &value)) return TooShort();
#ifndef TESSERA_BASE_LITTLE_ENDIAN_H_
#define TESSERA_BASE_LITTLE_ENDIAN_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

// Writes sizeof(T) bytes.
template <std::integral T>
void StoreLittleEndian(T value, std::byte* to) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>((bits >> (8 * i)) & 0xff);
  }
}

// Reads sizeof(T) bytes.
template <std::integral T>
T LoadLittleEndian(const std::byte* from) {
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits |= std::to_integer<uint64_t>(from[i]) << (8 * i);
  }
  return static_cast<T>(bits);
}

template <std::integral T>
void AppendLittleEndian(T value, std::string* bytes) {
  bytes->resize(bytes->size() + sizeof(T));
  StoreLittleEndian(value, reinterpret_cast<std::byte*>(
                               bytes->data() + bytes->size() - sizeof(T)));
}

// Removes an integer from the front of `bytes`. Returns false without a change
// if `bytes` is too short.
template <std::integral T>
bool TakeLittleEndian(std::string_view* bytes, T* value) {
  if (bytes->size() < sizeof(T)) return false;
  *value =
      LoadLittleEndian<T>(reinterpret_cast<const std::byte*>(bytes->data()));
  bytes->remove_prefix(sizeof(T));
  return true;
}

}  // namespace tessera

#endif  // TESSERA_BASE_LITTLE_ENDIAN_H_
