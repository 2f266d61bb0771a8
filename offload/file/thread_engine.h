// An IoEngine of threads that call pread and pwrite.
#ifndef TESSERA_OFFLOAD_FILE_THREAD_ENGINE_H_
#define TESSERA_OFFLOAD_FILE_THREAD_ENGINE_H_

#include <memory>

#include "offload/file/io_engine.h"

namespace tessera::offload {

// One thread per request of the queue depth, 32 at most.
std::unique_ptr<IoEngine> CreateThreadEngine(int queue_depth);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_THREAD_ENGINE_H_
