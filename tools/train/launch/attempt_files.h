// AttemptFiles: what the process that the user started and the ranks tell each
// other, as files of one directory.
//
//   const AttemptFiles files = {"/run/.ranks"};
//   TESSERA_RETURN_IF_ERROR(files.Make());
//   ... ranks read files.settings(), and write files.result() ...
//   files.Remove();
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_FILES_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tessera::train {

// A rank's last words.
struct RankReport {
  int64_t rank = 0;
  int64_t nanos = 0;  // CLOCK_MONOTONIC, to order reports of one host.
  absl::Status status = {};

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

struct AttemptFiles {
  std::string directory;

  std::string settings() const { return directory + "/settings.json"; }
  std::string result() const { return directory + "/result"; }
  std::string stepped() const { return directory + "/stepped"; }
  std::string report(int64_t rank) const {
    return absl::StrCat(directory, "/rank", rank, ".failed");
  }

  // An empty directory, in place of what was there. PermissionDenied and the
  // like, with the path.
  absl::Status Make() const;
  void Remove() const;

  // That the attempt has taken a step. Thread-safe.
  void MarkStep() const;
  bool TookAStep() const;

  // Readers see a whole report or none. Messages are cut at 4 KiB.
  absl::Status WriteReport(const RankReport& report) const;
  // Those of ranks [0, ranks) that there are. What cannot be understood is a
  // report that says so.
  std::vector<RankReport> ReadReports(int64_t ranks) const;
};

// "code nanos\nmessage" and back. InvalidArgument for other text.
std::string FormatReport(const RankReport& report);
absl::StatusOr<RankReport> ParseReport(int64_t rank, std::string_view text);

// The report that explains the others: an error of a rank's own before those
// that a rank has because another one failed or is gone, then the earliest.
// Null where there is none.
const RankReport* FindCause(const std::vector<RankReport>& reports);

// "rank 3: why", where the message does not begin with that already.
absl::Status NameRank(const RankReport& report);

// Whether a rank with this status may only have noticed another one's end.
bool MayBeConsequence(const absl::Status& status);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_ATTEMPT_FILES_H_
