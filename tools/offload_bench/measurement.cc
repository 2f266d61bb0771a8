#include "tools/offload_bench/measurement.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "base/steady_now.h"
#include "nlohmann/json.hpp"

namespace tessera::offload_bench {

namespace {

constexpr double kLeastSeconds = 1e-3;
constexpr int64_t kMostRepeats = 1 << 20;

// The quantile `part` of the sorted values, interpolated between two
// neighbours.
double Quantile(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] +
         (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

PassTime TimeOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  PassTime time;
  time.seconds = Quantile(seconds, 0.5);
  time.spread =
      (Quantile(seconds, 0.75) - Quantile(seconds, 0.25)) / time.seconds;
  return time;
}

double SecondsSince(absl::Duration start) {
  return absl::ToDoubleSeconds(SteadyNow() - start);
}

// One round; appends the times to the lists.
absl::Status TakeTurn(const Pass& first, std::vector<double>& first_seconds,
                      const Pass& second, std::vector<double>& second_seconds) {
  TESSERA_ASSIGN_OR_RETURN(const double one, first());
  TESSERA_ASSIGN_OR_RETURN(const double other, second());
  first_seconds.push_back(one);
  second_seconds.push_back(other);
  return absl::OkStatus();
}

}  // namespace

Comparison Compare(std::vector<double> subject, std::vector<double> limit) {
  std::vector<double> shares;
  for (size_t i = 0; i < subject.size(); ++i) {
    shares.push_back(limit[i] / subject[i]);
  }
  Comparison result;
  result.turns = static_cast<int64_t>(subject.size());
  result.subject = TimeOf(std::move(subject));
  result.limit = TimeOf(std::move(limit));
  result.share = TimeOf(std::move(shares)).seconds;
  return result;
}

absl::StatusOr<Comparison> CompareInTurns(const Pass& subject,
                                          const Pass& limit, double seconds) {
  TESSERA_RETURN_IF_ERROR(subject().status());
  TESSERA_RETURN_IF_ERROR(limit().status());
  std::vector<double> subjects, limits;
  const absl::Duration start = SteadyNow();
  for (int64_t turn = 0; turn < kLeastTurns || SecondsSince(start) < seconds;
       ++turn) {
    if (turn % 2 == 0) {
      TESSERA_RETURN_IF_ERROR(TakeTurn(subject, subjects, limit, limits));
    } else {
      TESSERA_RETURN_IF_ERROR(TakeTurn(limit, limits, subject, subjects));
    }
  }
  return Compare(std::move(subjects), std::move(limits));
}

Pass Timed(std::function<absl::Status()> work) {
  // Found in the first pass.
  auto repeats = std::make_shared<int64_t>(0);
  return [=, work = std::move(work)]() -> absl::StatusOr<double> {
    const bool first = *repeats == 0;
    int64_t done = 0;
    const absl::Duration start = SteadyNow();
    do {
      TESSERA_RETURN_IF_ERROR(work());
      ++done;
    } while (first ? SecondsSince(start) < kLeastSeconds && done < kMostRepeats
                   : done < *repeats);
    *repeats = done;
    return SecondsSince(start) / static_cast<double>(done);
  };
}

absl::Status Report(Measurement measurement, const Pass& subject,
                    const Pass& limit, double seconds, const Sink& sink) {
  TESSERA_ASSIGN_OR_RETURN(measurement.times,
                           CompareInTurns(subject, limit, seconds));
  sink(measurement);
  return absl::OkStatus();
}

void MeasurementPrinter::Print(const Measurement& m) {
  const nlohmann::ordered_json record = {
      {"what", m.what},
      {"name", m.name},
      {"operation", m.operation},
      {"block_bytes", m.block_bytes},
      {"bytes", m.bytes},
      {"turns", m.times.turns},
      {"time_us", m.times.subject.seconds * 1e6},
      {"GBps", m.Rate()},
      {"spread", m.times.subject.spread},
      {"limit", m.limit},
      {"limit_GBps", m.LimitRate()},
      {"limit_spread", m.times.limit.spread},
      {"share", m.times.share},
      {"note", m.note}};
  std::string text;
  if (!printer_.begun()) {
    text =
        absl::StrFormat("%-24s %-7s %9s %14s %14s %-6s %6s\n", m.what, "",
                        "block", "GB/s spread", "limit spread", "of", "share");
  }
  absl::StrAppendFormat(
      &text, "%-24s %-7s %9s %8.3f %4.0f%% %8.3f %4.0f%% %-6s %6.3f  %s\n",
      m.name, m.operation, ByteSize(m.block_bytes).ToString(), m.Rate(),
      100 * m.times.subject.spread, m.LimitRate(), 100 * m.times.limit.spread,
      m.limit, m.times.share, m.note);
  printer_.Print(record, text);
}

}  // namespace tessera::offload_bench
