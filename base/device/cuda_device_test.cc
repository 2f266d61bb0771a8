#include "base/device/cuda_device.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/testing/cuda_runtime_stand_in.h"
#include "base/device/testing/device_conformance.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceFactory WithArena(size_t bytes) {
  return [bytes]() -> absl::StatusOr<std::shared_ptr<Device>> {
    return CudaDevice::Create(
        {.arena_bytes = bytes,
         .runtime = std::make_shared<CudaRuntimeStandIn>()});
  };
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformanceTest,
                         ::testing::Values(WithArena(0), WithArena(1 << 22)));

INSTANTIATE_TEST_SUITE_P(Cuda, CaptureConformanceTest,
                         ::testing::Values(WithArena(0)));

absl::Status IllegalAddress() {
  return absl::InternalError(
      "cudaErrorIllegalAddress: an illegal memory access was encountered");
}

CudaProperties Gpu(std::string_view name, int major, int minor) {
  return {std::string(name), major, minor, int64_t{1} << 30, "0000:00:01.0"};
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { Create({}); }

  void Create(const StandInOptions& options, int ordinal = 0) {
    queue_ = nullptr;
    device_ = nullptr;
    runtime_ = std::make_shared<CudaRuntimeStandIn>(options);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        device_, CudaDevice::Create({.ordinal = ordinal, .runtime = runtime_}));
    TESSERA_ASSERT_OK_AND_ASSIGN(queue_, device_->CreateQueue("compute"));
  }

  Buffer OnDevice(size_t bytes) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(device_->memory(), bytes);
    TESSERA_EXPECT_OK(buffer);
    return *std::move(buffer);
  }

  HostFunction Kernel(std::function<void()> work) {
    return {.name = "kernel",
            .run = [this, work = std::move(work)](
                       const DeviceAddresses&) -> absl::StatusOr<Event> {
              runtime_->LaunchKernel(queue_->native_handle(), work);
              return Event();
            },
            .enqueues = true};
  }

  std::shared_ptr<CudaRuntimeStandIn> runtime_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<Queue> queue_;
};

TEST_F(CudaDeviceTest, HasTheNameAndTheMemoryOfItsGpu) {
  EXPECT_EQ(device_->name(), "cuda:0");
  EXPECT_EQ(device_->ordinal(), 0);
  EXPECT_FALSE(queue_->is_immediate());
  const Buffer buffer = OnDevice(1000);
  EXPECT_EQ(buffer.kind(), MemoryKind::kDevice);
  EXPECT_EQ(buffer.device_ordinal(), 0);
  EXPECT_EQ(device_->staging_memory()->kind(), MemoryKind::kPinnedHost);
  TESSERA_ASSERT_OK_AND_ASSIGN(const CudaMemoryUse use, device_->MemoryUse());
  EXPECT_EQ(use.total, int64_t{1} << 30);
  EXPECT_EQ(use.free, use.total - 1024);
}

TEST_F(CudaDeviceTest, CallsFunctionAtLaunchAndRunsKernelLater) {
  runtime_->Pause();
  std::atomic<bool> ran = false;
  bool called = false;
  TESSERA_ASSERT_OK(queue_->Launch(
      {.name = "kernel",
       .run = [&](const DeviceAddresses& at) -> absl::StatusOr<Event> {
         called = true;
         EXPECT_EQ(at(&ran), &ran);
         runtime_->LaunchKernel(queue_->native_handle(), [&] { ran = true; });
         return Event();
       },
       .enqueues = true}));
  EXPECT_TRUE(called);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
  EXPECT_THAT(event.Test(), IsOkAndHolds(false));
  EXPECT_FALSE(ran);
  runtime_->Resume();
  TESSERA_ASSERT_OK(event.Wait());
  EXPECT_TRUE(ran);
  EXPECT_EQ(event.state()->device(), device_.get());
}

TEST_F(CudaDeviceTest, EventsCoverNotedWorkOfTheStream) {
  runtime_->Pause();
  std::atomic<bool> ran = false;
  queue_->NoteEnqueued();
  runtime_->LaunchKernel(queue_->native_handle(), [&] { ran = true; });
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
  EXPECT_THAT(event.Test(), IsOkAndHolds(false));
  runtime_->Resume();
  TESSERA_ASSERT_OK(queue_->Synchronize());
  EXPECT_TRUE(ran);
}

