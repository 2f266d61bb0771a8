// a[i] = b[i] + s * c[i] by the best instruction set of the processor.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_TRIAD_KERNEL_H_
#define TESSERA_OFFLOAD_OPTIMIZER_TRIAD_KERNEL_H_

#include <cstddef>

namespace tessera::offload {

// Elements that a run is a multiple of.
inline constexpr size_t kTriadStep = 64;

// Arrays are aligned to 64 bytes, `count` is a multiple of kTriadStep.
struct TriadArrays {
  double* a;
  const double* b;
  const double* c;
  size_t count;
};

void RunTriad(const TriadArrays& arrays, double scale);

// With non-temporal stores, complete when it returns.
void RunStreamingTriad(const TriadArrays& arrays, double scale);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_TRIAD_KERNEL_H_
