// The current step, action and collective of each rank of a host, in pages of
// memory that the rank updates and that the process that started it reads, also
// after the rank has died.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto pages, PlacePages::Create(ranks));
//   ... start ranks that inherit pages->fd() ...
//   LivePlace place = ReadPlace(pages->page(3), 3);
//
//   // In the rank's thread:
//   AttachPlace(&pages->page(3));
//   EnterStep(7);
//   const ActionScope scope(RankAction::kForward, microbatch);
//
// The place belongs to the calling thread, as its stack does. An update takes
// some tens of nanoseconds and no system call; without a page it does nothing.
// Each field is one atomic word: a reader may see a mixture of two updates, but
// of a rank that hangs it sees all of the last one.
#ifndef TESSERA_TOOLS_TRAIN_WATCH_LIVE_PLACE_H_
#define TESSERA_TOOLS_TRAIN_WATCH_LIVE_PLACE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/operation/operation.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::train {

enum class RankAction : int32_t {
  kNone,  // The thread has no page yet.
  kStart,
  kJoin,  // Waits for the other ranks to meet.
  kLoadData,
  kCreateModel,
  kRestore,
  kStep,
  kForward,
  kBackward,
  kReduceGradients,
  kOptimizer,
  kEvaluate,
  kCheckpoint,
  kCopyState,
  kReport,
  kFinish,
};
inline constexpr std::array<std::string_view, 16> kActionNames = {
    "nothing yet", "start",    "join",       "load data",  "create model",
    "restore",     "step",     "forward",    "backward",   "reduce gradients",
    "optimizer",   "evaluate", "checkpoint", "copy state", "report",
    "finish"};
constexpr std::string_view ActionName(RankAction action) {
  return kActionNames[static_cast<size_t>(action)];
}

// A group's last collective and message on one rank.
struct GroupPlace {
  uint32_t id = 0;  // Signature::group.
  std::string name = "";
  int64_t rank = 0;  // In the group.
  int64_t ranks = 1;
  int64_t begun = 0;  // The sequence number of the last collective.
  int64_t ended = 0;  // Below `begun` while it runs.
  collectives::OpKind kind = collectives::OpKind::kBarrier;
  int64_t bytes = 0;
  int64_t begin_ns = 0;
  int64_t messages = 0;   // That have begun and not ended.
  bool receives = false;  // The last message.
  int64_t peer = -1;      // Its other rank in the group.

  bool runs() const { return ended < begun; }
};

// Times are MonotonicNanos of the rank's host.
struct LivePlace {
  int64_t rank = 0;
  int64_t pid = 0;     // 0: the rank has not begun.
  int64_t thread = 0;  // 0: the rank has ended.
  RankAction action = RankAction::kNone;
  int64_t microbatch = -1;
  int64_t step = -1;
  std::string file = "";
  int64_t line = 0;
  int64_t since_ns = 0;  // The begin of the action.
  int64_t moved_ns = 0;  // The last change of any kind.
  int64_t waiting_ns =
      0;  // Since when it waits for other ranks; 0: it does not.
  // The longest step after the second; 0: there is none.
  int64_t longest_step_ns = 0;
  bool on_device = false;  // The host runs ahead of its work.
  std::vector<GroupPlace> groups = {};
  std::vector<std::string> stack = {};  // Innermost first; empty: unknown.
};

// One rank's page. Zero bytes are an empty one.
struct PlacePage {
  static constexpr size_t kGroups = 32;
  static constexpr size_t kStackBytes = 4096;
  using Word = std::atomic<int64_t>;
  static_assert(Word::is_always_lock_free);
  using Text = std::array<std::atomic<uint64_t>, 6>;  // Its last 48 bytes.

  struct Group {
    Word is_used, id, rank, ranks, begun, ended, kind, bytes, begin_ns,
        messages, receives, peer;
    Text name;
  };

