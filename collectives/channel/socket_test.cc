#include "collectives/channel/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/channel/job_secret.h"
#include "collectives/channel/testing/transfers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(LocalAddressTest, LoopbackIsSeenFromLoopback) {
  const Deadline deadline = Deadline::After(absl::Seconds(10));
  EXPECT_THAT(LocalAddressTowards("127.0.0.1", deadline),
              IsOkAndHolds("127.0.0.1"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string name,
                               LocalAddressTowards("localhost", deadline));
  EXPECT_THAT(name, AnyOf("127.0.0.1", "::1"));
}

TEST(LocalAddressTest, NamesUnknownHost) {
  const absl::Status status =
      LocalAddressTowards("no.such.host.invalid",
                          Deadline::After(absl::Seconds(5)))
          .status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("no.such.host.invalid"));
}

TEST(LocalAddressTest, NamesUnroutableAddress) {
  // 240.0.0.0/4 is reserved (RFC 1112, section 4): Linux has no route to it.
  EXPECT_THAT(
      LocalAddressTowards("255.255.255.255", Deadline::After(absl::Seconds(5))),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr("no route to \"255.255.255.255\"")));
}

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(10)); }

SocketAddress Tcp(std::string_view host, int port) {
  return ResolveTcp(host, port, Soon())->front();
}

TEST(SocketAddressTest, FormatsAddresses) {
  EXPECT_EQ(Tcp("127.0.0.1", 80).ToString(), "127.0.0.1:80");
  EXPECT_EQ(Tcp("localhost", 65535).ToString(), "127.0.0.1:65535");
  EXPECT_EQ(Tcp("::1", 0).ToString(), "[::1]:0");
  EXPECT_EQ(Tcp("10.1.2.3", 443).port(), 443);
  TESSERA_ASSERT_OK_AND_ASSIGN(const SocketAddress name,
                               SocketAddress::Abstract("a\nb"));
  EXPECT_EQ(name.ToString(), "@a\\nb");
  EXPECT_EQ(name.port(), 0);
}

TEST(SocketAddressTest, RecognizesLocalAddresses) {
  for (const char* host :
       {"127.0.0.1", "127.255.0.7", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(Tcp(host, 1).IsLocal()) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.127", "126.0.0.1",
                           "::", "fe80::1", "::ffff:10.0.0.1", "2001:db8::1"}) {
    EXPECT_FALSE(Tcp(host, 1).IsLocal()) << host;
  }
  EXPECT_TRUE(SocketAddress::Abstract("a")->IsLocal());
}

TEST(SocketAddressTest, AcceptsIpv6WithAndWithoutBrackets) {
  EXPECT_EQ(ResolveTcp("[::1]", 5, Soon())->front().ToString(), "[::1]:5");
  EXPECT_EQ(ResolveTcp("::1", 5, Soon())->front().ToString(), "[::1]:5");
}

TEST(SocketAddressTest, KnowsTheNameOfThisHost) {
  char own[256] = "";
  ASSERT_EQ(gethostname(own, sizeof(own) - 1), 0);
  EXPECT_TRUE(IsOwnHostName(own));
  EXPECT_TRUE(IsOwnHostName(std::string(own) + ".example.com"));
  EXPECT_FALSE(IsOwnHostName(std::string(own) + "x"));
  EXPECT_FALSE(IsOwnHostName(""));
}

TEST(SocketAddressTest, RejectsInvalidAddresses) {
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ResolveTcp("", 1, Soon()), invalid);
  EXPECT_THAT(ResolveTcp(std::string(254, 'h'), 1, Soon()), invalid);
  EXPECT_THAT(ResolveTcp(std::string("a\0b", 3), 1, Soon()), invalid);
  EXPECT_THAT(ResolveTcp("127.0.0.1", -1, Soon()), invalid);
  EXPECT_THAT(
      ResolveTcp("127.0.0.1", 65536, Soon()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("port 65536 is out of range; use 0 to 65535")));
  EXPECT_THAT(SocketAddress::Abstract(""), invalid);
  EXPECT_THAT(SocketAddress::Abstract(std::string(108, 'n')), invalid);
  TESSERA_EXPECT_OK(SocketAddress::Abstract(std::string(107, 'n')).status());
}

TEST(SocketTest, ListensConnectsAndMovesBytes) {
  const std::string name = *RandomHex(16);
  for (const SocketAddress& address :
       {Tcp("127.0.0.1", 0), *SocketAddress::Abstract(name)}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(address));
    TESSERA_ASSERT_OK_AND_ASSIGN(const SocketAddress bound,
                                 LocalAddress(listener));
    TESSERA_ASSERT_OK_AND_ASSIGN(auto nobody, Accept(listener));
    EXPECT_FALSE(nobody.valid());
    EXPECT_THAT(Listen(bound), StatusIs(absl::StatusCode::kAlreadyExists,
                                        HasSubstr(bound.ToString())));
    TESSERA_ASSERT_OK_AND_ASSIGN(const UniqueFd client, Connect(bound, Soon()));
    TESSERA_ASSERT_OK(WaitReady(listener.get(), POLLIN, Soon()).status());
    TESSERA_ASSERT_OK_AND_ASSIGN(auto server, Accept(listener));
    ASSERT_TRUE(server.valid());
    for (const int fd : {listener.get(), client.get(), server.get()}) {
      EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
      EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    }
    // Larger than any socket buffer.
    const std::string sent(8 << 20, 's');
    std::string got(sent.size(), '\0');
    std::thread sender(
        [&] { TESSERA_EXPECT_OK(SendAll(client, sent, Soon())); });
    TESSERA_EXPECT_OK(ReceiveAll(server, got, Soon()));
    sender.join();
    EXPECT_EQ(got, sent);
  }
}

TEST(SocketTest, ClosedPeerIsErrorWithoutSignal) {
  signal(SIGPIPE, SIG_DFL);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pair, SocketPair());
  pair.second.Reset();
  EXPECT_THAT(SendAll(pair.first, "x", Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("pipe")));
  char byte;
  EXPECT_THAT(ReceiveAll(pair.first, {&byte, 1}, Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
}

TEST(SocketTest, KeepsItsDeadline) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pair, SocketPair());
  char byte;
  const absl::Time start = absl::Now();
  const Deadline deadline = Deadline::After(absl::Milliseconds(30));
  EXPECT_THAT(ReceiveAll(pair.first, {&byte, 1}, deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(SendAll(pair.first, std::string(64 << 20, 'x'), deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(30));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(SocketTest, ReturnsUnavailableWithoutListener) {
  EXPECT_THAT(Connect(Tcp("127.0.0.1", 1), Soon()),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("127.0.0.1:1: Connection refused")));
  EXPECT_THAT(Connect(*SocketAddress::Abstract(*RandomHex(16)), Soon()),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Listen(Tcp("192.0.2.1", 0)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SocketTest, ReturnsPeerCredentials) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto pair, SocketPair());
  TESSERA_ASSERT_OK_AND_ASSIGN(const PeerCredentials peer,
                               CredentialsOf(pair.first));
  EXPECT_EQ(peer.pid, getpid());
  EXPECT_EQ(peer.uid, geteuid());
  TESSERA_EXPECT_OK(CheckSameUser(pair.first));
  EXPECT_EQ(PeerName(pair.first),
            absl::StrCat("pid ", getpid(), " of uid ", geteuid()));
  EXPECT_FALSE(CheckSameUser(UniqueFd()).ok());
  EXPECT_EQ(PeerName(UniqueFd()), "an unknown peer");
}

}  // namespace

}  // namespace tessera::collectives