TEST_F(CudaDeviceTest, RejectsHostFunctions) {
  EXPECT_THAT(
      queue_->Launch({.name = "sum",
                      .run = [](const DeviceAddresses&)
                          -> absl::StatusOr<Event> { return Event(); }}),
      StatusIs(absl::StatusCode::kUnimplemented,
               AllOf(HasSubstr("\"sum\" at "), HasSubstr("cuda_device_test"))));
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

TEST_F(CudaDeviceTest, NamesFailedLaunchAndKeepsError) {
  runtime_->FailLaunch(absl::InternalError(
      "kernel launch: cudaErrorInvalidConfiguration: invalid configuration"));
  const auto matcher =
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("\"kernel\" on queue compute at "),
                     HasSubstr("cuda_device_test.cc"), HasSubstr("cuda:0"),
                     HasSubstr("cudaErrorInvalidConfiguration")));
  EXPECT_THAT(queue_->Launch(Kernel([] {})), matcher);
  EXPECT_THAT(queue_->Launch(Kernel([] {})), matcher);
  EXPECT_THAT(queue_->Record(), matcher);
  EXPECT_THAT(queue_->Synchronize(), matcher);
  EXPECT_THAT(device_->Synchronize(), matcher);
  EXPECT_THAT(device_->CreateQueue("other"), matcher);
}

TEST_F(CudaDeviceTest, KeepsErrorOfFunction) {
  EXPECT_THAT(queue_->Launch(
                  {.name = "gemm",
                   .run = [](const DeviceAddresses&) -> absl::StatusOr<Event> {
                     return absl::InvalidArgumentError("no plan");
                   },
                   .enqueues = true}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no plan")));
  EXPECT_THAT(queue_->Synchronize(), StatusIs(absl::StatusCode::kInternal));
}

TEST_F(CudaDeviceTest, ReturnsAsyncErrorFromWaitsAndLaterCalls) {
  const Buffer buffer = OnDevice(100);
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, device_->CreateQueue("other"));
  runtime_->Pause();
  TESSERA_ASSERT_OK(queue_->Launch(Kernel([] {})));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
  runtime_->Poison(IllegalAddress());
  const auto matcher =
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("work of queue compute before "),
                     HasSubstr("cudaErrorIllegalAddress")));
  EXPECT_THAT(event.Wait(), matcher);
  EXPECT_THAT(event.Test(), matcher);
  EXPECT_THAT(other->Wait(event), matcher);
  EXPECT_THAT(other->Record(), matcher);
  std::byte byte{};
  EXPECT_THAT(other->Copy({&byte, 1}, {&byte + 1, 1}), matcher);
  EXPECT_THAT(device_->Synchronize(), matcher);
}

TEST_F(CudaDeviceTest, ReturnsAsyncErrorFromAllocation) {
  runtime_->Poison(IllegalAddress());
  EXPECT_THAT(Buffer::Allocate(device_->memory(), 100),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("work before an allocation")));
  EXPECT_THAT(queue_->Record(), StatusIs(absl::StatusCode::kInternal));
}

TEST_F(CudaDeviceTest, ContinuesAfterFailedAllocation) {
  EXPECT_THAT(Buffer::Allocate(device_->memory(), size_t{1} << 31),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cuda:0 with 1073741824 of"),
                             HasSubstr("2147483648 bytes"))));
  EXPECT_THAT(
      Buffer::Allocate(device_->memory(), 64, 4096),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 256")));
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

TEST_F(CudaDeviceTest, InvalidCopiesHaveNoEffect) {
  Buffer buffer = OnDevice(8);
  EXPECT_THAT(
      queue_->Copy({static_cast<const std::byte*>(nullptr), 8}, buffer.bytes()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"copy\" at ")));
  TESSERA_EXPECT_OK(queue_->Fill(std::byte(0), buffer.bytes()));
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

TEST_F(CudaDeviceTest, CountsOperationsWaitsAndAllocations) {
  Buffer buffer = OnDevice(100);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
  TESSERA_ASSERT_OK(queue_->Launch(Kernel([] {})));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
  TESSERA_ASSERT_OK(event.Wait());
  // Known to be done.
  TESSERA_ASSERT_OK(event.Wait());
  TESSERA_ASSERT_OK(queue_->Synchronize());
  TESSERA_ASSERT_OK(device_->Synchronize());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event later, queue_->Record());
  EXPECT_EQ(later.state(), nullptr);
  EXPECT_EQ(device_->counts().operations, 2);
  EXPECT_EQ(device_->counts().host_waits, 1);
  EXPECT_EQ(device_->counts().allocations, 1);
  // A thread that only waits does not count.
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event last, queue_->Record());
  std::thread([&] { TESSERA_EXPECT_OK(last.Wait()); }).join();
  EXPECT_EQ(device_->counts().host_waits, 1);
}

