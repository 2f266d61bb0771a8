#include "tools/train/report/metrics_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <list>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/channel/socket.h"
#include "nlohmann/json.hpp"

namespace tessera::train {
namespace {

// A label's value in quotes. Control characters and bytes that are not UTF-8
// are replaced.
std::string LabelText(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') c = '?';
  }
  // Of JSON's escapes these texts need only those of the format: \\ \" \n.
  return nlohmann::json(text).dump(-1, ' ', false,
                                   nlohmann::json::error_handler_t::replace);
}

std::string NumberText(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

// Appends metrics of the prefix.
class Exposition {
 public:
  void Begin(std::string_view name, std::string_view type,
             std::string_view help) {
    name_ = absl::StrCat("tessera_train_", name);
    absl::StrAppend(&text_, "# HELP ", name_, " ", help, "\n# TYPE ", name_,
                    " ", type, "\n");
  }
  // `labels` such as {activity="bubble"}.
  void Sample(double value, std::string_view labels = "") {
    absl::StrAppend(&text_, name_, labels, " ", NumberText(value), "\n");
  }
  void Gauge(std::string_view name, double value, std::string_view help) {
    Begin(name, "gauge", help);
    Sample(value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

void AddShares(const TimeShares& shares, Exposition& out) {
  out.Begin("time_share", "gauge",
            "Share of the last step, the mean over ranks.");
  out.Sample(shares.compute, "{activity=\"compute\"}");
  out.Sample(shares.communication, "{activity=\"communication\"}");
  out.Sample(shares.bubble, "{activity=\"bubble\"}");
  out.Sample(shares.offload, "{activity=\"offload\"}");
}

void AddStep(const StepMetrics& step, Exposition& out) {
  const StepRecord& record = step.record;
  out.Gauge("loss", record.loss, "Mean loss over the tokens of the last step.");
  out.Gauge("gradient_norm", record.gradient_norm,
            "Norm of all gradients before clipping.");
  out.Gauge("learning_rate", record.learning_rate,
            "Learning rate of the last step.");
  out.Gauge("loss_scale", record.loss_scale, "Factor on the loss.");
  if (record.expert_imbalance) {
    out.Gauge("expert_imbalance", *record.expert_imbalance,
              "Tokens of the busiest expert over the mean of its layer.");
  }
  out.Gauge("step_seconds", step.seconds, "Time of the last step.");
  out.Gauge("tokens_per_second", step.tokens_per_second,
            "Throughput of the last step over all ranks.");
  out.Gauge("memory_bytes", static_cast<double>(step.memory_bytes),
            "Largest resident size of a rank.");
  AddShares(step.shares, out);
}

}  // namespace

std::string PrometheusText(const RunStatus& status) {
  const Settings& settings = status.settings;
  Exposition out;
  out.Begin("info", "gauge", "Always 1; the labels describe the run.");
  out.Sample(1, absl::StrCat("{model=", LabelText(settings.model), ",mesh=",
                             LabelText(settings.parallel.mesh.ToFlag()),
                             ",engine=", LabelText(settings.engine), "}"));
  out.Gauge("ranks", static_cast<double>(status.ranks), "Number of ranks.");
  out.Gauge("steps", static_cast<double>(settings.steps),
            "Steps of the whole run.");
  out.Gauge("steps_done",
            status.last ? static_cast<double>(status.last->record.step) + 1 : 0,
            "Steps that are done, those before a resumption included.");
  out.Begin("skipped_steps_total", "counter",
            "Steps whose gradients were not finite.");
  out.Sample(static_cast<double>(status.skipped_steps));
  out.Begin("rollbacks_total", "counter",
            "Returns to a checkpoint because of a spike of the loss.");
  out.Sample(status.last ? static_cast<double>(status.last->record.rollbacks)
                         : 0);
  if (status.last) AddStep(*status.last, out);
  if (status.last_eval_loss) {
    out.Gauge("validation_loss", *status.last_eval_loss,
              "Mean loss of the last validation.");
  }
  if (status.remaining) {
    out.Gauge("remaining_seconds",
              absl::ToDoubleSeconds(status.remaining->time),
              "Estimated time until the last step.");
  }
  return out.Take();
}

namespace {

using State = HttpRequest::State;

// Characters of methods and names of fields (RFC 9110, section 5.6.2).
bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("!#$%&'*+-.^_`|~", std::string_view(&c, 1));
  });
}

bool IsVisible(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c > 0x20 && c < 0x7F; });
}