  Word pid, thread, action, microbatch, step, line, since_ns, moved_ns,
      waiting_ns, step_begin_ns, steps, longest_step_ns, on_device;
  Text file;
  std::array<Group, kGroups> groups;
  // Answers to the signal (rank_watch.h): lines of the stack, and how many
  // stacks and files were written.
  Word stacks, files;
  std::array<char, kStackBytes> stack;
};

class PlacePages {
 public:
  // Empty pages in memory without a name. ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<PlacePages>> Create(int64_t ranks);
  // The pages of an inherited descriptor. InvalidArgument if it has too few.
  static absl::StatusOr<std::unique_ptr<PlacePages>> Open(int fd,
                                                          int64_t ranks);
  ~PlacePages();
  PlacePages(const PlacePages&) = delete;
  PlacePages& operator=(const PlacePages&) = delete;

  int fd() const { return fd_.get(); }
  std::span<PlacePage> pages() const {
    return {pages_, static_cast<size_t>(ranks_)};
  }
  PlacePage& page(int64_t rank) const {
    return pages_[static_cast<size_t>(rank)];
  }

 private:
  PlacePages() = default;
  static absl::StatusOr<std::unique_ptr<PlacePages>> Map(UniqueFd fd,
                                                         int64_t ranks);
  UniqueFd fd_;
  PlacePage* pages_ = nullptr;
  int64_t ranks_ = 0;
};

LivePlace ReadPlace(const PlacePage& page, int64_t rank);

// From now on the calling thread is the rank of `page`, which is cleared first;
// null: of none.
void AttachPlace(PlacePage* page);
// The page of the calling thread; null if it has none.
PlacePage* AttachedPlace();
// The calling thread takes turns with the rank's own one, which has attached
// `page`. No effect if the page is null or the calling thread has one.
void SharePlace(PlacePage* page);

// The calling thread's rank begins a step.
void EnterStep(int64_t step);

// The rank's action while an object exists; then the action before it.
class ActionScope {
 public:
  explicit ActionScope(
      RankAction action, int64_t microbatch = -1,
      const std::source_location& where = std::source_location::current());
  ~ActionScope();
  ActionScope(const ActionScope&) = delete;
  ActionScope& operator=(const ActionScope&) = delete;

 private:
  PlacePage* page_;
  int64_t action_ = 0, microbatch_ = -1, line_ = 0;
  const char* file_ = nullptr;
};

// Keeps the groups of a page current, and writes the records of all groups.
// Thread-safe.
class PlaceObserver final : public collectives::OperationObserver {
 public:
  // `page` outlives this. `on_failure` is called once in each world after an
  // operation has failed, before the first of its groups is destroyed.
  PlaceObserver(PlacePage& page, int64_t rank,
                std::function<void()> on_failure = nullptr)
      : page_(page), rank_(rank), on_failure_(std::move(on_failure)) {}

  int64_t Join(const collectives::RecordedGroup& group,
               const collectives::FlightRecorder& recorder) override;
  void Leave(int64_t number) override;
  void Begin(int64_t number,
             const collectives::OperationRecord& record) override;
  void End(int64_t number, const collectives::OperationRecord& record) override;
  void Pass(int64_t number,
            const collectives::OperationRecord& record) override;

  // RecordsToJson of each existing group.
  std::vector<std::string> Records() const;

  // The place when the first operation of the world failed.
  std::optional<LivePlace> place_of_failure() const;

 private:
  struct Member {
    collectives::RecordedGroup group;
    const collectives::FlightRecorder* recorder = nullptr;
  };
  PlacePage::Group* GroupOf(int64_t number);

  PlacePage& page_;
  const int64_t rank_;
  const std::function<void()> on_failure_;
  mutable std::mutex mutex_;
  std::map<int64_t, Member> members_;
  mutable std::mutex failure_mutex_;
  std::optional<LivePlace> place_of_failure_;
  bool has_told_ = false;  // on_failure_ was called.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WATCH_LIVE_PLACE_H_