TEST_F(CudaDeviceTest, AnArenaIsOneAllocation) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto device,
      CudaDevice::Create({.arena_bytes = 1 << 20, .runtime = runtime_}));
  const int64_t held = runtime_->counts().device_bytes;
  EXPECT_GE(held, 1 << 20);
  for (int i = 0; i < 100; ++i) {
    TESSERA_ASSERT_OK(Buffer::Allocate(device->memory(), 10000));
  }
  EXPECT_EQ(device->counts().allocations, 1);
  EXPECT_EQ(runtime_->counts().device_bytes, held);
}

TEST_F(CudaDeviceTest, RejectsTooLargeArena) {
  EXPECT_THAT(
      CudaDevice::Create({.arena_bytes = size_t{1} << 40, .runtime = runtime_}),
      StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(CudaDeviceTest, StagingMemoryIsKept) {
  for (int i = 0; i < 100; ++i) {
    TESSERA_ASSERT_OK(Buffer::Allocate(device_->staging_memory(), 1 << 20));
  }
  EXPECT_EQ(runtime_->counts().host_allocations, 1);
}

TEST_F(CudaDeviceTest, EventsAreReused) {
  Buffer buffer = OnDevice(100);
  for (int i = 0; i < 50; ++i) {
    TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
    TESSERA_ASSERT_OK(queue_->Record());
  }
  EXPECT_EQ(runtime_->counts().events, 1);
}

TEST_F(CudaDeviceTest, EventIncludesWorkThatItsQueueWaitsFor) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, device_->CreateQueue("other"));
  runtime_->Pause();
  std::atomic<bool> ran = false;
  TESSERA_ASSERT_OK(queue_->Launch(Kernel([&] { ran = true; })));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
  TESSERA_ASSERT_OK(other->Wait(event));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event joined, other->Record());
  EXPECT_THAT(joined.Test(), IsOkAndHolds(false));
  runtime_->Resume();
  TESSERA_ASSERT_OK(joined.Wait());
  EXPECT_TRUE(ran);
}

// Work of the host, which a device cannot wait for.
class HostWork final : public EventState {
 public:
  absl::StatusOr<bool> Test() override { return waits > 0; }
  absl::Status Wait() override {
    ++waits;
    return absl::OkStatus();
  }
  int waits = 0;
};

TEST_F(CudaDeviceTest, WaitsOnHostForForeignEvents) {
  const auto work = std::make_shared<HostWork>();
  Buffer buffer = OnDevice(1);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
  TESSERA_ASSERT_OK(queue_->Wait(Event(work)));
  TESSERA_ASSERT_OK(queue_->Wait(Event(work)));
  EXPECT_EQ(work->waits, 1);
  EXPECT_EQ(device_->counts().host_waits, 1);
}

TEST_F(CudaDeviceTest, StreamWaitsForEventOfAnotherGpu) {
  Create({.devices = {Gpu("a", 9, 0), Gpu("b", 9, 0)}});
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto second,
      CudaDevice::Create({.ordinal = 1, .runtime = runtime_}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, second->CreateQueue("other"));
  runtime_->Pause();
  std::atomic<bool> ran = false;
  TESSERA_ASSERT_OK(queue_->Launch(Kernel([&] { ran = true; })));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
  // Would wait forever if the host waited.
  TESSERA_ASSERT_OK(other->Wait(event));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Event joined, other->Record());
  EXPECT_THAT(joined.Test(), IsOkAndHolds(false));
  runtime_->Resume();
  TESSERA_ASSERT_OK(joined.Wait());
  EXPECT_TRUE(ran);
  EXPECT_EQ(second->counts().host_waits, 0);
  EXPECT_EQ(device_->counts().host_waits, 0);
}

TEST_F(CudaDeviceTest, CapturesFunctionsOnceAndReplaysKernels) {
  int calls = 0;
  std::atomic<int> ran = 0;
  HostFunction kernel = Kernel([&] { ++ran; });
  const auto capture = [&] {
    return queue_->Launch({.name = "kernel",
                           .run =
                               [&](const DeviceAddresses& at) {
                                 ++calls;
                                 return kernel.run(at);
                               },
                           .enqueues = true});
  };
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto graph, Capture(*queue_, capture));
    EXPECT_EQ(runtime_->counts().graphs, 1);
    TESSERA_ASSERT_OK(queue_->Synchronize());
    EXPECT_EQ(ran, 0);
    for (int i = 0; i < 3; ++i) TESSERA_ASSERT_OK(queue_->Replay(*graph));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Event event, queue_->Record());
    TESSERA_ASSERT_OK(event.Wait());
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(runtime_->counts().graphs, 0);
}

