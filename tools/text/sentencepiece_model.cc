#include "tools/text/sentencepiece_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/text/characters.h"

namespace tessera::text {

absl::Status MalformedSentencePieceModel(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, "; expected a SentencePiece model, such as tokenizer.model"));
}

namespace {

absl::Status Malformed(std::string_view what) {
  return MalformedSentencePieceModel(what);
}

// A field of a serialized protocol buffer.
struct Field {
  uint64_t number = 0;
  uint64_t type = 0;       // The wire type: kVarint, ...
  uint64_t value = 0;      // For numbers.
  std::string_view bytes;  // For strings and messages.
  std::string_view whole;  // With its key.
};

constexpr uint64_t kVarint = 0;
constexpr uint64_t kFixed64 = 1;
constexpr uint64_t kBytes = 2;
constexpr uint64_t kFixed32 = 5;

// Reads the fields of a message one after another.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  bool done() const { return rest_.empty(); }

  absl::StatusOr<Field> Next() {
    const std::string_view begin = rest_;
    Field field;
    TESSERA_ASSIGN_OR_RETURN(const uint64_t key, Varint());
    field.number = key >> 3;
    field.type = key & 7;
    if (field.number == 0 || field.number > (uint64_t{1} << 29) - 1) {
      return Malformed(absl::StrCat("a field has number ", field.number));
    }
    if (field.type == kVarint) {
      TESSERA_ASSIGN_OR_RETURN(field.value, Varint());
    } else if (field.type == kBytes) {
      TESSERA_ASSIGN_OR_RETURN(const uint64_t size, Varint());
      TESSERA_ASSIGN_OR_RETURN(field.bytes, Take(size));
    } else if (field.type == kFixed32 || field.type == kFixed64) {
      TESSERA_ASSIGN_OR_RETURN(const std::string_view bytes,
                               Take(field.type == kFixed32 ? 4 : 8));
      std::memcpy(&field.value, bytes.data(), bytes.size());
    } else {
      return Malformed(
          absl::StrCat("field ", field.number, " has wire type ", field.type));
    }
    field.whole = begin.substr(0, begin.size() - rest_.size());
    return field;
  }

 private:
  absl::StatusOr<std::string_view> Take(uint64_t size) {
    if (size > rest_.size()) {
      return Malformed(absl::StrCat("a field has ", size, " bytes, and only ",
                                    rest_.size(), " are left"));
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      TESSERA_ASSIGN_OR_RETURN(const std::string_view byte, Take(1));
      const auto bits = static_cast<unsigned char>(byte[0]);
      value |= static_cast<uint64_t>(bits & 0x7F) << shift;
      if (bits < 0x80) return value;
    }
    return Malformed("a number has more than 10 bytes");
  }

  std::string_view rest_;
};

bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    if (!character.valid) return false;
    at += character.length;
  }
  return true;
}

absl::Status CheckType(const Field& field, uint64_t type,
                       std::string_view name) {
  if (field.type == type) return absl::OkStatus();
  return Malformed(
      absl::StrCat(name, " has wire type ", field.type, "; it must be ", type));
}

// Numbers of fields, types and models, from sentencepiece_model.proto.

enum class PieceType {
  kNormal = 1,
  kUnknown,
  kControl,
  kUserDefined,
  kUnused,
  kByte
};

struct Piece {
  std::string_view text;
  PieceType type = PieceType::kNormal;
};

// The library has room for 1024 matching pieces per text position, and each of
// these has a different length.
constexpr size_t kMaxPieceBytes = 1000;

absl::Status CheckPieceText(const Piece& piece) {
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes ||
      piece.text.find('\0') != piece.text.npos || !IsUtf8(piece.text)) {
    return Malformed(absl::StrCat("its text ", Quoted(piece.text), " has ",
                                  piece.text.size(),
                                  " bytes; it must be UTF-8 of 1 to ",
                                  kMaxPieceBytes, " bytes without zeros"));
  }
  // The library would match it in texts, character by character.
  if (piece.type == PieceType::kControl &&
      CharacterAt(piece.text, 0).length == piece.text.size()) {
    return Malformed(
        absl::StrCat("control piece ", Quoted(piece.text),
                     " is one character; it must be at least two"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Piece> ReadPiece(std::string_view message) {
  Piece piece;
  for (FieldReader reader(message); !reader.done();) {
    TESSERA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 1) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kBytes, "the text"));
      piece.text = field.bytes;
    } else if (field.number == 2) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kFixed32, "the score"));
      const auto score = std::bit_cast<float>(
          static_cast<uint32_t>(field.value & 0xFFFFFFFFu));
      if (!std::isfinite(score)) {
        return Malformed(absl::StrCat("its score is ", score));
      }
    } else if (field.number == 3) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kVarint, "the type"));
      if (field.value < 1 || field.value > 6) {
        return Malformed(
            absl::StrCat("its type is ", field.value, "; it must be 1 to 6"));
      }
      piece.type = static_cast<PieceType>(field.value);
    }
  }
  TESSERA_RETURN_IF_ERROR(CheckPieceText(piece));
  return piece;
}

