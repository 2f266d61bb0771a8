// The conformance suite for devices. Each device instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(
//       Emulated, DeviceConformanceTest,
//       ::testing::Values([] { return EmulatedDevice::Create(); }));
//
// and CaptureConformanceTest, if the device has Queue::BeginCapture.
#ifndef TESSERA_BASE_DEVICE_TESTING_DEVICE_CONFORMANCE_H_
#define TESSERA_BASE_DEVICE_TESTING_DEVICE_CONFORMANCE_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {

using DeviceFactory = std::function<absl::StatusOr<std::shared_ptr<Device>>()>;

class DeviceConformanceTest : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<Device>> device = GetParam()();
    if (absl::IsUnavailable(device.status())) {
      GTEST_SKIP() << device.status();
    }
    TESSERA_ASSERT_OK(device);
    device_ = *std::move(device);
    queue_ = NewQueue("queue");
  }

  std::unique_ptr<Queue> NewQueue(std::string_view name) {
    absl::StatusOr<std::unique_ptr<Queue>> queue = device_->CreateQueue(name);
    TESSERA_EXPECT_OK(queue);
    return *std::move(queue);
  }
  Buffer OnDevice(size_t bytes) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(device_->memory(), bytes);
    TESSERA_EXPECT_OK(buffer);
    return *std::move(buffer);
  }
  Buffer Staging(size_t bytes) {
    absl::StatusOr<Buffer> buffer =
        Buffer::Allocate(device_->staging_memory(), bytes);
    TESSERA_EXPECT_OK(buffer);
    return *std::move(buffer);
  }
  // Waits for the queue.
  std::vector<std::byte> Read(std::span<const std::byte> bytes) {
    Buffer staging = Staging(bytes.size());
    TESSERA_EXPECT_OK(queue_->Copy(bytes, staging.bytes()));
    TESSERA_EXPECT_OK(queue_->Synchronize());
    return {staging.bytes().begin(), staging.bytes().end()};
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Queue> queue_;
};

TEST_P(DeviceConformanceTest, HasAName) {
  EXPECT_FALSE(device_->name().empty());
  EXPECT_EQ(queue_->name(), "queue");
  EXPECT_EQ(&queue_->device(), device_.get());
  EXPECT_TRUE(IsHostAccessible(device_->staging_memory()->kind()));
}

TEST_P(DeviceConformanceTest, CopiesFromAndToTheHost) {
  std::mt19937 random(1);
  for (const size_t size : {0u, 1u, 7u, 64u, 4097u, 1000003u}) {
    SCOPED_TRACE(size);
    Buffer host = Staging(size);
    for (std::byte& b : host.bytes()) b = static_cast<std::byte>(random());
    Buffer first = OnDevice(size), second = OnDevice(size);
    TESSERA_ASSERT_OK(queue_->Copy(host.bytes(), first.bytes()));
    TESSERA_ASSERT_OK(queue_->Copy(first.bytes(), second.bytes()));
    EXPECT_EQ(Read(second.bytes()),
              std::vector<std::byte>(host.bytes().begin(), host.bytes().end()));
  }
}

TEST_P(DeviceConformanceTest, CopiesPartsOfBuffers) {
  Buffer host = Staging(100);
  for (size_t i = 0; i < 100; ++i) host.data()[i] = std::byte(i);
  Buffer device = OnDevice(100);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(0xAA), device.bytes()));
  TESSERA_ASSERT_OK(queue_->Copy(host.bytes().subspan(10, 21),
                                 device.bytes().subspan(3, 21)));
  const std::vector<std::byte> read = Read(device.bytes());
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(read[i], i >= 3 && i < 24 ? std::byte(i + 7) : std::byte(0xAA));
  }
}

TEST_P(DeviceConformanceTest, RejectsCopyBetweenDifferentSizes) {
  Buffer a = OnDevice(8), b = OnDevice(9);
  EXPECT_THAT(queue_->Copy(a.bytes(), b.bytes()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("8 bytes to 9 bytes")));
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

TEST_P(DeviceConformanceTest, QueueRunsWorkInOrder) {
  Buffer a = OnDevice(1), b = OnDevice(1);
  for (int i = 0; i < 50; ++i) {
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(i), a.bytes()));
    TESSERA_ASSERT_OK(queue_->Copy(a.bytes(), b.bytes()));
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(0xFF), a.bytes()));
  }
  EXPECT_EQ(Read(b.bytes())[0], std::byte(49));
}

