// Tuning: thresholds and buffer sizes of in_process and shared_memory.
//
// All ranks of a group use the values of the group's first rank.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_TUNING_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_TUNING_H_

#include <cstdint>

namespace tessera::collectives {

struct Tuning {
  // Size of one piece of a window; a multiple of 64. Larger pieces need fewer
  // synchronisations; the pieces of all ranks together should fit into the
  // last-level cache.
  int64_t piece_bytes = 128 << 10;

  // Number of pieces in a window, 3 to 8; more pieces let ranks run further
  // apart.
  int64_t pieces = 4;

  // In an all_reduce of up to this size every rank reduces the whole message
  // itself: one synchronisation, but n times the bytes. At most piece_bytes.
  int64_t one_shot_bytes = 4 << 10;

  // From this size on the ranks exchange the addresses of their buffers and, if
  // all are in shared memory, use them in place. The exchange costs one more
  // synchronisation.
  int64_t zero_copy_bytes = 16 << 10;

  // After an exchange that found unshared buffers, up to this many calls skip
  // it. 0 to 255.
  int64_t place_skips = 7;

  // From this size on (and from zero_copy_bytes on) all_gather, all_to_all,
  // broadcast and scatter read ordinary buffers directly from a peer's memory
  // (process_vm_readv), which saves one copy. Used only if the kernel permits
  // it and every rank has its own processor; messages only ask the kernel.
  int64_t peer_copy_bytes = 32 << 10;

  // Results of larger working sets are written with non-temporal stores.
  int64_t streaming_bytes = 48 << 20;

  // From this size on the receiver copies a message directly from the sender's
  // buffer instead of through the channel, if the buffer is in shared memory.
  int64_t direct_message_bytes = 16 << 10;

  // Capacity of a channel between two ranks in bytes; a multiple of 64.
  int64_t channel_bytes = 64 << 10;

  // A waiting rank spins up to `spins` times (fewer if spinning failed before,
  // once if ranks share processors), then yields for `yield_us`, then sleeps.
  int64_t spins = 2000;
  int64_t yield_us = 1000;

  // Number of processors to assume; 0: detect it.
  int64_t processors = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_TUNING_H_
