// CopyBytes: memcpy with optional non-temporal stores.
#ifndef TESSERA_COLLECTIVES_REDUCTION_COPY_H_
#define TESSERA_COLLECTIVES_REDUCTION_COPY_H_

#include <cstdint>

namespace tessera::collectives {

enum class StoreMode : uint8_t {
  kCached,
  kStreaming,  // Non-temporal stores, for working sets larger than the
               // last-level cache. They do not read overwritten lines.
};

// Copies `bytes` bytes between buffers that do not overlap. Streaming stores
// become visible with the thread's next release.
void CopyBytes(void* destination, const void* source, int64_t bytes,
               StoreMode mode = StoreMode::kCached);

// Orders this thread's streaming stores before its later stores. CopyBytes and
// Combine call it before they return.
void FenceStreamingStores();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_REDUCTION_COPY_H_
