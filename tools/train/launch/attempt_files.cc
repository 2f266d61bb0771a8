#include "tools/train/launch/attempt_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

constexpr size_t kMaxMessage = 4096;
constexpr int64_t kMaxReportBytes = 8192;

// The rank of an error in the search for the root cause: 0 for a rank's own
// errors; errors that may follow from another rank's failure have higher
// values, the vaguest the highest.
int Vagueness(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return 4;
    case absl::StatusCode::kUnavailable:
      return 3;
    case absl::StatusCode::kDeadlineExceeded:
      return 2;
    case absl::StatusCode::kFailedPrecondition:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

absl::Status AttemptFiles::Make() const {
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (!error) std::filesystem::create_directories(directory, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("cannot make the directory ", directory));
}

// remove_all ends early if another node removes the same files.
void AttemptFiles::Remove() const {
  constexpr int kMostTries = 10;
  for (int i = 0; i < kMostTries; ++i) {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    if (!error) return;
  }
}

void AttemptFiles::MarkStep() const {
  // If the file cannot be written, the attempt is treated as one without a
  // step.
  const UniqueFd file(
      open(stepped().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
}

bool AttemptFiles::TookAStep() const {
  return access(stepped().c_str(), F_OK) == 0;
}

absl::Status AttemptFiles::WriteReport(const RankReport& report) const {
  return WriteFile(this->report(report.rank), FormatReport(report));
}

std::vector<RankReport> AttemptFiles::ReadReports(int64_t ranks) const {
  std::vector<RankReport> reports;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const absl::StatusOr<std::string> text =
        ReadFile(report(rank), kMaxReportBytes);
    if (absl::IsNotFound(text.status())) continue;
    absl::StatusOr<RankReport> parsed =
        text.ok() ? ParseReport(rank, *text) : text.status();
    if (!parsed.ok()) parsed = RankReport{rank, 0, parsed.status()};
    reports.push_back(*std::move(parsed));
  }
  return reports;
}

void AttemptFiles::RemoveReport(int64_t rank) const {
  unlink(report(rank).c_str());
}

absl::Status AttemptFiles::WriteRound(int64_t rank, int64_t round) const {
  return WriteFile(this->round(rank), absl::StrCat(round));
}

int64_t AttemptFiles::ReadRound(int64_t rank) const {
  int64_t number = 0;
  const auto text = ReadFile(round(rank), kMaxReportBytes);
  return text.ok() && absl::SimpleAtoi(*text, &number) ? number : 0;
}

absl::Status AttemptFiles::WriteEnding(const Ending& ending) const {
  return WriteFile(this->ending(),
                   absl::StrCat(ending.round, " ", ending.cause.rank, " ",
                                FormatReport(ending.cause)));
}

std::optional<AttemptFiles::Ending> AttemptFiles::ReadEnding() const {
  const std::string text = ReadFile(ending(), kMaxReportBytes).value_or("");
  const std::vector<std::string_view> fields =
      absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Ending ending;
  int64_t rank = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &ending.round) ||
      !absl::SimpleAtoi(fields[1], &rank)) {
    return std::nullopt;
  }
  const auto cause = ParseReport(rank, fields[2]);
  if (!cause.ok()) return std::nullopt;
  ending.cause = *cause;
  return ending;
}

std::string FormatReport(const RankReport& report) {
  return absl::StrCat(static_cast<int>(report.status.code()), " ", report.nanos,
                      "\n", report.status.message().substr(0, kMaxMessage));
}

absl::StatusOr<RankReport> ParseReport(int64_t rank, std::string_view text) {
  const size_t end = text.find('\n');
  const std::vector<std::string_view> numbers =
      absl::StrSplit(text.substr(0, end), ' ');
  int code = 0;
  RankReport report = {.rank = rank};
  if (end == std::string_view::npos || numbers.size() != 2 ||
      !absl::SimpleAtoi(numbers[0], &code) ||
      !absl::SimpleAtoi(numbers[1], &report.nanos) || code <= 0 || code > 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " failed and left no readable report"));
  }
  report.status = absl::Status(static_cast<absl::StatusCode>(code),
                               text.substr(end + 1, kMaxMessage));
  return report;
}

const RankReport* FindCause(const std::vector<RankReport>& reports) {
  const RankReport* cause = nullptr;
  const auto key = [](const RankReport& report) {
    return std::tuple(Vagueness(report.status), report.nanos);
  };
  for (const RankReport& report : reports) {
    if (cause == nullptr || key(report) < key(*cause)) cause = &report;
  }
  return cause;
}

absl::Status NameRank(const RankReport& report) {
  const std::string rank = absl::StrCat("rank ", report.rank);
  return absl::StartsWith(report.status.message(), rank + ": ")
             ? report.status
             : Annotate(report.status, rank);
}

bool MayBeConsequence(const absl::Status& status) {
  return Vagueness(status) > 0;
}

}  // namespace tessera::train
