#include "pipeline/schedule/json_document.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/schedule/stage_map.h"

namespace tessera::pipeline {
namespace {

using nlohmann::json;

constexpr int64_t kMostCells = int64_t{16} << 20;

// The keys of the document, and of its map.
enum Key : uint8_t { kName, kStages, kMicroBatches, kMap, kRanks, kKeyCount };
constexpr std::array<std::string_view, kKeyCount> kKeys = {
    "schedule", "stages", "microbatches", "map", "ranks"};
enum MapKey : uint8_t { kMapRanks, kTwoWay, kMapKeyCount };
constexpr std::array<std::string_view, kMapKeyCount> kMapKeys = {"ranks",
                                                                 "two_way"};

// Takes the parser's events into a JsonDocument. It refuses at once what is not
// where it may be, so that nesting is never followed; returning false makes the
// parser stop.
class Reader : public nlohmann::json_sax<json> {
 public:
  absl::Status status() const { return status_; }
  JsonDocument& document() { return document_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override {
    if (where_ != Where::kMapValue || map_key_ != kTwoWay) {
      return Unexpected("a boolean");
    }
    document_.two_way = value;
    return Leave(Where::kInMap);
  }
  bool number_integer(number_integer_t value) override { return Number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    return Number(static_cast<int64_t>(std::min<uint64_t>(value, kMost)));
  }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is not whole");
  }
  bool string(string_t& value) override {
    if (where_ == Where::kRow) return Cell(value);
    if (where_ != Where::kValue || key_ != kName) return Unexpected("a string");
    if (value.size() > kMostNameBytes) {
      return Fail(absl::StrCat("a name of ", value.size(), " bytes; at most ",
                               kMostNameBytes, " are allowed"));
    }
    document_.name = std::move(value);
    return Leave(Where::kInDocument);
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool start_object(std::size_t) override {
    if (where_ == Where::kStart) return Leave(Where::kInDocument);
    if (where_ == Where::kValue && key_ == kMap) return Leave(Where::kInMap);
    return Unexpected("an object");
  }
  bool end_object() override {
    if (where_ == Where::kInMap) {
      return AllThere(kMapKeys, map_seen_) && Leave(Where::kInDocument);
    }
    return AllThere(kKeys, seen_) && Leave(Where::kEnd);
  }
  bool start_array(std::size_t) override {
    if (where_ == Where::kValue && key_ == kRanks) return Leave(Where::kRows);
    if (where_ == Where::kMapValue && map_key_ == kMapRanks) {
      return Leave(Where::kMapRow);
    }
    if (where_ != Where::kRows) return Unexpected("an array");
    if (document_.ranks.size() == StageMap::kMostStages) {
      return Fail(absl::StrCat("more than ", StageMap::kMostStages, " ranks"));
    }
    document_.ranks.emplace_back();
    cell_ = 0;
    return Leave(Where::kRow);
  }
  bool end_array() override {
    if (where_ == Where::kRow) return Leave(Where::kRows);
    return Leave(where_ == Where::kRows ? Where::kInDocument : Where::kInMap);
  }

  bool key(string_t& name) override {
    if (where_ == Where::kInMap) {
      return Choose(kMapKeys, name, map_seen_, map_key_) &&
             Leave(Where::kMapValue);
    }
    return Choose(kKeys, name, seen_, key_) && Leave(Where::kValue);
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("no JSON at byte ", position));
  }

 private:
  enum class Where : uint8_t {
    kStart,       // Before the document.
    kInDocument,  // Before a key of it,
    kValue,       // and before its value.
    kInMap,
    kMapValue,
    kMapRow,  // In map.ranks.
    kRows,    // In ranks,
    kRow,     // and in the list of one.
    kEnd,
  };

  bool Leave(Where where) {
    where_ = where;
    return true;
  }

  template <size_t n, typename KeyType>
  bool Choose(const std::array<std::string_view, n>& keys,
              const std::string& name, std::array<bool, n>& seen,
              KeyType& chosen) {
    const auto found = std::find(keys.begin(), keys.end(), name);
    const auto said = [&] {
      return absl::StrCat("key \"", absl::CEscape(name.substr(0, 40)), "\"");
    };
    if (found == keys.end()) {
      return Fail(
          absl::StrCat(said(), " is none of ", absl::StrJoin(keys, ", ")));
    }
    const auto index = static_cast<size_t>(found - keys.begin());
    if (seen[index]) {
      return Fail(absl::StrCat(said(), " comes twice; give each key once"));
    }
    seen[index] = true;
    chosen = static_cast<KeyType>(index);
    return true;
  }

