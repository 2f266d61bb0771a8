// Tests the engine with a kernel that rejects requests, temporarily or always.
#include "offload/file/uring_engine.h"

#include <fcntl.h>
#include <liburing.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/async_file.h"
#include "offload/file/io_engine.h"
#include "offload/file/testing/blocking_file.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDepth = 4;
constexpr size_t kBytes = 512;

class UringEngineTest : public testing::Test {
 protected:
  UringEngineTest()
      : fd_(open(testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600)) {}

  void SetUp() override {
    if (const auto engine = CreateUringEngine(kDepth); !engine.ok()) {
      GTEST_SKIP() << engine.status();
    }
  }

  // Creates an engine that submits with `submit`.
  std::unique_ptr<IoEngine> Engine(std::function<int(io_uring*)> submit,
                                   absl::Duration patience) {
    return *CreateUringEngine(kDepth, {patience, std::move(submit)});
  }

  // Results of `count` writes, all submitted before the first completes.
  std::vector<absl::Status> Write(IoEngine& engine, int count) {
    AsyncFile file(engine, fd_.get(), "/x/blocks", {});
    const std::vector<std::byte> data(kBytes, std::byte{5});
    std::vector<absl::Status> results(static_cast<size_t>(count));
    absl::BlockingCounter over(count);
    for (int i = 0; i < count; ++i) {
      file.Write(int64_t{kBytes} * i, data, [&, i](absl::Status s) {
        results[static_cast<size_t>(i)] = std::move(s);
        over.DecrementCount();
      });
    }
    over.Wait();
    return results;
  }

  const UniqueFd fd_;
};

TEST_F(UringEngineTest, RetriesTemporarySubmitErrors) {
  for (const int error : {EAGAIN, EBUSY, EINTR}) {
    std::atomic<int> refusals = 30;
    const auto engine = Engine(
        [&refusals, error](io_uring* ring) {
          return refusals-- > 0 ? -error : io_uring_submit(ring);
        },
        absl::Seconds(60));
    for (const absl::Status& status : Write(*engine, 20)) {
      TESSERA_EXPECT_OK(status);
    }
    EXPECT_LT(refusals, 0);
  }
}

TEST_F(UringEngineTest, RetriesIntermittentSubmitErrors) {
  std::atomic<int> calls = 0;
  const auto engine = Engine(
      [&calls](io_uring* ring) {
        return ++calls % 3 != 0 ? -EAGAIN : io_uring_submit(ring);
      },
      absl::Seconds(60));
  for (const absl::Status& status : Write(*engine, 200)) {
    TESSERA_EXPECT_OK(status);
  }
}

TEST_F(UringEngineTest, SubmittingDoesNotWaitForTheKernel) {
  std::atomic<bool> refuses = true;
  auto engine = Engine(
      [&refuses](io_uring* ring) {
        return refuses ? -EAGAIN : io_uring_submit(ring);
      },
      absl::Hours(1));
  std::vector<std::byte> data(kBytes);
  std::atomic<int> done = 0;
  for (int i = 0; i < 3 * kDepth; ++i) {
    engine->Submit({IoRequest::Kind::kWrite, fd_.get(), 0, data.data(), kBytes,
                    [&done](int64_t result) {
                      EXPECT_EQ(result, int64_t{kBytes});
                      ++done;
                    }});
  }
  EXPECT_EQ(done, 0);
  refuses = false;
  engine = nullptr;
  EXPECT_EQ(done, 3 * kDepth);
}

TEST_F(UringEngineTest, NamesFileAndReasonAfterTimeout) {
  const auto engine =
      Engine([](io_uring*) { return -EAGAIN; }, absl::Milliseconds(20));
  const absl::Time start = absl::Now();
  // More than fit in the ring.
  for (const absl::Status& status : Write(*engine, 5 * kDepth)) {
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("write of 512 bytes at offset "),
                       HasSubstr("of file /x/blocks"),
                       HasSubstr("the kernel has no memory for the request"))));
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(20));
}

TEST_F(UringEngineTest, FailsImmediatelyOnPermanentSubmitError) {
  const auto engine = Engine([](io_uring*) { return -EBADF; }, absl::Hours(1));
  for (const absl::Status& status : Write(*engine, 3 * kDepth)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("of file /x/blocks: Bad file")));
  }
}

// Abandoned requests are still in the ring and must not be submitted later.
TEST_F(UringEngineTest, RecoversAndDropsFailedRequests) {
  std::atomic<bool> refuses = false;
  const auto engine = Engine(
      [&refuses](io_uring* ring) {
        return refuses ? -EAGAIN : io_uring_submit(ring);
      },
      absl::Milliseconds(5));
  AsyncFile file(*engine, fd_.get(), "f", {});
  const std::vector<std::byte> old(kBytes, std::byte{1});
  for (int round = 0; round < 3; ++round) {
    refuses = false;
    TESSERA_ASSERT_OK(WriteNow(file, 0, old));
    refuses = true;
    for (const absl::Status& status : Write(*engine, 3 * kDepth)) {
      EXPECT_FALSE(status.ok());
    }
    refuses = false;
    std::vector<std::byte> got(kBytes);
    TESSERA_ASSERT_OK(ReadNow(file, 0, got));
    EXPECT_EQ(got, old);
    for (const absl::Status& status : Write(*engine, 3 * kDepth)) {
      TESSERA_EXPECT_OK(status);
    }
  }
}

TEST_F(UringEngineTest, DestructionEndsDuringSubmitErrors) {
  std::vector<std::byte> data(kBytes);
  std::atomic<int> failed = 0;
  auto engine =
      Engine([](io_uring*) { return -EAGAIN; }, absl::Milliseconds(20));
  IoEngine* const raw = engine.get();
  // Each request submits another when it fails, ten in a row.
  std::function<void(int64_t)> again = [&](int64_t result) {
    EXPECT_EQ(result, -ENOMEM);
    if (++failed < 10) {
      raw->Submit(
          {IoRequest::Kind::kWrite, fd_.get(), 0, data.data(), kBytes, again});
    }
  };
  raw->Submit(
      {IoRequest::Kind::kWrite, fd_.get(), 0, data.data(), kBytes, again});
  engine = nullptr;
  EXPECT_EQ(failed, 10);
}

// The kernel accepts only some entries of a submission.
TEST_F(UringEngineTest, HandlesPartialSubmits) {
  std::atomic<int> calls = 0;
  const auto engine = Engine(
      [&calls](io_uring* ring) {
        const int call = ++calls;
        if (call % 4 == 0) return -EAGAIN;
        if (call % 2 == 0) return io_uring_submit(ring);
        // All but the last, as liburing does if the kernel stops early.
        const unsigned ready = io_uring_sq_ready(ring);
        if (ready < 2) return io_uring_submit(ring);
        auto& tail = ring->sq.sqe_tail;
        --tail;
        const int taken = io_uring_submit(ring);
        ++tail;
        return taken;
      },
      absl::Seconds(60));
  for (int round = 0; round < 20; ++round) {
    for (const absl::Status& status : Write(*engine, 4 * kDepth)) {
      TESSERA_EXPECT_OK(status);
    }
  }
}

}  // namespace
}  // namespace tessera::offload
