#include "collectives/cuda/cuda_communicator.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/device/testing/forgetful_device.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_cuda.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Matches the error of an operation that the first failure ended and the error
// of a later operation that was rejected. The timing of its thread determines
// which error a rank gets.
MATCHER_P2(FailedBecause, code, message, "") {
  const absl::Status& status = arg;
  const bool refused = absl::IsFailedPrecondition(status) &&
                       absl::StrContains(status.message(),
                                         "refuses further work; the first "
                                         "error was " +
                                             absl::StatusCodeToString(code));
  return ExplainMatchResult(
      StatusIs(refused ? absl::StatusCode::kFailedPrecondition : code, message),
      status, result_listener);
}

// Floats in the memory of a device.
class Floats {
 public:
  static absl::StatusOr<Floats> Create(CudaRank& rank, int64_t count) {
    Floats floats;
    TESSERA_ASSIGN_OR_RETURN(
        floats.memory_,
        tessera::Buffer::Allocate(rank.device.memory(),
                                  static_cast<size_t>(count) * sizeof(float)));
    floats.count_ = count;
    return floats;
  }

  Buffer buffer() { return {memory_.data(), count_, DType::kF32}; }
  std::span<std::byte> bytes() { return memory_.bytes(); }

  absl::Status Set(Queue& queue, float value) {
    return queue.Launch(
        {.name = "set",
         .accesses = {WritesTo(bytes())},
         .run = [data = bytes(), value](const DeviceAddresses& at) {
           const std::span<std::byte> real = at(data);
           for (size_t i = 0; i < real.size(); i += sizeof(value)) {
             std::memcpy(real.data() + i, &value, sizeof(value));
           }
           return absl::StatusOr<Event>(Event());
         }});
  }
  // Waits for the queue; an error names the first element that differs.
  absl::Status ExpectAll(CudaRank& rank, float value) {
    TESSERA_ASSIGN_OR_RETURN(tessera::Buffer host,
                             tessera::Buffer::Allocate(
                                 rank.device.staging_memory(), memory_.size()));
    TESSERA_RETURN_IF_ERROR(rank.queue.Copy(memory_.bytes(), host.bytes()));
    TESSERA_RETURN_IF_ERROR(rank.queue.Synchronize());
    for (int64_t i = 0; i < count_; ++i) {
      float x = 0;
      std::memcpy(&x, host.data() + static_cast<size_t>(i) * sizeof(x),
                  sizeof(x));
      if (x == value) continue;
      return absl::InternalError(
          absl::StrCat("element ", i, " is ", x, ", not ", value));
    }
    return absl::OkStatus();
  }

 private:
  tessera::Buffer memory_;
  int64_t count_ = 0;
};

Operation SumOf(Floats& x) {
  return AllReduceOf(x.buffer(), x.buffer(), Reduction::Sum());
}

std::shared_ptr<EmulatedDevice> NewDevice(uint64_t seed = 1) {
  auto device =
      EmulatedDevice::Create({.memory_bytes = size_t{1} << 30, .seed = seed});
  return device.ok() ? *device : nullptr;
}

TEST(CudaCommunicatorTest, SumsOnTheDevice) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto device = NewDevice(seed);
    EXPECT_THAT(
        RunCuda(
            4, *device,
            [](CudaRank& r) -> absl::Status {
              EXPECT_EQ(r.communicator.engine_name(), "cuda");
              TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 50'000));
              const auto rank = r.communicator.rank().value();
              TESSERA_RETURN_IF_ERROR(x.Set(r.queue, static_cast<float>(rank)));
              TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(r.queue, SumOf(x)));
              return x.ExpectAll(r, 6);
            }),
        Each(IsOk()));
  }
}

TEST(CudaCommunicatorTest, RunsOnHostDevice) {
  HostDevice device;
  EXPECT_THAT(RunCuda(3, device,
                      [](CudaRank& r) -> absl::Status {
                        TESSERA_ASSIGN_OR_RETURN(Floats x,
                                                 Floats::Create(r, 20'001));
                        TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 2));
                        TESSERA_RETURN_IF_ERROR(
                            r.communicator.RunOn(r.queue, SumOf(x)));
                        return x.ExpectAll(r, 6);
                      }),
              Each(IsOk()));
}

