#include "base/cuda/testing/emulation.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/cuda/kernel.h"
#include "base/cuda/testing/sample_kernels.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::emulated {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

#ifdef __SANITIZE_THREAD__
constexpr bool kHasTsan = true;
#else
constexpr bool kHasTsan = false;
#endif
#ifdef __SANITIZE_ADDRESS__
constexpr bool kHasAsan = true;
#else
constexpr bool kHasAsan = false;
#endif

std::vector<EmulationOptions> AllOrders() {
  std::vector<EmulationOptions> orders = {{.order = EmulationOrder::kForward},
                                          {.order = EmulationOrder::kReverse}};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    orders.push_back({.order = EmulationOrder::kRandom, .seed = seed});
  }
  return orders;
}

// Runs `kernel(out)` in every order, on `size` elements that begin as -1;
// expects equal results and returns them.
template <typename Run>
std::vector<int> InAllOrders(size_t size, Run run) {
  std::vector<int> first;
  for (const EmulationOptions& order : AllOrders()) {
    const ScopedEmulation scoped(order);
    std::vector<int> out(size, -1);
    run(out.data());
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
  }
  return first;
}

__global__ void WriteIndex(int* out) {
  const unsigned block =
      blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread =
      threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned size = blockDim.x * blockDim.y * blockDim.z;
  out[block * size + thread] = static_cast<int>(block * size + thread);
}

TEST(EmulationTest, EveryThreadOfEveryBlockRunsOnce) {
  for (const dim3 grid : {dim3(1), dim3(7), dim3(3, 2, 2)}) {
    for (const dim3 block : {dim3(1), dim3(33), dim3(5, 3, 2), dim3(1024)}) {
      const size_t size =
          size_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
      std::vector<int> all(size);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(InAllOrders(size,
                            [&](int* out) {
                              Launch(WriteIndex, grid, block, 0, nullptr, out);
                            }),
                all);
    }
  }
}

__global__ void Shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* const mine = out + 8 * lane;
  mine[0] = __shfl_sync(0xffffffffu, lane, 5);
  mine[1] = __shfl_up_sync(0xffffffffu, lane, 3);
  mine[2] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  mine[3] = __shfl_xor_sync(0xffffffffu, lane, 6);
  mine[4] = __shfl_sync(0xffffffffu, lane, 1, 8);
  // Halves of the warp by themselves.
  const uint32_t half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
  mine[5] = static_cast<int>(__popc(__ballot_sync(half, lane % 3 == 0)));
  mine[6] = __any_sync(half, lane == 20) + 2 * __all_sync(half, lane < 16);
  mine[7] = __popc(__match_any_sync(0xffffffffu, lane % 5));
}

TEST(EmulationTest, WarpCollectivesMatchDefinition) {
  const std::vector<int> out = InAllOrders(
      8 * 32, [](int* out) { Launch(Shuffles, 1, 32, 0, nullptr, out); });
  for (int lane = 0; lane < 32; ++lane) {
    const std::vector<int> mine(out.begin() + 8 * lane,
                                out.begin() + 8 * lane + 8);
    const bool low = lane < 16;
    EXPECT_THAT(mine, ElementsAreArray({5, lane < 3 ? lane : lane - 3,
                                        lane % 8 < 5 ? lane + 3 : lane,
                                        lane ^ 6, lane / 8 * 8 + 1, low ? 6 : 5,
                                        (low ? 0 : 1) + (low ? 2 : 0),
                                        lane % 5 < 2 ? 7 : 6}))
        << lane;
  }
}

__global__ void LeaveEarly(int* out) {
  if (threadIdx.x % 4 == 3) return;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane >= 20) return;
  // Collectives do not wait for threads that have exited.
  out[threadIdx.x] = __popc(__ballot_sync(0xffffffffu, 1));
}

TEST(EmulationTest, ExitedThreadsAreNotAwaited) {
  const std::vector<int> out = InAllOrders(
      70, [](int* out) { Launch(LeaveEarly, 1, 70, 0, nullptr, out); });
  for (size_t i = 0; i < out.size(); ++i) {
    const bool ends = i % 4 == 3 || i % 32 >= 20;
    EXPECT_EQ(out[i], ends ? -1 : (i < 64 ? 15 : 5)) << i;
  }
}

__global__ void Transpose(int* out) {
  TESSERA_DYNAMIC_SHARED(int, tile);
  TESSERA_SHARED(int, rows, 8);
  if (threadIdx.x == 0) rows[threadIdx.y] = static_cast<int>(threadIdx.y);
  tile[threadIdx.y * 8 + threadIdx.x] =
      static_cast<int>(blockIdx.x * 64 + threadIdx.y * 8 + threadIdx.x);
  __syncthreads();
  out[blockIdx.x * 64 + threadIdx.y * 8 + threadIdx.x] =
      tile[threadIdx.x * 8 + threadIdx.y] + 1000 * rows[threadIdx.x];
}

