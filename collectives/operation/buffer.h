// Buffer: the elements that an operation reads or writes, owned by the caller.
//
//   std::vector<float> gradients(1000);
//   communicator.AllReduce(Buffer(std::span(gradients)), Reduction::Sum());
//   communicator.Send(ConstBuffer(pointer, 10, DType::kBF16), Rank(1));
//
// A buffer is contiguous. It stays the caller's and must live, unmoved, until
// the operation is complete. Where it lies (host, shared, device memory) is
// between the caller and the engine.
#ifndef TESSERA_COLLECTIVES_OPERATION_BUFFER_H_
#define TESSERA_COLLECTIVES_OPERATION_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"

namespace tessera::collectives {

// What a buffer of `Void` may hold: constant elements may only be read.
template <typename T, typename Void>
concept BufferElement = std::is_const_v<Void> || !std::is_const_v<T>;

// `Void` is void or const void.
template <typename Void>
struct BasicBuffer {
  Void* data = nullptr;
  int64_t count = 0;  // Elements.
  DType dtype = DType::kU8;

  constexpr BasicBuffer() = default;
  constexpr BasicBuffer(Void* data, int64_t count, DType dtype)
      : data(data), count(count), dtype(dtype) {}

  // The elements of a span of a type that has a DType.
  template <BufferElement<Void> T, size_t extent>
  explicit constexpr BasicBuffer(std::span<T, extent> elements)
      : data(elements.data()),
        count(static_cast<int64_t>(elements.size())),
        dtype(kDTypeOf<std::remove_const_t<T>>) {}

  // What may be written may be read.
  constexpr operator BasicBuffer<const void>() const
      requires(!std::is_const_v<Void>) {
    return {data, count, dtype};
  }

  constexpr int64_t bytes() const { return count * SizeInBytes(dtype); }

  // Elements [first, first + length).
  constexpr BasicBuffer Slice(int64_t first, int64_t length) const {
    return {Bytes() + first * SizeInBytes(dtype), length, dtype};
  }

 private:
  using Byte =
      std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;

 public:
  // The same memory as bytes.
  constexpr Byte* Bytes() const { return static_cast<Byte*>(data); }
  constexpr std::span<Byte> AsBytes() const {
    return {Bytes(), static_cast<size_t>(bytes())};
  }
};

using Buffer = BasicBuffer<void>;
using ConstBuffer = BasicBuffer<const void>;

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPERATION_BUFFER_H_