TEST_P(DeviceConformanceTest, EventOrdersTwoQueues) {
  const std::unique_ptr<Queue> other = NewQueue("other");
  Buffer a = OnDevice(5000), b = OnDevice(5000);
  for (int i = 0; i < 20; ++i) {
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(i), a.bytes()));
    const absl::StatusOr<Event> filled = queue_->Record();
    TESSERA_ASSERT_OK(filled);
    TESSERA_ASSERT_OK(other->Wait(*filled));
    TESSERA_ASSERT_OK(other->Copy(a.bytes(), b.bytes()));
    const absl::StatusOr<Event> copied = other->Record();
    TESSERA_ASSERT_OK(copied);
    TESSERA_ASSERT_OK(queue_->Wait(*copied));
  }
  EXPECT_EQ(Read(b.bytes()), std::vector<std::byte>(5000, std::byte(19)));
}

TEST_P(DeviceConformanceTest, EventsCompleteAndStayComplete) {
  EXPECT_THAT(Event().Test(), IsOkAndHolds(true));
  TESSERA_EXPECT_OK(Event().Wait());
  TESSERA_EXPECT_OK(queue_->Wait(Event()));
  Buffer a = OnDevice(1 << 20);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), a.bytes()));
  const absl::StatusOr<Event> event = queue_->Record();
  TESSERA_ASSERT_OK(event);
  TESSERA_EXPECT_OK(event->Wait());
  EXPECT_THAT(event->Test(), IsOkAndHolds(true));
  const Event copy = *event;
  TESSERA_EXPECT_OK(copy.Wait());
  TESSERA_EXPECT_OK(device_->Synchronize());
}

TEST_P(DeviceConformanceTest, EventCompletesWithoutWait) {
  Buffer a = OnDevice(1 << 10);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), a.bytes()));
  const absl::StatusOr<Event> event = queue_->Record();
  TESSERA_ASSERT_OK(event);
  for (;;) {
    const absl::StatusOr<bool> happened = event->Test();
    TESSERA_ASSERT_OK(happened);
    if (*happened) break;
  }
}

TEST_P(DeviceConformanceTest, ManyQueuesMatchOneQueue) {
  // A random program over buffers of bytes: each step fills a range, or copies
  // one. Each use of a buffer waits for the buffer's last use.
  constexpr size_t kBytes = 257;
  constexpr int kBuffers = 4;
  std::mt19937 random(3);
  std::vector<std::unique_ptr<Queue>> queues;
  for (int i = 0; i < 4; ++i) queues.push_back(NewQueue(absl::StrCat("q", i)));
  std::vector<Buffer> buffers;
  std::vector<std::vector<std::byte>> expected;
  std::vector<Event> last(kBuffers);
  for (int i = 0; i < kBuffers; ++i) {
    buffers.push_back(OnDevice(kBytes));
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(i), buffers.back().bytes()));
    expected.emplace_back(kBytes, std::byte(i));
    TESSERA_ASSERT_OK(queue_->Record());
    last[static_cast<size_t>(i)] = *queue_->Record();
  }
  for (int step = 0; step < 600; ++step) {
    Queue& queue = *queues[random() % queues.size()];
    const size_t from = random() % kBuffers, to = random() % kBuffers;
    const size_t length = random() % kBytes;
    const size_t at = random() % (kBytes - length);
    TESSERA_ASSERT_OK(queue.Wait(last[to]));
    if (from == to) {
      const auto value = static_cast<std::byte>(random());
      TESSERA_ASSERT_OK(
          queue.Fill(value, buffers[to].bytes().subspan(at, length)));
      std::memset(expected[to].data() + at, std::to_integer<int>(value),
                  length);
    } else {
      const size_t source = random() % (kBytes - length);
      TESSERA_ASSERT_OK(queue.Wait(last[from]));
      TESSERA_ASSERT_OK(
          queue.Copy(buffers[from].bytes().subspan(source, length),
                     buffers[to].bytes().subspan(at, length)));
      std::memcpy(expected[to].data() + at, expected[from].data() + source,
                  length);
    }
    const absl::StatusOr<Event> done = queue.Record();
    TESSERA_ASSERT_OK(done);
    last[from] = last[to] = *done;
  }
  TESSERA_ASSERT_OK(device_->Synchronize());
  for (size_t i = 0; i < kBuffers; ++i) {
    EXPECT_EQ(Read(buffers[i].bytes()), expected[i]);
  }
}

