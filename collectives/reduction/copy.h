// CopyBytes: a copy that can go past the caches.
#ifndef TESSERA_COLLECTIVES_REDUCTION_COPY_H_
#define TESSERA_COLLECTIVES_REDUCTION_COPY_H_

#include <cstdint>

namespace tessera::collectives {

enum class StoreMode : uint8_t {
  kCached,
  kStreaming,  // Non-temporal: for working sets past the last-level cache,
               // where reading a line only to overwrite it costs bandwidth.
};

// Copies `bytes` bytes between buffers that do not overlap. Streaming stores
// are visible to whoever sees what this thread releases afterwards.
void CopyBytes(void* destination, const void* source, int64_t bytes,
               StoreMode mode = StoreMode::kCached);

// Orders this thread's streaming stores before its later ones. CopyBytes and
// Combine end with it themselves.
void FenceStreamingStores();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_REDUCTION_COPY_H_