TEST(EmulationTest, SharedMemoryIsPerBlock) {
  const std::vector<int> out = InAllOrders(3 * 64, [](int* out) {
    Launch(Transpose, 3, dim3(8, 8), 64 * sizeof(int), nullptr, out);
  });
  for (int b = 0; b < 3; ++b) {
    for (int y = 0; y < 8; ++y) {
      for (int x = 0; x < 8; ++x) {
        EXPECT_EQ(out[static_cast<size_t>(b * 64 + y * 8 + x)],
                  b * 64 + x * 8 + y + 1000 * x);
      }
    }
  }
}

__global__ void Count(int* out) {
  atomicAdd(&out[0], 1);
  atomicMax(&out[1], static_cast<int>(threadIdx.x));
  atomicMin(&out[2], -static_cast<int>(blockIdx.x));
  atomicCAS(&out[3], -1, 7);
}

TEST(EmulationTest, AtomicsAddUp) {
  EXPECT_THAT(
      InAllOrders(4, [](int* out) { Launch(Count, 5, 40, 0, nullptr, out); }),
      ElementsAreArray({199, 39, -4, 7}));
}

std::vector<float> Data(size_t size) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> data(size);
  for (float& x : data) x = uniform(random);
  return data;
}

std::vector<float> Sums(Bug bug, const EmulationOptions& order,
                        int blocks = 6) {
  constexpr int kCount = 777;
  const ScopedEmulation scoped(order);
  const std::vector<float> x = Data(static_cast<size_t>(blocks) * kCount);
  std::vector<float> sums(static_cast<size_t>(blocks));
  LaunchSums(nullptr, bug, blocks, 256, x.data(), kCount, sums.data());
  return sums;
}

TEST(EmulationTest, CorrectKernelIsDeterministicInEveryOrder) {
  const std::vector<float> first = Sums(Bug::kNone, {});
  for (const EmulationOptions& order : AllOrders()) {
    EXPECT_EQ(Sums(Bug::kNone, order), first);
  }
}

TEST(EmulationTest, RanksLaunchFromTheirOwnThreads) {
  const std::vector<float> first = Sums(Bug::kNone, {});
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> results(4);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Sums(Bug::kNone, {}); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, Each(first));
}

// The bits of a race depend on the order, and ThreadSanitizer reports it.
TEST(PlantedBugTest, DetectsDroppedBarrier) {
  if (kHasTsan) {
    // After a fork ThreadSanitizer ignores synchronisation.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
          Sums(Bug::kDroppedBarrier, {});
          std::exit(0);
        },
        ::testing::ExitedWithCode(66), "data race(.|\n)*sample_kernels.cu");
    return;
  }
  const std::vector<float> first = Sums(Bug::kNone, {});
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_NE(Sums(Bug::kDroppedBarrier,
                   {.order = EmulationOrder::kRandom, .seed = seed}),
              first);
  }
}

TEST(PlantedBugTest, DetectsUpdateByAllBlocks) {
  if (!kHasTsan) GTEST_SKIP() << "ThreadSanitizer finds it (--config=tsan)";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Sums(Bug::kSharedTotal, {});
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race(.|\n)*sample_kernels.cu");
}

TEST(PlantedBugTest, DetectsDivergentCollectives) {
  EXPECT_DEATH(Sums(Bug::kDivergentShuffle, {}),
               "different collectives.*sample_kernels.cu");
  EXPECT_DEATH(Sums(Bug::kBarrierInBranch, {}),
               "different barriers.*sample_kernels.cu");
  EXPECT_DEATH(Sums(Bug::kForeignMask, {}),
               "thread .16, 0, 0.: a thread is not in its own mask");
  EXPECT_DEATH(Sums(Bug::kMissingThread, {}),
               "waits in shfl_xor at .*sample_kernels.cu");
}

TEST(PlantedBugTest, UnwrittenSharedMemoryIsNan) {
  EXPECT_THAT(Sums(Bug::kUnwrittenShared, {}), Each(::testing::IsNan()));
}

TEST(PlantedBugTest, DetectsStorePastEnd) {
  if (!kHasAsan) GTEST_SKIP() << "AddressSanitizer finds it (--config=asan)";
  EXPECT_DEATH(Sums(Bug::kPastTheEnd, {}),
               "heap-buffer-overflow(.|\n)*sample_kernels.cu");
}

TEST(EmulationTest, RejectsLaunchesBeyondGpuLimits) {
  int out = 0;
  EXPECT_DEATH(Launch(Count, 1, 1025, 0, nullptr, &out), "not possible");
  EXPECT_DEATH(Launch(Count, 0, 32, 0, nullptr, &out), "not possible");
  EXPECT_DEATH(Launch(Count, 1, 32, 228 << 10, nullptr, &out), "not possible");
  EXPECT_DEATH(__syncthreads(), "only a kernel");
}

}  // namespace
}  // namespace tessera::emulated