// A rank that runs ahead starts operations that its peers have not called.
TEST(CudaCommunicatorTest, StartDoesNotBlock) {
  const auto device = NewDevice();
  EXPECT_THAT(
      RunCuda(2, *device,
              [](CudaRank& r) -> absl::Status {
                Communicator& c = r.communicator;
                std::vector<Work> works;
                std::vector<Floats> values;
                for (int i = 0; i < 10; ++i) {
                  TESSERA_ASSIGN_OR_RETURN(values.emplace_back(),
                                           Floats::Create(r, 100));
                  TESSERA_RETURN_IF_ERROR(values.back().Set(r.queue, 1));
                }
                if (c.rank() == Rank(1)) {
                  TESSERA_RETURN_IF_ERROR(c.host().Barrier());
                }
                for (Floats& x : values) {
                  TESSERA_ASSIGN_OR_RETURN(Work work,
                                           c.StartOn(r.queue, SumOf(x)));
                  works.push_back(std::move(work));
                }
                // The other rank begins only after this rank has reached this
                // point.
                if (c.rank() == Rank(0)) {
                  EXPECT_THAT(works[0].Test(), IsOkAndHolds(false));
                  TESSERA_RETURN_IF_ERROR(c.host().Barrier());
                }
                for (const Work& work : works) {
                  TESSERA_RETURN_IF_ERROR(r.queue.Wait(work.event()));
                }
                for (Floats& x : values) {
                  TESSERA_RETURN_IF_ERROR(x.ExpectAll(r, 2));
                }
                return absl::OkStatus();
              }),
      Each(IsOk()));
}

// Like neighbouring stages of a pipeline: both receive before they send.
TEST(CudaCommunicatorTest, ReceivesMayBeStartedBeforeSends) {
  const auto device = NewDevice();
  EXPECT_THAT(
      RunCuda(2, *device,
              [](CudaRank& r) -> absl::Status {
                Communicator& c = r.communicator;
                const Rank peer(1 - c.rank().value());
                TESSERA_ASSIGN_OR_RETURN(Floats in, Floats::Create(r, 777));
                TESSERA_ASSIGN_OR_RETURN(Floats out, Floats::Create(r, 777));
                TESSERA_ASSIGN_OR_RETURN(Floats sum, Floats::Create(r, 777));
                for (int round = 0; round < 20; ++round) {
                  const auto value = static_cast<float>(round);
                  TESSERA_RETURN_IF_ERROR(out.Set(r.queue, value));
                  TESSERA_RETURN_IF_ERROR(sum.Set(r.queue, value));
                  TESSERA_ASSIGN_OR_RETURN(
                      const Work received,
                      c.StartOn(r.queue, ReceiveOf(in.buffer(), peer)));
                  TESSERA_RETURN_IF_ERROR(c.RunOn(r.queue, SumOf(sum)));
                  TESSERA_ASSIGN_OR_RETURN(
                      const Work sent,
                      c.StartOn(r.queue, SendOf(out.buffer(), peer)));
                  TESSERA_RETURN_IF_ERROR(r.queue.Wait(received.event()));
                  TESSERA_RETURN_IF_ERROR(r.queue.Wait(sent.event()));
                  TESSERA_RETURN_IF_ERROR(in.ExpectAll(r, value));
                  TESSERA_RETURN_IF_ERROR(sum.ExpectAll(r, 2 * value));
                }
                return absl::OkStatus();
              }),
      Each(IsOk()));
}