TEST_F(CudaDeviceTest, ContinuesAfterErrorInCapture) {
  EXPECT_THAT(
      Capture(
          *queue_,
          [&] {
            return queue_->Launch(
                {.name = "gemm",
                 .run = [](const DeviceAddresses&) -> absl::StatusOr<Event> {
                   return absl::InvalidArgumentError("no plan");
                 },
                 .enqueues = true});
          }),
      StatusIs(
          absl::StatusCode::kInternal,
          AllOf(HasSubstr("\"gemm\" on queue compute"), HasSubstr("no plan"))));
  EXPECT_EQ(runtime_->counts().graphs, 0);
  TESSERA_EXPECT_OK(queue_->Launch(Kernel([] {})));
  TESSERA_EXPECT_OK(queue_->Synchronize());
}

// The rules of the runtime, without the device's own checks.
TEST_F(CudaDeviceTest, StandInEnforcesCaptureRules) {
  CudaRuntimeStandIn& runtime = *runtime_;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, device_->CreateQueue("other"));
  void* const stream = queue_->native_handle();
  void* const second = other->native_handle();
  TESSERA_ASSERT_OK_AND_ASSIGN(void* const event, runtime.CreateEvent());
  std::byte a{}, b{};
  const auto is_unsupported = StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("CaptureUnsupported"));
  const std::function<absl::Status()> calls[] = {
      [&] { return runtime.SynchronizeStream(second); },
      [&] { return runtime.SynchronizeDevice(); },
      [&] { return runtime.SynchronizeEvent(event); },
      [&] { return runtime.QueryEvent(event).status(); },
      [&] { return runtime.Allocate(8).status(); },
      [&] { return runtime.AllocateHost(8).status(); }};
  for (const auto& call : calls) {
    TESSERA_ASSERT_OK(runtime.BeginCapture(stream));
    EXPECT_THAT(call(), is_unsupported);
    EXPECT_THAT(runtime.EndCapture(stream),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("CaptureInvalidated")));
    TESSERA_EXPECT_OK(call());
  }
  const auto fails = [&](std::string_view error) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(error));
  };
  EXPECT_THAT(runtime.EndCapture(stream), fails("cudaErrorIllegalState"));
  // A wait for work outside of the capture.
  TESSERA_ASSERT_OK(runtime.RecordEvent(event, second));
  TESSERA_ASSERT_OK(runtime.BeginCapture(stream));
  EXPECT_THAT(runtime.BeginCapture(stream), fails("cudaErrorIllegalState"));
  EXPECT_THAT(runtime.WaitEvent(stream, event), fails("CaptureIsolation"));
  EXPECT_THAT(runtime.EndCapture(stream), fails("CaptureIsolation"));
  // A fork without a join.
  TESSERA_ASSERT_OK(runtime.BeginCapture(stream));
  TESSERA_ASSERT_OK(runtime.RecordEvent(event, stream));
  TESSERA_ASSERT_OK(runtime.WaitEvent(second, event));
  TESSERA_ASSERT_OK(runtime.CopyAsync(&b, &a, 1, second));
  EXPECT_THAT(runtime.EndCapture(second), fails("CaptureUnmatched"));
  std::thread([&] {
    EXPECT_THAT(runtime.EndCapture(stream), fails("CaptureWrongThread"));
  }).join();
  EXPECT_THAT(runtime.EndCapture(stream), fails("CaptureUnjoined"));
  EXPECT_THAT(runtime.QueryEvent(event), fails("cudaErrorCapturedEvent"));
  // Two captures.
  TESSERA_ASSERT_OK(runtime.BeginCapture(stream));
  TESSERA_ASSERT_OK(runtime.BeginCapture(second));
  TESSERA_ASSERT_OK(runtime.RecordEvent(event, stream));
  EXPECT_THAT(runtime.WaitEvent(second, event), fails("CaptureMerge"));
  EXPECT_THAT(runtime.EndCapture(second), fails("CaptureMerge"));
  TESSERA_ASSERT_OK_AND_ASSIGN(void* const graph, runtime.EndCapture(stream));
  TESSERA_EXPECT_OK(runtime.DestroyGraph(graph));
  EXPECT_THAT(runtime.LaunchGraph(graph, stream),
              StatusIs(absl::StatusCode::kInvalidArgument));
  TESSERA_EXPECT_OK(runtime.DestroyEvent(event));
}

