#include "base/device/emulated_device.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/testing/device_conformance.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceFactory WithSeed(uint64_t seed) {
  return [seed]() -> absl::StatusOr<std::shared_ptr<Device>> {
    return EmulatedDevice::Create({.seed = seed});
  };
}

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceConformanceTest,
                         ::testing::Values(WithSeed(1), WithSeed(2),
                                           WithSeed(3), WithSeed(4)));

INSTANTIATE_TEST_SUITE_P(Emulated, CaptureConformanceTest,
                         ::testing::Values(WithSeed(1), WithSeed(2),
                                           WithSeed(3), WithSeed(4)));

class EmulatedDeviceTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override {
    auto device = EmulatedDevice::Create({.seed = GetParam()});
    TESSERA_ASSERT_OK(device);
    device_ = *std::move(device);
    compute_ = *device_->CreateQueue("compute");
    gather_ = *device_->CreateQueue("gather");
  }
  Buffer OnDevice(size_t bytes) {
    return *Buffer::Allocate(device_->memory(), bytes);
  }

  // Weights are gathered on one queue into two buffers in turn and used on
  // another. Returns the result of the device, and the result itself.
  struct Planted {
    bool no_wait_for_weights = false;
    bool no_wait_for_buffer = false;
  };
  std::pair<absl::Status, double> Train(const Planted& planted) {
    double result = 0;
    const absl::Status status = TrainInto(planted, result);
    return {status, result};
  }
  absl::Status TrainInto(const Planted& planted, double& result);

  std::shared_ptr<EmulatedDevice> device_;
  std::unique_ptr<Queue> compute_;
  std::unique_ptr<Queue> gather_;
};

INSTANTIATE_TEST_SUITE_P(Orders, EmulatedDeviceTest,
                         ::testing::Range<uint64_t>(1, 9));

absl::Status EmulatedDeviceTest::TrainInto(const Planted& planted,
                                           double& result) {
  constexpr size_t kWeights = 512;
  Buffer weights[2] = {OnDevice(8 * kWeights), OnDevice(8 * kWeights)};
  Buffer x = OnDevice(8);
  auto* const value = reinterpret_cast<double*>(x.data());
  TESSERA_RETURN_IF_ERROR(compute_->Launch(
      {.name = "begin",
       .accesses = {WritesTo(x.bytes())},
       .run = [value](const DeviceAddresses& at) -> absl::StatusOr<Event> {
         *at(value) = 1;
         return Event();
       }}));
  Event free[2];
  for (int layer = 0; layer < 8; ++layer) {
    Buffer& buffer = weights[layer % 2];
    auto* const w = reinterpret_cast<double*>(buffer.data());
    if (!planted.no_wait_for_buffer) {
      TESSERA_RETURN_IF_ERROR(gather_->Wait(free[layer % 2]));
    }
    TESSERA_RETURN_IF_ERROR(gather_->Launch(
        {.name = "all_gather",
         .accesses = {WritesTo(buffer.bytes())},
         .run = [w, layer](const DeviceAddresses& at) -> absl::StatusOr<Event> {
           for (size_t i = 0; i < kWeights; ++i) at(w)[i] = layer + 1;
           return Event();
         }}));
    if (!planted.no_wait_for_weights) {
      TESSERA_ASSIGN_OR_RETURN(const Event gathered, gather_->Record());
      TESSERA_RETURN_IF_ERROR(compute_->Wait(gathered));
    }
    TESSERA_RETURN_IF_ERROR(compute_->Launch(
        {.name = "layer",
         .accesses = {ReadsFrom(buffer.bytes()), WritesTo(x.bytes())},
         .run = [w, value](const DeviceAddresses& at) -> absl::StatusOr<Event> {
           *at(value) = *at(value) * 1.5 + at(w)[7];
           return Event();
         }}));
    TESSERA_ASSIGN_OR_RETURN(free[layer % 2], compute_->Record());
  }
  TESSERA_RETURN_IF_ERROR(compute_->Synchronize());
  std::memcpy(&result, device_->addresses()(x.data()), 8);
  return absl::OkStatus();
}

