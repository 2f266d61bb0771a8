// Merges the files that the ranks of a hung or dead job left: the place of each
// rank, who waits for whom, and the first collective of each group in which the
// calls differ.
//
//   TESSERA_ASSIGN_OR_RETURN(const FlightFiles files, ReadFlight("run7"));
//   const FlightReport report = Merge(files);
//   std::cout << FlightText(report, /*quiet=*/false);
#ifndef TESSERA_TOOLS_FLIGHT_FLIGHT_H_
#define TESSERA_TOOLS_FLIGHT_FLIGHT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/train/watch/hang.h"
#include "tools/train/watch/rank_file.h"

namespace tessera::tools {

struct FlightFiles {
  std::string directory = "";
  std::vector<train::RankFile> ranks = {};  // Ascending.
};

// Reads `path`: a directory with rank files, or a run directory, whose newest
// attempt is read. InvalidArgument, with the path, if there are none, a file is
// damaged, or two files are of one rank.
absl::StatusOr<FlightFiles> ReadFlight(const std::string& path);

struct FlightRank {
  train::LivePlace place = {};
  double age_s = 0;  // Since its place last changed, when its file was written.
  std::string description = "";  // DescribePlace.
  std::optional<train::RankWait> wait = {};
  double waits_s = 0;
  bool has_records = false;  // It could answer.
};

// The first collective of a group after those that all its ranks completed.
struct FlightMismatch {
  int64_t sequence = 0;
  // The ranks whose call differs from that of `others`, or which have not
  // called.
  std::vector<int64_t> ranks = {};
  std::string difference = "";  // "not begun", "another operation", ...
  std::string call = "";        // Of `ranks`: "broadcast, 16 bytes"; "": none.
  std::vector<int64_t> others = {};
  std::string others_call = "";
};

struct FlightGroupReport {
  std::string name = "";
  int64_t size = 1;                 // Ranks of the group.
  std::vector<int64_t> ranks = {};  // Those with files, ascending.
  // The last collective that all of these completed; 0: none is known.
  int64_t completed = 0;
  std::string completed_call = "";
  std::optional<FlightMismatch> mismatch = {};
};

struct FlightReport {
  std::string directory = "";
  std::vector<FlightRank> ranks = {};
  std::vector<int64_t> missing = {};  // Ranks of the world without a file.
  std::vector<FlightGroupReport> groups = {};
  // Ranks for which others wait and which wait for no other.
  std::vector<int64_t> culprits = {};
};

FlightReport Merge(const FlightFiles& files);

// The report as text (`quiet`: only the conclusions), JSON and a page.
std::string FlightText(const FlightReport& report, bool quiet);
nlohmann::ordered_json FlightJson(const FlightReport& report);
std::string FlightHtml(const FlightReport& report);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_FLIGHT_FLIGHT_H_
