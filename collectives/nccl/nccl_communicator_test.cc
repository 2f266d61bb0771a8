#include "collectives/nccl/nccl_communicator.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/in_process/in_process.h"
#include "collectives/nccl/native_nccl.h"
#include "collectives/nccl/testing/run_stand_in.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Floats in the memory of a device, all of one value.
class Floats {
 public:
  static absl::StatusOr<Floats> Create(StandInRank& r, int64_t count,
                                       float value) {
    Floats floats;
    floats.host_.assign(static_cast<size_t>(count), value);
    TESSERA_ASSIGN_OR_RETURN(
        floats.memory_,
        tessera::Buffer::Allocate(r.device.memory(),
                                  floats.host_.size() * sizeof(float)));
    TESSERA_RETURN_IF_ERROR(r.queue.Copy(std::as_bytes(std::span(floats.host_)),
                                         floats.memory_.bytes()));
    TESSERA_RETURN_IF_ERROR(r.queue.Synchronize());
    return floats;
  }

  Buffer buffer() {
    return Buffer(memory_.data(), static_cast<int64_t>(host_.size()),
                  DType::kF32);
  }
  absl::Status ExpectAll(StandInRank& r, float value) {
    TESSERA_RETURN_IF_ERROR(r.queue.Copy(
        memory_.bytes(), std::as_writable_bytes(std::span(host_))));
    TESSERA_RETURN_IF_ERROR(r.queue.Synchronize());
    EXPECT_THAT(host_, Each(value));
    return absl::OkStatus();
  }

 private:
  std::vector<float> host_;
  tessera::Buffer memory_;
};

CommunicatorOptions WithTimeout(absl::Duration timeout) {
  CommunicatorOptions options;
  options.timeout = timeout;
  return options;
}

TEST(NcclCommunicatorTest, MessagesOfAllPairsNeedNoOrder) {
  EXPECT_THAT(
      RunStandIn(
          3, 1,
          [](StandInRank& r) -> absl::Status {
            Communicator& c = r.communicator;
            const int64_t me = c.rank().value(), n = c.size();
            std::vector<Floats> out, in;
            std::vector<Work> works;
            for (int64_t i = 1; i < n; ++i) {
              TESSERA_ASSIGN_OR_RETURN(
                  out.emplace_back(),
                  Floats::Create(r, 100, static_cast<float>(me)));
              TESSERA_ASSIGN_OR_RETURN(in.emplace_back(),
                                       Floats::Create(r, 100, -1));
            }
            // Every rank starts all sends before any receive, and its receives
            // in reverse order.
            for (int64_t i = 1; i < n; ++i) {
              TESSERA_ASSIGN_OR_RETURN(
                  Work work,
                  c.Start(SendOf(out[static_cast<size_t>(i - 1)].buffer(),
                                 Rank((me + i) % n))));
              works.push_back(std::move(work));
            }
            for (int64_t i = n - 1; i > 0; --i) {
              TESSERA_ASSIGN_OR_RETURN(
                  Work work,
                  c.Start(ReceiveOf(in[static_cast<size_t>(i - 1)].buffer(),
                                    Rank((me + i) % n))));
              works.push_back(std::move(work));
            }
            for (const Work& work : works) {
              TESSERA_RETURN_IF_ERROR(work.Wait());
            }
            TESSERA_RETURN_IF_ERROR(
                in[0].ExpectAll(r, static_cast<float>((me + 1) % n)));
            return in[1].ExpectAll(r, static_cast<float>((me + 2) % n));
          }),
      Each(IsOk()));
}

// The host does not wait for other ranks, so ranks may use two communicators in
// different orders as long as their operations do not depend on each other.
TEST(NcclCommunicatorTest, TwoCommunicatorsMayHaveDifferentOrders) {
  EXPECT_THAT(
      RunStandIn(
          2, 2,
          [](StandInRank& r) -> absl::Status {
            Communicator& c = r.communicator;
            TESSERA_ASSIGN_OR_RETURN(const auto other,
                                     c.Split(0, c.rank().value(), "b"));
            TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 1000, 1));
            TESSERA_ASSIGN_OR_RETURN(Floats y, Floats::Create(r, 1000, 2));
            const auto sum = [](Communicator& on, Floats& f) {
              return on.Start(
                  AllReduceOf(f.buffer(), f.buffer(), Reduction::Sum()));
            };
            const bool first = c.rank() == Rank(0);
            TESSERA_ASSIGN_OR_RETURN(const Work a,
                                     first ? sum(c, x) : sum(*other, y));
            TESSERA_ASSIGN_OR_RETURN(const Work b,
                                     first ? sum(*other, y) : sum(c, x));
            TESSERA_RETURN_IF_ERROR(a.Wait());
            TESSERA_RETURN_IF_ERROR(b.Wait());
            TESSERA_RETURN_IF_ERROR(x.ExpectAll(r, 2));
            return y.ExpectAll(r, 4);
          }),
      Each(IsOk()));
}

// A rank may detect the other rank's abort before its own report.
TEST(NcclCommunicatorTest, DetectsMissingWait) {
  const auto statuses = RunStandIn(2, 3, [](StandInRank& r) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 1000, 1));
    TESSERA_RETURN_IF_ERROR(
        r.communicator
            .Start(AllReduceOf(x.buffer(), x.buffer(), Reduction::Sum()))
            .status());
    return x.ExpectAll(r, 2);
  });
  const auto report = AllOf(HasSubstr("missing wait"), HasSubstr("nccl"));
  EXPECT_THAT(statuses,
              Contains(StatusIs(absl::StatusCode::kInternal, report)));
  // FailedPrecondition if a rank starts after the other one has aborted.
  EXPECT_THAT(
      statuses,
      Each(AnyOf(StatusIs(absl::StatusCode::kInternal, report),
                 StatusIs(absl::StatusCode::kAborted, report),
                 StatusIs(absl::StatusCode::kFailedPrecondition, report))));
}

