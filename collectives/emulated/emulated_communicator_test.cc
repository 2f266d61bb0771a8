#include "collectives/emulated/emulated_communicator.h"

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/emulated_device.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/run_emulated.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Floats in the memory of a rank's device.
class DeviceFloats {
 public:
  static absl::StatusOr<DeviceFloats> Create(EmulatedRank& rank, size_t count) {
    DeviceFloats floats;
    TESSERA_ASSIGN_OR_RETURN(
        floats.memory_,
        tessera::Buffer::Allocate(rank.device.memory(), count * sizeof(float)));
    floats.count_ = static_cast<int64_t>(count);
    return floats;
  }

  Buffer buffer() { return {memory_.data(), count_, DType::kF32}; }
  std::span<std::byte> bytes() { return memory_.bytes(); }

  // Enqueues work that sets all elements to `value`.
  absl::Status Set(Queue& queue, float value) {
    return queue.Launch(
        {.name = "set",
         .accesses = {WritesTo(bytes())},
         .run = [data = bytes(), value](const DeviceAddresses& at) {
           Fill(at(data), value);
           return absl::StatusOr<Event>(Event());
         }});
  }
  // Waits for the queue on the host, then reads the elements.
  absl::StatusOr<std::vector<float>> Get(Queue& queue) {
    StagingPool staging(queue);
    TESSERA_ASSIGN_OR_RETURN(const Download download,
                             staging.StartDownload(memory_.bytes()));
    TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                             download.Wait());
    std::vector<float> values(static_cast<size_t>(count_));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  static void Fill(std::span<std::byte> bytes, float value) {
    auto* const data = reinterpret_cast<float*>(bytes.data());
    std::fill(data, data + bytes.size() / sizeof(float), value);
  }

  tessera::Buffer memory_;
  int64_t count_ = 0;
};

Operation SumOf(DeviceFloats& floats) {
  return AllReduceOf(floats.buffer(), floats.buffer(), Reduction::Sum());
}

absl::Status ExpectAll(DeviceFloats& floats, Queue& queue, float value) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<float> values, floats.Get(queue));
  EXPECT_THAT(values, Each(value));
  return absl::OkStatus();
}

// A device's report reaches every rank, as its own error or as the reason of
// another rank that aborted the group first.
void ExpectReports(const std::vector<absl::Status>& statuses,
                   const ::testing::Matcher<const std::string&>& report) {
  EXPECT_THAT(statuses,
              Contains(StatusIs(absl::StatusCode::kInternal, report)));
  EXPECT_THAT(statuses,
              Each(AnyOf(StatusIs(absl::StatusCode::kInternal, report),
                         StatusIs(absl::StatusCode::kAborted, report))));
}

class EmulatedCommunicatorTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::vector<absl::Status> Run(int64_t ranks, const EmulatedBody& body,
                                const CommunicatorOptions& options = {}) {
    return RunEmulated(ranks, GetParam(), body, options);
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, EmulatedCommunicatorTest,
                         ::testing::Range<uint64_t>(1, 9));

