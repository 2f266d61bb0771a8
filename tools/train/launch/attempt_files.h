// The files through which the process that the user started and its ranks
// exchange settings, results and errors.
//
//   const AttemptFiles files = {"/run/.ranks"};
//   TESSERA_RETURN_IF_ERROR(files.Make());
//   ... ranks read files.settings(), rank 0 writes files.result() ...
//   files.Remove();
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_FILES_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace tessera::train {

// The error with which a rank ended.
struct RankReport {
  int64_t rank = 0;
  int64_t nanos = 0;  // CLOCK_MONOTONIC, to order reports of one host.
  absl::Status status = {};

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

struct AttemptFiles {
  std::string directory;
  // The directory for //tools/flight, which stays after the attempt; "": none.
  std::string flight = "";

  std::string settings() const { return directory + "/settings.json"; }
  std::string result() const { return directory + "/result"; }
  // Why the run stopped early; exists if `result` does.
  std::string stopped_by() const { return directory + "/stopped_by"; }
  std::string stepped() const { return directory + "/stepped"; }
  std::string report(int64_t rank) const {
    return absl::StrCat(directory, "/rank", rank, ".failed");
  }
  std::string round(int64_t rank) const {
    return absl::StrCat(directory, "/rank", rank, ".round");
  }
  std::string ending() const { return directory + "/ending"; }

  // Creates an empty directory. Removes an existing one with its contents.
  // Errors of the file system name the path.
  absl::Status Make() const;
  void Remove() const;

  // Records that the attempt has taken a step. Thread-safe.
  void MarkStep() const;
  bool TookAStep() const;

  // The round of the rendezvous (tools/launch/launcher.h) that a rank joins.
  // Atomic. A missing or damaged file reads as round 0.
  absl::Status WriteRound(int64_t rank, int64_t round) const;
  int64_t ReadRound(int64_t rank) const;

  // Why the run cannot go on: from this round on its ranks only save their
  // copies in memory. Atomic.
  struct Ending {
    int64_t round = 0;
    RankReport cause = {};
  };
  absl::Status WriteEnding(const Ending& ending) const;
  std::optional<Ending> ReadEnding() const;

  // Atomic: readers see the whole report or none. Truncates messages to 4 KiB.
  absl::Status WriteReport(const RankReport& report) const;
  // Returns the existing reports of ranks [0, ranks). An unreadable report is
  // replaced by one whose status says so.
  std::vector<RankReport> ReadReports(int64_t ranks) const;
  void RemoveReport(int64_t rank) const;
};

// Convert a report to "code nanos\nmessage" and back. InvalidArgument for other
// text.
std::string FormatReport(const RankReport& report);
absl::StatusOr<RankReport> ParseReport(int64_t rank, std::string_view text);

// Returns the root cause: ranks' own errors have precedence over errors that
// may follow from another rank's failure, then earlier errors over later ones.
// Null if there are no reports.
const RankReport* FindCause(const std::vector<RankReport>& reports);

// The status with the prefix "rank 3: ", unless the message already has it.
absl::Status NameRank(const RankReport& report);

// True if this status may be a mere consequence of another rank's failure.
bool MayBeConsequence(const absl::Status& status);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_FILES_H_
