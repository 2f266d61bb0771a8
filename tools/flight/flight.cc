#include "tools/flight/flight.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "pipeline/draw/svg_writer.h"
#include "tools/train/report/html_page.h"

namespace tessera::tools {
namespace {

namespace fs = std::filesystem;
using pipeline::XmlText;
using train::FlightGroup;
using train::FlightOperation;
using train::GroupPlace;
using train::LivePlace;
using train::RankFile;
using train::RankWait;

// The attempt with the largest number; `path` itself if it has none.
std::string NewestAttempt(const std::string& path) {
  std::error_code error;
  int64_t newest = 0;
  std::string found = path;
  for (const auto& entry : fs::directory_iterator(path + "/flight", error)) {
    const std::string name = entry.path().filename().string();
    int64_t number = 0;
    if (!absl::SimpleAtoi(name, &number) && name != "last") continue;
    if (number < newest) continue;
    newest = number;
    found = entry.path().string();
  }
  return found;
}

absl::StatusOr<std::vector<std::string>> ListRankFiles(
    const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!absl::StartsWith(name, "rank") || !absl::EndsWith(name, ".json")) {
      continue;
    }
    paths.push_back(entry.path().string());
    if (static_cast<int64_t>(paths.size()) > train::kMaxRankFiles) break;
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot be listed: ", error.message()));
  }
  if (paths.empty() ||
      static_cast<int64_t>(paths.size()) > train::kMaxRankFiles) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, " has ", paths.empty() ? "no" : "too many",
        " files rank*.json; expected the directory of a run with a failure, "
        "or its flight/N"));
  }
  return paths;
}

// A call of one rank, to compare with those of others.
struct Call {
  std::string operation = "";
  int64_t bytes = 0;
  int64_t count = -1;  // -1 with an unknown reduction and type, too.
  std::string dtype = "", reduction = "";
  int64_t root = -1;

  std::string Text() const {
    return absl::StrCat(operation, ", ", bytes, " bytes",
                        dtype.empty() ? "" : absl::StrCat(" of ", dtype),
                        reduction.empty() ? "" : absl::StrCat(", ", reduction),
                        root < 0 ? "" : absl::StrCat(", root ", root));
  }
};

// Names the difference of two calls; "" if there is none.
std::string Difference(const Call& a, const Call& b) {
  if (a.operation != b.operation) return "another operation";
  if (a.bytes != b.bytes) return "another size";
  if (a.count < 0 || b.count < 0) return "";
  if (a.dtype != b.dtype) return "another type";
  if (a.reduction != b.reduction) return "another reduction";
  return a.root == b.root ? "" : "another root";
}

// One rank in one group.
struct Member {
  int64_t rank = 0;
  int64_t begun = 0;
  int64_t completed = 0;
  std::map<int64_t, Call> calls = {};  // By sequence number.
};

Member MemberOf(const RankFile& file, const GroupPlace& place) {
  Member member = {
      .rank = file.place.rank, .begun = place.begun, .completed = place.ended};
  if (place.begun > 0) {
    member.calls[place.begun] = {
        .operation = std::string(collectives::OpKindName(place.kind)),
        .bytes = place.bytes};
  }
  for (const FlightGroup& group : file.groups) {
    if (group.id != place.id) continue;
    member.completed = 0;
    for (const FlightOperation& one : group.operations) {
      if (one.peer >= 0 || one.sequence == 0) continue;
      member.calls[one.sequence] = {one.operation, one.bytes,     one.count,
                                    one.dtype,     one.reduction, one.root};
      member.begun = std::max(member.begun, one.sequence);
      if (one.status == "OK") {
        member.completed = std::max(member.completed, one.sequence);
      }
    }
  }
  return member;
}

const Call* CallAt(const Member& member, int64_t sequence) {
  const auto found = member.calls.find(sequence);
  return found == member.calls.end() ? nullptr : &found->second;
}

// Splits the ranks into those with the most frequent call number `sequence`
// and those that differ from them; nullopt if none does.
std::optional<FlightMismatch> MismatchAt(const std::vector<Member>& members,
                                         int64_t sequence) {
  FlightMismatch mismatch = {.sequence = sequence};
  const Call* common = nullptr;
  size_t most = 0;
  for (const Member& member : members) {
    const Call* const call = CallAt(member, sequence);
    if (call == nullptr) continue;
    const auto equal = static_cast<size_t>(
        std::count_if(members.begin(), members.end(), [&](const Member& other) {
          const Call* const theirs = CallAt(other, sequence);
          return theirs != nullptr && Difference(*theirs, *call).empty();
        }));
    if (equal > most) std::tie(common, most) = std::pair(call, equal);
  }
  if (common == nullptr) return std::nullopt;
  mismatch.others_call = common->Text();
  for (const Member& member : members) {
    const Call* const call = CallAt(member, sequence);
    // Older calls than those of the records are unknown.
    if (call == nullptr && member.begun >= sequence) continue;
    const std::string difference =
        call == nullptr ? "not begun" : Difference(*call, *common);
    if (difference.empty()) {
      mismatch.others.push_back(member.rank);
      continue;
    }
    mismatch.ranks.push_back(member.rank);
    mismatch.difference = difference;
    mismatch.call = call == nullptr ? "" : call->Text();
  }
  if (mismatch.ranks.empty()) return std::nullopt;
  return mismatch;
}