TEST_P(EmulatedCommunicatorTest, OperationsAreOrderedWithAQueueByEvents) {
  EXPECT_THAT(
      Run(3,
          [](EmulatedRank& r) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                     DeviceFloats::Create(r, 1000));
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats kept,
                                     DeviceFloats::Create(r, 1000));
            for (int step = 0; step < 10; ++step) {
              TESSERA_RETURN_IF_ERROR(
                  x.Set(r.queue, static_cast<float>(step + 1)));
              TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(r.queue, SumOf(x)));
              TESSERA_RETURN_IF_ERROR(r.queue.Copy(x.bytes(), kept.bytes()));
            }
            return ExpectAll(kept, r.queue, 30);
          }),
      Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, TheHostDoesNotWait) {
  EXPECT_THAT(
      Run(2,
          [](EmulatedRank& r) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                     DeviceFloats::Create(r, 10));
            TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
            const int64_t waits = r.device.counts().host_waits;
            for (int i = 0; i < 5; ++i) {
              TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(r.queue, SumOf(x)));
              TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(
                  r.queue, BroadcastOf(x.buffer(), x.buffer(), Rank(0))));
            }
            EXPECT_EQ(r.device.counts().host_waits, waits);
            return ExpectAll(x, r.queue, 32);
          }),
      Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, GroupsMayStartInDifferentOrdersOnTheRanks) {
  EXPECT_THAT(Run(2,
                  [](EmulatedRank& r) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        const std::unique_ptr<Communicator> other,
                        r.communicator.Split(/*colour=*/0, /*key=*/0, "other"));
                    TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                             DeviceFloats::Create(r, 5000));
                    TESSERA_ASSIGN_OR_RETURN(DeviceFloats y,
                                             DeviceFloats::Create(r, 5000));
                    TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
                    TESSERA_RETURN_IF_ERROR(y.Set(r.queue, 2));
                    Communicator* first = &r.communicator;
                    Communicator* second = other.get();
                    DeviceFloats* first_floats = &x;
                    DeviceFloats* second_floats = &y;
                    if (r.communicator.rank() == Rank(1)) {
                      std::swap(first, second);
                      std::swap(first_floats, second_floats);
                    }
                    TESSERA_ASSIGN_OR_RETURN(
                        const Work one,
                        first->StartOn(r.queue, SumOf(*first_floats)));
                    TESSERA_ASSIGN_OR_RETURN(
                        const Work two,
                        second->StartOn(r.queue, SumOf(*second_floats)));
                    TESSERA_RETURN_IF_ERROR(r.queue.Wait(one.event()));
                    TESSERA_RETURN_IF_ERROR(r.queue.Wait(two.event()));
                    TESSERA_RETURN_IF_ERROR(ExpectAll(x, r.queue, 2));
                    return ExpectAll(y, r.queue, 4);
                  }),
              Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, EarlyReceiveDoesNotBlockSend) {
  EXPECT_THAT(Run(3,
                  [](EmulatedRank& r) -> absl::Status {
                    Communicator& c = r.communicator;
                    const Rank right((c.rank().value() + 1) % 3);
                    const Rank left((c.rank().value() + 2) % 3);
                    // Too large to be sent before it is received.
                    TESSERA_ASSIGN_OR_RETURN(DeviceFloats in,
                                             DeviceFloats::Create(r, 300'000));
                    TESSERA_ASSIGN_OR_RETURN(DeviceFloats out,
                                             DeviceFloats::Create(r, 300'000));
                    TESSERA_ASSIGN_OR_RETURN(
                        const Work received,
                        c.StartOn(r.queue, ReceiveOf(in.buffer(), left)));
                    TESSERA_RETURN_IF_ERROR(
                        out.Set(r.queue, static_cast<float>(c.rank().value())));
                    TESSERA_RETURN_IF_ERROR(
                        c.RunOn(r.queue, SendOf(out.buffer(), right)));
                    TESSERA_RETURN_IF_ERROR(r.queue.Wait(received.event()));
                    return ExpectAll(in, r.queue,
                                     static_cast<float>(left.value()));
                  }),
              Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, ExchangeCompletesWithBothHalves) {
  EXPECT_THAT(
      Run(2,
          [](EmulatedRank& r) -> absl::Status {
            Communicator& c = r.communicator;
            const Rank other(1 - c.rank().value());
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats in,
                                     DeviceFloats::Create(r, 1000));
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats out,
                                     DeviceFloats::Create(r, 1000));
            for (int i = 0; i < 5; ++i) {
              const auto value = static_cast<float>(10 * i);
              TESSERA_RETURN_IF_ERROR(out.Set(
                  r.queue, value + static_cast<float>(c.rank().value())));
              TESSERA_RETURN_IF_ERROR(c.RunOn(
                  r.queue,
                  SendReceiveOf(out.buffer(), other, in.buffer(), other)));
              TESSERA_RETURN_IF_ERROR(ExpectAll(
                  in, r.queue, value + static_cast<float>(other.value())));
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, ExchangeDoesNotWaitForAnotherPeer) {
  EXPECT_THAT(
      Run(3,
          [](EmulatedRank& r) -> absl::Status {
            Communicator& c = r.communicator;
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats out,
                                     DeviceFloats::Create(r, 10));
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats in,
                                     DeviceFloats::Create(r, 10));
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats late,
                                     DeviceFloats::Create(r, 10));
            TESSERA_RETURN_IF_ERROR(out.Set(r.queue, 3));
            const auto exchange = [&](DeviceFloats& into, Rank peer) {
              return c.StartOn(r.queue, SendReceiveOf(out.buffer(), peer,
                                                      into.buffer(), peer));
            };
            int64_t token = 0;
            const Buffer message(std::span(&token, 1));
            if (c.rank() != Rank(0)) {
              // Rank 1 takes part only after rank 0 has the values of rank 2.
              if (c.rank() == Rank(1)) {
                TESSERA_RETURN_IF_ERROR(c.host().Receive(message, Rank(0)));
              }
              TESSERA_ASSIGN_OR_RETURN(const Work work, exchange(in, Rank(0)));
              TESSERA_RETURN_IF_ERROR(r.queue.Wait(work.event()));
              return ExpectAll(in, r.queue, 3);
            }
            TESSERA_ASSIGN_OR_RETURN(const Work later, exchange(late, Rank(1)));
            TESSERA_ASSIGN_OR_RETURN(const Work sooner, exchange(in, Rank(2)));
            TESSERA_RETURN_IF_ERROR(r.queue.Wait(sooner.event()));
            TESSERA_RETURN_IF_ERROR(ExpectAll(in, r.queue, 3));
            TESSERA_RETURN_IF_ERROR(c.host().Send(message, Rank(1)));
            TESSERA_RETURN_IF_ERROR(r.queue.Wait(later.event()));
            return ExpectAll(late, r.queue, 3);
          }),
      Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, OnlyRootsUseBothBuffers) {
  EXPECT_THAT(
      Run(3,
          [](EmulatedRank& r) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats in,
                                     DeviceFloats::Create(r, 30));
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats out,
                                     DeviceFloats::Create(r, 10));
            TESSERA_RETURN_IF_ERROR(in.Set(r.queue, 7));
            TESSERA_ASSIGN_OR_RETURN(
                const Work work,
                r.communicator.StartOn(
                    r.queue, ScatterOf(in.buffer(), out.buffer(), Rank(0))));
            // Only the root's input is in use.
            if (r.communicator.rank() != Rank(0)) {
              TESSERA_RETURN_IF_ERROR(in.Set(r.queue, 8));
            }
            TESSERA_RETURN_IF_ERROR(r.queue.Wait(work.event()));
            return ExpectAll(out, r.queue, 7);
          }),
      Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, DetectsMissingWaitBeforeOperation) {
  const auto statuses = Run(2, [](EmulatedRank& r) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(DeviceFloats x, DeviceFloats::Create(r, 10));
    TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
    const absl::Status status = r.communicator.Start(SumOf(x)).status();
    EXPECT_THAT(r.communicator.status(), Not(IsOk()));
    EXPECT_THAT(r.communicator.host().Barrier(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    return status;
  });
  ExpectReports(statuses, AllOf(HasSubstr("missing wait: \"all_reduce\""),
                                HasSubstr("\"set\" on queue compute"),
                                HasSubstr("emulated_communicator_test.cc"),
                                HasSubstr("world")));
}

TEST_P(EmulatedCommunicatorTest, DetectsMissingWaitAfterOperation) {
  const auto statuses = Run(2, [](EmulatedRank& r) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(DeviceFloats x, DeviceFloats::Create(r, 10));
    TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
    TESSERA_RETURN_IF_ERROR(r.communicator.StartOn(r.queue, SumOf(x)).status());
    return x.Set(r.queue, 1);
  });
  ExpectReports(statuses, HasSubstr("missing wait: \"set\""));
}

TEST_P(EmulatedCommunicatorTest, TheHostCommunicatesWhileTheDeviceIsAtWork) {
  EXPECT_THAT(Run(2,
                  [](EmulatedRank& r) -> absl::Status {
                    Communicator& c = r.communicator;
                    const Rank other(1 - c.rank().value());
                    TESSERA_ASSIGN_OR_RETURN(DeviceFloats in,
                                             DeviceFloats::Create(r, 10));
                    TESSERA_ASSIGN_OR_RETURN(DeviceFloats out,
                                             DeviceFloats::Create(r, 10));
                    TESSERA_ASSIGN_OR_RETURN(
                        const Work received,
                        c.StartOn(r.queue, ReceiveOf(in.buffer(), other)));
                    int64_t value = 1;
                    TESSERA_RETURN_IF_ERROR(c.host().AllReduce(
                        Buffer(std::span(&value, 1)), Reduction::Sum()));
                    EXPECT_EQ(value, 2);
                    TESSERA_RETURN_IF_ERROR(out.Set(r.queue, 5));
                    TESSERA_RETURN_IF_ERROR(
                        c.RunOn(r.queue, SendOf(out.buffer(), other)));
                    TESSERA_RETURN_IF_ERROR(r.queue.Wait(received.event()));
                    return ExpectAll(in, r.queue, 5);
                  }),
              Each(IsOk()));
}

TEST_P(EmulatedCommunicatorTest, AnErrorOnTheDeviceBreaksBothCommunicators) {
  const auto statuses = Run(2, [](EmulatedRank& r) -> absl::Status {
    Communicator& c = r.communicator;
    const bool is_first = c.rank() == Rank(0);
    TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                             DeviceFloats::Create(r, is_first ? 16 : 17));
    TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
    TESSERA_RETURN_IF_ERROR(c.RunOn(r.queue, SumOf(x)));
    const absl::Status status = r.queue.Synchronize();
    EXPECT_THAT(c.status(), StatusIs(status.code(), HasSubstr("of 17 f32")));
    EXPECT_THAT(c.host().status(), StatusIs(status.code()));
    EXPECT_THAT(c.Start(SumOf(x)).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("refuses further work")));
    return status;
  });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr("of 16 f32"), HasSubstr("of 17 f32"),
                          HasSubstr("queue world"), HasSubstr("rank 1")))));
}