TEST_P(DeviceConformanceTest, MemoryIsReused) {
  for (int i = 0; i < 100; ++i) {
    Buffer a = OnDevice(1 << 20);
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(i), a.bytes()));
    TESSERA_ASSERT_OK(queue_->Synchronize());
  }
}

TEST_P(DeviceConformanceTest, RejectsAllocationLargerThanMemory) {
  EXPECT_THAT(Buffer::Allocate(device_->memory(), size_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted));
  TESSERA_EXPECT_OK(device_->Synchronize());
}

// Capture and replay, for devices that support them.
class CaptureConformanceTest : public DeviceConformanceTest {
 protected:
  void SetUp() override {
    DeviceConformanceTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    host_ = Staging(kBytes);
    input_ = OnDevice(kBytes);
    middle_ = OnDevice(kBytes);
    output_ = OnDevice(kBytes);
  }

  // Copies each half of the input to the other half of the output, by way of
  // the middle buffer.
  absl::Status EnqueueSwap(Queue& queue) {
    TESSERA_RETURN_IF_ERROR(queue.Fill(std::byte(0), middle_.bytes()));
    TESSERA_RETURN_IF_ERROR(queue.Copy(input_.bytes().first(kBytes / 2),
                                       middle_.bytes().last(kBytes / 2)));
    TESSERA_RETURN_IF_ERROR(queue.Copy(input_.bytes().last(kBytes / 2),
                                       middle_.bytes().first(kBytes / 2)));
    return queue.Copy(middle_.bytes(), output_.bytes());
  }
  absl::Status SetInput(std::byte first, std::byte second) {
    TESSERA_RETURN_IF_ERROR(queue_->Synchronize());
    std::memset(host_.data(), std::to_integer<int>(first), kBytes / 2);
    std::memset(host_.data() + kBytes / 2, std::to_integer<int>(second),
                kBytes / 2);
    return queue_->Copy(host_.bytes(), input_.bytes());
  }
  static std::vector<std::byte> Halves(std::byte first, std::byte second) {
    std::vector<std::byte> bytes(kBytes / 2, first);
    bytes.resize(kBytes, second);
    return bytes;
  }
  absl::StatusOr<Event> ForkTo(Queue& from, Queue& to) {
    TESSERA_ASSIGN_OR_RETURN(const Event event, from.Record());
    TESSERA_RETURN_IF_ERROR(to.Wait(event));
    return event;
  }

  static constexpr size_t kBytes = 1000;
  Buffer host_, input_, middle_, output_;
};

TEST_P(CaptureConformanceTest, CapturedWorkRunsOnlyInReplays) {
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(7), output_.bytes()));
  TESSERA_ASSERT_OK(SetInput(std::byte(1), std::byte(2)));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*queue_, [&] { return EnqueueSwap(*queue_); }));
  EXPECT_EQ(graph->operations(), 4);
  EXPECT_EQ(&graph->device(), device_.get());
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(7), std::byte(7)));
  TESSERA_ASSERT_OK(queue_->Replay(*graph));
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(2), std::byte(1)));
}

TEST_P(CaptureConformanceTest, ReplaysSeeTheContentsOfMemory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*queue_, [&] { return EnqueueSwap(*queue_); }));
  for (int i = 0; i < 30; ++i) {
    const std::byte first = std::byte(i), second = std::byte(100 + i);
    TESSERA_ASSERT_OK(SetInput(first, second));
    TESSERA_ASSERT_OK(queue_->Replay(*graph));
    EXPECT_EQ(Read(output_.bytes()), Halves(second, first));
  }
}

TEST_P(CaptureConformanceTest, AReplayIsOneOperation) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*queue_, [&] { return EnqueueSwap(*queue_); }));
  const int64_t before = device_->counts().operations;
  for (int i = 0; i < 5; ++i) TESSERA_ASSERT_OK(queue_->Replay(*graph));
  EXPECT_EQ(device_->counts().operations, before + 5);
}

TEST_P(CaptureConformanceTest, WorkIsOrderedWithReplays) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*queue_, [&] { return EnqueueSwap(*queue_); }));
  const std::unique_ptr<Queue> other = NewQueue("other");
  Buffer copy = OnDevice(kBytes);
  for (int i = 0; i < 20; ++i) {
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(i), input_.bytes()));
    TESSERA_ASSERT_OK(queue_->Replay(*graph));
    TESSERA_ASSERT_OK(ForkTo(*queue_, *other));
    TESSERA_ASSERT_OK(other->Copy(output_.bytes(), copy.bytes()));
    TESSERA_ASSERT_OK(ForkTo(*other, *queue_));
  }
  EXPECT_EQ(Read(copy.bytes()), Halves(std::byte(19), std::byte(19)));
}

