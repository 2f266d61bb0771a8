// Compares four ranks, as threads on one GPU, with the host's results bit by
// bit.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/cuda_device.h"
#include "base/device/testing/test_gpu.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;

constexpr int64_t kRanks = 4;

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateTestGpu();
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
    TESSERA_ASSERT_OK(device);
    device_ = *std::move(device);
  }

  // Runs the body on every rank with a communicator on the device.
  std::vector<absl::Status> OnRanks(
      const std::function<absl::Status(Communicator&, Queue&)>& body) {
    return RunRanks(kRanks, [&](Communicator& world) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host,
                               world.Split(/*colour=*/0, world.rank().value()));
      TESSERA_ASSIGN_OR_RETURN(
          const std::unique_ptr<Communicator> communicator,
          native::CreateCudaCommunicator(std::move(host), *device_));
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                               device_->CreateQueue("compute"));
      absl::Status status = body(*communicator, *queue);
      if (!status.ok()) communicator->Abort(status.message());
      return status;
    });
  }

  std::shared_ptr<CudaDevice> device_;
};

// Runs an operation in place on the device and on the host, whose result must
// have the same bits. Every bit pattern of the type occurs.
absl::Status Compare(Communicator& communicator, Queue& queue, DType dtype,
                     int64_t count, OpKind kind, Reduction reduction) {
  const auto size = static_cast<size_t>(count * SizeInBytes(dtype));
  Device& device = queue.device();
  TESSERA_ASSIGN_OR_RETURN(tessera::Buffer on_device,
                           tessera::Buffer::Allocate(device.memory(), size));
  TESSERA_ASSIGN_OR_RETURN(
      tessera::Buffer staging,
      tessera::Buffer::Allocate(device.staging_memory(), size));
  std::mt19937_64 random(
      static_cast<uint64_t>(communicator.rank().value() + 1));
  for (std::byte& byte : staging.bytes())
    byte = static_cast<std::byte>(random());
  std::vector<std::byte> expected(staging.bytes().begin(),
                                  staging.bytes().end());
  const auto operation_on = [&](std::byte* data) {
    const Buffer buffer(data, count, dtype);
    switch (kind) {
      case OpKind::kAllToAll:
        return AllToAllOf(buffer, buffer);
      case OpKind::kBroadcast:
        return BroadcastOf(buffer, buffer, Rank(1));
      default:
        return AllReduceOf(buffer, buffer, reduction);
    }
  };
  TESSERA_RETURN_IF_ERROR(communicator.host().Run(
      operation_on(expected.data()), {.algorithm = Algorithm::kEngine}));
  TESSERA_RETURN_IF_ERROR(queue.Copy(staging.bytes(), on_device.bytes()));
  TESSERA_RETURN_IF_ERROR(
      communicator.RunOn(queue, operation_on(on_device.data())));
  TESSERA_RETURN_IF_ERROR(queue.Copy(on_device.bytes(), staging.bytes()));
  TESSERA_RETURN_IF_ERROR(queue.Synchronize());
  if (std::ranges::equal(staging.bytes(), expected)) return absl::OkStatus();
  return absl::InternalError("other bits than the host's: " +
                             DescribeOperation(operation_on(on_device.data())));
}

TEST_F(GpuTest, ReduceMatchesHostBitForBit) {
  EXPECT_THAT(
      OnRanks([](Communicator& c, Queue& queue) -> absl::Status {
        for (const DType dtype : kAllDTypes) {
          if (!IsReducible(dtype)) continue;
          for (const Reduction reduction :
               {Reduction::Sum(), Reduction::Average(), Reduction::Max()}) {
            for (const int64_t count : {1, 1001, 1 << 20}) {
              TESSERA_RETURN_IF_ERROR(Compare(c, queue, dtype, count,
                                              OpKind::kAllReduce, reduction));
            }
          }
        }
        return absl::OkStatus();
      }),
      Each(IsOk()));
}

TEST_F(GpuTest, MovesBlocks) {
  EXPECT_THAT(
      OnRanks([](Communicator& c, Queue& queue) -> absl::Status {
        for (const OpKind kind : {OpKind::kAllToAll, OpKind::kBroadcast}) {
          for (const int64_t count : {4, 4004, 1 << 22}) {
            TESSERA_RETURN_IF_ERROR(
                Compare(c, queue, DType::kU8, count, kind, {}));
          }
        }
        return absl::OkStatus();
      }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::collectives