  template <size_t n>
  bool AllThere(const std::array<std::string_view, n>& keys,
                const std::array<bool, n>& seen) {
    const auto missing = std::find(seen.begin(), seen.end(), false);
    if (missing == seen.end()) return true;
    return Fail(absl::StrCat(
        "key \"", keys[static_cast<size_t>(missing - seen.begin())],
        "\" is missing", where_ == Where::kInMap ? " in map" : ""));
  }

  bool Number(int64_t value) {
    if (where_ == Where::kMapRow) return MapRank(value);
    if (where_ != Where::kValue || (key_ != kStages && key_ != kMicroBatches)) {
      return Unexpected("a number");
    }
    const bool stages = key_ == kStages;
    const int64_t least = stages ? 1 : 0;
    const int64_t most = stages ? StageMap::kMostStages : kMostIndex + 1;
    if (value < least || value > most) {
      return Fail(absl::StrCat(Place(), " is ", value, "; ", least, " to ",
                               most, " are allowed"));
    }
    (stages ? document_.stages : document_.microbatches) = value;
    return Leave(Where::kInDocument);
  }

  bool MapRank(int64_t rank) {
    if (document_.rank_of.size() == StageMap::kMostStages) {
      return Fail(absl::StrCat("more than ", StageMap::kMostStages, " stages"));
    }
    if (rank < 0 || rank >= StageMap::kMostStages) {
      return Fail(absl::StrCat(Place(), " is ", rank, "; ranks are from 0 to ",
                               StageMap::kMostStages - 1, " at most"));
    }
    document_.rank_of.push_back(static_cast<int32_t>(rank));
    return true;
  }

  bool Cell(std::string_view text) {
    const absl::StatusOr<std::vector<Action>> actions = ParseCell(text);
    if (!actions.ok()) return Fail(Annotate(actions.status(), Place()));
    if (actions->empty()) {
      return Fail(absl::StrCat(Place(), " is empty; leave it out"));
    }
    if (++cells_ > kMostCells) {
      return Fail(absl::StrCat("more than ", kMostCells, " cells"));
    }
    std::vector<Action>& rank = document_.ranks.back();
    rank.insert(rank.end(), actions->begin(), actions->end());
    ++cell_;
    return true;
  }

  // Of the value that is read: "ranks[1][2]".
  std::string Place() const {
    const size_t rank = document_.ranks.size();
    switch (where_) {
      case Where::kValue:
        return std::string(kKeys[key_]);
      case Where::kMapValue:
        return absl::StrCat("map.", kMapKeys[map_key_]);
      case Where::kMapRow:
        return absl::StrCat("map.ranks[", document_.rank_of.size(), "]");
      case Where::kRows:
        return absl::StrCat("ranks[", rank, "]");
      case Where::kRow:
        return absl::StrCat("ranks[", rank - 1, "][", cell_, "]");
      default:
        return "the document";
    }
  }
  std::string_view Wanted() const {
    switch (where_) {
      case Where::kValue:
        return key_ == kName    ? "a string"
               : key_ == kMap   ? "an object"
               : key_ == kRanks ? "an array of arrays of strings"
                                : "a whole number";
      case Where::kMapValue:
        return map_key_ == kMapRanks ? "an array of ranks" : "true or false";
      case Where::kMapRow:
        return "a rank";
      case Where::kRows:
        return "an array of strings";
      case Where::kRow:
        return "a string such as \"0F0\"";
      default:
        return "an object such as {\"schedule\": ...}";
    }
  }

  bool Unexpected(std::string_view what) {
    return Fail(absl::StrCat(Place(), " is ", what, "; use ", Wanted()));
  }
  bool Fail(std::string_view message) {
    return Fail(absl::InvalidArgumentError(message));
  }
  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  JsonDocument document_;
  absl::Status status_;
  Where where_ = Where::kStart;
  Key key_ = kName;
  MapKey map_key_ = kMapRanks;
  std::array<bool, kKeyCount> seen_ = {};
  std::array<bool, kMapKeyCount> map_seen_ = {};
  size_t cell_ = 0;  // Of the rank.
  int64_t cells_ = 0;
};

}  // namespace

absl::StatusOr<JsonDocument> ParseJsonDocument(std::string_view text) {
  Reader reader;
  const bool parsed = json::sax_parse(text, &reader);
  TESSERA_RETURN_IF_ERROR(reader.status());
  if (!parsed) return absl::InvalidArgumentError("no JSON");
  return std::move(reader.document());
}

}  // namespace tessera::pipeline