TEST_P(CaptureConformanceTest, AnotherQueueMayReplay) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*queue_, [&] { return EnqueueSwap(*queue_); }));
  const std::unique_ptr<Queue> other = NewQueue("other");
  TESSERA_ASSERT_OK(SetInput(std::byte(3), std::byte(4)));
  TESSERA_ASSERT_OK(ForkTo(*queue_, *other));
  TESSERA_ASSERT_OK(other->Replay(*graph));
  TESSERA_ASSERT_OK(ForkTo(*other, *queue_));
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(4), std::byte(3)));
}

TEST_P(CaptureConformanceTest, QueuesForkAndJoin) {
  const std::unique_ptr<Queue> left = NewQueue("left"), right = NewQueue("rig");
  Buffer sum = OnDevice(kBytes);
  const auto enqueue = [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(queue_->Copy(input_.bytes(), middle_.bytes()));
    TESSERA_RETURN_IF_ERROR(ForkTo(*queue_, *left).status());
    TESSERA_RETURN_IF_ERROR(ForkTo(*queue_, *right).status());
    TESSERA_RETURN_IF_ERROR(left->Copy(middle_.bytes().first(kBytes / 2),
                                       output_.bytes().last(kBytes / 2)));
    TESSERA_RETURN_IF_ERROR(right->Copy(middle_.bytes().last(kBytes / 2),
                                        output_.bytes().first(kBytes / 2)));
    // Through the left queue.
    TESSERA_RETURN_IF_ERROR(ForkTo(*right, *left).status());
    TESSERA_RETURN_IF_ERROR(left->Copy(output_.bytes(), sum.bytes()));
    return ForkTo(*left, *queue_).status();
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto graph, Capture(*queue_, enqueue));
  EXPECT_EQ(graph->operations(), 4);
  for (int i = 0; i < 20; ++i) {
    const std::byte first = std::byte(i), second = std::byte(100 + i);
    TESSERA_ASSERT_OK(SetInput(first, second));
    TESSERA_ASSERT_OK(queue_->Replay(*graph));
    // The queues of the capture are free for other work.
    TESSERA_ASSERT_OK(ForkTo(*queue_, *left));
    TESSERA_ASSERT_OK(left->Fill(std::byte(0), middle_.bytes()));
    TESSERA_ASSERT_OK(ForkTo(*left, *queue_));
    EXPECT_EQ(Read(sum.bytes()), Halves(second, first));
  }
}

TEST_P(CaptureConformanceTest, RejectsUnjoinedQueue) {
  const std::unique_ptr<Queue> other = NewQueue("other");
  const auto enqueue = [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(ForkTo(*queue_, *other).status());
    TESSERA_RETURN_IF_ERROR(other->Fill(std::byte(1), middle_.bytes()));
    TESSERA_RETURN_IF_ERROR(ForkTo(*other, *queue_).status());
    return other->Fill(std::byte(2), middle_.bytes());
  };
  EXPECT_THAT(Capture(*queue_, enqueue),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::AllOf(
                           ::testing::HasSubstr("other joined"),
                           ::testing::HasSubstr("queue queue should wait"))));
  // Both queues work as before.
  TESSERA_ASSERT_OK(other->Fill(std::byte(9), output_.bytes()));
  TESSERA_ASSERT_OK(ForkTo(*other, *queue_));
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(9), std::byte(9)));
}

