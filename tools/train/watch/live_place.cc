#include "tools/train/watch/live_place.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "collectives/work.h"

namespace tessera::train {
namespace {

using collectives::CoarseNanos;
using collectives::OperationRecord;

constexpr auto kRelaxed = std::memory_order_relaxed;
// The first steps allocate memory, compile and learn the order of parameters.
constexpr int64_t kFirstSteps = 2;

constinit thread_local PlacePage* attached = nullptr;
constinit thread_local const char* attached_file = nullptr;

void Set(PlacePage::Word& word, int64_t value) { word.store(value, kRelaxed); }
int64_t Get(const PlacePage::Word& word) { return word.load(kRelaxed); }
void Move(PlacePage& page) { Set(page.moved_ns, CoarseNanos()); }

void SetText(PlacePage::Text& to, std::string_view text) {
  std::array<uint64_t, std::tuple_size_v<PlacePage::Text>> words = {};
  text.remove_prefix(text.size() - std::min(text.size(), sizeof(words)));
  std::memcpy(words.data(), text.data(), text.size());
  for (size_t i = 0; i < words.size(); ++i) to[i].store(words[i], kRelaxed);
}

std::string GetText(const PlacePage::Text& from) {
  std::array<char, sizeof(PlacePage::Text)> bytes;
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t word = from[i].load(kRelaxed);
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  const auto end = std::find(bytes.begin(), bytes.end(), '\0');
  return std::string(bytes.begin(), end);
}

void EnterAction(PlacePage& page, int64_t action, int64_t microbatch,
                 const char* file, int64_t line) {
  const int64_t now = CoarseNanos();
  Set(page.action, action);
  Set(page.microbatch, microbatch);
  Set(page.line, line);
  Set(page.since_ns, now);
  Set(page.moved_ns, now);
  attached_file = file;
  SetText(page.file, file == nullptr ? "" : file);
}

template <typename Enum>
Enum EnumOf(int64_t value, Enum last) {
  return value < 0 || value > static_cast<int64_t>(last)
             ? Enum()
             : static_cast<Enum>(value);
}

GroupPlace ReadGroup(const PlacePage::Group& group) {
  return {.id = static_cast<uint32_t>(Get(group.id)),
          .name = GetText(group.name),
          .rank = Get(group.rank),
          .ranks = Get(group.ranks),
          .begun = Get(group.begun),
          .ended = Get(group.ended),
          .kind = EnumOf(Get(group.kind), collectives::OpKind::kSendReceive),
          .bytes = Get(group.bytes),
          .begin_ns = Get(group.begin_ns),
          .messages = Get(group.messages),
          .receives = Get(group.receives) != 0,
          .peer = Get(group.peer)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlacePages>> PlacePages::Create(int64_t ranks) {
  UniqueFd fd(memfd_create("places of ranks", MFD_CLOEXEC));
  const auto bytes = static_cast<off_t>(sizeof(PlacePage)) * ranks;
  if (!fd.valid() || ftruncate(fd.get(), bytes) != 0) {
    return absl::ErrnoToStatus(errno, "memory for the places of ranks");
  }
  return Map(std::move(fd), ranks);
}

absl::StatusOr<std::unique_ptr<PlacePages>> PlacePages::Open(int fd,
                                                             int64_t ranks) {
  struct stat file;
  const auto bytes = static_cast<off_t>(sizeof(PlacePage)) * ranks;
  if (fstat(fd, &file) != 0 || file.st_size < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd, " has no pages for the places of ",
                     ranks, " ranks"));
  }
  return Map(UniqueFd(fd), ranks);
}

absl::StatusOr<std::unique_ptr<PlacePages>> PlacePages::Map(UniqueFd fd,
                                                            int64_t ranks) {
  void* const memory =
      mmap(nullptr, sizeof(PlacePage) * static_cast<size_t>(ranks),
           PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "mapping the places of ranks");
  }
  std::unique_ptr<PlacePages> pages(new PlacePages);
  pages->fd_ = std::move(fd);
  pages->pages_ = static_cast<PlacePage*>(memory);
  pages->ranks_ = ranks;
  return pages;
}

PlacePages::~PlacePages() {
  munmap(pages_, sizeof(PlacePage) * static_cast<size_t>(ranks_));
}

LivePlace ReadPlace(const PlacePage& page, int64_t rank) {
  LivePlace place = {.rank = rank,
                     .pid = Get(page.pid),
                     .thread = Get(page.thread),
                     .action = EnumOf(Get(page.action), RankAction::kFinish),
                     .microbatch = Get(page.microbatch),
                     .step = Get(page.step),
                     .file = GetText(page.file),
                     .line = Get(page.line),
                     .since_ns = Get(page.since_ns),
                     .moved_ns = Get(page.moved_ns),
                     .waiting_ns = Get(page.waiting_ns),
                     .longest_step_ns = Get(page.longest_step_ns),
                     .on_device = Get(page.on_device) != 0};
  place.moved_ns = std::max(place.moved_ns, place.waiting_ns);
  for (const PlacePage::Group& group : page.groups) {
    if (Get(group.is_used) != 0) place.groups.push_back(ReadGroup(group));
  }
  if (page.stacks.load(std::memory_order_acquire) > 0) {
    const std::string_view text(page.stack.data(),
                                strnlen(page.stack.data(), page.stack.size()));
    place.stack = absl::StrSplit(text, '\n', absl::SkipEmpty());
  }
  return place;
}

void AttachPlace(PlacePage* page) {
  if (attached != nullptr) Set(attached->thread, 0);
  attached = nullptr;
  collectives::WatchWaits(nullptr);
  if (page == nullptr) return;
  const int64_t stacks = Get(page->stacks), files = Get(page->files);
  std::memset(static_cast<void*>(page), 0, sizeof(*page));
  Set(page->stacks, stacks);
  Set(page->files, files);
  page->stack[0] = '\0';
  Set(page->step, -1);
  EnterAction(*page, static_cast<int64_t>(RankAction::kStart), -1, nullptr, 0);
  Set(page->thread, syscall(SYS_gettid));
  Set(page->pid, getpid());
  collectives::WatchWaits(&page->waiting_ns);
  attached = page;
}

PlacePage* AttachedPlace() { return attached; }

void SharePlace(PlacePage* page) {
  if (page == nullptr || attached != nullptr) return;
  collectives::WatchWaits(&page->waiting_ns);
  attached = page;
}

void EnterStep(int64_t step) {
  PlacePage* const page = attached;
  if (page == nullptr) return;
  const int64_t now = CoarseNanos();
  const int64_t steps = Get(page->steps);
  if (steps > kFirstSteps) {
    Set(page->longest_step_ns,
        std::max(Get(page->longest_step_ns), now - Get(page->step_begin_ns)));
  }
  Set(page->steps, steps + 1);
  Set(page->step_begin_ns, now);
  Set(page->step, step);
}

ActionScope::ActionScope(RankAction action, int64_t microbatch,
                         const std::source_location& where)
    : page_(attached) {
  if (page_ == nullptr) return;
  action_ = Get(page_->action);
  microbatch_ = Get(page_->microbatch);
  line_ = Get(page_->line);
  file_ = attached_file;
  EnterAction(*page_, static_cast<int64_t>(action), microbatch,
              where.file_name(), where.line());
}

ActionScope::~ActionScope() {
  if (page_ != nullptr && page_ == attached) {
    EnterAction(*page_, action_, microbatch_, file_, line_);
  }
}

PlacePage::Group* PlaceObserver::GroupOf(int64_t number) {
  const auto index = static_cast<size_t>(number);
  return index < page_.groups.size() ? &page_.groups[index] : nullptr;
}

// The first free number; groups above the last one of the page are only
// recorded.
int64_t PlaceObserver::Join(const collectives::RecordedGroup& group,
                            const collectives::FlightRecorder& recorder) {
  const std::lock_guard lock(mutex_);
  if (members_.empty()) {
    const std::lock_guard failure_lock(failure_mutex_);
    place_of_failure_.reset();
    has_told_ = false;
  }
  int64_t number = 0;
  while (members_.contains(number)) ++number;
  members_[number] = {group, &recorder};
  if (PlacePage::Group* const own = GroupOf(number); own != nullptr) {
    for (PlacePage::Word* const word :
         {&own->begun, &own->ended, &own->kind, &own->bytes, &own->begin_ns,
          &own->messages, &own->receives}) {
      Set(*word, 0);
    }
    Set(own->id, group.id);
    Set(own->rank, group.rank);
    Set(own->ranks, group.ranks);
    Set(own->peer, -1);
    SetText(own->name, group.name);
    Set(own->is_used, 1);
  }
  return number;
}

void PlaceObserver::Leave(int64_t number) {
  bool must_tell = false;
  {
    const std::lock_guard lock(failure_mutex_);
    must_tell = place_of_failure_ && on_failure_ && !has_told_;
    has_told_ |= must_tell;
  }
  if (must_tell) on_failure_();
  const std::lock_guard lock(mutex_);
  members_.erase(number);
  if (PlacePage::Group* const own = GroupOf(number)) Set(own->is_used, 0);
}

void PlaceObserver::Begin(int64_t number, const OperationRecord& record) {
  Move(page_);
  PlacePage::Group* const own = GroupOf(number);
  if (own == nullptr) return;
  if (!collectives::IsCollective(record.kind)) {
    Set(own->messages, Get(own->messages) + 1);
    Set(own->receives, record.kind == collectives::OpKind::kReceive ? 1 : 0);
    Set(own->peer, record.peer);
    return;
  }
  Set(own->kind, static_cast<int64_t>(record.kind));
  Set(own->bytes, record.bytes);
  Set(own->begin_ns, Get(page_.moved_ns));
  Set(own->begun, static_cast<int64_t>(record.signature.sequence));
}

void PlaceObserver::End(int64_t number, const OperationRecord& record) {
  Move(page_);
  if (record.code != absl::StatusCode::kOk) {
    const std::lock_guard lock(failure_mutex_);
    if (!place_of_failure_) place_of_failure_ = ReadPlace(page_, rank_);
  }
  PlacePage::Group* const own = GroupOf(number);
  if (own == nullptr) return;
  if (collectives::IsCollective(record.kind)) {
    Set(own->ended, static_cast<int64_t>(record.signature.sequence));
  } else {
    Set(own->messages, std::max<int64_t>(Get(own->messages) - 1, 0));
  }
}

void PlaceObserver::Pass(int64_t number, const OperationRecord& record) {
  PlacePage::Group* const own = GroupOf(number);
  if (own == nullptr) return;
  Set(own->kind, static_cast<int64_t>(record.kind));
  Set(own->bytes, record.bytes);
  Set(own->begun, static_cast<int64_t>(record.signature.sequence));
  Set(own->ended, static_cast<int64_t>(record.signature.sequence));
}

std::optional<LivePlace> PlaceObserver::place_of_failure() const {
  const std::lock_guard lock(failure_mutex_);
  return place_of_failure_;
}

std::vector<std::string> PlaceObserver::Records() const {
  constexpr size_t kMost = 64;  // Of each group.
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [number, member] : members_) {
    const std::vector<OperationRecord> records = member.recorder->Recent();
    const auto last = std::span(records).last(std::min(records.size(), kMost));
    all.push_back(collectives::RecordsToJson(
        member.group, last, member.recorder->Statistics(), absl::OkStatus()));
  }
  return all;
}

}  // namespace tessera::train