TEST(EmulatedGroupsTest, AbortOfOneAbortsTheOther) {
  for (const bool on_host : {false, true}) {
    EXPECT_THAT(RunEmulated(2, 1,
                            [&](EmulatedRank& r) -> absl::Status {
                              Communicator& c = r.communicator;
                              (on_host ? c.host() : c).Abort("enough");
                              for (Communicator* const one : {&c, &c.host()}) {
                                EXPECT_THAT(one->status(),
                                            StatusIs(absl::StatusCode::kAborted,
                                                     HasSubstr("enough")));
                                EXPECT_THAT(one->Barrier(), Not(IsOk()));
                              }
                              return absl::OkStatus();
                            }),
                Each(IsOk()));
  }
}

TEST(EmulatedGroupsTest, SubgroupsHaveAHostOfTheirOwn) {
  EXPECT_THAT(
      RunEmulated(
          4, 1,
          [](EmulatedRank& r) -> absl::Status {
            Communicator& c = r.communicator;
            TESSERA_ASSIGN_OR_RETURN(
                const std::unique_ptr<Communicator> pair,
                c.Split(c.rank().value() % 2, c.rank().value(), "pair"));
            EXPECT_EQ(pair->engine_name(), "emulated");
            EXPECT_EQ(pair->host().engine_name(), "in_process");
            EXPECT_EQ(pair->host().name(), "pair");
            EXPECT_EQ(pair->host().size(), 2);
            EXPECT_EQ(pair->host().rank(), pair->rank());
            EXPECT_EQ(&pair->host().host(), &pair->host());
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                     DeviceFloats::Create(r, 100));
            TESSERA_RETURN_IF_ERROR(
                x.Set(r.queue, static_cast<float>(c.rank().value())));
            TESSERA_RETURN_IF_ERROR(pair->RunOn(r.queue, SumOf(x)));
            return ExpectAll(x, r.queue, c.rank().value() % 2 == 0 ? 2 : 4);
          }),
      Each(IsOk()));
}