FlightGroupReport Compare(const std::string& name, int64_t size,
                          const std::vector<Member>& members) {
  FlightGroupReport report = {.name = name, .size = size};
  int64_t begun = 0;
  report.completed = members.front().completed;
  for (const Member& member : members) {
    report.ranks.push_back(member.rank);
    report.completed = std::min(report.completed, member.completed);
    begun = std::max(begun, member.begun);
  }
  for (const Member& member : members) {
    const Call* const call = CallAt(member, report.completed);
    if (call != nullptr) report.completed_call = call->Text();
  }
  // Ranks are at most the records of one of them apart.
  constexpr int64_t kMostApart = 1 << 16;
  const int64_t end = std::min(begun, report.completed + kMostApart);
  for (int64_t at = report.completed + 1; at <= end && !report.mismatch; ++at) {
    report.mismatch = MismatchAt(members, at);
  }
  return report;
}

std::vector<FlightGroupReport> CompareGroups(const FlightFiles& files) {
  struct Found {
    std::string name;
    int64_t size = 1;
    std::vector<Member> members;
  };
  std::map<uint32_t, Found> groups;
  for (const RankFile& file : files.ranks) {
    for (const GroupPlace& place : file.place.groups) {
      Found& found = groups[place.id];
      found.name = place.name;
      found.size = place.ranks;
      found.members.push_back(MemberOf(file, place));
    }
  }
  std::vector<FlightGroupReport> reports;
  for (const auto& [id, found] : groups) {
    if (found.size == 1) continue;
    reports.push_back(Compare(found.name, found.size, found.members));
  }
  std::stable_sort(reports.begin(), reports.end(),
                   [](const auto& a, const auto& b) {
                     return std::tuple(!a.mismatch, a.name, a.ranks) <
                            std::tuple(!b.mismatch, b.name, b.ranks);
                   });
  return reports;
}

double Seconds(int64_t from_ns, int64_t to_ns) {
  return from_ns == 0 || to_ns < from_ns
             ? 0
             : static_cast<double>(to_ns - from_ns) * 1e-9;
}

std::vector<int64_t> Culprits(const std::vector<FlightRank>& ranks) {
  std::set<int64_t> awaited;
  for (const FlightRank& rank : ranks) {
    if (rank.wait)
      awaited.insert(rank.wait->ranks.begin(), rank.wait->ranks.end());
  }
  std::vector<int64_t> culprits;
  for (const FlightRank& rank : ranks) {
    const bool waits = rank.wait && !rank.wait->ranks.empty();
    if (!waits && awaited.contains(rank.place.rank)) {
      culprits.push_back(rank.place.rank);
    }
  }
  return culprits;
}

std::string Ranks(const std::vector<int64_t>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "));
}

std::string MismatchText(const FlightMismatch& one) {
  std::string text = absl::StrCat(
      "#", one.sequence, ": ", Ranks(one.ranks), ": ", one.difference,
      one.call.empty() ? "" : absl::StrCat(" (", one.call, ")"));
  if (!one.others.empty()) {
    absl::StrAppend(&text, "; ", Ranks(one.others), ": ", one.others_call);
  }
  return text;
}

std::string CompletedText(const FlightGroupReport& group) {
  if (group.completed == 0) return "no collective is known to be complete";
  return absl::StrCat("last complete: #", group.completed,
                      group.completed_call.empty() ? "" : " ",
                      group.completed_call);
}

// The place, and a line for each frame of the stack.
std::string RankText(const FlightRank& rank) {
  std::vector<std::string> lines = {rank.description};
  for (const std::string& frame : rank.place.stack) {
    lines.push_back("    " + frame);
  }
  return absl::StrJoin(lines, "\n");
}

std::vector<std::string> Conclusions(const FlightReport& report) {
  std::vector<std::string> lines;
  for (const int64_t rank : report.culprits) {
    lines.push_back(absl::StrCat("rank ", rank,
                                 " keeps others waiting and waits for none"));
  }
  for (const FlightGroupReport& group : report.groups) {
    if (!group.mismatch) continue;
    lines.push_back(absl::StrCat("group ", group.name, ", ",
                                 MismatchText(*group.mismatch)));
  }
  if (!report.missing.empty()) {
    lines.push_back(absl::StrCat("no file of ", Ranks(report.missing)));
  }
  if (lines.empty()) lines.push_back("no rank waits for another one");
  return lines;
}

}  // namespace