TEST_P(CaptureConformanceTest, ReturnsErrorInsideCaptureAtEnd) {
  Buffer freed = OnDevice(64);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), freed.bytes()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event pending, queue_->Record());
  const std::unique_ptr<Queue> other = NewQueue("other");
  TESSERA_ASSERT_OK(other->Fill(std::byte(0), middle_.bytes()));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*queue_, [&] { return EnqueueSwap(*queue_); }));
  std::optional<Event> captured;
  struct Case {
    std::string_view name;
    std::function<absl::Status()> call;
  };
  const Case cases[] = {
      {"wait for the queue", [&] { return queue_->Synchronize(); }},
      {"wait for the device", [&] { return device_->Synchronize(); }},
      {"wait for work before", [&] { return pending.Wait(); }},
      {"wait for captured work",
       [&]() -> absl::Status {
         TESSERA_ASSIGN_OR_RETURN(captured, queue_->Record());
         return captured->Wait();
       }},
      {"test of captured work", [&] { return captured->Test().status(); }},
      {"allocation",
       [&] {
         return Buffer::Allocate(device_->memory(), size_t{1} << 23).status();
       }},
      {"replay", [&] { return queue_->Replay(*graph); }},
      {"capture", [&] { return queue_->BeginCapture(); }},
      {"work outside",
       [&]() -> absl::Status {
         TESSERA_ASSIGN_OR_RETURN(const Event event, other->Record());
         return queue_->Wait(event);
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    TESSERA_ASSERT_OK(queue_->BeginCapture());
    TESSERA_ASSERT_OK(EnqueueSwap(*queue_));
    EXPECT_THAT(one.call(), StatusIs(absl::StatusCode::kFailedPrecondition));
    // The error persists until the end, even if the caller ignores it.
    TESSERA_EXPECT_OK(EnqueueSwap(*queue_));
    EXPECT_THAT(queue_->EndCapture(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  // An event of a capture never happens.
  EXPECT_THAT(captured->Wait(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(other->Wait(*captured),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(queue_->EndCapture(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::HasSubstr("has not begun")));
  // The device works as before.
  TESSERA_ASSERT_OK(ForkTo(*other, *queue_));
  TESSERA_ASSERT_OK(SetInput(std::byte(5), std::byte(6)));
  TESSERA_ASSERT_OK(queue_->Replay(*graph));
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(6), std::byte(5)));
  TESSERA_EXPECT_OK(device_->Synchronize());
}

TEST_P(CaptureConformanceTest, ReportsFreeInsideCapture) {
  std::optional<Buffer> large = OnDevice(size_t{1} << 23);
  TESSERA_ASSERT_OK(queue_->BeginCapture());
  large.reset();
  EXPECT_THAT(queue_->EndCapture(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::HasSubstr("memory is freed")));
  TESSERA_EXPECT_OK(device_->Synchronize());
}

TEST_P(CaptureConformanceTest, EndsCaptureAfterFunctionError) {
  EXPECT_THAT(Capture(*queue_,
                      [&]() -> absl::Status {
                        TESSERA_RETURN_IF_ERROR(EnqueueSwap(*queue_));
                        return absl::DataLossError("lost");
                      }),
              StatusIs(absl::StatusCode::kDataLoss));
  TESSERA_ASSERT_OK(SetInput(std::byte(5), std::byte(6)));
  TESSERA_ASSERT_OK(EnqueueSwap(*queue_));
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(6), std::byte(5)));
}

TEST_P(CaptureConformanceTest, OtherThreadsWorkDuringACapture) {
  const std::unique_ptr<Queue> other = NewQueue("other");
  Buffer theirs = OnDevice(kBytes);
  TESSERA_ASSERT_OK(queue_->BeginCapture());
  TESSERA_ASSERT_OK(EnqueueSwap(*queue_));
  std::thread([&] {
    TESSERA_EXPECT_OK(other->Fill(std::byte(3), theirs.bytes()));
    TESSERA_EXPECT_OK(other->Synchronize());
  }).join();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto graph, queue_->EndCapture());
  TESSERA_ASSERT_OK(queue_->Replay(*graph));
  EXPECT_EQ(Read(theirs.bytes()), Halves(std::byte(3), std::byte(3)));
}

TEST_P(CaptureConformanceTest, GraphMayBeDestroyedDuringReplay) {
  TESSERA_ASSERT_OK(SetInput(std::byte(1), std::byte(2)));
  for (int i = 0; i < 5; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto graph, Capture(*queue_, [&] {
                                   return EnqueueSwap(*queue_);
                                 }));
    TESSERA_ASSERT_OK(queue_->Replay(*graph));
  }
  EXPECT_EQ(Read(output_.bytes()), Halves(std::byte(2), std::byte(1)));
}

TEST_P(CaptureConformanceTest, RejectsGraphOfAnotherDevice) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Device> device,
                               GetParam()());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, device->CreateQueue("other"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto graph, Capture(*other, [] { return absl::OkStatus(); }));
  EXPECT_EQ(graph->operations(), 0);
  TESSERA_EXPECT_OK(other->Replay(*graph));
  EXPECT_THAT(queue_->Replay(*graph),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("on its own device")));
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_TESTING_DEVICE_CONFORMANCE_H_