TEST(EmulatedGroupsTest, SharedMemoryIsTheDevices) {
  EXPECT_THAT(
      RunEmulated(
          2, 1,
          [](EmulatedRank& r) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(const auto shared,
                                     r.communicator.AllocateShared(4000));
            EXPECT_EQ(shared->kind(), MemoryKind::kDevice);
            EXPECT_EQ(shared->bytes().size(), 4000u);
            TESSERA_ASSIGN_OR_RETURN(
                const auto of_host, r.communicator.host().AllocateShared(4000));
            EXPECT_EQ(of_host->kind(), MemoryKind::kHost);
            TESSERA_RETURN_IF_ERROR(
                r.queue.Fill(std::byte{0}, shared->bytes()));
            const Buffer buffer(shared->bytes().data(), 1000, DType::kF32);
            TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(
                r.queue, AllReduceOf(buffer, buffer, Reduction::Sum())));
            return r.queue.Synchronize();
          }),
      Each(IsOk()));
}

TEST(EmulatedGroupsTest, RecordsEnqueuedOperations) {
  EXPECT_THAT(
      RunEmulated(
          2, 1,
          [](EmulatedRank& r) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                     DeviceFloats::Create(r, 10));
            TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
            for (int i = 0; i < 3; ++i) {
              TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(r.queue, SumOf(x)));
            }
            const auto records = r.communicator.RecentOperations();
            EXPECT_EQ(records.size(), 3u);
            EXPECT_EQ(records.back().signature.sequence, 3u);
            EXPECT_EQ(records.back().bytes, 40);
            EXPECT_GT(records.back().end_ns, 0);
            EXPECT_EQ(r.communicator.host().RecentOperations().size(), 0u);
            return r.queue.Synchronize();
          }),
      Each(IsOk()));
}

