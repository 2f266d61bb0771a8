// The file of a rank in the directory `flight/` of a run: the rank's place and
// the last operations of its groups, for //tools/flight.
//
//   TESSERA_RETURN_IF_ERROR(WriteRankFile(directory, place, now, records));
//   TESSERA_ASSIGN_OR_RETURN(const RankFile file, ParseRankFile(text));
//
// {"rank": 3, "written_ns": 12, "place": {...}, "groups": [...]}, where each
// group is RecordsToJson's and the place has the fields of LivePlace.
#ifndef TESSERA_TOOLS_TRAIN_WATCH_RANK_FILE_H_
#define TESSERA_TOOLS_TRAIN_WATCH_RANK_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

// A recorded operation, as RecordsToJson writes it.
struct FlightOperation {
  int64_t sequence = 0;  // 0: a message on a device.
  std::string operation = "";
  int64_t count = 0;
  std::string dtype = "";
  int64_t bytes = 0;
  std::string reduction = "";  // "": none.
  int64_t root = -1;
  int64_t peer = -1;  // Of a message; -1: a collective.
  int64_t begin_ns = 0;
  bool runs = false;
  std::string status = "";
};

struct FlightGroup {
  uint32_t id = 0;
  std::string name = "";
  int64_t rank = 0;  // In the group.
  int64_t ranks = 1;
  std::vector<FlightOperation> operations = {};  // Oldest first.
};

struct RankFile {
  int64_t written_ns = 0;  // On the clock of the rank's host.
  LivePlace place = {};
  // Empty if the rank could not answer: then only its place is known.
  std::vector<FlightGroup> groups = {};
};

inline constexpr int64_t kMaxRankFileBytes = int64_t{32} << 20;
inline constexpr int64_t kMaxRankFiles = 4096;
// A file that was written less than this before describes the same event.
inline constexpr int64_t kRecentFileNs = 10'000'000'000;

// "rank3.json".
std::string RankFileName(int64_t rank);

// Replaces the rank's file. `records` are RecordsToJson's. Creates the
// directory.
absl::Status WriteRankFile(const std::string& directory, const LivePlace& place,
                           int64_t written_ns,
                           std::span<const std::string> records);

// Parses untrusted text. InvalidArgument, with the fields, for anything else.
absl::StatusOr<RankFile> ParseRankFile(std::string_view text);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_WATCH_RANK_FILE_H_
