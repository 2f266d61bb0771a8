// RefusalLog: one line for each stranger that a server turned away, and not
// more lines than anybody can read.
//
//   RefusalLog log([](std::string line) { LOG(WARNING) << line; });
//   log.Report("127.0.0.1:40022", "it has another secret");
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_REFUSAL_LOG_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_REFUSAL_LOG_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera::collectives::bootstrap {

class RefusalLog {
 public:
  // `on_refusal` may be empty. Ten lines at once, then one per second.
  explicit RefusalLog(std::function<void(std::string)> on_refusal)
      : on_refusal_(std::move(on_refusal)) {}

  // By one thread.
  void Report(std::string_view who, std::string_view why) {
    count_.fetch_add(1, std::memory_order_relaxed);
    if (!on_refusal_) return;
    const absl::Time now = absl::Now();
    lines_ = std::min(kBurst,
                      lines_ + absl::ToDoubleSeconds(now - last_) * kPerSecond);
    last_ = now;
    if (lines_ < 1) {
      ++unsaid_;
      return;
    }
    lines_ -= 1;
    std::string line =
        absl::StrCat("refused a connection to the job's store: ", who, ": ",
                     why.substr(0, kMaxWhy));
    if (unsaid_ > 0) absl::StrAppend(&line, " (and ", unsaid_, " more before)");
    unsaid_ = 0;
    on_refusal_(std::move(line));
  }

  // All, said or not. By any thread.
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kBurst = 10;
  static constexpr double kPerSecond = 1;
  static constexpr size_t kMaxWhy = 300;

  const std::function<void(std::string)> on_refusal_;
  std::atomic<int64_t> count_ = 0;
  double lines_ = kBurst;
  absl::Time last_ = absl::Now();
  int64_t unsaid_ = 0;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_REFUSAL_LOG_H_