// The library has room for 64 matching user-defined pieces per text position.
absl::Status CheckNesting(std::vector<std::string_view> user_defined) {
  constexpr size_t kMost = 64;
  std::sort(user_defined.begin(), user_defined.end());
  std::vector<std::string_view> prefixes;
  for (const std::string_view text : user_defined) {
    while (!prefixes.empty() && !absl::StartsWith(text, prefixes.back())) {
      prefixes.pop_back();
    }
    prefixes.push_back(text);
    if (prefixes.size() <= kMost) continue;
    return Malformed(absl::StrCat("more than ", kMost,
                                  " user-defined pieces are prefixes of ",
                                  Quoted(text)));
  }
  return absl::OkStatus();
}

absl::Status CheckTrainer(std::string_view message) {
  uint64_t model = 1;
  for (FieldReader reader(message); !reader.done();) {
    TESSERA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 3) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kVarint, "model_type"));
      model = field.value;
    }
    if (field.number == 24 && field.value != 0) {
      return absl::UnimplementedError(
          "treat_whitespace_as_suffix: true is not supported; supported is "
          "false");
    }
    // unk_surface, and the texts of the special pieces.
    if (field.number >= 44 && field.number <= 48) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kBytes, "a piece's name"));
      if (field.bytes.size() > kMaxPieceBytes || !IsUtf8(field.bytes)) {
        return Malformed(absl::StrCat("field ", field.number,
                                      " must be UTF-8 of at most ",
                                      kMaxPieceBytes, " bytes"));
      }
    }
  }
  if (model == 1 || model == 2) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("model_type: ", model,
                   " is not supported; supported are 1, unigram, and 2, BPE"));
}

// The rules of a normalizer, a double-array trie of Darts-clone. The value of a
// key is the offset of its replacement in `texts_`.
class CharacterMap {
 public:
  static absl::Status Check(std::string_view map) {
    uint32_t size = 0;
    if (map.size() > sizeof(size)) std::memcpy(&size, map.data(), sizeof(size));
    if (size == 0 || size % 4 != 0 || size >= map.size() - sizeof(size)) {
      return Malformed(
          absl::StrCat("a trie of ", size, " bytes in a map of ", map.size()));
    }
    CharacterMap checked(map.substr(sizeof(size), size),
                         map.substr(sizeof(size) + size));
    if (checked.texts_.back() != '\0' || !IsUtf8(checked.texts_)) {
      return Malformed("its texts are not UTF-8 that ends with a zero");
    }
    return checked.CheckUnits();
  }

 private:
  // The library has room for 32 matching rules per text position.
  static constexpr int kMostMatches = 32;
  static constexpr int kUnknown = -1;
  static constexpr int kVisiting = -2;

  CharacterMap(std::string_view trie, std::string_view texts)
      : units_(trie.size() / 4), texts_(texts), matches_(units_.size()) {
    std::memcpy(units_.data(), trie.data(), trie.size());
    std::fill(matches_.begin(), matches_.end(), kUnknown);
  }

  static uint32_t OffsetOf(uint32_t unit) {
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
  }
  static uint32_t LabelOf(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
  static bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }

  // A node, and the index at which its children begin.
  struct Step {
    uint32_t node = 0;
    uint32_t children = 0;
    uint32_t label = 0;  // The next child to visit.
    int most = 0;        // Most matches below.
  };

