#include "tools/train/report/live_table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::train {
namespace {

constexpr int64_t kParts = 20;

std::string Rounded(int64_t bytes) {
  constexpr int64_t kMebi = int64_t{1} << 20;
  return bytes < 10240 * kMebi
             ? absl::StrFormat("%d MiB", (bytes + kMebi / 2) / kMebi)
             : absl::StrFormat("%.1f GiB",
                               static_cast<double>(bytes) / (1024.0 * kMebi));
}

std::string Percent(double share) {
  return absl::StrFormat("%.0f%%", share * 100);
}

std::string ValidationText(double loss) {
  return absl::StrFormat("  validation %.4f, perplexity %.4g", loss,
                         std::exp(loss));
}

}  // namespace

std::string LiveTableHeader() {
  return absl::StrFormat("%13s %8s %9s %9s %9s %9s %5s %5s %6s %7s %7s", "step",
                         "loss", "grad norm", "lr", "tokens/s", "mem/rank",
                         "comp", "comm", "bubble", "offload", "eta");
}

std::string LiveTableRow(const StepMetrics& step, int64_t steps,
                         const std::optional<RemainingEstimate>& remaining) {
  const StepRecord& record = step.record;
  const TimeShares& shares = step.shares;
  return absl::StrFormat(
             "%13s %8.4f %9.3g %9.2e %9.0f %9s %5s %5s %6s %7s %7s%s",
             absl::StrCat(record.step + 1, "/", steps), record.loss,
             record.gradient_norm, record.learning_rate, step.tokens_per_second,
             Rounded(step.memory_bytes), Percent(shares.compute),
             Percent(shares.communication), Percent(shares.bubble),
             Percent(shares.offload), RemainingText(remaining),
             record.skipped ? " skipped" : "") +
         (record.max_attention_score
              ? absl::StrFormat("  score %.4g", *record.max_attention_score)
              : "") +
         (record.eval_loss ? ValidationText(*record.eval_loss) : "");
}

bool LiveTable::IsDue(int64_t step) const {
  const int64_t part = std::max<int64_t>(options_.steps / kParts, 1);
  return options_.is_terminal || !has_header_ || step % part == 0 ||
         step == options_.steps || options_.now() - last_ >= options_.interval;
}

void LiveTable::Add(const StepMetrics& step,
                    const std::optional<RemainingEstimate>& remaining) {
  if (!step.record.eval_loss && !IsDue(step.record.step + 1)) return;
  if (!has_header_) out_ << LiveTableHeader() << "\n";
  has_header_ = true;
  last_ = options_.now();
  const std::string row = LiveTableRow(step, options_.steps, remaining);
  if (options_.is_terminal) {
    out_ << "\r\033[K" << row << std::flush;
    is_in_line_ = true;
  } else {
    out_ << row << std::endl;
  }
}

void LiveTable::Finish() {
  if (is_in_line_) out_ << std::endl;
  is_in_line_ = false;
}

}  // namespace tessera::train