TEST_F(CudaDeviceTest, MemoryAndEventsMayOutliveTheDevice) {
  Buffer buffer = OnDevice(100);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
  TESSERA_ASSERT_OK_AND_ASSIGN(Event event, queue_->Record());
  queue_ = nullptr;
  device_ = nullptr;
  EXPECT_EQ(runtime_->counts().streams, 0);
  TESSERA_EXPECT_OK(event.Wait());
  event = Event();
  buffer = Buffer();
  EXPECT_EQ(runtime_->counts().events, 0);
  EXPECT_EQ(runtime_->counts().device_bytes, 0);
}

TEST_F(CudaDeviceTest, QueueWaitsForWorkOnDestruction) {
  std::atomic<int> ran = 0;
  for (int i = 0; i < 10; ++i) {
    TESSERA_ASSERT_OK(queue_->Launch(Kernel([&] { ++ran; })));
  }
  queue_ = nullptr;
  EXPECT_EQ(ran, 10);
}

TEST_F(CudaDeviceTest, AThreadsDeviceDoesNotChange) {
  Create({.devices = {Gpu("a", 9, 0), Gpu("b", 9, 0)}}, /*ordinal=*/1);
  // The thread has used GPU 0.
  TESSERA_ASSERT_OK(runtime_->SetCurrentDevice(0));
  Buffer buffer = OnDevice(100);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
  TESSERA_ASSERT_OK(queue_->Launch(Kernel([] {})));
  TESSERA_ASSERT_OK(queue_->Record());
  TESSERA_ASSERT_OK(device_->Synchronize());
  EXPECT_THAT(runtime_->CurrentDevice(), IsOkAndHolds(0));
}

TEST_F(CudaDeviceTest, MakesNoContextOnOtherGpus) {
  Create({.devices = {Gpu("a", 9, 0), Gpu("b", 9, 0)}}, /*ordinal=*/1);
  Buffer buffer = OnDevice(100);
  TESSERA_ASSERT_OK(queue_->Fill(std::byte(1), buffer.bytes()));
  TESSERA_ASSERT_OK(queue_->Synchronize());
  EXPECT_TRUE(runtime_->HasContext(1));
  EXPECT_FALSE(runtime_->HasContext(0));
}

absl::Status CreateOn(StandInOptions options, int ordinal = 0) {
  return CudaDevice::Create({.ordinal = ordinal,
                             .runtime = std::make_shared<CudaRuntimeStandIn>(
                                 std::move(options))})
      .status();
}

TEST(CudaDeviceCreateTest, RejectsMissingDevices) {
  for (const int ordinal : {-1, 1, 7}) {
    EXPECT_THAT(CreateOn({}, ordinal), StatusIs(absl::StatusCode::kOutOfRange,
                                                HasSubstr("expected 0 to 0")));
  }
  EXPECT_THAT(
      CreateOn({.devices = {}}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cudaErrorNoDevice")));
  EXPECT_THAT(CreateOn({.versions = {11040, 13000}}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("cudaErrorInsufficientDriver")));
}

absl::StatusOr<std::vector<CudaDeviceInfo>> FindOn(StandInOptions options) {
  return FindCudaDevices(
      std::make_shared<CudaRuntimeStandIn>(std::move(options)));
}

TEST(FindCudaDevicesTest, ExplainsUnusableGpu) {
  const auto runtime = std::make_shared<CudaRuntimeStandIn>(StandInOptions{
      .devices = {Gpu("Tesla P100", 6, 0), Gpu("NVIDIA A100", 8, 0)}});
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto devices, FindCudaDevices(runtime));
  ASSERT_EQ(devices.size(), 2);
  EXPECT_THAT(
      devices[0].usable,
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "GPU 0 (Tesla P100, compute capability 6.0) is too old: 8.0 or "
               "newer is needed"));
  TESSERA_EXPECT_OK(devices[1].usable);
  EXPECT_EQ(devices[1].ordinal, 1);
  EXPECT_EQ(devices[1].properties.name, "NVIDIA A100");
  EXPECT_FALSE(runtime->HasContext(0));
  EXPECT_FALSE(runtime->HasContext(1));
}

TEST(FindCudaDevicesTest, DistinguishesNoGpuFromOldDriver) {
  EXPECT_THAT(FindOn({.versions = {0, 13000}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("driver")));
  EXPECT_THAT(FindOn({.devices = {}}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(FindOn({.versions = {11040, 13000}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "the NVIDIA driver supports CUDA 11.4, and this "
                       "program needs 13.0; install a newer driver"));
  EXPECT_THAT(FindOn({.versions = {13010, 13000}}), IsOk());
}

}  // namespace
}  // namespace tessera
