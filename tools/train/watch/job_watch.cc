#include "tools/train/watch/job_watch.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"
#include "collectives/engine/operation_context.h"
#include "tools/train/watch/rank_file.h"
#include "tools/train/watch/rank_watch.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

// For all ranks together.
constexpr absl::Duration kPatience = absl::Seconds(2);

// The kernel's information about a thread that does not answer.
std::vector<std::string> KernelStack(const LivePlace& place) {
  std::vector<std::string> lines;
  const std::string task =
      absl::StrCat("/proc/", place.pid, "/task/", place.thread, "/");
  for (const char* const name : {"wchan", "syscall", "stack"}) {
    const std::string text = ReadFile(task + name, 4096).value_or("");
    for (const std::string_view line :
         absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      lines.push_back(absl::StrCat("kernel ", name, ": ", line));
    }
  }
  return lines;
}

// The state in /proc/PID/stat (proc(5)); 'X' for a process that has gone.
char StateOf(int64_t pid) {
  const std::string stat =
      ReadFile(absl::StrCat("/proc/", pid, "/stat"), 4096).value_or("");
  const size_t at = stat.rfind(") ");
  return at == std::string::npos || at + 2 >= stat.size() ? 'X' : stat[at + 2];
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobWatch>> JobWatch::Create(
    int64_t ranks, std::optional<absl::Duration> timeout,
    std::string directory) {
  TESSERA_ASSIGN_OR_RETURN(auto pages, PlacePages::Create(ranks));
  return std::unique_ptr<JobWatch>(
      new JobWatch(std::move(pages), timeout, std::move(directory)));
}

std::vector<LivePlace> JobWatch::Places() const {
  std::vector<LivePlace> places;
  for (const PlacePage& page : pages_->pages()) {
    places.push_back(ReadPlace(page, static_cast<int64_t>(places.size())));
  }
  return places;
}

std::vector<int64_t> JobWatch::FindHung() {
  return detector_.Find(Places(), MonotonicNanos());
}

std::string JobWatch::Report(std::span<const int64_t> hung) {
  std::vector<LivePlace> places = Places();
  const auto deadline = collectives::Deadline::After(kPatience);
  for (LivePlace& place : places) {
    const PlacePage& page = pages_->page(place.rank);
    const char state = place.pid == 0 ? 'X' : StateOf(place.pid);
    if (state == 'X' || state == 'Z') continue;
    const bool is_stopped = state == 'T' || state == 't';
    const int64_t files = page.files.load(std::memory_order_acquire);
    if (!is_stopped && AskForStack(page, place.pid, deadline)) {
      while (page.files.load(std::memory_order_acquire) == files &&
             !deadline.Expired()) {
        absl::SleepFor(absl::Milliseconds(1));
      }
      place = ReadPlace(page, place.rank);
      if (page.files.load(std::memory_order_acquire) != files) continue;
    } else {
      place.stack = KernelStack(place);
    }
    if (directory_.empty()) continue;
    WriteRankFile(directory_, place, MonotonicNanos(), {}).IgnoreError();
  }
  WriteFiles();
  return DescribePlaces(places, hung, MonotonicNanos());
}

void JobWatch::WriteFiles() {
  if (directory_.empty()) return;
  for (const LivePlace& place : Places()) {
    if (place.pid == 0) continue;
    const absl::StatusOr<std::string> text =
        ReadFile(absl::StrCat(directory_, "/", RankFileName(place.rank)),
                 kMaxRankFileBytes);
    if (text.ok()) {
      const absl::StatusOr<RankFile> file = ParseRankFile(*text);
      if (file.ok() && file->place.pid == place.pid &&
          (file->place.moved_ns >= place.moved_ns ||
           MonotonicNanos() - file->written_ns < kRecentFileNs)) {
        continue;
      }
    }
    WriteRankFile(directory_, place, MonotonicNanos(), {}).IgnoreError();
  }
}

}  // namespace tessera::train