  // Visits every path that a text can take. Nodes may share their children.
  absl::Status CheckUnits() {
    std::vector<Step> path;
    TESSERA_RETURN_IF_ERROR(Enter(0, path));
    while (!path.empty()) {
      Step& step = path.back();
      if (step.label == 256) {
        const uint32_t node = step.node;
        const int most = step.most + (HasLeaf(units_[node]) ? 1 : 0);
        if (most > kMostMatches) {
          return Malformed(absl::StrCat("more than ", kMostMatches,
                                        " rules begin with the same text"));
        }
        matches_[node] = most;
        path.pop_back();
        if (!path.empty()) {
          path.back().most = std::max(path.back().most, most);
        }
        continue;
      }
      const uint32_t label = step.label++;
      const uint32_t child = step.children ^ label;
      if (LabelOf(units_[child]) != label) continue;
      // The root has label 0, too.
      if (matches_[child] == kVisiting) return Malformed("its trie has a loop");
      if (matches_[child] == kUnknown) {
        TESSERA_RETURN_IF_ERROR(Enter(child, path));
      } else {
        step.most = std::max(step.most, matches_[child]);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Enter(uint32_t node, std::vector<Step>& path) {
    const uint32_t children = node ^ OffsetOf(units_[node]);
    // The children are the units that differ from `children` only in the last
    // byte.
    if ((children | 0xFF) >= units_.size()) {
      return Malformed(absl::StrCat("unit ", node, " of its trie refers to ",
                                    children, " of ", units_.size()));
    }
    if (HasLeaf(units_[node])) {
      const uint32_t at = units_[children] & ~(1u << 31);
      if (at >= texts_.size() ||
          (static_cast<unsigned char>(texts_[at]) & 0xC0) == 0x80) {
        return Malformed(absl::StrCat("a rule refers to byte ", at,
                                      " of its texts of ", texts_.size()));
      }
    }
    matches_[node] = kVisiting;
    path.push_back({.node = node, .children = children});
    return absl::OkStatus();
  }

  std::vector<uint32_t> units_;
  std::string_view texts_;
  std::vector<int> matches_;  // Largest number of matches at and below a node.
};

// Returns add_dummy_prefix.
absl::StatusOr<bool> ReadNormalizer(std::string_view message) {
  bool add_dummy_prefix = true;
  for (FieldReader reader(message); !reader.done();) {
    TESSERA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number == 2) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kBytes, "precompiled_charsmap"));
      if (field.bytes.empty()) continue;
      TESSERA_RETURN_IF_ERROR(CharacterMap::Check(field.bytes),
                              Annotate(_, "precompiled_charsmap"));
    }
    if (field.number >= 3 && field.number <= 5) {
      TESSERA_RETURN_IF_ERROR(CheckType(field, kVarint, "a flag"));
    }
    if (field.number == 3) add_dummy_prefix = field.value != 0;
  }
  return add_dummy_prefix;
}

// Checks each piece of a model, then all of them together.
class PieceChecker {
 public:
  absl::Status Add(std::string_view message) {
    TESSERA_ASSIGN_OR_RETURN(const Piece piece, ReadPiece(message));
    if (!texts_.insert(piece.text).second) {
      return Malformed(absl::StrCat(Quoted(piece.text), " is there twice"));
    }
    if (piece.type == PieceType::kUserDefined) {
      user_defined_.push_back(piece.text);
    }
    return absl::OkStatus();
  }

  int64_t count() const { return static_cast<int64_t>(texts_.size()); }
  absl::Status Finish() { return CheckNesting(std::move(user_defined_)); }

 private:
  absl::flat_hash_set<std::string_view> texts_;
  std::vector<std::string_view> user_defined_;
};

// The fields of a ModelProto.
constexpr std::array<const char*, 6> kParts = {"",
                                               "piece",
                                               "trainer_spec",
                                               "normalizer_spec",
                                               "self_test_data",
                                               "denormalizer_spec"};
constexpr uint64_t kPiece = 1;
constexpr uint64_t kTrainerSpec = 2;
constexpr uint64_t kNormalizerSpec = 3;
constexpr uint64_t kSelfTestData = 4;

absl::Status CheckPart(const Field& field, PieceChecker& pieces,
                       SentencePieceModel& model) {
  if (field.number == kPiece) return pieces.Add(field.bytes);
  if (field.number == kTrainerSpec) return CheckTrainer(field.bytes);
  TESSERA_ASSIGN_OR_RETURN(const bool add_dummy_prefix,
                           ReadNormalizer(field.bytes));
  if (field.number == kNormalizerSpec) {
    model.add_dummy_prefix = add_dummy_prefix;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceModel> SentencePieceModel::Parse(
    std::string_view bytes) {
  if (bytes.size() > std::numeric_limits<int32_t>::max()) {
    return Malformed(absl::StrCat("it has ", bytes.size(), " bytes"));
  }
  SentencePieceModel model;
  PieceChecker pieces;
  std::array<int, kParts.size()> seen{};
  for (FieldReader reader(bytes); !reader.done();) {
    TESSERA_ASSIGN_OR_RETURN(const Field field, reader.Next());
    if (field.number >= kParts.size()) {
      model.serialized.append(field.whole);
      continue;
    }
    const std::string name = field.number == kPiece
                                 ? absl::StrCat("piece ", pieces.count())
                                 : kParts[field.number];
    TESSERA_RETURN_IF_ERROR(CheckType(field, kBytes, name));
    if (field.number != kPiece && ++seen[field.number] > 1) {
      return Malformed(absl::StrCat(name, " is there twice"));
    }
    if (field.number == kSelfTestData) continue;
    TESSERA_RETURN_IF_ERROR(CheckPart(field, pieces, model), Annotate(_, name));
    model.serialized.append(field.whole);
  }
  if (pieces.count() == 0) return Malformed("it has no pieces");
  for (const uint64_t number : {kTrainerSpec, kNormalizerSpec}) {
    if (seen[number] > 0) continue;
    return Malformed(
        absl::StrCat("it has no ", kParts[number], ", so it may be truncated"));
  }
  TESSERA_RETURN_IF_ERROR(pieces.Finish());
  return model;
}

}  // namespace tessera::text
