// Elements where an algorithm finds and leaves them.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_VECTOR_VIEW_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_VECTOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/operation/blocks.h"

namespace tessera::collectives {

// The first of many elements of one size. Null where there are none.
template <typename Byte>
struct BasicVectorView {
  Byte* data = nullptr;
  int64_t element = 1;  // Bytes of one.

  constexpr BasicVectorView() = default;
  constexpr BasicVectorView(Byte* data, int64_t element)
      : data(data), element(element) {}
  constexpr operator BasicVectorView<const std::byte>() const {
    return {data, element};
  }

  Byte* at(int64_t first) const {
    return data == nullptr ? nullptr : data + first * element;
  }
  BasicVectorView From(int64_t first) const { return {at(first), element}; }
  std::span<Byte> Range(int64_t first, int64_t length) const {
    return {at(first), static_cast<size_t>(length * element)};
  }
  // Blocks [begin, end), which lie one after another.
  std::span<Byte> Range(const Blocks& blocks, int64_t begin,
                        int64_t end) const {
    return Range(blocks.offset(begin),
                 blocks.offset(end) - blocks.offset(begin));
  }
};

using VectorView = BasicVectorView<std::byte>;
using ConstVectorView = BasicVectorView<const std::byte>;

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_VECTOR_VIEW_H_
