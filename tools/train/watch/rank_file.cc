#include "tools/train/watch/rank_file.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;
using collectives::OpKind;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr size_t kMostText = 4096;
constexpr size_t kMostEntries = 1 << 16;
constexpr int64_t kKinds = static_cast<int64_t>(OpKind::kSendReceive) + 1;

Json GroupToJson(const GroupPlace& group) {
  return {{"id", group.id},
          {"name", group.name},
          {"rank", group.rank},
          {"ranks", group.ranks},
          {"begun", group.begun},
          {"ended", group.ended},
          {"operation", collectives::OpKindName(group.kind)},
          {"bytes", group.bytes},
          {"begin_ns", group.begin_ns},
          {"messages", group.messages},
          {"receives", group.receives},
          {"peer", group.peer}};
}

Json PlaceToJson(const LivePlace& place) {
  Json groups = Json::array();
  for (const GroupPlace& group : place.groups) {
    groups.push_back(GroupToJson(group));
  }
  return {{"pid", place.pid},
          {"thread", place.thread},
          {"action", ActionName(place.action)},
          {"microbatch", place.microbatch},
          {"step", place.step},
          {"file", place.file},
          {"line", place.line},
          {"since_ns", place.since_ns},
          {"moved_ns", place.moved_ns},
          {"waiting_ns", place.waiting_ns},
          {"longest_step_ns", place.longest_step_ns},
          {"on_device", place.on_device},
          {"groups", std::move(groups)},
          {"stack", place.stack}};
}

// Reads the fields of a file; texts and lists are bounded.
class FileReader {
 public:
  absl::StatusOr<RankFile> Read(const nlohmann::json& document) {
    JsonReader reader(document, "", problems_);
    RankFile file;
    file.place = ReadPlace(reader.Child("place"));
    file.place.rank = reader.Integer("rank", 0, kMaxRankFiles - 1);
    file.written_ns = reader.Integer("written_ns", 0, kMost);
    ForEach(reader, "groups", [&](JsonReader group) {
      file.groups.push_back(ReadGroup(std::move(group)));
    });
    TESSERA_RETURN_IF_ERROR(problems_.ToStatus("the file of a rank"));
    return file;
  }

 private:
  std::string Text(JsonReader& reader, std::string_view key) {
    std::string text = reader.TextOr(key, "");
    if (text.size() > kMostText) text.resize(kMostText);
    return text;
  }

  template <typename Use>
  void ForEach(JsonReader& reader, std::string_view key, Use use) {
    const nlohmann::json& all = reader.Array(key);
    for (size_t i = 0; i < std::min(all.size(), kMostEntries); ++i) {
      use(JsonReader(all[i], absl::StrCat(reader.PathOf(key), "[", i, "]"),
                     problems_));
    }
  }

  // The index of the text among `count` names.
  template <typename NameOf>
  int64_t Named(JsonReader& reader, std::string_view key, int64_t count,
                NameOf name_of) {
    const std::string text = reader.Text(key);
    for (int64_t i = 0; i < count; ++i) {
      if (name_of(i) == text) return i;
    }
    reader.Refuse(key, "is not a known name");
    return 0;
  }

  uint32_t ReadId(JsonReader& reader) {
    return static_cast<uint32_t>(
        reader.Integer("id", 0, std::numeric_limits<uint32_t>::max()));
  }

