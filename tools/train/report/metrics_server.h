// MetricsServer: the newest metrics of a run over HTTP, for Prometheus.
//
//   TESSERA_ASSIGN_OR_RETURN(auto server, MetricsServer::Start(9400));
//   server->Set(PrometheusText(status));
//
//   $ curl http://127.0.0.1:9400/metrics
//
// Listens on 127.0.0.1 only; another host needs a tunnel. A thread of its own
// answers GET and HEAD of /metrics, one request per connection, and closes
// connections that do not send a whole request, of at most kMostRequestBytes,
// in time. No client can delay the thread that calls Set.
//
// Sources: RFC 9112 (HTTP/1.1); Prometheus, Exposition formats, version 0.0.4
// of the text format.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_METRICS_SERVER_H_
#define TESSERA_TOOLS_TRAIN_REPORT_METRICS_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "tools/train/loop/run_result.h"
#include "tools/train/report/remaining_time.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// What a run exposes.
struct RunStatus {
  Settings settings = {};
  int64_t ranks = 1;
  int64_t skipped_steps = 0;  // Since the process began.
  std::optional<StepMetrics> last = {};
  std::optional<double> last_eval_loss = {};
  std::optional<RemainingEstimate> remaining = {};
};

// The text format: for each metric a line of help, its type and its samples.
// Metrics without a value yet are left out.
std::string PrometheusText(const RunStatus& status);

inline constexpr size_t kMostRequestBytes = 8192;

// The beginning of what a client sends.
struct HttpRequest {
  enum class State {
    kIncomplete,  // More bytes may complete it.
    kMalformed,
    kTooLong,  // Not complete within kMostRequestBytes.
    kComplete,
  };
  State state = State::kIncomplete;
  // If it is complete.
  std::string_view method = {};  // "GET"
  std::string_view target = {};  // "/metrics?x"
};

// Parses the request line and the fields up to the empty line; what follows is
// ignored. Accepts any bytes. The result refers to `bytes`.
HttpRequest ParseHttpRequest(std::string_view bytes);

struct MetricsServerOptions {
  // From accepting a connection until its whole request has been read, and
  // again until the answer has been taken.
  absl::Duration timeout = absl::Seconds(5);
};

class MetricsServer {
 public:
  // Connections at a time; others wait in the system's queue.
  static constexpr size_t kMostConnections = 16;

  // OK if Start would find the port free now. Errors as Start.
  static absl::Status CheckPort(int port);

  // `port` 0 chooses a free one. InvalidArgument, with the flag
  // --prometheus_port, if it is in use or not allowed.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      int port, const MetricsServerOptions& options = {});

  // Closes all connections and waits for the thread.
  ~MetricsServer();

  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

  // The text that requests get from now on. Thread-safe.
  void Set(std::string text);

 private:
  class Loop;

  MetricsServer(int port, UniqueFd wake)
      : port_(port), wake_(std::move(wake)) {}

  std::string Text() const;

  const int port_;
  const UniqueFd wake_;  // An eventfd that ends the thread.
  mutable std::mutex mutex_;
  std::string text_;
  std::thread thread_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_METRICS_SERVER_H_