// NCCL's queue continues after an abort; the work and the communicator return
// the reason.
TEST(NcclCommunicatorTest, LateRankBreaksGroupButNotDevice) {
  const auto statuses = RunStandIn(
      3, 1,
      [](StandInRank& r) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 1000, 1));
        if (r.communicator.rank() == Rank(1)) {
          absl::SleepFor(absl::Milliseconds(900));
        }
        TESSERA_ASSIGN_OR_RETURN(
            const Work work,
            r.communicator.StartOn(r.queue, AllReduceOf(x.buffer(), x.buffer(),
                                                        Reduction::Sum())));
        const absl::Status status = work.Wait();
        EXPECT_THAT(r.queue.Synchronize(), IsOk());
        EXPECT_THAT(r.communicator.status(), Not(IsOk()));
        // The watcher breaks the communicator of the host after NCCL's.
        for (int i = 0; i < 5000 && r.communicator.host().status().ok(); ++i) {
          absl::SleepFor(absl::Milliseconds(1));
        }
        EXPECT_THAT(r.communicator.host().status(), Not(IsOk()));
        return status;
      },
      WithTimeout(absl::Milliseconds(300)));
  for (const size_t r : {0, 2}) {
    EXPECT_THAT(statuses[r],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("rank 1"),
                               HasSubstr("has not entered operation #1"))));
  }
  EXPECT_THAT(statuses[1], Not(IsOk()));
}

std::atomic<bool> peer_is_gone = false;

TEST(NcclCommunicatorTest, AsyncNcclErrorBreaksGroup) {
  peer_is_gone = false;
  NcclApi api = StandInNccl();
  api.CommGetAsyncError = [](NcclComm comm, NcclResult* result) {
    const NcclResult asked = StandInNccl().CommGetAsyncError(comm, result);
    if (peer_is_gone) *result = NcclResult::kRemoteError;
    return asked;
  };
  EXPECT_THAT(RunStandIn(
                  2, 1,
                  [](StandInRank& r) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(Floats x,
                                             Floats::Create(r, 10, 1));
                    if (r.communicator.rank() == Rank(1)) {
                      absl::SleepFor(absl::Milliseconds(100));
                      peer_is_gone = true;
                      absl::SleepFor(absl::Milliseconds(200));
                      return r.communicator.status();
                    }
                    return r.communicator.Run(
                        AllReduceOf(x.buffer(), x.buffer(), Reduction::Sum()));
                  },
                  {}, api),
              Each(StatusIs(absl::StatusCode::kUnavailable,
                            HasSubstr("remote process exited"))));
}

TEST(NcclCommunicatorTest, SharedMemoryIsTheDevices) {
  EXPECT_THAT(
      RunStandIn(2, 1,
                 [](StandInRank& r) -> absl::Status {
                   TESSERA_ASSIGN_OR_RETURN(
                       const auto shared, r.communicator.AllocateShared(4000));
                   EXPECT_EQ(shared->kind(), MemoryKind::kDevice);
                   EXPECT_EQ(shared->bytes().size(), 4000u);
                   EXPECT_THAT(r.communicator.AllocateShared(-1),
                               StatusIs(absl::StatusCode::kInvalidArgument));
                   TESSERA_RETURN_IF_ERROR(
                       r.queue.Fill(std::byte{0}, shared->bytes()));
                   const Buffer buffer(shared->bytes().data(), 1000,
                                       DType::kF32);
                   TESSERA_RETURN_IF_ERROR(r.communicator.RunOn(
                       r.queue, AllReduceOf(buffer, buffer, Reduction::Sum())));
                   return r.queue.Synchronize();
                 }),
      Each(IsOk()));
}

TEST(NcclCommunicatorTest, RejectsAlgorithmsOfOthersAndEarlyReceives) {
  EXPECT_THAT(
      RunStandIn(2, 1,
                 [](StandInRank& r) -> absl::Status {
                   Communicator& c = r.communicator;
                   TESSERA_ASSIGN_OR_RETURN(Floats x, Floats::Create(r, 10, 1));
                   EXPECT_THAT(c.Run(AllReduceOf(x.buffer(), x.buffer(),
                                                 Reduction::Sum()),
                                     {.algorithm = Algorithm::kRing}),
                               StatusIs(absl::StatusCode::kUnimplemented,
                                        HasSubstr("only its own algorithms")));
                   EXPECT_THAT(c.Receive(x.buffer(), c.rank()),
                               StatusIs(absl::StatusCode::kUnimplemented,
                                        HasSubstr("call Send first")));
                   return c.Barrier();
                 }),
      Each(IsOk()));
}

TEST(NcclCommunicatorTest, RejectsInvalidOptions) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto device, EmulatedDevice::Create());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto engines, CreateInProcessEngines(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto host,
                               Communicator::Create(std::move(engines[0])));
  EXPECT_THAT(CreateNcclEngine(*host, *device, StandInNccl(),
                               {.connect_timeout = absl::ZeroDuration()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("connect_timeout is 0")));
  EXPECT_THAT(
      CreateNcclCommunicator(nullptr, *device),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host is null")));
  if (NativeNccl().ok()) return;
  EXPECT_THAT(
      CreateNcclCommunicator(std::move(host), *device),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("build again")));
}

}  // namespace
}  // namespace tessera::collectives
