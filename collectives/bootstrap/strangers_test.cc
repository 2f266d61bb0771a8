// Needs OpenSSL; skipped if the build has none.
// Unauthenticated connections to the store while a job forms have no effect.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "collectives/bootstrap/tls_store.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/channel/testing/transfers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

TlsStoreOptions Options(int rank, int size, int port = 0) {
  TlsStoreOptions options;
  options.rank = Rank(rank);
  options.size = size;
  options.secret = "a secret of the job";
  options.port = port;
  return options;
}

UniqueFd ConnectTo(int port) {
  auto addresses =
      ResolveTcp("127.0.0.1", port, Deadline::After(absl::Seconds(5)));
  auto socket = Connect(addresses->front(), Deadline::After(absl::Seconds(5)));
  return socket.ok() ? *std::move(socket) : UniqueFd();
}

std::string RandomBytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

// Returns true if the other end closes within `patience`.
bool IsClosed(const UniqueFd& socket, absl::Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  char buffer[4096];
  while (true) {
    const auto ready = WaitReady(socket.get(), POLLIN, deadline);
    if (!ready.ok() || !*ready) return false;
    const ssize_t got = recv(socket.get(), buffer, sizeof(buffer), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
  }
}

// Runs one stranger of every kind repeatedly until stopped.
class Strangers {
 public:
  explicit Strangers(int port) : port_(port) {
    threads_.emplace_back([this] { SendGarbage(); });
    threads_.emplace_back([this] { SendWithoutEnd(); });
    threads_.emplace_back([this] { HangUp(); });
    threads_.emplace_back([this] { KnowAnotherSecret(); });
    threads_.emplace_back([this] { StayAndSaySomething(); });
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void SendGarbage() {
    std::mt19937_64 random(1);
    while (!stop_) {
      const UniqueFd socket = ConnectTo(port_);
      SendAll(socket, RandomBytes(random, random() % 500),
              Deadline::After(absl::Seconds(1)))
          .IgnoreError();
      IsClosed(socket, absl::Milliseconds(20));
    }
  }
  void SendWithoutEnd() {
    std::mt19937_64 random(2);
    while (!stop_) {
      const UniqueFd socket = ConnectTo(port_);
      // Begins like a handshake record, so that it is not rejected at once.
      std::string bytes = "\x16\x03\x01\x40";
      while (!stop_ &&
             SendAll(socket, bytes, Deadline::After(absl::Seconds(1))).ok()) {
        bytes = RandomBytes(random, 100'000);
      }
    }
  }
  void HangUp() {
    while (!stop_) {
      ConnectTo(port_);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  void KnowAnotherSecret() {
    TlsStoreOptions options = Options(1, 4, port_);
    options.secret = "another secret of a job";
    while (!stop_) {
      EXPECT_THAT(ConnectTlsStore(options, Soon()),
                  StatusIs(absl::StatusCode::kPermissionDenied));
    }
  }
  // Opens many connections that send a byte now and then.
  void StayAndSaySomething() {
    std::vector<UniqueFd> sockets;
    while (!stop_) {
      if (sockets.size() < 100) sockets.push_back(ConnectTo(port_));
      for (const UniqueFd& socket : sockets) {
        send(socket.get(), "\x16", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  const int port_;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

TEST(StrangersTest, DoNotPreventJobFromForming) {
  const int before = CountDescriptors();
  std::atomic<int> lines = 0;
  {
    TlsStoreOptions options = Options(0, 4);
    options.on_refusal = [&](std::string line) {
      ++lines;
      EXPECT_THAT(line, HasSubstr("refused a connection to the job's store"));
      EXPECT_LT(line.size(), 600u);
    };
    options.greeting_timeout = absl::Seconds(2);
    TESSERA_ASSERT_OK_AND_ASSIGN(auto served, ServeTlsStore(options, Soon()));
    const int port = served->port();
    Strangers strangers(port);
    absl::SleepFor(absl::Milliseconds(100));
    RunThreads(4, [&](int i) {
      std::unique_ptr<Store> mine;
      if (i > 0) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            mine, ConnectTlsStore(Options(i, 4, port), Soon()));
      }
      Store& store = i == 0 ? *served : *mine;
      for (int round = 0; round < 20; ++round) {
        TESSERA_ASSERT_OK(Barrier(store, absl::StrCat(round), Soon()));
      }
    });
    strangers.Stop();
    EXPECT_GT(served->refusals(), lines.load());
  }
  // At most ten lines at once, then one per second.
  EXPECT_GE(lines.load(), 10);
  EXPECT_LE(lines.load(), 45);
  EXPECT_EQ(CountDescriptors(), before);
}

TEST(StrangersTest, SilentConnectionIsClosedAfterTimeout) {
  TlsStoreOptions options = Options(0, 2);
  options.greeting_timeout = absl::Milliseconds(200);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served, ServeTlsStore(options, Soon()));
  const UniqueFd silent = ConnectTo(served->port());
  EXPECT_FALSE(IsClosed(silent, absl::Milliseconds(50)));
  EXPECT_TRUE(IsClosed(silent, absl::Seconds(10)));
  EXPECT_EQ(served->refusals(), 1);  // Counted before it is closed.
}

TEST(StrangersTest, OldestSilentConnectionIsEvictedWhenFull) {
  TlsStoreOptions options = Options(0, 2);
  options.greeting_timeout = absl::Minutes(5);
  options.max_greeting = 3;
  TESSERA_ASSERT_OK_AND_ASSIGN(auto served, ServeTlsStore(options, Soon()));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(ConnectTo(served->port()));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto store, ConnectTlsStore(Options(1, 2, served->port()), Soon()));
  EXPECT_TRUE(IsClosed(silent[0], absl::Seconds(5)));
  EXPECT_FALSE(IsClosed(silent[1], absl::ZeroDuration()));
  EXPECT_EQ(served->refusals(), 1);
}

TEST(StrangersTest, ClientDetectsForeignService) {
  // Acts as another program on rank 0's port, which sends its own data.
  auto addresses =
      ResolveTcp("127.0.0.1", 0, Deadline::After(absl::Seconds(5)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd listener,
                               Listen(addresses->front()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto address, LocalAddress(listener));
  std::thread service([&] {
    WaitReady(listener.get(), POLLIN, Deadline::After(absl::Seconds(10)))
        .IgnoreError();
    auto socket = Accept(listener);
    if (!socket.ok() || !socket->valid()) return;
    SendAll(*socket, "220 mail.example ready\r\n",
            Deadline::After(absl::Seconds(1)))
        .IgnoreError();
    IsClosed(*socket, absl::Seconds(10));
  });
  EXPECT_THAT(ConnectTlsStore(Options(1, 2, address.port()), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("did not find its job's store")));
  service.join();
}

}  // namespace
}  // namespace tessera::collectives
