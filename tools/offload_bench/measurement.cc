#include "tools/offload_bench/measurement.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
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

// The compiler must assume that the bytes are looked at.
void Keep(void* data) { asm volatile("" : : "r"(data) : "memory"); }

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
  const Stopwatch watch(TimeKind::kWall);
  for (int64_t turn = 0; turn < kLeastTurns || watch.Seconds() < seconds;
       ++turn) {
    if (turn % 2 == 0) {
      TESSERA_RETURN_IF_ERROR(TakeTurn(subject, subjects, limit, limits));
    } else {
      TESSERA_RETURN_IF_ERROR(TakeTurn(limit, limits, subject, subjects));
    }
  }
  return Compare(std::move(subjects), std::move(limits));
}

Pass Timed(std::function<absl::Status()> work, TimeKind kind, int64_t threads) {
  // Found in the first pass.
  auto repeats = std::make_shared<int64_t>(0);
  return [=, work = std::move(work)]() -> absl::StatusOr<double> {
    const bool first = *repeats == 0;
    int64_t done = 0;
    const Stopwatch watch(kind, threads);
    do {
      TESSERA_RETURN_IF_ERROR(work());
      ++done;
    } while (first ? watch.Seconds() < kLeastSeconds && done < kMostRepeats
                   : done < *repeats);
    *repeats = done;
    return watch.Seconds() / static_cast<double>(done);
  };
}

absl::StatusOr<Pass> MemcpyPass(int64_t bytes, TimeKind kind) {
  const auto half = static_cast<size_t>(std::max<int64_t>(bytes / 2, 1));
  auto memory = std::make_shared<std::pair<Buffer, Buffer>>();
  TESSERA_ASSIGN_OR_RETURN(memory->first, Buffer::Allocate(HostMemory(), half));
  TESSERA_ASSIGN_OR_RETURN(memory->second,
                           Buffer::Allocate(HostMemory(), half));
  std::memset(memory->first.data(), 1, half);
  std::memset(memory->second.data(), 2, half);
  const auto copy = [memory] {
    std::memcpy(memory->second.data(), memory->first.data(),
                memory->first.size());
    Keep(memory->second.data());
    return absl::OkStatus();
  };
  return Timed(copy, kind);
}

Pass TriadPass(std::shared_ptr<offload::Triad> triad, double bytes,
               TimeKind kind) {
  return [=, triad = std::move(triad)]() -> absl::StatusOr<double> {
    double best = INFINITY;
    for (const auto stores :
         {offload::TriadStores::kOrdinary, offload::TriadStores::kStreaming}) {
      const Stopwatch watch(kind, triad->threads());
      triad->Pass(stores);
      best = std::min(best, watch.Seconds());
    }
    return best * bytes / triad->counted_bytes();
  };
}

namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e6;

Json Optional(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// The columns, in their order.
Json Columns(const Measurement& m) {
  Json json;
  json["what"] = m.what;
  json["name"] = m.name;
  json["operation"] = m.operation;
  json["data"] = m.data;
  json["threads"] = m.threads;
  json["block_bytes"] = m.block_bytes;
  json["bytes"] = m.bytes;
  json["turns"] = m.times.turns;
  json["clock"] = std::string(TimeKindName(m.time));
  json["time_us"] = m.times.subject.seconds * kMicro;
  json["GBps"] = m.Rate();
  json["spread"] = m.times.subject.spread;
  json["limit"] = m.limit;
  json["limit_GBps"] = m.LimitRate();
  json["limit_spread"] = m.times.limit.spread;
  json["share"] = m.times.share;
  json["ratio"] = Optional(m.ratio);
  json["error"] = Optional(m.error);
  json["bytes_per_parameter"] = Optional(m.bytes_per_parameter);
  json["note"] = m.note;
  return json;
}

// "45.2 +- 3 %": the spread is of the middle half of the passes.
std::string RateText(double rate, double spread) {
  return absl::StrFormat("%8.3f %4.0f%%", rate, 100 * spread);
}

std::string Extras(const Measurement& m) {
  std::string text;
  if (m.ratio.has_value())
    absl::StrAppendFormat(&text, "  ratio %.3f", *m.ratio);
  if (m.error == 0.0) absl::StrAppend(&text, "  exact");
  if (m.error > 0.0) absl::StrAppendFormat(&text, "  error %.2g", *m.error);
  if (m.bytes_per_parameter.has_value()) {
    absl::StrAppendFormat(&text, "  %.6g B a parameter",
                          *m.bytes_per_parameter);
  }
  if (!m.note.empty()) absl::StrAppend(&text, "  ", m.note);
  return text;
}

std::string TextLine(const Measurement& m) {
  return absl::StrFormat("%-24s %-7s %-30s %4d %9s %14s %14s %-6s %6.3f%s\n",
                         m.name, m.operation, m.data, m.threads,
                         ByteSize(m.block_bytes).ToString(),
                         RateText(m.Rate(), m.times.subject.spread),
                         RateText(m.LimitRate(), m.times.limit.spread), m.limit,
                         m.times.share, Extras(m));
}

}  // namespace

absl::Status Report(Measurement measurement, const Pass& subject,
                    const Pass& limit, double seconds, const Sink& sink) {
  TESSERA_ASSIGN_OR_RETURN(measurement.times,
                           CompareInTurns(subject, limit, seconds));
  sink(measurement);
  return absl::OkStatus();
}

void MeasurementPrinter::Print(const Measurement& m) {
  std::string text;
  if (std::exchange(heading_, m.what) != m.what) {
    text = absl::StrFormat(
        "%s%s, by %s time\n%-24s %-7s %-30s %4s %9s %14s %14s %-6s %6s\n",
        printer_.begun() ? "\n" : "", m.what, TimeKindName(m.time), "", "", "",
        "thr.", "block", "GB/s spread", "limit spread", "of", "share");
  }
  printer_.Print(Columns(m), text + TextLine(m));
}

}  // namespace tessera::offload_bench