TEST_P(EmulatedDeviceTest, CorrectProgramIsDeterministicInEveryOrder) {
  double expected = 1;
  for (int layer = 0; layer < 8; ++layer) expected = expected * 1.5 + layer + 1;
  const auto [status, result] = Train({});
  TESSERA_ASSERT_OK(status);
  EXPECT_EQ(result, expected);
}

TEST_P(EmulatedDeviceTest, DetectsMissingWaitForGatheredWeights) {
  EXPECT_THAT(
      Train({.no_wait_for_weights = true}).first,
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("missing wait: \"layer\" on queue compute"),
                     HasSubstr("emulated_device_test.cc:"),
                     HasSubstr("reads 4096 bytes that \"all_gather\" on queue "
                               "gather"),
                     HasSubstr("queue compute should wait for an event that "
                               "queue gather records"))));
}

TEST_P(EmulatedDeviceTest, DetectsGatherOverWeightsInUse) {
  EXPECT_THAT(Train({.no_wait_for_buffer = true}).first,
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("\"all_gather\" on queue gather"),
                             HasSubstr("writes 4096 bytes that \"layer\" on "
                                       "queue compute"),
                             HasSubstr("reads, and no event orders them"))));
}

TEST_P(EmulatedDeviceTest, DetectsOverlappingParts) {
  Buffer a = OnDevice(100);
  const std::span<std::byte> bytes = a.bytes();
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(1), bytes.subspan(0, 40)));
  TESSERA_ASSERT_OK(gather_->Fill(std::byte(2), bytes.subspan(40, 60)));
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(1), bytes.subspan(20, 20)));
  EXPECT_THAT(gather_->Fill(std::byte(2), bytes.subspan(39, 10)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("1 bytes")));
}

TEST_P(EmulatedDeviceTest, TwoQueuesMayRead) {
  Buffer a = OnDevice(100), b = OnDevice(100), c = OnDevice(100);
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(1), a.bytes()));
  TESSERA_ASSERT_OK(gather_->Wait(*compute_->Record()));
  TESSERA_ASSERT_OK(gather_->Copy(a.bytes(), b.bytes()));
  TESSERA_ASSERT_OK(compute_->Copy(a.bytes(), c.bytes()));
  TESSERA_ASSERT_OK(device_->Synchronize());
  // A write waits for both.
  TESSERA_ASSERT_OK(gather_->Copy(a.bytes(), b.bytes()));
  EXPECT_THAT(compute_->Fill(std::byte(0), a.bytes()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("reads")));
}

TEST_P(EmulatedDeviceTest, KeepsFirstError) {
  Buffer a = OnDevice(8);
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(0), a.bytes()));
  const absl::Status first = gather_->Fill(std::byte(0), a.bytes());
  EXPECT_EQ(compute_->Fill(std::byte(0), a.bytes()), first);
  EXPECT_EQ(compute_->Synchronize(), first);
  EXPECT_EQ(device_->Synchronize(), first);
}

TEST_P(EmulatedDeviceTest, ChecksHostAccesses) {
  Buffer a = OnDevice(64);
  Buffer host = *Buffer::Allocate(device_->staging_memory(), 64);
  TESSERA_ASSERT_OK(
      device_->HostAccess(WritesTo(host.bytes()), "fill staging"));
  TESSERA_ASSERT_OK(compute_->Copy(host.bytes(), a.bytes()));
  // It may be read, but not written until the copy is done.
  TESSERA_EXPECT_OK(device_->HostAccess(ReadsFrom(host.bytes()), "look"));
  const Event copied = *compute_->Record();
  TESSERA_ASSERT_OK(copied.Wait());
  TESSERA_ASSERT_OK(
      device_->HostAccess(WritesTo(host.bytes()), "fill staging"));
  TESSERA_ASSERT_OK(compute_->Copy(a.bytes(), host.bytes()));
  EXPECT_THAT(device_->HostAccess(ReadsFrom(host.bytes()), "read the loss"),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("\"read the loss\" on the host"),
                             HasSubstr("the host should wait"))));
}

