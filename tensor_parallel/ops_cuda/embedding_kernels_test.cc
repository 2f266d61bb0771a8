#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/testing/test_tensor.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tensor_parallel/ops_cuda/scratch.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

struct Case {
  IndexRange held;
  int64_t tokens, n, gap;
};
constexpr Case kCases[] = {
    {{0, 1}, 1, 1, 0},     {{3, 9}, 20, 7, 2},     {{10, 14}, 9, 33, 0},
    {{0, 50}, 30, 264, 0}, {{0, 50}, 30, 264, 8},  {{0, 50}, 31, 264, 3},
    {{5, 5}, 4, 3, 0},     {{0, 4}, 0, 3, 0},      {{0, 4}, 3, 0, 0},
    {{7, 9}, 1500, 8, 0},  {{0, 900}, 3100, 5, 1}, {{0, 3}, 2049, 16, 16},
};

std::vector<int64_t> IdsOf(const Case& c, std::mt19937_64& random) {
  std::vector<int64_t> ids(c.tokens);
  for (int64_t& id : ids) {
    id =
        c.held.begin - 2 + static_cast<int64_t>(random() % (c.held.size() + 4));
  }
  return ids;
}

TEST(EmbeddingKernelsTest, GatherRowsHasTheBitsOfTheCpu) {
  CpuOps cpu;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto cuda, CreateCudaOps(HostQueue()));
  std::mt19937_64 random(1);
  for (const DType dtype : kComputedTypes) {
    for (const Case& c : kCases) {
      TestTensor table(dtype, {c.held.size(), c.n}, c.gap);
      TestTensor expected(dtype, {c.tokens, c.n}, c.gap);
      table.Randomise(random);
      expected.Randomise(random);
      const TestTensor actual = expected;
      const std::vector<int64_t> ids = IdsOf(c, random);
      TESSERA_ASSERT_OK(cpu.Run(
          op::GatherRows{table.view(), c.held, ListOf(ids), expected.view()}));
      TESSERA_ASSERT_OK(cuda->Run(
          op::GatherRows{table.view(), c.held, ListOf(ids), actual.view()}));
      EXPECT_EQ(actual.bytes(), expected.bytes());
    }
  }
}

TEST(EmbeddingKernelsTest, AddRowsHasTheBitsOfTheCpu) {
  CpuOps cpu;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto cuda, CreateCudaOps(HostQueue()));
  std::mt19937_64 random(2);
  for (const DType dtype : kComputedTypes) {
    for (const DType target : {dtype, StatisticsFor(dtype)}) {
      for (const Case& c : kCases) {
        SCOPED_TRACE(testing::Message() << dtype << " to " << target << ", "
                                        << c.tokens << " x " << c.n);
        TestTensor gradient(dtype, {c.tokens, c.n}, c.gap);
        TestTensor expected(target, {c.held.size(), c.n}, c.gap);
        gradient.Randomise(random);
        expected.Randomise(random);
        const TestTensor actual = expected;
        const std::vector<int64_t> ids = IdsOf(c, random);
        TESSERA_ASSERT_OK(cpu.Run(op::AddRows{gradient.view(), c.held,
                                              ListOf(ids), expected.view()}));
        TESSERA_ASSERT_OK(cuda->Run(
            op::AddRows{gradient.view(), c.held, ListOf(ids), actual.view()}));
        EXPECT_EQ(actual.bytes(), expected.bytes());
      }
    }
  }
}

// 2^24 + 1 is 2^24 in f32: only one order of the sum gives this result.
TEST(EmbeddingKernelsTest, AddRowsAddsRowsOfAnIdInTheirOrder) {
  constexpr int64_t kTokens = 3000;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto cuda, CreateCudaOps(HostQueue()));
  TestTensor gradient(DType::kF32, {kTokens, 1});
  for (int64_t i = 0; i < kTokens; ++i) gradient.set(i, 1);
  gradient.set(100, 16777216);
  gradient.set(2900, -16777216);
  const TestTensor table(DType::kF32, {1, 1});
  const std::vector<int64_t> ids(kTokens, 0);
  TESSERA_ASSERT_OK(cuda->Run(
      op::AddRows{gradient.view(), {0, 1}, ListOf(ids), table.view()}));
  EXPECT_EQ(table.at(0), 100 + 99);
}

TEST(EmbeddingKernelsTest, ScratchGrowsAndIsKept) {
  int waits = 0;
  Scratch scratch(HostMemory(), [&] {
    ++waits;
    return absl::OkStatus();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(std::byte* const first, scratch.Reserve(1000));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0u);
  TESSERA_ASSERT_OK_AND_ASSIGN(std::byte* const second, scratch.Reserve(10));
  EXPECT_EQ(first, second);
  EXPECT_EQ(waits, 0);
  TESSERA_ASSERT_OK(scratch.Reserve(1001).status());
  EXPECT_EQ(scratch.size(), 1500);
  EXPECT_EQ(waits, 1);
  TESSERA_ASSERT_OK(scratch.Reserve(1400).status());
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
