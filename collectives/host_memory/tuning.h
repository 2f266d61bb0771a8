// Tuning: the sizes at which the direct collectives change their way.
//
// All ranks of a group must have the same values: the group's first rank's hold
// for all.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_TUNING_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_TUNING_H_

#include <cstdint>

namespace tessera::collectives {

struct Tuning {
  // One piece of a window; a multiple of 64. Larger: fewer synchronisations.
  // All ranks' pieces together should stay in the last-level cache.
  int64_t piece_bytes = 128 << 10;

  // A window has this many pieces, so that ranks need not go in step. 2 to 8.
  int64_t pieces = 4;

  // A whole message up to this size goes to every rank, which combines it for
  // itself: one synchronisation, but n times the bytes. At most piece_bytes.
  int64_t one_shot_bytes = 4 << 10;

  // From here on the ranks ask each other whether all buffers are shared, and
  // if so use them where they are. The question is one more synchronisation.
  int64_t zero_copy_bytes = 16 << 10;

  // Where they are not, the next calls do not ask: at most so many. 0 to 255.
  int64_t place_skips = 7;

  // From here on the kernel copies ordinary buffers straight out of a peer's
  // memory (process_vm_readv), where it lets the ranks do that and every rank
  // has a processor: one copy less for what only moves (all_gather, all_to_all,
  // broadcast, scatter). At least zero_copy_bytes counts.
  int64_t peer_copy_bytes = 32 << 10;

  // Working sets beyond this are written past the caches.
  int64_t streaming_bytes = 48 << 20;

  // A message from shared memory of this size or more is copied by the receiver
  // straight from where it is, instead of through the channel.
  int64_t direct_message_bytes = 16 << 10;

  // The bytes that a channel between two ranks holds; a multiple of 64.
  int64_t channel_bytes = 64 << 10;

  // How a rank waits: looks at most this often, where there is a processor for
  // every rank, and less often where that was in vain; then lets others run for
  // so long; then sleeps.
  int64_t spins = 2000;
  int64_t yield_us = 1000;

  // The processors to count on; 0: those that the ranks have.
  int64_t processors = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_TUNING_H_
