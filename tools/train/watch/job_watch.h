// JobWatch: the places of the ranks that this process started.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const auto watch, JobWatch::Create(ranks, timeout, "run/flight/1"));
//   ... start ranks that inherit watch->fd() ...
//   for (int64_t rank : watch->FindHung()) ...    // about once a second
//   notice(watch->Report({rank}));                // stacks, places, files
#ifndef TESSERA_TOOLS_TRAIN_WATCH_JOB_WATCH_H_
#define TESSERA_TOOLS_TRAIN_WATCH_JOB_WATCH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/train/watch/hang.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

class JobWatch {
 public:
  // `directory` gets the files of //tools/flight; "": there are none.
  static absl::StatusOr<std::unique_ptr<JobWatch>> Create(
      int64_t ranks, std::optional<absl::Duration> timeout,
      std::string directory);

  int fd() const { return pages_->fd(); }
  const HangDetector& detector() const { return detector_; }

  std::vector<LivePlace> Places() const;
  std::vector<int64_t> FindHung();

  // Asks all ranks for their stacks and files, writes the files of those that
  // do not answer, and returns DescribePlaces.
  std::string Report(std::span<const int64_t> hung);

  // Rank `rank` is replaced by another process, which has not begun.
  void Forget(int64_t rank) { pages_->page(rank).pid = 0; }

  // Writes the files of all ranks without asking them, after the death of one.
  // Files that the same processes have written shortly before are kept.
  void WriteFiles();

 private:
  JobWatch(std::unique_ptr<PlacePages> pages,
           std::optional<absl::Duration> timeout, std::string directory)
      : pages_(std::move(pages)),
        detector_(timeout),
        directory_(std::move(directory)) {}

  const std::unique_ptr<PlacePages> pages_;
  HangDetector detector_;
  const std::string directory_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WATCH_JOB_WATCH_H_
