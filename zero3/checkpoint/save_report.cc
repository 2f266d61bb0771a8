#include "zero3/checkpoint/save_report.h"

#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "zero3/checkpoint/manifest_json.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr size_t kLongestMessage = 2000;

struct PartRanks {
  int64_t shard_ranks = 0;
  int64_t first = 0;                  // The rank that was seen first.
  std::map<int64_t, size_t> writers;  // By shard rank.
};

absl::Status AddRank(const SaveReport& report, int64_t rank,
                     std::map<std::string, PartRanks>& parts) {
  PartRanks& part = parts[report.part];
  const auto refuse = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(
        "part ", Quoted(report.part), " of the checkpoint: rank ", rank, what));
  };
  if (part.shard_ranks == 0) {
    part.shard_ranks = report.shard_ranks;
    part.first = rank;
  }
  if (part.shard_ranks != report.shard_ranks) {
    return refuse(absl::StrCat(" shards it over ", report.shard_ranks,
                               " ranks, rank ", part.first, " over ",
                               part.shard_ranks,
                               "; give parts of the model different names"));
  }
  if (!report.writes) return absl::OkStatus();
  const auto [other, is_new] =
      part.writers.emplace(report.shard_rank, static_cast<size_t>(rank));
  if (is_new) return absl::OkStatus();
  return refuse(absl::StrCat(
      " and rank ", other->second, " both write shard ", report.shard_rank,
      "; give parts of the model different names, and the group of replicas "
      "where there is one"));
}

}  // namespace

std::string FormatReport(const SaveReport& report) {
  const nlohmann::ordered_json json = {
      {"code", report.status.raw_code()},
      {"message",
       std::string(report.status.message().substr(0, kLongestMessage))},
      {"step", report.step},
      {"part", report.part},
      {"shard_rank", report.shard_rank},
      {"shard_ranks", report.shard_ranks},
      {"writes", report.writes},
      {"bytes", report.file.bytes},
      {"crc32c", FormatHex32(report.file.crc32c)},
      {"index_crc32c", FormatHex32(report.file.index_crc32c)},
      {"description", report.description}};
  return json.dump(-1, ' ', false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

absl::StatusOr<SaveReport> ParseReport(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(
      const nlohmann::json json,
      ParseJson(text, {.max_bytes = kMaxManifestBytes, .max_depth = 2}));
  JsonProblems problems;
  JsonReader fields(json, "", problems);
  SaveReport report;
  const int64_t code = fields.Integer("code", 0, 16);
  report.status =
      absl::Status(static_cast<absl::StatusCode>(code), fields.Text("message"));
  report.step = fields.Integer("step", 0, kMax);
  report.part = fields.Text("part");
  report.shard_ranks = fields.Integer("shard_ranks", 1, kMaxShardRanks);
  report.shard_rank = fields.Integer("shard_rank", 0, report.shard_ranks - 1);
  report.writes = fields.Boolean("writes");
  report.file.bytes = fields.Integer("bytes", 0, kMax);
  report.file.crc32c = ReadHex32(fields, "crc32c");
  report.file.index_crc32c = ReadHex32(fields, "index_crc32c");
  report.description = fields.Text("description");
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the report"));
  return report;
}

absl::Status CheckReports(const std::vector<SaveReport>& by_rank) {
  std::map<std::string, PartRanks> parts;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].step != by_rank[0].step) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " saves step ", by_rank[rank].step, ", rank 0 step ",
          by_rank[0].step, "; all ranks save after the same step"));
    }
    TESSERA_RETURN_IF_ERROR(
        AddRank(by_rank[rank], static_cast<int64_t>(rank), parts));
  }
  for (const auto& [name, part] : parts) {
    if (static_cast<int64_t>(part.writers.size()) == part.shard_ranks) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "part ", Quoted(name), " of the checkpoint: only ", part.writers.size(),
        " of its ", part.shard_ranks,
        " shards are written; all ranks of the shard group take part, with "
        "one name for the part"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> ManifestOf(
    const std::vector<SaveReport>& by_rank) {
  CheckpointManifest manifest = {.step = by_rank[0].step,
                                 .world = static_cast<int64_t>(by_rank.size())};
  std::map<std::string, std::map<int64_t, CheckpointFile>> files;
  std::map<std::string, int64_t> ranks;
  for (const SaveReport& report : by_rank) {
    ++ranks[report.part];
    if (report.writes) files[report.part][report.shard_rank] = report.file;
  }
  for (const SaveReport& report : by_rank) {
    if (!report.writes || report.shard_rank != 0) continue;
    TESSERA_ASSIGN_OR_RETURN(CheckpointPart part,
                             ParsePart(report.description));
    part.replicas = ranks[part.name] / report.shard_ranks;
    for (const auto& [rank, file] : files[part.name]) {
      part.files.push_back(file);
    }
    manifest.parts.push_back(std::move(part));
  }
  return manifest;
}

}  // namespace tessera::zero3