  LivePlace ReadPlace(JsonReader reader) {
    LivePlace place;
    place.pid = reader.Integer("pid", 0, kMost);
    place.thread = reader.Integer("thread", 0, kMost);
    place.action = static_cast<RankAction>(
        Named(reader, "action", kActionNames.size(),
              [](int64_t i) { return kActionNames[static_cast<size_t>(i)]; }));
    place.microbatch = reader.Integer("microbatch", -1, kMost);
    place.step = reader.Integer("step", -1, kMost - 1);
    place.file = Text(reader, "file");
    place.line = reader.Integer("line", 0, kMost);
    place.since_ns = reader.Integer("since_ns", 0, kMost);
    place.moved_ns = reader.Integer("moved_ns", 0, kMost);
    place.waiting_ns = reader.Integer("waiting_ns", 0, kMost);
    place.longest_step_ns = reader.Integer("longest_step_ns", 0, kMost);
    place.on_device = reader.Boolean("on_device");
    ForEach(reader, "groups", [&](JsonReader group) {
      place.groups.push_back(ReadGroupPlace(std::move(group)));
    });
    for (const nlohmann::json& line : reader.Array("stack")) {
      if (place.stack.size() == kMostText || !line.is_string()) break;
      place.stack.push_back(line.get<std::string>().substr(0, kMostText));
    }
    return place;
  }

  GroupPlace ReadGroupPlace(JsonReader reader) {
    GroupPlace group;
    group.id = ReadId(reader);
    group.name = Text(reader, "name");
    group.rank = reader.Integer("rank", 0, kMost);
    group.ranks = reader.Integer("ranks", 1, kMost);
    group.begun = reader.Integer("begun", 0, kMost);
    group.ended = reader.Integer("ended", 0, kMost);
    group.kind =
        static_cast<OpKind>(Named(reader, "operation", kKinds, [](int64_t i) {
          return collectives::OpKindName(static_cast<OpKind>(i));
        }));
    group.bytes = reader.Integer("bytes", 0, kMost);
    group.begin_ns = reader.Integer("begin_ns", 0, kMost);
    group.messages = reader.Integer("messages", 0, kMost);
    group.receives = reader.Boolean("receives");
    group.peer = reader.Integer("peer", -1, kMost);
    return group;
  }

  FlightGroup ReadGroup(JsonReader reader) {
    FlightGroup group;
    group.id = ReadId(reader);
    group.name = Text(reader, "group");
    group.rank = reader.Integer("rank", 0, kMost);
    group.ranks = reader.Integer("ranks", 1, kMost);
    ForEach(reader, "operations", [&](JsonReader operation) {
      group.operations.push_back(ReadOperation(std::move(operation)));
    });
    return group;
  }

  FlightOperation ReadOperation(JsonReader reader) {
    FlightOperation operation;
    operation.sequence = reader.Integer("sequence", 0, kMost);
    operation.operation = Text(reader, "operation");
    operation.count = reader.Integer("count", 0, kMost);
    operation.dtype = Text(reader, "dtype");
    operation.bytes = reader.Integer("bytes", 0, kMost);
    operation.reduction = Text(reader, "reduction");
    operation.root = reader.IntegerOr("root", -1, -1, kMost);
    operation.peer = reader.IntegerOr("peer", -1, -1, kMost);
    operation.begin_ns = reader.Integer("begin_ns", 0, kMost);
    operation.status = Text(reader, "status");
    operation.runs = operation.status == "RUNNING";
    return operation;
  }

  JsonProblems problems_;
};

}  // namespace

std::string RankFileName(int64_t rank) {
  return absl::StrCat("rank", rank, ".json");
}

absl::Status WriteRankFile(const std::string& directory, const LivePlace& place,
                           int64_t written_ns,
                           std::span<const std::string> records) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  Json groups = Json::array();
  for (const std::string& record : records) {
    groups.push_back(Json::parse(record, nullptr, /*allow_exceptions=*/false));
  }
  const Json file = {{"rank", place.rank},
                     {"written_ns", written_ns},
                     {"place", PlaceToJson(place)},
                     {"groups", std::move(groups)}};
  return WriteFile(absl::StrCat(directory, "/", RankFileName(place.rank)),
                   DumpJson(file) + "\n");
}

absl::StatusOr<RankFile> ParseRankFile(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(
      const nlohmann::json document,
      ParseJson(text, {.max_bytes = static_cast<size_t>(kMaxRankFileBytes)}));
  return FileReader().Read(document);
}

}  // namespace tessera::train
