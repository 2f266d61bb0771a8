// ReturnFreeMemory: hands memory that is free within the process back to the
// system.
//
//   TESSERA_RETURN_IF_ERROR(tier.Drop("layer.7"));
//   ReturnFreeMemory();
//
// A block that is freed does not leave the process by itself: glibc maps only
// blocks from 128 KiB on, raises that limit up to 32 MiB whenever such a block
// is freed, and from then on keeps what lies below the top of its heap.
#ifndef TESSERA_OFFLOAD_PRESSURE_RETURN_MEMORY_H_
#define TESSERA_OFFLOAD_PRESSURE_RETURN_MEMORY_H_

namespace tessera::offload {

// Some microseconds for each free run of pages, in every arena. False where
// nothing was handed back, or the C library is another than glibc.
bool ReturnFreeMemory();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_RETURN_MEMORY_H_