TEST_P(EmulatedDeviceTest, DetectsFreeOfMemoryInUse) {
  {
    Buffer a = OnDevice(64);
    TESSERA_ASSERT_OK(compute_->Fill(std::byte(0), a.bytes()));
    TESSERA_ASSERT_OK(compute_->Synchronize());
  }
  TESSERA_ASSERT_OK(compute_->Synchronize());
  {
    Buffer a = OnDevice(64);
    TESSERA_ASSERT_OK(compute_->Fill(std::byte(0), a.bytes()));
  }
  EXPECT_THAT(compute_->Synchronize(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("\"free\"")));
}

TEST_P(EmulatedDeviceTest, DetectsFreeOfStagingMemoryInUse) {
  Buffer a = OnDevice(64);
  for (const bool waits : {true, false}) {
    Buffer host = *Buffer::Allocate(device_->staging_memory(), 64);
    TESSERA_ASSERT_OK(compute_->Copy(a.bytes(), host.bytes()));
    if (waits) {
      TESSERA_ASSERT_OK(compute_->Synchronize());
    }
  }
  EXPECT_THAT(compute_->Synchronize(),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("\"free\" on the host writes 64 bytes")));
}

TEST_P(EmulatedDeviceTest, ChecksTheBoundsOfAllocations) {
  Buffer a = OnDevice(64);
  Buffer b = OnDevice(64);
  EXPECT_THAT(compute_->Fill(std::byte(0), {a.data(), 65}),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("not within one allocation")));
}

TEST_P(EmulatedDeviceTest, RejectsFunctionsOnHostMemory) {
  Buffer staging = *Buffer::Allocate(device_->staging_memory(), 64);
  std::vector<std::byte> host(64);
  const auto kernel = [](std::span<std::byte> target) {
    return HostFunction{.name = "kernel",
                        .accesses = {WritesTo(target)},
                        .run = [](auto&) { return Event(); }};
  };
  TESSERA_EXPECT_OK(compute_->Launch(kernel(staging.bytes())));
  TESSERA_EXPECT_OK(compute_->Copy(staging.bytes(), host));
  EXPECT_THAT(
      compute_->Launch(kernel(host)),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("\"kernel\" on queue compute"),
                     HasSubstr("64 bytes of host memory that the device "
                               "cannot access"))));
}

TEST_P(EmulatedDeviceTest, ReturnsTheErrorOfAFunction) {
  TESSERA_ASSERT_OK(compute_->Launch({.name = "fails", .run = [](auto&) {
                                        return absl::DataLossError("lost");
                                      }}));
  bool ran = false;
  static_cast<void>(compute_->Launch({.name = "never", .run = [&ran](auto&) {
                                        ran = true;
                                        return Event();
                                      }}));
  EXPECT_THAT(
      compute_->Synchronize(),
      StatusIs(absl::StatusCode::kDataLoss,
               HasSubstr("\"fails\" on queue compute of the emulated device: "
                         "lost")));
  EXPECT_FALSE(ran);
}

TEST_P(EmulatedDeviceTest, CallsCapturedFunctionsInEachReplay) {
  Buffer a = OnDevice(8);
  auto* const value = reinterpret_cast<double*>(a.data());
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(0), a.bytes()));
  double step = 1;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*compute_, [&] {
        return compute_->Launch({.name = "add",
                                 .accesses = {WritesTo(a.bytes())},
                                 .run = [value, step](const DeviceAddresses& at)
                                     -> absl::StatusOr<Event> {
                                   *at(value) += step;
                                   return Event();
                                 }});
      }));
  step = 100;  // The graph has the value of its capture.
  for (int i = 0; i < 5; ++i) TESSERA_ASSERT_OK(compute_->Replay(*graph));
  TESSERA_ASSERT_OK(compute_->Synchronize());
  EXPECT_EQ(*device_->addresses()(value), 5);
}

TEST_P(EmulatedDeviceTest, ChecksEachReplayForMissingWaits) {
  Buffer a = OnDevice(100), b = OnDevice(100);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto graph, Capture(*compute_, [&] {
                                 return compute_->Copy(a.bytes(), b.bytes());
                               }));
  TESSERA_ASSERT_OK(gather_->Fill(std::byte(1), a.bytes()));
  TESSERA_ASSERT_OK(compute_->Wait(*gather_->Record()));
  TESSERA_ASSERT_OK(compute_->Replay(*graph));
  TESSERA_ASSERT_OK(gather_->Wait(*compute_->Record()));
  TESSERA_ASSERT_OK(gather_->Fill(std::byte(2), a.bytes()));
  EXPECT_THAT(
      compute_->Replay(*graph),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("missing wait: \"copy\" on queue compute"),
                     HasSubstr("emulated_device_test.cc:"),
                     HasSubstr("\"fill\" on queue gather"))));
}