// Two groups of the same ranks, in opposite orders.
TEST(CudaCommunicatorTest, GroupsAreIndependent) {
  const auto device = NewDevice();
  EXPECT_THAT(
      RunCuda(2, *device,
              [](CudaRank& r) -> absl::Status {
                TESSERA_ASSIGN_OR_RETURN(auto a, r.communicator.Split(0, 0));
                TESSERA_ASSIGN_OR_RETURN(auto b, r.communicator.Split(0, 0));
                const bool swaps = r.communicator.rank() == Rank(1);
                TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 100));
                TESSERA_ASSIGN_OR_RETURN(Floats y, Floats::Create(r, 100));
                TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
                TESSERA_RETURN_IF_ERROR(y.Set(r.queue, 2));
                TESSERA_ASSIGN_OR_RETURN(
                    const Work first,
                    (swaps ? b : a)->StartOn(r.queue, SumOf(swaps ? y : x)));
                TESSERA_ASSIGN_OR_RETURN(
                    const Work second,
                    (swaps ? a : b)->StartOn(r.queue, SumOf(swaps ? x : y)));
                TESSERA_RETURN_IF_ERROR(r.queue.Wait(first.event()));
                TESSERA_RETURN_IF_ERROR(r.queue.Wait(second.event()));
                TESSERA_RETURN_IF_ERROR(x.ExpectAll(r, 2));
                return y.ExpectAll(r, 4);
              }),
      Each(IsOk()));
}

TEST(CudaCommunicatorTest, OperationsBeginAfterGivenEvent) {
  const auto device = NewDevice();
  EXPECT_THAT(
      RunCuda(2, *device,
              [](CudaRank& r) -> absl::Status {
                TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 100));
                TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
                TESSERA_ASSIGN_OR_RETURN(
                    Work work, r.communicator.StartOn(r.queue, SumOf(x)));
                // The event of an operation that is not enqueued yet.
                for (int i = 0; i < 3; ++i) {
                  TESSERA_ASSIGN_OR_RETURN(
                      work,
                      r.communicator.Start(SumOf(x), {.after = work.event()}));
                }
                TESSERA_RETURN_IF_ERROR(r.queue.Wait(work.event()));
                return x.ExpectAll(r, 16);
              }),
      Each(IsOk()));
}

// Rank 0 starts a sum and overwrites its input at once. `forgotten` is the
// queue whose waits are omitted.
std::vector<absl::Status> OverwriteInput(const std::string& forgotten) {
  const auto device = std::make_shared<ForgetfulDevice>(
      NewDevice(), ForgottenWaits{.file = "collectives/cuda/device_group.cc",
                                  .queue = forgotten});
  return RunCuda(2, *device, [](CudaRank& r) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(Floats in, Floats::Create(r, 40'000));
    TESSERA_ASSIGN_OR_RETURN(Floats out, Floats::Create(r, 40'000));
    TESSERA_RETURN_IF_ERROR(in.Set(r.queue, 1));
    TESSERA_RETURN_IF_ERROR(out.Set(r.queue, 0));
    // No wait for the inputs is needed.
    TESSERA_RETURN_IF_ERROR(r.queue.Synchronize());
    TESSERA_RETURN_IF_ERROR(r.communicator.host().Barrier());
    TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(
        r.queue, AllReduceOf(in.buffer(), out.buffer(), Reduction::Sum())));
    TESSERA_RETURN_IF_ERROR(in.Set(r.queue, 5));
    // No rank's host observes that the sum is done before all ranks have
    // overwritten their inputs, because the device treats all ranks as one
    // host.
    TESSERA_RETURN_IF_ERROR(r.communicator.host().Barrier());
    return out.ExpectAll(r, 2);
  });
}

TEST(CudaCommunicatorTest, InputMayBeOverwrittenAfterEvent) {
  EXPECT_THAT(OverwriteInput("no queue"), Each(IsOk()));
}

// Omits the wait for the other lanes that read the input.
TEST(CudaCommunicatorTest, DetectsInputOverwrittenTooEarly) {
  EXPECT_THAT(OverwriteInput("lane of rank 0"),
              Contains(StatusIs(absl::StatusCode::kInternal,
                                AllOf(HasSubstr("missing wait"),
                                      HasSubstr("lane of rank 1")))));
}

TEST(CudaCommunicatorTest, EveryRankNamesMissingRank) {
  const auto device = NewDevice();
  const auto statuses = RunCuda(3, *device, [](CudaRank& r) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 100));
    TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
    TESSERA_RETURN_IF_ERROR(r.queue.Synchronize());
    if (r.communicator.rank() == Rank(1)) {
      absl::SleepFor(absl::Milliseconds(600));
      return r.communicator.RunOn(r.queue, SumOf(x));
    }
    return r.communicator.RunOn(r.queue, SumOf(x),
                                {.timeout = absl::Milliseconds(200)});
  });
  for (const size_t r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                FailedBecause(absl::StatusCode::kDeadlineExceeded,
                              AllOf(HasSubstr("all_reduce #1 of 100 f32"),
                                    HasSubstr("rank 1"),
                                    HasSubstr("has not entered operation #1"),
                                    Not(HasSubstr("rank 0")))));
  }
  EXPECT_THAT(statuses[1], Not(IsOk()));
  // The error belongs to the group, not to the device.
  EXPECT_THAT(device->Synchronize(), IsOk());
}

