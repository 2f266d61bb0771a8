// Integers and short texts, little-endian, appended to and taken from strings.
#ifndef TESSERA_COLLECTIVES_CHANNEL_BYTE_CODEC_H_
#define TESSERA_COLLECTIVES_CHANNEL_BYTE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera::collectives::bootstrap {

template <typename Int>
void PutInt(Int value, std::string* bytes) {
  auto bits = static_cast<std::make_unsigned_t<Int>>(value);
  for (size_t i = 0; i < sizeof(Int); ++i) {
    bytes->push_back(static_cast<char>(bits >> (8 * i)));
  }
}

// Takes an integer off the front. False, with nothing changed, where `bytes` is
// too short.
template <typename Int>
bool TakeInt(std::string_view* bytes, Int* value) {
  if (bytes->size() < sizeof(Int)) return false;
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(Int); ++i) {
    bits |= uint64_t{static_cast<unsigned char>((*bytes)[i])} << (8 * i);
  }
  *value = static_cast<Int>(bits);
  bytes->remove_prefix(sizeof(Int));
  return true;
}

// A text behind its size. TakeText: at most `max_bytes` of it.
inline void PutText(std::string_view text, std::string* bytes) {
  PutInt(static_cast<uint32_t>(text.size()), bytes);
  bytes->append(text);
}

inline bool TakeText(std::string_view* bytes, size_t max_bytes,
                     std::string* text) {
  uint32_t size = 0;
  std::string_view rest = *bytes;
  if (!TakeInt(&rest, &size) || size > max_bytes || size > rest.size()) {
    return false;
  }
  text->assign(rest.substr(0, size));
  rest.remove_prefix(size);
  *bytes = rest;
  return true;
}

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_BYTE_CODEC_H_
