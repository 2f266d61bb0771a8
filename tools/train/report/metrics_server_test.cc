#include "tools/train/report/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A client that knows sockets only.
class Client {
 public:
  explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    is_connected_ =
        connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) == 0;
    const timeval patience = {.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience,
               sizeof(patience));
  }

  bool is_connected() const { return is_connected_; }

  // False if the other end has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count =
          send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }

  // All bytes until the other end closes; "timed out" if it does not.
  std::string Receive() {
    std::string all;
    char bytes[4096];
    while (true) {
      const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (count < 0) return errno == EAGAIN ? "timed out" : all;
      if (count == 0) return all;
      all.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  UniqueFd socket_;
  bool is_connected_ = false;
};

std::string Ask(int port, std::string_view request) {
  Client client(port);
  client.Send(request);
  return client.Receive();
}

constexpr std::string_view kGet =
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

class MetricsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = *MetricsServer::Start(0, {.timeout = absl::Milliseconds(300)});
    server_->Set("a 1\n");
  }
  int port() const { return server_->port(); }

  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AnswersWithTheNewestText) {
  EXPECT_EQ(Ask(port(), kGet),
            "HTTP/1.1 200 OK\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 4\r\nConnection: close\r\n\r\na 1\n");
  server_->Set("b 22\n");
  EXPECT_THAT(Ask(port(), kGet), EndsWith("\r\n\r\nb 22\n"));
  EXPECT_THAT(Ask(port(), "GET /metrics?x=1 HTTP/1.0\n\n"), EndsWith("b 22\n"));
  const std::string head = Ask(port(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(head, EndsWith("\r\n\r\n"));
  // A text that does not fit into the buffers of a socket.
  const std::string large(8 << 20, 'x');
  server_->Set(large);
  EXPECT_THAT(Ask(port(), kGet), EndsWith("\r\n\r\n" + large));
}

TEST_F(MetricsServerTest, RefusesOtherRequests) {
  EXPECT_THAT(Ask(port(), "GET / HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(Ask(port(), "GET /metrics/.. HTTP/1.1\r\n\r\n"),
              StartsWith("HTTP/1.1 404"));
  const std::string post =
      Ask(port(), "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_THAT(post, StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(post, HasSubstr("\r\nAllow: GET, HEAD\r\n"));
  for (const std::string_view bad :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n",
        "GET /metrics HTTP/2\r\n\r\n", "GET metrics HTTP/1.1\r\n\r\n",
        "G(T /metrics HTTP/1.1\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nno field\r\n\r\n",
        "GET /metrics HTTP/1.1\r\n : x\r\n\r\n",
        "GET /metrics HTTP/1.1\r\na: \x01\r\n\r\n", "\x16\x03\x01\n"}) {
    EXPECT_THAT(Ask(port(), bad), StartsWith("HTTP/1.1 400 Bad Request\r\n"))
        << bad;
  }
  EXPECT_THAT(Ask(port(), std::string(100'000, 'x')),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask(port(), absl::StrCat("GET /metrics HTTP/1.1\r\na: ",
                                       std::string(9000, 'x'), "\r\n\r\n")),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask(port(), kGet), EndsWith("a 1\n"));
}

TEST_F(MetricsServerTest, ASlowRequestIsReadPieceByPiece) {
  Client client(port());
  for (const char c : kGet) {
    ASSERT_TRUE(client.Send(std::string_view(&c, 1)));
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_THAT(client.Receive(), EndsWith("a 1\n"));
}

TEST_F(MetricsServerTest, AStalledClientIsClosedAndDelaysNobody) {
  Client silent(port()), half(port()), deaf(port());
  half.Send("GET /met");
  server_->Set(std::string(8 << 20, 'x'));
  deaf.Send(kGet);  // Does not read the answer.
  const absl::Time begin = absl::Now();
  server_->Set("a 1\n");
  EXPECT_THAT(Ask(port(), kGet), EndsWith("a 1\n"));
  EXPECT_EQ(silent.Receive(), "");
  EXPECT_EQ(half.Receive(), "");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(MetricsServerTest, MoreClientsThanConnectionsWaitTheirTurn) {
  std::vector<std::unique_ptr<Client>> silent;
  for (size_t i = 0; i < 2 * MetricsServer::kMostConnections; ++i) {
    silent.push_back(std::make_unique<Client>(port()));
    ASSERT_TRUE(silent.back()->is_connected());
  }
  EXPECT_THAT(Ask(port(), kGet), EndsWith("a 1\n"));
}

TEST_F(MetricsServerTest, ManyRequestsWhileTheTextChanges) {
  // Clients may ask before the thread has set a text.
  server_->Set("a");
  std::atomic<bool> has_ended = false;
  std::thread trainer([&] {
    for (int i = 0; !has_ended; ++i) {
      server_->Set(std::string(static_cast<size_t>(i % 3000), 'a' + i % 26));
    }
  });
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const std::string answer = Ask(port(), kGet);
        ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
        // One text, not parts of two.
        const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
        EXPECT_EQ(body.find_first_not_of(body.substr(0, 1)), body.npos);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  has_ended = true;
  trainer.join();
}

TEST_F(MetricsServerTest, EndsAtOnceWithOpenConnectionsAndFreesThePort) {
  Client silent(port()), half(port());
  half.Send("GET ");
  const int used = port();
  const absl::Time begin = absl::Now();
  server_.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  EXPECT_EQ(silent.Receive(), "");
  EXPECT_FALSE(Client(used).is_connected());
  TESSERA_EXPECT_OK(MetricsServer::CheckPort(used));
  TESSERA_EXPECT_OK(MetricsServer::Start(used).status());
}

TEST_F(MetricsServerTest, NamesTheFlagIfThePortIsInUse) {
  for (const absl::Status& status : {MetricsServer::CheckPort(port()),
                                     MetricsServer::Start(port()).status()}) {
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("--prometheus_port=", port(),
                                        ": cannot listen on 127.0.0.1:"))));
  }
}

TEST_F(MetricsServerTest, OnlyThisHostCanConnect) {
  // Any other loopback address is an interface on which it does not listen.
  UniqueFd other(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = inet_addr("127.0.0.2");
  address.sin_port = htons(static_cast<uint16_t>(port()));
  EXPECT_NE(connect(other.get(), reinterpret_cast<const sockaddr*>(&address),
                    sizeof(address)),
            0);
}

// The samples of a text, which must have a type before them.
std::map<std::string, std::string> SamplesOf(std::string_view text) {
  EXPECT_THAT(std::string(text), EndsWith("\n"));
  std::map<std::string, std::string> samples;
  std::string typed;
  for (const std::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") {
      EXPECT_TRUE(words[1] == "HELP" || words[1] == "TYPE");
      EXPECT_GE(words.size(), 4u);
      typed = words[2];
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string name(line.substr(0, space));
    EXPECT_EQ(name.substr(0, name.find('{')), typed);
    EXPECT_TRUE(
        samples.emplace(name, std::string(line.substr(space + 1))).second);
  }
  return samples;
}

TEST(PrometheusTextTest, HasTheNumbersOfARun) {
  RunStatus status = {.ranks = 8, .skipped_steps = 2};
  status.settings.steps = 60;
  auto samples = SamplesOf(PrometheusText(status));
  EXPECT_EQ(samples.at("tessera_train_steps_done"), "0");
  EXPECT_EQ(samples.count("tessera_train_loss"), 0u);
  status.last = StepMetrics{
      .record = {.step = 6,
                 .loss = 0.1,
                 .gradient_norm = std::numeric_limits<double>::infinity(),
                 .learning_rate = 3e-3,
                 .rollbacks = 3},
      .seconds = 0.5,
      .tokens_per_second = 9000,
      .memory_bytes = int64_t{1} << 40,
      .shares = {.compute = 0.5, .bubble = 0.25}};
  status.last_eval_loss = std::numeric_limits<double>::quiet_NaN();
  status.remaining = RemainingEstimate{absl::Seconds(90)};
  samples = SamplesOf(PrometheusText(status));
  EXPECT_EQ(samples.at("tessera_train_info{model=\"llama-1m\",mesh=\"dp2,pp2,"
                       "tp2\",engine=\"shared_memory\"}"),
            "1");
  EXPECT_EQ(samples.at("tessera_train_ranks"), "8");
  EXPECT_EQ(samples.at("tessera_train_steps"), "60");
  EXPECT_EQ(samples.at("tessera_train_steps_done"), "7");
  EXPECT_EQ(samples.at("tessera_train_skipped_steps_total"), "2");
  EXPECT_EQ(samples.at("tessera_train_rollbacks_total"), "3");
  EXPECT_EQ(samples.at("tessera_train_loss"), "0.10000000000000001");
  EXPECT_EQ(samples.at("tessera_train_gradient_norm"), "+Inf");
  EXPECT_EQ(samples.at("tessera_train_memory_bytes"), "1099511627776");
  EXPECT_EQ(samples.at("tessera_train_validation_loss"), "NaN");
  EXPECT_EQ(samples.at("tessera_train_remaining_seconds"), "90");
  EXPECT_EQ(samples.at("tessera_train_time_share{activity=\"bubble\"}"),
            "0.25");
  EXPECT_EQ(samples.size(), 19u);
}

TEST(PrometheusTextTest, EscapesLabels) {
  RunStatus status;
  status.settings.model = "a\"b\\c\nd\te\xff";
  const std::string text = PrometheusText(status);
  EXPECT_THAT(text, HasSubstr("{model=\"a\\\"b\\\\c\\nd?e\xef\xbf\xbd\","));
  SamplesOf(text);
}

}  // namespace
}  // namespace tessera::train