TEST_P(EmulatedDeviceTest, ChecksTheWaitsInsideACapture) {
  for (const bool waits : {true, false}) {
    Buffer a = OnDevice(100), b = OnDevice(100);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto graph, Capture(*compute_, [&]() -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(const Event fork, compute_->Record());
          TESSERA_RETURN_IF_ERROR(gather_->Wait(fork));
          TESSERA_RETURN_IF_ERROR(gather_->Fill(std::byte(1), a.bytes()));
          TESSERA_ASSIGN_OR_RETURN(const Event filled, gather_->Record());
          if (waits) TESSERA_RETURN_IF_ERROR(compute_->Wait(filled));
          TESSERA_RETURN_IF_ERROR(compute_->Copy(a.bytes(), b.bytes()));
          return waits ? absl::OkStatus() : compute_->Wait(filled);
        }));
    const absl::Status status = compute_->Replay(*graph);
    if (waits) {
      TESSERA_ASSERT_OK(status);
      TESSERA_ASSERT_OK(compute_->Replay(*graph));
      TESSERA_ASSERT_OK(compute_->Synchronize());
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                   AllOf(HasSubstr("\"copy\" on queue compute"),
                                         HasSubstr("queue gather (graph)"))));
    }
  }
}

TEST_P(EmulatedDeviceTest, DetectsReplayUsingFreedMemory) {
  std::optional<Buffer> a = OnDevice(100);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto graph, Capture(*compute_, [&] {
                                 return compute_->Fill(std::byte(1),
                                                       a->bytes());
                               }));
  TESSERA_ASSERT_OK(compute_->Replay(*graph));
  TESSERA_ASSERT_OK(compute_->Synchronize());
  a.reset();
  EXPECT_THAT(compute_->Replay(*graph),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("not within one allocation")));
}

TEST_P(EmulatedDeviceTest, ReportsAnAccessOfTheHostInsideACapture) {
  Buffer a = OnDevice(64);
  Buffer host = *Buffer::Allocate(device_->staging_memory(), 64);
  Buffer unused = *Buffer::Allocate(device_->staging_memory(), 64);
  for (const bool frees : {false, true}) {
    TESSERA_ASSERT_OK(compute_->BeginCapture());
    TESSERA_ASSERT_OK(compute_->Copy(host.bytes(), a.bytes()));
    TESSERA_EXPECT_OK(device_->HostAccess(ReadsFrom(host.bytes()), "look"));
    TESSERA_EXPECT_OK(
        device_->HostAccess(WritesTo(unused.bytes()), "fill staging"));
    if (frees) {
      host = Buffer();
    } else {
      EXPECT_THAT(
          device_->HostAccess(WritesTo(host.bytes()), "fill staging"),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   AllOf(HasSubstr("\"fill staging\" of the host"),
                         HasSubstr("memory that \"copy\""),
                         HasSubstr("inside the capture of queue compute"))));
    }
    EXPECT_THAT(compute_->EndCapture(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("of the host at")));
  }
}

// A host event, such as that of a message.
class Message final : public EventState {
 public:
  absl::StatusOr<bool> Test() override { return arrived_.load(); }
  absl::Status Wait() override {
    while (!arrived_.load()) std::this_thread::yield();
    return absl::OkStatus();
  }
  void Arrive() { arrived_ = true; }

 private:
  std::atomic<bool> arrived_ = false;
};

TEST_P(EmulatedDeviceTest, WorkMayLastUntilAnEventOfTheHost) {
  const auto message = std::make_shared<Message>();
  std::atomic<bool> after = false, beside = false;
  TESSERA_ASSERT_OK(gather_->Launch(
      {.name = "receive", .run = [message](auto&) { return Event(message); }}));
  TESSERA_ASSERT_OK(gather_->Launch({.name = "after", .run = [&after](auto&) {
                                       after = true;
                                       return Event();
                                     }}));
  TESSERA_ASSERT_OK(
      compute_->Launch({.name = "beside", .run = [&beside](auto&) {
                          beside = true;
                          return Event();
                        }}));
  TESSERA_ASSERT_OK(compute_->Synchronize());
  EXPECT_TRUE(beside);
  EXPECT_FALSE(after);
  message->Arrive();
  TESSERA_ASSERT_OK(gather_->Synchronize());
  EXPECT_TRUE(after);
}

