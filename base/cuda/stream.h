// KernelStream: the stream on which a kernel is launched.
#ifndef TESSERA_BASE_CUDA_STREAM_H_
#define TESSERA_BASE_CUDA_STREAM_H_

namespace tessera {

// A cudaStream_t, as Queue::native_handle() returns it. Emulated kernels ignore
// it: a launch returns when the kernel has run.
using KernelStream = void*;

namespace native {
inline constexpr bool kIsEmulated = false;
}
namespace emulated {
inline constexpr bool kIsEmulated = true;
}

}  // namespace tessera

#endif  // TESSERA_BASE_CUDA_STREAM_H_
