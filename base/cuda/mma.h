// MultiplyTile: multiplies two bf16 tiles on tensor cores and accumulates in
// f32.
//
// A warp computes d += a b^T for a [16, 16], b [8, 16] and d [16, 8]
// (mma.sync.m16n8k16; PTX ISA 8.5, section 9.7.14.5.8). With g = lane / 4 and t
// = lane % 4 a lane holds, in pairs of columns 2t and 2t + 1:
//   a.pairs   rows g, g + 8, g, g + 8; columns 2t, 2t, 2t + 8, 2t + 8
//   b.pairs   row g; columns 2t, 2t + 8
//   d         rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
// A pair holds the bits of two bf16, the lower column in the lower half.
//
// All 32 lanes of a warp call it together.
#ifndef TESSERA_BASE_CUDA_MMA_H_
#define TESSERA_BASE_CUDA_MMA_H_

#include <cstdint>

#include "base/cuda/kernel.h"

namespace tessera::TESSERA_KERNELS {

struct TileA {
  uint32_t pairs[4];
};
struct TileB {
  uint32_t pairs[2];
};

#ifdef __CUDACC__

__device__ inline void MultiplyTile(const TileA& a, const TileB& b,
                                    float (&d)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]),
        "r"(b.pairs[0]), "r"(b.pairs[1]));
}

#else

inline float HalfOfPair(uint32_t pair, int column) {
  return std::bit_cast<float>(column % 2 == 0 ? pair << 16
                                              : pair & 0xffff0000u);
}

inline void MultiplyTile(
    const TileA& a, const TileB& b, float (&d)[4],
    ::tessera::emulated::Where where = ::tessera::emulated::Where::current()) {
  struct Fragments {
    TileA a;
    TileB b;
  };
  const auto all = ::tessera::emulated::AwaitLanes(
      0xffffffffu, ::tessera::emulated::PayloadOf(Fragments{a, b}), "mma",
      where);
  const unsigned lane = ::tessera::emulated::Lane();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + 8 * (i / 2);
    const unsigned column = 2 * (lane % 4) + i % 2;
    float sum = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const auto left = all.Of<Fragments>(row % 8 * 4 + k % 8 / 2);
      const auto right = all.Of<Fragments>(column * 4 + k % 8 / 2);
      sum +=
          HalfOfPair(left.a.pairs[row / 8 + 2 * (k / 8)], static_cast<int>(k)) *
          HalfOfPair(right.b.pairs[k / 8], static_cast<int>(k));
    }
    d[i] += sum;
  }
}

#endif

}  // namespace tessera::TESSERA_KERNELS

#endif  // TESSERA_BASE_CUDA_MMA_H_
