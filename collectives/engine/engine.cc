#include "collectives/engine/engine.h"

#include <pthread.h>

#include <atomic>

namespace tessera::collectives {

namespace {

// Written only by the fork handler below, in a child with a single thread.
std::atomic<uint64_t> generation = 0;

void CountFork() { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

uint64_t ProcessGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, CountFork);
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace tessera::collectives
