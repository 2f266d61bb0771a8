// Copy and Fill: copy and set the elements of host tensors with any strides.
//
//   TESSERA_RETURN_IF_ERROR(Copy(source.view(), target_view));
//   TESSERA_RETURN_IF_ERROR(Fill(target_view, 0.5f));
//
// Contiguous parts are copied with memcpy, transposes in tiles that fit in the
// cache. Queues (base/device/device.h) copy between kinds of memory.
#ifndef TESSERA_BASE_TENSOR_COPY_H_
#define TESSERA_BASE_TENSOR_COPY_H_

#include <array>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"

namespace tessera {

// target[i] = source[i] for every index. The two may share memory: the result
// is as if the source had been read completely first (which costs a temporary
// of its size if the memory ranges intersect).
//
// InvalidArgument, with nothing written, if the shapes or dtypes differ or
// the target has several indices for one element; FailedPrecondition if the
// CPU cannot access either.
absl::Status Copy(ConstTensorView source, TensorView target);

// Sets every element to the bytes of `element`. Returns the errors of Copy, and
// InvalidArgument if the size of `element` is not that of the dtype.
absl::Status FillBytes(TensorView target, std::span<const std::byte> element);

// Sets every element to `value`, converted as by ConvertValue.
template <DTypeElement T>
absl::Status Fill(TensorView target, T value) {
  return DispatchDType(
      target.dtype(), [&]<typename Element>(std::type_identity<Element>) {
        const std::array<Element, 1> element = {ConvertValue<Element>(value)};
        return FillBytes(target, std::as_bytes(std::span(element)));
      });
}

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_COPY_H_