absl::StatusOr<FlightFiles> ReadFlight(const std::string& path) {
  FlightFiles files = {.directory = NewestAttempt(path)};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           ListRankFiles(files.directory));
  std::map<int64_t, RankFile> by_rank;
  for (const std::string& one : paths) {
    absl::StatusOr<std::string> text = ReadFile(one, train::kMaxRankFileBytes);
    absl::StatusOr<RankFile> file =
        text.ok() ? train::ParseRankFile(*text) : text.status();
    if (!file.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(one, ": ", file.status().message()));
    }
    const int64_t rank = file->place.rank;
    if (!by_rank.emplace(rank, *std::move(file)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(one, ": is a second file of rank ", rank));
    }
  }
  for (auto& [rank, file] : by_rank) files.ranks.push_back(std::move(file));
  return files;
}

FlightReport Merge(const FlightFiles& files) {
  FlightReport report = {.directory = files.directory};
  std::vector<LivePlace> places;
  for (const RankFile& file : files.ranks) places.push_back(file.place);
  int64_t world = 0;
  std::set<int64_t> found;
  for (const RankFile& file : files.ranks) {
    const LivePlace& place = file.place;
    found.insert(place.rank);
    for (const GroupPlace& group : place.groups) {
      world = std::max(world, std::min(group.ranks, train::kMaxRankFiles));
    }
    FlightRank& rank = report.ranks.emplace_back();
    rank.place = place;
    rank.age_s = Seconds(place.moved_ns, file.written_ns);
    rank.description = train::DescribePlace(place, places, file.written_ns);
    rank.wait = train::WaitOf(place, places);
    if (rank.wait) rank.waits_s = Seconds(rank.wait->since_ns, file.written_ns);
    rank.has_records = !file.groups.empty();
  }
  for (int64_t rank = 0; rank < world; ++rank) {
    if (!found.contains(rank)) report.missing.push_back(rank);
  }
  report.groups = CompareGroups(files);
  report.culprits = Culprits(report.ranks);
  return report;
}

std::string FlightText(const FlightReport& report, bool quiet) {
  std::string text;
  if (!quiet) {
    absl::StrAppend(&text, report.directory, "\n");
    for (const FlightRank& rank : report.ranks) {
      absl::StrAppend(&text, "  ", RankText(rank), "\n");
    }
    for (const FlightGroupReport& group : report.groups) {
      absl::StrAppend(&text, "group ", group.name, ", ", Ranks(group.ranks),
                      " of ", group.size, ": ", CompletedText(group), "\n");
    }
  }
  for (const std::string& line : Conclusions(report)) {
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

nlohmann::ordered_json FlightJson(const FlightReport& report) {
  using Json = nlohmann::ordered_json;
  Json ranks = Json::array(), groups = Json::array();
  for (const FlightRank& rank : report.ranks) {
    const LivePlace& place = rank.place;
    Json json = {{"rank", place.rank},
                 {"action", train::ActionName(place.action)},
                 {"step", place.step},
                 {"microbatch", place.microbatch},
                 {"file", place.file},
                 {"line", place.line},
                 {"age_seconds", rank.age_s},
                 {"has_records", rank.has_records},
                 {"stack", place.stack},
                 {"waits", nullptr}};
    if (rank.wait) {
      json["waits"] = {{"for", rank.wait->ranks},
                       {"in", rank.wait->operation},
                       {"seconds", rank.waits_s}};
    }
    ranks.push_back(std::move(json));
  }
  for (const FlightGroupReport& group : report.groups) {
    Json json = {{"group", group.name},
                 {"size", group.size},
                 {"ranks", group.ranks},
                 {"completed", group.completed},
                 {"completed_call", group.completed_call},
                 {"mismatch", nullptr}};
    if (group.mismatch) {
      const FlightMismatch& one = *group.mismatch;
      json["mismatch"] = {
          {"sequence", one.sequence},     {"ranks", one.ranks},
          {"difference", one.difference}, {"call", one.call},
          {"others", one.others},         {"others_call", one.others_call}};
    }
    groups.push_back(std::move(json));
  }
  return {{"directory", report.directory},
          {"ranks", std::move(ranks)},
          {"missing", report.missing},
          {"groups", std::move(groups)},
          {"culprits", report.culprits}};
}

std::string FlightHtml(const FlightReport& report) {
  std::string page = absl::StrCat(
      train::HtmlHead(), "<title>flight</title>\n</head>\n<body>\n", "<h1>",
      XmlText(report.directory), "</h1>\n<ul>\n");
  for (const std::string& line : Conclusions(report)) {
    absl::StrAppend(&page, "<li>", XmlText(line), "</li>\n");
  }
  std::string ranks, groups;
  for (const FlightRank& rank : report.ranks) {
    ranks += train::HtmlRow(absl::StrFormat("unchanged for %.1f s", rank.age_s),
                            RankText(rank));
  }
  for (const FlightGroupReport& group : report.groups) {
    groups += train::HtmlRow(absl::StrCat(group.name, ", ", Ranks(group.ranks)),
                             CompletedText(group));
  }
  return absl::StrCat(page, "</ul>\n<h2>Ranks</h2>\n",
                      train::HtmlTable("ranks", ranks), "<h2>Groups</h2>\n",
                      train::HtmlTable("groups", groups), "</body>\n</html>\n");
}

}  // namespace tessera::tools