// Removes the first line and returns it without its end; nullopt if it has no
// end yet.
std::optional<std::string_view> TakeLine(std::string_view& bytes) {
  const size_t end = bytes.find('\n');
  if (end == bytes.npos) return std::nullopt;
  std::string_view line = bytes.substr(0, end);
  bytes.remove_prefix(end + 1);
  absl::ConsumeSuffix(&line, "\r");
  return line;
}

bool ParseRequestLine(std::string_view line, HttpRequest& request) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last) return false;
  request.method = line.substr(0, first);
  request.target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  return IsToken(request.method) && IsVisible(request.target) &&
         absl::StartsWith(request.target, "/") &&
         (version == "HTTP/1.0" || version == "HTTP/1.1");
}

bool IsField(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == line.npos || !IsToken(line.substr(0, colon))) return false;
  return std::none_of(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
  });
}

HttpRequest ParseWithinLimit(std::string_view bytes) {
  HttpRequest request;
  const std::optional<std::string_view> first = TakeLine(bytes);
  if (!first) return request;
  if (!ParseRequestLine(*first, request)) return {.state = State::kMalformed};
  while (true) {
    const std::optional<std::string_view> line = TakeLine(bytes);
    if (!line) return {};
    if (line->empty()) break;
    if (!IsField(*line)) return {.state = State::kMalformed};
  }
  request.state = State::kComplete;
  return request;
}

}  // namespace

HttpRequest ParseHttpRequest(std::string_view bytes) {
  const HttpRequest request =
      ParseWithinLimit(bytes.substr(0, kMostRequestBytes));
  if (request.state == State::kIncomplete &&
      bytes.size() >= kMostRequestBytes) {
    return {.state = State::kTooLong};
  }
  return request;
}

namespace {

std::string Response(std::string_view status, std::string_view body,
                     bool with_body = true, std::string_view fields = "") {
  return absl::StrCat(
      "HTTP/1.1 ", status,
      "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: ",
      body.size(), "\r\nConnection: close\r\n", fields, "\r\n",
      with_body ? body : "");
}

// To a request that is not incomplete.
std::string Answer(const HttpRequest& request, std::string_view text) {
  if (request.state == State::kTooLong) {
    return Response("431 Request Header Fields Too Large",
                    "the request is too long\n");
  }
  if (request.state == State::kMalformed) {
    return Response("400 Bad Request", "expected GET /metrics HTTP/1.1\n");
  }
  const bool is_head = request.method == "HEAD";
  if (!is_head && request.method != "GET") {
    return Response("405 Method Not Allowed", "expected GET or HEAD\n", true,
                    "Allow: GET, HEAD\r\n");
  }
  if (request.target.substr(0, request.target.find('?')) != "/metrics") {
    return Response("404 Not Found", "the metrics are at /metrics\n", !is_head);
  }
  return Response("200 OK", text, !is_head);
}

// A client. First its request is read, then the answer is sent, then what it
// still sends is discarded until it closes, since closing a socket with unread
// bytes may destroy the answer on its way.
struct Connection {
  enum class Phase { kRead, kSend, kDiscard };

  UniqueFd socket;
  absl::Time deadline;
  Phase phase = Phase::kRead;
  std::string bytes = {};  // The request, then what is left of the answer.
};

absl::StatusOr<UniqueFd> ListenOn(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  absl::StatusOr<UniqueFd> listener =
      collectives::Listen(collectives::SocketAddress(
          reinterpret_cast<const sockaddr*>(&address), sizeof(address)));
  if (listener.ok()) return listener;
  return absl::InvalidArgumentError(absl::StrCat(
      "--prometheus_port=", port, ": ", listener.status().message(),
      "; give a port that is free, such as --prometheus_port=9400, or 0 for "
      "none"));
}

}  // namespace

// The thread's state.
class MetricsServer::Loop {
 public:
  Loop(const MetricsServer& server, UniqueFd listener, int wake,
       const MetricsServerOptions& options)
      : server_(server),
        listener_(std::move(listener)),
        wake_(wake),
        options_(options) {}