TEST(CudaCommunicatorTest, NamesDepartedRank) {
  const auto device = NewDevice();
  const auto statuses = RunCuda(3, *device, [](CudaRank& r) -> absl::Status {
    if (r.communicator.rank() == Rank(2)) return absl::OkStatus();
    return r.communicator.Run(BarrierOf());
  });
  EXPECT_THAT(statuses[2], IsOk());
  for (const size_t r : {0, 1}) {
    EXPECT_THAT(statuses[r],
                FailedBecause(absl::StatusCode::kUnavailable,
                              AllOf(HasSubstr("rank 2"),
                                    HasSubstr("has left the group"))));
  }
}

TEST(CudaCommunicatorTest, ReportsMismatchedUnevenCounts) {
  const auto device = NewDevice();
  const auto statuses = RunCuda(2, *device, [](CudaRank& r) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(Floats in, Floats::Create(r, 4));
    TESSERA_ASSIGN_OR_RETURN(Floats out, Floats::Create(r, 4));
    TESSERA_RETURN_IF_ERROR(in.Set(r.queue, 1));
    TESSERA_RETURN_IF_ERROR(r.queue.Synchronize());
    const bool first = r.communicator.rank() == Rank(0);
    return r.communicator.RunOn(
        r.queue, first ? AllToAllOf(in.buffer(), out.buffer(), {2, 2}, {2, 2})
                       : AllToAllOf(in.buffer(), out.buffer().Slice(0, 3),
                                    {2, 2}, {1, 2}));
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("rank 0 sends 2 elements to rank 1, "
                                      "which receives 1"))));
}

TEST(CudaCommunicatorTest, SharedMemoryIsTheDevices) {
  const auto device = NewDevice();
  EXPECT_THAT(
      RunCuda(2, *device,
              [](CudaRank& r) -> absl::Status {
                TESSERA_ASSIGN_OR_RETURN(const auto shared,
                                         r.communicator.AllocateShared(4000));
                EXPECT_EQ(shared->kind(), MemoryKind::kDevice);
                EXPECT_EQ(shared->bytes().size(), 4000u);
                EXPECT_THAT(r.communicator.AllocateShared(-1),
                            StatusIs(absl::StatusCode::kInvalidArgument));
                return absl::OkStatus();
              }),
      Each(IsOk()));
}

TEST(CudaCommunicatorTest, EmulatedRanksMustShareADevice) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& world) -> absl::Status {
                 const auto device = NewDevice();
                 EXPECT_THAT(
                     emulated::CreateCudaEngine(world, *device),
                     StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("emulated ranks share one device")));
                 return world.Barrier();
               }),
      Each(IsOk()));
}

TEST(CudaCommunicatorTest, RanksMustBeThreads) {
  const auto outcomes =
      RunSharedMemory(2, [](Communicator& world) -> absl::Status {
        HostDevice device;
        return emulated::CreateCudaEngine(world, device).status();
      });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                         AllOf(HasSubstr("different processes"),
                                               HasSubstr("nccl"))));
  }
}

TEST(CudaCommunicatorTest, RejectsNullHost) {
  HostDevice device;
  EXPECT_THAT(
      emulated::CreateCudaCommunicator(nullptr, device),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host is null")));
}

}  // namespace
}  // namespace tessera::collectives
