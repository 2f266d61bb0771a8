// CopyBytes: memcpy with optional non-temporal stores.
#ifndef TESSERA_COLLECTIVES_REDUCTION_COPY_H_
#define TESSERA_COLLECTIVES_REDUCTION_COPY_H_

#include <cstdint>

namespace tessera::collectives {

enum class StoreMode : uint8_t {
  kCached,
  kStreaming,  // Non-temporal stores, for working sets larger than the
               // last-level cache: saves reading lines that are overwritten.
};

// Copies `bytes` bytes between buffers that do not overlap. Streaming stores
// become visible with the thread's next release.
void CopyBytes(void* destination, const void* source, int64_t bytes,
               StoreMode mode = StoreMode::kCached);

// Orders this thread's streaming stores before its later ones. CopyBytes and
// Combine end with it themselves.
void FenceStreamingStores();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_REDUCTION_COPY_H_
