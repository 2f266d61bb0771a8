#include "tools/train/watch/rank_watch.h"

#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "collectives/engine/operation_context.h"
#include "tools/launch/signals.h"
#include "tools/train/watch/rank_file.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;

constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr size_t kMostName = 200;
constexpr int kMostFrames = 48;
// WriteStack, the handler, and the kernel's return from it.
constexpr int kOwnFrames = 3;

sem_t* asked = nullptr;

void Append(PlacePage& page, size_t& size, const char* text) {
  const size_t length = std::min(strlen(text), kMostName);
  if (size + length + 2 > page.stack.size()) return;
  std::memcpy(page.stack.data() + size, text, length);
  size += length;
  page.stack[size++] = '\n';
  page.stack[size] = '\0';
}

// Uses only calls that are safe in a handler: absl::Symbolize is, and so is
// backtrace after a first call. (absl::GetStackTrace follows frame pointers,
// which the C library has not.)
[[gnu::noinline]] void WriteStack(PlacePage& page) {
  std::array<void*, kMostFrames> frames;
  const int count = backtrace(frames.data(), kMostFrames);
  size_t size = 0;
  page.stack[0] = '\0';
  for (int i = kOwnFrames; i < count; ++i) {
    // Callers are at the instruction before their return address.
    const char* const address = static_cast<const char*>(frames[i]);
    char name[1024];
    const bool is_known =
        absl::Symbolize(address - (i > kOwnFrames ? 1 : 0), name, sizeof(name));
    Append(page, size, is_known ? name : "(unknown)");
  }
  page.stacks.fetch_add(1, std::memory_order_release);
}

void Answer(int) {
  const int error = errno;
  if (PlacePage* const page = AttachedPlace()) WriteStack(*page);
  if (asked != nullptr) sem_post(asked);
  errno = error;
}

}  // namespace

bool AskForStack(const PlacePage& page, int64_t pid,
                 const collectives::Deadline& deadline) {
  const int64_t before = page.stacks.load(std::memory_order_acquire);
  if (syscall(SYS_tgkill, pid, page.thread.load(std::memory_order_relaxed),
              SIGUSR2) != 0) {
    return false;
  }
  while (page.stacks.load(std::memory_order_acquire) == before) {
    if (deadline.Expired()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

std::unique_ptr<RankWatch> RankWatch::Start(PlacePages& pages,
                                            RankWatchOptions options) {
  static sem_t semaphore;
  if (asked == nullptr) sem_init(&semaphore, 0, 0);
  asked = &semaphore;
  absl::InitializeSymbolizer("/proc/self/exe");
  void* frame = nullptr;
  backtrace(&frame, 1);  // Loads what it needs.
  struct sigaction action = {};
  action.sa_handler = Answer;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
  std::unique_ptr<RankWatch> watch(new RankWatch(pages, std::move(options)));
  watch->thread_ =
      tools::StartThreadWithoutSignals([raw = watch.get()] { raw->Run(); });
  return watch;
}

RankWatch::~RankWatch() {
  must_stop_ = true;
  sem_post(asked);
  thread_.join();
  AttachPlace(nullptr);  // The thread may be that of a rank.
}

std::shared_ptr<PlaceObserver> RankWatch::Attach(int64_t rank) {
  const std::lock_guard lock(mutex_);
  Member& member = members_[rank];
  member.page = &pages_.page(pages_.pages().size() == 1 ? 0 : rank);
  if (member.observer == nullptr) {
    member.observer = std::make_shared<PlaceObserver>(*member.page, rank,
                                                      [this] { WriteFiles(); });
  }
  AttachPlace(member.page);
  return member.observer;
}

void RankWatch::SetDirectory(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  options_.directory = directory;
}

// If a file cannot be written, there is nobody to tell.
void RankWatch::Write(bool is_asked) {
  const std::lock_guard lock(mutex_);
  const int64_t now = MonotonicNanos();
  if (!is_asked && written_ns_ > 0 && now - written_ns_ < kRecentFileNs) return;
  written_ns_ = now;
  for (const auto& [rank, member] : members_) {
    std::optional<LivePlace> place;
    if (!is_asked) place = member.observer->place_of_failure();
    if (!place) place = ReadPlace(*member.page, rank);
    if (!options_.directory.empty()) {
      WriteRankFile(options_.directory, *place, now, member.observer->Records())
          .IgnoreError();
    }
    member.page->files.fetch_add(1, std::memory_order_release);
  }
}

void RankWatch::Judge() {
  std::vector<LivePlace> places;
  std::vector<PlacePage*> pages;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, member] : members_) {
      places.push_back(ReadPlace(*member.page, rank));
      pages.push_back(member.page);
    }
  }
  const std::vector<int64_t> hung = detector_.Find(places, MonotonicNanos());
  if (hung.empty()) return;
  for (size_t i = 0; i < places.size(); ++i) {
    AskForStack(*pages[i], getpid(), collectives::Deadline::After(kPatience));
    places[i] = ReadPlace(*pages[i], places[i].rank);
  }
  Write(/*is_asked=*/true);
  *options_.err << "train: " << absl::StrCat(HungText(places, hung, detector_))
                << "; ended\n"
                << DescribePlaces(places, hung, MonotonicNanos()) << std::endl;
  _exit(1);
}

void RankWatch::Run() {
  while (!must_stop_) {
    timespec until = {};
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1;
    if (sem_clockwait(asked, CLOCK_MONOTONIC, &until) == 0) {
      if (!must_stop_) Write(/*is_asked=*/true);
    } else if (options_.judges) {
      Judge();
    }
  }
}

}  // namespace tessera::train