TEST_P(EmulatedDeviceTest, EventCompletesAfterEventsItsQueueWaitsFor) {
  // `joins` has no work of its own.
  const auto joins = *device_->CreateQueue("joins");
  std::atomic<bool> is_done = false;
  for (int i = 0; i < 20; ++i) {
    is_done = false;
    TESSERA_ASSERT_OK(compute_->Launch(
        {.name = "slow", .run = [&](const DeviceAddresses&) {
           std::this_thread::sleep_for(std::chrono::microseconds(100));
           is_done = true;
           return absl::StatusOr<Event>(Event());
         }}));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Event slow, compute_->Record());
    TESSERA_ASSERT_OK(joins->Wait(slow));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Event joined, joins->Record());
    TESSERA_ASSERT_OK_AND_ASSIGN(const bool happened, joined.Test());
    EXPECT_TRUE(!happened || is_done);
    TESSERA_ASSERT_OK(joined.Wait());
    EXPECT_TRUE(is_done);
  }
}

TEST_P(EmulatedDeviceTest, CountsTheWaitsOfTheHost) {
  Buffer a = OnDevice(64);
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(0), a.bytes()));
  TESSERA_ASSERT_OK(compute_->Fill(std::byte(0), a.bytes()));
  const Event event = *compute_->Record();
  EXPECT_EQ(device_->counts().host_waits, 0);
  TESSERA_ASSERT_OK(event.Wait());
  TESSERA_ASSERT_OK(event.Wait());
  TESSERA_ASSERT_OK(compute_->Synchronize());
  EXPECT_EQ(device_->counts().host_waits, 1);
  EXPECT_EQ(device_->counts().operations, 2);
  EXPECT_EQ(device_->counts().allocations, 1);
}

TEST(EmulatedMemoryTest, TrapsHostAccess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = EmulatedDevice::Create();
  TESSERA_ASSERT_OK(device);
  auto buffer = Buffer::Allocate((*device)->memory(), 8);
  TESSERA_ASSERT_OK(buffer);
  EXPECT_EQ(buffer->kind(), MemoryKind::kDevice);
  const volatile std::byte* const data = buffer->data();
  EXPECT_DEATH(static_cast<void>(*data), "");
}

TEST(EmulatedMemoryTest, NewMemoryIsNaN) {
  const auto device = EmulatedDevice::Create();
  TESSERA_ASSERT_OK(device);
  for (int i = 0; i < 2; ++i) {
    auto buffer = Buffer::Allocate((*device)->memory(), 8);
    TESSERA_ASSERT_OK(buffer);
    double value = 0;
    std::memcpy(&value, (*device)->addresses()(buffer->data()), 8);
    EXPECT_NE(value, value);
    std::memset((*device)->addresses()(buffer->data()), 0, 8);
  }
}

TEST(EmulatedMemoryTest, AnArenaIsOneAllocation) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto device, EmulatedDevice::Create({.arena_bytes = 1 << 20}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto queue, device->CreateQueue("queue"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, device->CreateQueue("other"));
  for (int i = 0; i < 10; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                                 Buffer::Allocate(device->memory(), 1000));
    // The work on the last one is pending, in order.
    TESSERA_ASSERT_OK(queue->Fill(std::byte(i), buffer.bytes()));
  }
  EXPECT_EQ(device->counts().allocations, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                               Buffer::Allocate(device->memory(), 1000));
  EXPECT_THAT(other->Fill(std::byte(0), buffer.bytes()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("missing wait")));
}

TEST(EmulatedMemoryTest, MayOutliveTheDevice) {
  auto device = EmulatedDevice::Create();
  TESSERA_ASSERT_OK(device);
  auto buffer = Buffer::Allocate((*device)->memory(), 8);
  TESSERA_ASSERT_OK(buffer);
  device->reset();
}

}  // namespace
}  // namespace tessera
