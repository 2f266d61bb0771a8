// RankWatch: the thread in the process of a rank that answers SIGUSR2 with the
// rank's stack and the file of //tools/flight, and that ends a rank which hangs
// if no process of this tool watches it.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const auto watch,
//       RankWatch::Start(*pages, {.directory = "run/flight/1"}));
//   options.observer = watch->Attach(rank);  // in the rank's thread
//
// Sent to the thread of a rank, SIGUSR2 makes it write its stack into its page
// (PlacePage::stack); then, as when it is sent to the process, the files of all
// ranks of the process are written. A process that cannot answer is described
// by whoever shares its page (JobWatch).
#ifndef TESSERA_TOOLS_TRAIN_WATCH_RANK_WATCH_H_
#define TESSERA_TOOLS_TRAIN_WATCH_RANK_WATCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/channel/deadline.h"
#include "tools/train/watch/hang.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

struct RankWatchOptions {
  std::string directory = "";  // Of the files; "": no files.
  // Another launcher started this process: if its rank hangs, this object
  // prints the place to `err` and ends the process with exit code 1.
  bool judges = false;
  std::optional<absl::Duration> timeout = std::nullopt;  // HangDetector's.
  std::ostream* err = nullptr;
};

class RankWatch {
 public:
  // At most one object may exist. `pages` outlives it, and has a page for each
  // rank of the job, or one for the only rank of this process.
  static std::unique_ptr<RankWatch> Start(PlacePages& pages,
                                          RankWatchOptions options);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // The calling thread is rank `rank` until it ends. Returns the observer for
  // its communicators, which must be destroyed before this object. Thread-safe,
  // like the methods below.
  std::shared_ptr<PlaceObserver> Attach(int64_t rank);

  void SetDirectory(const std::string& directory);

  // Writes the files of all ranks of this process after a failure, unless they
  // were written shortly before: what follows from a hang that was reported
  // must not replace the report.
  void WriteFiles() { Write(/*is_asked=*/false); }

 private:
  struct Member {
    PlacePage* page = nullptr;
    std::shared_ptr<PlaceObserver> observer;
  };

  RankWatch(PlacePages& pages, RankWatchOptions options)
      : pages_(pages),
        options_(std::move(options)),
        detector_(options_.timeout) {}
  void Run();
  void Judge();
  void Write(bool is_asked);

  PlacePages& pages_;
  RankWatchOptions options_;
  HangDetector detector_;
  std::mutex mutex_;
  std::map<int64_t, Member> members_;  // By rank.
  int64_t written_ns_ = 0;             // The last files.
  std::atomic<bool> must_stop_ = false;
  std::thread thread_;
};

// Asks the thread of a rank for its stack, and waits for it until `deadline`.
// False if the rank cannot answer.
bool AskForStack(const PlacePage& page, int64_t pid,
                 const collectives::Deadline& deadline);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WATCH_RANK_WATCH_H_
