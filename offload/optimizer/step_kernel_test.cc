#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "gtest/gtest.h"
#include "offload/optimizer/kernels.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

// Streaming stores write the same bits as ordinary ones, and no element more,
// for every start of the copy.
void ExpectStreamedCopy(int64_t size, int64_t lead, bool is_blockwise) {
  std::vector<float> p(static_cast<size_t>(size)), g = p, m = p, v = p;
  std::mt19937 random(1);
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = static_cast<float>(random() % 1000);
    g[i] = static_cast<float>(random() % 100);
  }
  alignas(64) static uint16_t storage[8192];
  std::fill(std::begin(storage), std::end(storage), uint16_t{7});
  std::vector<float> scales(p.size());
  StepJob job = {.numbers = {.beta1 = 0.9, .beta2 = 0.9, .rate = 0.1},
                 .parameter = reinterpret_cast<std::byte*>(p.data()),
                 .gradient = reinterpret_cast<std::byte*>(g.data()),
                 .copy = reinterpret_cast<std::byte*>(storage + lead),
                 .count = size,
                 .streams_copy = true};
  job.first.values = reinterpret_cast<std::byte*>(m.data());
  job.second.values = reinterpret_cast<std::byte*>(v.data());
  if (is_blockwise) {
    job.first.type = StoredMoment::kBlockwise8;
    job.first.block = 64;
    job.first.largest = scales.data();
  }
  RunStep(job);
  for (int64_t i = 0; i < lead; ++i) ASSERT_EQ(storage[i], 7);
  for (int64_t i = 0; i < size; ++i) {
    ASSERT_EQ(storage[lead + i], BF16(p[static_cast<size_t>(i)]).bits()) << i;
  }
  for (int64_t i = lead + size; i < 8192; ++i) ASSERT_EQ(storage[i], 7);
}

TEST(RunStep, StreamsCopiesFromAnyPlace) {
  ForEachInstructionSet([] {
    for (int64_t size : {1, 5, 33, 512, 1000, 5000}) {
      for (int64_t lead = 0; lead < 33; ++lead) {
        ExpectStreamedCopy(size, lead, /*is_blockwise=*/false);
        ExpectStreamedCopy(size, lead, /*is_blockwise=*/true);
      }
    }
  });
}

}  // namespace
}  // namespace tessera::offload
