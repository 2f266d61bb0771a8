// Needs OpenSSL; skipped if the build has none.
#include "collectives/channel/tls_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/channel/testing/transfers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Role = TlsContext::Role;

constexpr char kSecret[] = "0123456789abcdef";

struct Ends {
  std::unique_ptr<ByteChannel> server, client;
};

Ends MakeEnds(std::string_view server_job, std::string_view server_secret,
              std::string_view client_job, std::string_view client_secret) {
  auto sockets = SocketPair();
  auto server = TlsContext::Create(Role::kServer, server_job, server_secret);
  auto client = TlsContext::Create(Role::kClient, client_job, client_secret);
  EXPECT_THAT(server, IsOk());
  EXPECT_THAT(client, IsOk());
  return {*(*server)->Wrap(std::move(sockets->first)),
          *(*client)->Wrap(std::move(sockets->second))};
}

struct Outcome {
  absl::Status server, client;
};

// Runs both sides' handshakes in turn. A side that fails closes its end.
Outcome Shake(Ends& ends) {
  Outcome outcome;
  bool server_done = false, client_done = false;
  for (int i = 0; i < 100 && !(server_done && client_done); ++i) {
    if (!client_done) {
      const auto want = ends.client->Handshake();
      outcome.client = want.status();
      client_done = !want.ok() || *want == Want::kNothing;
      if (!want.ok()) ends.client->Close();
    }
    if (!server_done) {
      const auto want = ends.server->Handshake();
      outcome.server = want.status();
      server_done = !want.ok() || *want == Want::kNothing;
      if (!want.ok()) ends.server->Close();
    }
  }
  EXPECT_TRUE(server_done && client_done);
  return outcome;
}

TEST(TlsChannelTest, ConnectsWithSameSecretAndJob) {
  Ends ends = MakeEnds("job 1", kSecret, "job 1", kSecret);
  const Outcome outcome = Shake(ends);
  TESSERA_EXPECT_OK(outcome.server);
  TESSERA_EXPECT_OK(outcome.client);
}

TEST(TlsChannelTest, RejectsAnotherSecretOnBothSides) {
  Ends ends = MakeEnds("job", kSecret, "job", "0123456789abcdeF");
  const Outcome outcome = Shake(ends);
  EXPECT_THAT(outcome.server, StatusIs(absl::StatusCode::kPermissionDenied,
                                       Not(HasSubstr("0123456789"))));
  EXPECT_THAT(outcome.client, StatusIs(absl::StatusCode::kPermissionDenied,
                                       Not(HasSubstr("0123456789"))));
}

TEST(TlsChannelTest, RejectsAnotherJobOnBothSides) {
  Ends ends = MakeEnds("job 1", kSecret, "job 2", kSecret);
  const Outcome outcome = Shake(ends);
  EXPECT_THAT(outcome.server, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(outcome.client, StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(TlsChannelTest, SecretsAndJobsAreBounded) {
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(TlsContext::Create(Role::kServer, "j", "0123456789abcde"),
              invalid("has 15 bytes; use 16 to 4096"));
  EXPECT_THAT(TlsContext::Create(Role::kServer, "j", std::string(4097, 's')),
              invalid("has 4097 bytes"));
  EXPECT_THAT(TlsContext::Create(Role::kClient, "", kSecret),
              invalid("has 0 bytes; use 1 to 128"));
  EXPECT_THAT(TlsContext::Create(Role::kClient, std::string(129, 'j'), kSecret),
              invalid("has 129 bytes"));
  TESSERA_EXPECT_OK(TlsContext::Create(Role::kClient, std::string(128, 'j'),
                                       std::string(4096, 's'))
                        .status());
}

// Runs one end's handshake; the other end sends `bytes` and closes.
absl::Status ShakeAgainst(Role role, std::string_view bytes) {
  auto sockets = SocketPair();
  auto context = TlsContext::Create(role, "job", kSecret);
  auto channel = (*context)->Wrap(std::move(sockets->first));
  EXPECT_THAT(
      SendAll(sockets->second, bytes, Deadline::After(absl::Seconds(5))),
      IsOk());
  shutdown(sockets->second.get(), SHUT_WR);
  for (int i = 0; i < 1000; ++i) {
    const auto want = (*channel)->Handshake();
    if (!want.ok()) return want.status();
    if (*want == Want::kNothing) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("no end");
}

TEST(TlsChannelTest, RejectsGarbage) {
  std::mt19937_64 random(1);
  for (const Role role : {Role::kServer, Role::kClient}) {
    EXPECT_THAT(ShakeAgainst(role, ""),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(ShakeAgainst(role, "GET / HTTP/1.1\r\n\r\n"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("TLS")));
    for (int i = 0; i < 500; ++i) {
      std::string bytes(random() % 2000, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      // Half of the inputs begin like a handshake record.
      if (i % 2 == 0 && bytes.size() > 5) bytes.replace(0, 3, "\x16\x03\x01");
      EXPECT_FALSE(ShakeAgainst(role, bytes).ok());
    }
  }
}

TEST(TlsChannelTest, ManyMessagesSurviveSmallBuffers) {
  for (const bool tls : {false, true}) {
    Ends ends;
    if (tls) {
      ends = MakeEnds("job", kSecret, "job", kSecret);
    } else {
      auto sockets = SocketPair();
      ends.server = std::make_unique<PlainChannel>(std::move(sockets->first));
      ends.client = std::make_unique<PlainChannel>(std::move(sockets->second));
    }
    const int small = 4096;
    setsockopt(ends.client->fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    Connection server(std::move(ends.server)), client(std::move(ends.client));
    std::vector<Message> sent, got, ignored;
    std::mt19937_64 random(2);
    for (uint64_t id = 0; id < 200; ++id) {
      sent.push_back({.type = MessageType::kSet, .id = id, .key = "k"});
      sent.back().value.assign(random() % 50'000, static_cast<char>(id));
      client.Queue(sent.back());
    }
    for (int i = 0; i < 1'000'000 && got.size() < sent.size(); ++i) {
      TESSERA_ASSERT_OK(client.Advance(&ignored));
      TESSERA_ASSERT_OK(server.Advance(&got));
    }
    EXPECT_EQ(got, sent);
    EXPECT_EQ(client.queued_bytes(), 0u);
    // Messages received before the end are delivered.
    client.Queue({.type = MessageType::kBye});
    TESSERA_ASSERT_OK(client.Advance(&ignored));
    client.Close();
    got.clear();
    EXPECT_THAT(server.Advance(&got),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("the other end closed")));
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].type, MessageType::kBye);
  }
}

}  // namespace
}  // namespace tessera::collectives
