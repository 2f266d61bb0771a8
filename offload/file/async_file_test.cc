#include "offload/file/async_file.h"

#include <fcntl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/io_engine.h"
#include "offload/file/testing/blocking_file.h"
#include "offload/file/testing/fault_engine.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t bytes) {
  std::mt19937_64 random(bytes);
  Bytes out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

class AsyncFileTest : public testing::TestWithParam<IoEngineKind> {
 protected:
  AsyncFileTest()
      : fd_(open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600)) {}

  std::unique_ptr<IoEngine> Engine() {
    auto engine = CreateIoEngine(GetParam(), 4);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  std::unique_ptr<IoEngine> Faulty(FaultEngine::Plan plan) {
    return std::make_unique<FaultEngine>(Engine(), std::move(plan));
  }

  UniqueFd fd_;
};

TEST_P(AsyncFileTest, ManyRequestsBeyondTheQueueDepthComplete) {
  const auto engine = Engine();
  AsyncFile file(*engine, fd_.get(), "f", {});
  constexpr int kRequests = 300;
  const Bytes data = RandomBytes(kRequests * 1000);
  std::atomic<int> failures = 0;
  absl::BlockingCounter writes(kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    file.Write(static_cast<int64_t>(i) * 1000,
               std::span(data).subspan(i * 1000, 1000),
               [&](const absl::Status& s) {
                 failures += !s.ok();
                 writes.DecrementCount();
               });
  }
  writes.Wait();
  Bytes got(data.size());
  absl::BlockingCounter reads(kRequests);
  for (size_t i = 0; i < kRequests; ++i) {
    file.Read(static_cast<int64_t>(i) * 1000,
              std::span(got).subspan(i * 1000, 1000),
              [&](const absl::Status& s) {
                failures += !s.ok();
                reads.DecrementCount();
              });
  }
  reads.Wait();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(got, data);
}

TEST_P(AsyncFileTest, CompletesShortTransfersAndInterruptions) {
  std::atomic<uint64_t> calls = 0;
  const auto engine = Faulty([&calls](const IoRequest&) {
    FaultEngine::Fault fault;
    const uint64_t call = calls++;
    if (call % 5 == 1) fault.error = EINTR;
    if (call % 5 == 3) fault.error = EAGAIN;
    fault.most_bytes = 1 + call * 37 % 500;
    return fault;
  });
  AsyncFile file(*engine, fd_.get(), "f", {});
  const Bytes data = RandomBytes(20001);
  TESSERA_ASSERT_OK(WriteNow(file, 3, data));
  Bytes got(data.size());
  TESSERA_ASSERT_OK(ReadNow(file, 3, got));
  EXPECT_EQ(got, data);
  EXPECT_GT(calls, 100u);
}

// The remainder of a short direct transfer starts at an aligned offset.
TEST_P(AsyncFileTest, KeepsAlignmentAfterShortTransfer) {
  std::atomic<int> misplaced = 0;
  const auto engine = Faulty([&misplaced](const IoRequest& request) {
    misplaced += request.offset % 512 != 0 || request.bytes % 512 != 0;
    FaultEngine::Fault fault;
    fault.most_bytes = 2048;
    fault.understate = 100;
    return fault;
  });
  AsyncFile file(*engine, fd_.get(), "f", {512, 512});
  const Bytes data = RandomBytes(8192);
  // A sector is never reported complete if only a part was transferred.
  EXPECT_THAT(WriteNow(file, 0, data), StatusIs(absl::StatusCode::kUnavailable,
                                                HasSubstr("no progress")));
  EXPECT_EQ(misplaced, 0);
  const auto clean = Engine();
  AsyncFile clean_file(*clean, fd_.get(), "f", {});
  Bytes got(data.size());
  TESSERA_ASSERT_OK(ReadNow(clean_file, 0, got));
  EXPECT_EQ(got, data);
}

TEST_P(AsyncFileTest, ErrorsNameTheFileAndTheOffset) {
  for (const auto& [error, code] :
       {std::pair(ENOSPC, absl::StatusCode::kResourceExhausted),
        std::pair(EDQUOT, absl::StatusCode::kResourceExhausted),
        std::pair(EFBIG, absl::StatusCode::kResourceExhausted),
        std::pair(EIO, absl::StatusCode::kDataLoss),
        std::pair(EBADF, absl::StatusCode::kFailedPrecondition)}) {
    const auto engine = Faulty([error = error](const IoRequest& request) {
      FaultEngine::Fault fault;
      fault.most_bytes = 1000;
      if (request.offset >= 2000) fault.error = error;
      return fault;
    });
    AsyncFile file(*engine, fd_.get(), "/x/blocks", {});
    EXPECT_THAT(
        WriteNow(file, 0, Bytes(5000)),
        StatusIs(code, HasSubstr("write of 3000 bytes at offset 2000 of file "
                                 "/x/blocks")));
  }
}

TEST_P(AsyncFileTest, AReadPastTheEndIsDataLoss) {
  const auto engine = Engine();
  AsyncFile file(*engine, fd_.get(), "f", {});
  TESSERA_ASSERT_OK(WriteNow(file, 0, Bytes(100)));
  Bytes got(200);
  EXPECT_THAT(
      ReadNow(file, 0, got),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the file ends at 100")));
}

TEST_P(AsyncFileTest, FailsWithoutProgress) {
  const auto engine = Faulty([](const IoRequest&) {
    FaultEngine::Fault fault;
    fault.error = EAGAIN;
    return fault;
  });
  AsyncFile file(*engine, fd_.get(), "f", {});
  EXPECT_THAT(WriteNow(file, 0, Bytes(10)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no progress in 1000 attempts"),
                             HasSubstr("of file f"))));
}

INSTANTIATE_TEST_SUITE_P(Engines, AsyncFileTest,
                         testing::Values(IoEngineKind::kAuto,
                                         IoEngineKind::kThreads));

TEST(IoEngineTest, RejectsInvalidDepths) {
  for (int depth : {0, -1, 5000}) {
    EXPECT_THAT(
        CreateIoEngine(IoEngineKind::kAuto, depth),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 to 4096")));
  }
}

TEST(IoEngineTest, IoUringWorksOrNamesAlternative) {
  const auto engine = CreateIoEngine(IoEngineKind::kIoUring, 2);
  if (engine.ok()) {
    EXPECT_EQ((*engine)->name(), "io_uring");
  } else {
    EXPECT_THAT(std::string(engine.status().message()), HasSubstr("kThreads"));
  }
}

// Requests complete while the destructor of the engine waits for them.
TEST(IoEngineTest, DestructionWaitsForChainedRequests) {
  for (const auto kind : {IoEngineKind::kAuto, IoEngineKind::kThreads}) {
    const UniqueFd fd(
        open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600));
    std::byte buffer[16] = {};
    std::atomic<int> done = 0;
    auto engine = CreateIoEngine(kind, 2);
    ASSERT_TRUE(engine.ok());
    IoEngine* raw = engine->get();
    std::function<void(int64_t)> again = [&](int64_t) {
      if (++done < 20) {
        raw->Submit({IoRequest::Kind::kWrite, fd.get(), 0, buffer, 16, again});
      }
    };
    raw->Submit({IoRequest::Kind::kWrite, fd.get(), 0, buffer, 16, again});
    *engine = nullptr;
    EXPECT_EQ(done, 20);
  }
}

}  // namespace
}  // namespace tessera::offload