  // Until the event.
  void Run() {
    while (true) {
      std::vector<pollfd> fds = {{.fd = wake_, .events = POLLIN, .revents = 0}};
      const bool has_room = connections_.size() < kMostConnections &&
                            absl::Now() >= accepts_again_;
      // poll ignores negative descriptors.
      fds.push_back({.fd = has_room ? listener_.get() : -1,
                     .events = POLLIN,
                     .revents = 0});
      for (const Connection& connection : connections_) {
        const bool sends = connection.phase == Connection::Phase::kSend;
        fds.push_back({.fd = connection.socket.get(),
                       .events = static_cast<int16_t>(sends ? POLLOUT : POLLIN),
                       .revents = 0});
      }
      const int ready = poll(fds.data(), fds.size(), TimeoutMs());
      if (ready < 0 && errno != EINTR) return;
      if (ready > 0 && fds[0].revents != 0) return;
      Serve(fds, ready > 0);
      if (ready > 0 && fds[1].revents != 0) Take();
    }
  }

 private:
  // Until the first deadline.
  int TimeoutMs() const {
    absl::Time first = absl::InfiniteFuture();
    if (connections_.size() < kMostConnections &&
        absl::Now() < accepts_again_) {
      first = accepts_again_;
    }
    for (const Connection& connection : connections_) {
      first = std::min(first, connection.deadline);
    }
    if (first == absl::InfiniteFuture()) return -1;
    const absl::Duration left = first - absl::Now();
    return static_cast<int>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(left) + 1, 0, 60'000));
  }

  // Advances the connections that are ready and drops those that are over.
  void Serve(const std::vector<pollfd>& fds, bool any_ready) {
    size_t i = 2;
    const absl::Time now = absl::Now();
    for (auto at = connections_.begin(); at != connections_.end(); ++i) {
      const bool is_ready = any_ready && fds[i].revents != 0;
      const bool goes_on = (!is_ready || Advance(*at)) && now < at->deadline;
      at = goes_on ? std::next(at) : connections_.erase(at);
    }
  }

  void Take() {
    absl::StatusOr<UniqueFd> socket = collectives::Accept(listener_);
    if (!socket.ok()) {
      // Without descriptors the listener stays ready: do not spin.
      accepts_again_ = absl::Now() + absl::Milliseconds(100);
    } else if (socket->valid()) {
      connections_.push_back({.socket = *std::move(socket),
                              .deadline = absl::Now() + options_.timeout});
    }
  }

  // False if the connection is over.
  bool Advance(Connection& connection) {
    return connection.phase == Connection::Phase::kSend ? Send(connection)
                                                        : Read(connection);
  }

  bool Read(Connection& connection) {
    std::array<char, 2048> bytes;
    const ssize_t count =
        recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    if (connection.phase == Connection::Phase::kDiscard) return true;
    connection.bytes.append(bytes.data(), static_cast<size_t>(count));
    const HttpRequest request = ParseHttpRequest(connection.bytes);
    if (request.state == State::kIncomplete) return true;
    connection.bytes = Answer(request, server_.Text());
    connection.phase = Connection::Phase::kSend;
    connection.deadline = absl::Now() + options_.timeout;
    return Send(connection);
  }

  bool Send(Connection& connection) {
    while (!connection.bytes.empty()) {
      const ssize_t count =
          send(connection.socket.get(), connection.bytes.data(),
               connection.bytes.size(), MSG_NOSIGNAL);
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      connection.bytes.erase(0, static_cast<size_t>(count));
    }
    connection.phase = Connection::Phase::kDiscard;
    return shutdown(connection.socket.get(), SHUT_WR) == 0;
  }

  const MetricsServer& server_;
  const UniqueFd listener_;
  const int wake_;
  const MetricsServerOptions options_;
  absl::Time accepts_again_ = absl::InfinitePast();
  std::list<Connection> connections_;
};

absl::Status MetricsServer::CheckPort(int port) {
  return ListenOn(port).status();
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    int port, const MetricsServerOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd listener, ListenOn(port));
  TESSERA_ASSIGN_OR_RETURN(const collectives::SocketAddress address,
                           collectives::LocalAddress(listener));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return absl::ErrnoToStatus(errno, "--prometheus_port: eventfd");
  }
  const int wake_fd = wake.get();
  std::unique_ptr<MetricsServer> server(
      new MetricsServer(address.port(), std::move(wake)));
  server->thread_ = std::thread(
      [loop = std::make_unique<Loop>(*server, std::move(listener), wake_fd,
                                     options)] { loop->Run(); });
  return server;
}

MetricsServer::~MetricsServer() {
  const uint64_t one = 1;
  // An eventfd takes a first number at once.
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void MetricsServer::Set(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

std::string MetricsServer::Text() const {
  const std::lock_guard lock(mutex_);
  return text_;
}

}  // namespace tessera::train