// The rank dies while others have an operation on their devices.
TEST(EmulatedGroupsTest, EveryRankNamesDeadRank) {
  const auto outcomes =
      RunSharedMemory(3, [](Communicator& world) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            const std::shared_ptr<EmulatedDevice> device,
            EmulatedDevice::Create({.memory_bytes = size_t{1} << 26}));
        TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> host,
                                 world.Split(0, world.rank().value()));
        TESSERA_ASSIGN_OR_RETURN(
            const std::unique_ptr<Communicator> communicator,
            CreateEmulatedCommunicator(std::move(host), *device));
        TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                                 device->CreateQueue("compute"));
        EmulatedRank rank{*communicator, *device, *queue};
        TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                 DeviceFloats::Create(rank, 1000));
        TESSERA_RETURN_IF_ERROR(x.Set(*queue, 1));
        TESSERA_RETURN_IF_ERROR(communicator->RunOn(*queue, SumOf(x)));
        TESSERA_RETURN_IF_ERROR(queue->Synchronize());
        if (world.rank() == Rank(1)) raise(SIGKILL);
        TESSERA_RETURN_IF_ERROR(communicator->RunOn(*queue, SumOf(x)));
        const absl::Status status = queue->Synchronize();
        EXPECT_THAT(communicator->host().status(), Not(IsOk()));
        return status;
      });
  for (const size_t r : {0, 2}) {
    EXPECT_THAT(outcomes[r].status,
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 1"), HasSubstr("is dead"))));
  }
}

TEST(EmulatedGroupsTest, RejectsEnginesOfTheOtherKind) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto device, EmulatedDevice::Create());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto engines, CreateInProcessEngines(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto more, CreateInProcessEngines(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto host,
                               Communicator::Create(std::move(engines[0])));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto engine,
                               CreateEmulatedEngine(*host, *device));
  EXPECT_THAT(Communicator::Create(std::move(engine)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("use CreateOnDevice")));
  EXPECT_THAT(
      CreateEmulatedCommunicator(nullptr, *device),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host is null")));
  EXPECT_THAT(Communicator::CreateOnDevice(std::move(host), std::move(more[0])),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("given are in_process and in_process")));
  EXPECT_THAT(Communicator::CreateOnDevice(nullptr, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("one of them is null")));
}

TEST(EmulatedGroupsTest, RejectedCallKeepsGroupUsable) {
  EXPECT_THAT(
      RunEmulated(
          2, 1,
          [](EmulatedRank& r) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(DeviceFloats x,
                                     DeviceFloats::Create(r, 10));
            TESSERA_RETURN_IF_ERROR(x.Set(r.queue, 1));
            EXPECT_THAT(
                r.communicator.RunOn(
                    r.queue, BroadcastOf(x.buffer(), x.buffer(), Rank(2))),
                StatusIs(absl::StatusCode::kInvalidArgument));
            EXPECT_THAT(r.communicator.AllocateShared(-1),
                        StatusIs(absl::StatusCode::kInvalidArgument));
            TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(r.queue, SumOf(x)));
            return ExpectAll(x, r.queue, 2);
          }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::collectives
