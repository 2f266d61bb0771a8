#include "zero3/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "offload/file/crc32c.h"

namespace tessera::zero3 {

absl::StatusOr<const CheckpointPart*> CheckpointManifest::Find(
    std::string_view part) const {
  constexpr size_t kShown = 8;
  std::string names;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].name == part) return &parts[i];
    if (i < kShown) {
      absl::StrAppend(&names, i == 0 ? "" : ", ", Quoted(parts[i].name));
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "the checkpoint has no part ", Quoted(part), "; it has ", names,
      parts.size() > kShown
          ? absl::StrCat(" and ", parts.size() - kShown, " more")
          : ""));
}

std::string ShardFileName(std::string_view part, int64_t rank) {
  return absl::StrCat(part, part.empty() ? "" : ".",
                      absl::StrFormat("rank-%05d.state", rank));
}

absl::Status CheckPartName(std::string_view part) {
  const auto is_allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
           c == '_';
  };
  if (part.size() <= kMaxPartName &&
      std::all_of(part.begin(), part.end(), is_allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("part ", Quoted(part), "; allowed: at most ", kMaxPartName,
                   " letters, digits, '-' and '_', as in \"tp1-pp0\""));
}

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr JsonLimits kLimits = {.max_bytes = kMaxManifestBytes, .max_depth = 8};
constexpr std::string_view kFormat = "tessera checkpoint";
// {"crc32c": "12345678", then the rest: the text before the digits.
constexpr std::string_view kBeforeCrc = "{\n  \"crc32c\": \"";
constexpr std::string_view kAfterCrc = "\",\n";
constexpr size_t kCrcDigits = 8;

uint32_t CrcOf(std::string_view text) {
  return offload::Crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

// --- To JSON ---------------------------------------------------------------

ordered_json ToJson(const ModelParameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  ordered_json json = {{"name", spec.name},
                       {"shape", spec.shape},
                       {"dtype", DTypeName(spec.dtype)},
                       {"trainable", spec.trainable},
                       {"group", spec.group}};
  if (spec.orthogonalized) json["orthogonalized"] = true;
  return json;
}

ordered_json ToJson(const LayoutOptions& options) {
  return {{"kind", topology::EnumName(options.kind)},
          {"ranks", options.ranks},
          {"alignment", options.alignment},
          {"small_below", options.small_below},
          {"optimizer_bytes", options.optimizer_bytes}};
}

ordered_json ToJson(const CheckpointPart& part) {
  ordered_json parameters = ordered_json::array(),
               files = ordered_json::array();
  for (const ModelParameter& parameter : part.model().all()) {
    parameters.push_back(ToJson(parameter));
  }
  for (size_t rank = 0; rank < part.files.size(); ++rank) {
    const CheckpointFile& file = part.files[rank];
    files.push_back(
        {{"name", ShardFileName(part.name, static_cast<int64_t>(rank))},
         {"bytes", file.bytes},
         {"crc32c", FormatHex32(file.crc32c)},
         {"index_crc32c", FormatHex32(file.index_crc32c)}});
  }
  return {{"name", part.name},
          {"stage", part.stage},
          {"replicas", part.replicas},
          {"layout", ToJson(part.layout.options())},
          {"moments", part.moments.ToString()},
          {"moment_block", part.moments.block},
          {"moment_count", part.moment_count},
          {"loss_scale", part.loss_scale},
          {"steps_since_scale_change", part.steps_since_scale_change},
          {"metadata", ordered_json(part.metadata)},
          {"parameters", std::move(parameters)},
          {"files", std::move(files)}};
}

// --- From JSON -------------------------------------------------------------

absl::StatusOr<uint32_t> ParseHex32(std::string_view text) {
  uint32_t value = 0;
  bool valid = text.size() == kCrcDigits;
  for (const char c : text.substr(0, kCrcDigits)) {
    const bool is_digit = c >= '0' && c <= '9';
    valid = valid && (is_digit || (c >= 'a' && c <= 'f'));
    value =
        value * 16 + static_cast<uint32_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  if (valid) return value;
  return absl::InvalidArgumentError("expected 8 digits of 0-9a-f");
}

ParameterSpec ToSpec(const json& value, std::string path,
                     JsonProblems& problems) {
  JsonReader fields(value, std::move(path), problems);
  ParameterSpec spec;
  spec.name = fields.Text("name");
  spec.shape = fields.Integers("shape", 0, kMax);
  const absl::StatusOr<DType> dtype = ParseDType(fields.Text("dtype"));
  if (!dtype.ok()) fields.Refuse("dtype", dtype.status().message());
  spec.dtype = dtype.value_or(DType::kF32);
  spec.trainable = fields.Boolean("trainable");
  spec.group = fields.Integer("group", 0, kMax);
  spec.orthogonalized =
      fields.Has("orthogonalized") && fields.Boolean("orthogonalized");
  return spec;
}

LayoutOptions ToLayoutOptions(JsonReader fields) {
  const auto kind = topology::ParseEnum<LayoutKind>(fields.Text("kind"));
  if (!kind.ok()) fields.Refuse("kind", kind.status().message());
  LayoutOptions options;
  options.kind = kind.value_or(LayoutKind::kChunks);
  options.ranks = fields.Integer("ranks", 1, kMaxShardRanks);
  options.alignment = fields.Integer("alignment", 1, kMaxAlignment);
  options.small_below = fields.Integer("small_below", 0, kMax);
  options.optimizer_bytes =
      fields.Integer("optimizer_bytes", 0, kMaxOptimizerBytes);
  return options;
}

offload::MomentFormat ToMoments(JsonReader& fields) {
  const std::string name = fields.Text("moments");
  const int64_t block = fields.Integer("moment_block", 0, 1 << 20);
  for (const offload::MomentFormat& format :
       {offload::MomentFormat::F64(), offload::MomentFormat::F32(),
        offload::MomentFormat::BF16(),
        offload::MomentFormat::Blockwise8(block)}) {
    if (format.ToString() == name && format.block == block &&
        offload::CheckMomentFormat(format).ok()) {
      return format;
    }
  }
  fields.Refuse("moments", absl::StrCat("unknown moment format ", Quoted(name),
                                        " with blocks of ", block));
  return {};
}

CheckpointMetadata ToMetadata(JsonReader& fields) {
  CheckpointMetadata metadata;
  for (const auto& [key, value] : fields.Object("metadata").items()) {
    if (!value.is_string()) {
      fields.Refuse("metadata", absl::StrCat("the value of ", Quoted(key),
                                             " is not a text"));
      break;
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

CheckpointFile ToFile(const json& value, std::string path,
                      const std::string& name, JsonProblems& problems) {
  JsonReader fields(value, std::move(path), problems);
  if (fields.Text("name") != name) {
    fields.Refuse("name", absl::StrCat("it must be \"", name, "\""));
  }
  CheckpointFile file;
  file.bytes = fields.Integer("bytes", 0, kMax);
  file.crc32c = ReadHex32(fields, "crc32c");
  file.index_crc32c = ReadHex32(fields, "index_crc32c");
  return file;
}

absl::StatusOr<StateLayout> ToLayout(JsonReader& fields,
                                     JsonProblems& problems) {
  const json& parameters = fields.Array("parameters");
  ModelParameters::Builder builder;
  for (size_t i = 0; i < parameters.size(); ++i) {
    builder.Add(ToSpec(parameters[i],
                       absl::StrCat(fields.PathOf("parameters"), "[", i, "]"),
                       problems));
  }
  const LayoutOptions options = ToLayoutOptions(fields.Child("layout"));
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the manifest"));
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model, builder.Build());
  return StateLayout::Create(model, options);
}

absl::StatusOr<CheckpointPart> ToPart(const json& value,
                                      const std::string& path) {
  JsonProblems problems;
  JsonReader fields(value, path, problems);
  const std::string name = fields.Text("name");
  if (absl::Status status = CheckPartName(name); !status.ok()) {
    fields.Refuse("name", status.message());
  }
  TESSERA_ASSIGN_OR_RETURN(StateLayout layout, ToLayout(fields, problems));
  CheckpointPart part = {.name = name, .layout = std::move(layout)};
  const json& files = fields.Array("files");
  for (size_t i = 0; i < files.size(); ++i) {
    // Names follow from part and rank, so that none leaves the directory.
    part.files.push_back(
        ToFile(files[i], absl::StrCat(fields.PathOf("files"), "[", i, "]"),
               ShardFileName(name, static_cast<int64_t>(i)), problems));
  }
  part.stage = fields.Integer("stage", 0, 3);
  part.replicas = fields.Integer("replicas", 1, kMax);
  part.moments = ToMoments(fields);
  // Older manifests lack the key; their states are those of AdamW.
  part.moment_count = fields.IntegerOr("moment_count", part.moment_count, 0, 2);
  part.loss_scale = fields.Number("loss_scale");
  if (!(std::isfinite(part.loss_scale) && part.loss_scale > 0)) {
    fields.Refuse("loss_scale", "it must be positive and finite");
  }
  part.steps_since_scale_change =
      fields.Integer("steps_since_scale_change", 0, kMax);
  part.metadata = ToMetadata(fields);
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the manifest"));
  return part;
}

absl::Status CheckParts(const CheckpointManifest& manifest) {
  std::set<std::string_view> names;
  for (const CheckpointPart& part : manifest.parts) {
    const auto files = static_cast<int64_t>(part.files.size());
    if (files != part.layout.ranks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", Quoted(part.name), ": ", files,
                       " files for the ", part.layout.ranks(), " ranks"));
    }
    if (!names.insert(part.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", Quoted(part.name), " comes twice"));
    }
  }
  if (!names.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("it has no parts");
}

absl::StatusOr<CheckpointManifest> ToManifest(const json& document) {
  JsonProblems problems;
  JsonReader fields(document, "", problems);
  if (fields.Text("format") != kFormat) {
    fields.Refuse("format", absl::StrCat("it must be \"", kFormat, "\""));
  }
  const int64_t version = fields.Integer("version", 1, kMax);
  if (version != kManifestVersion) {
    fields.Refuse("version", absl::StrCat(version, " is not known; ",
                                          kManifestVersion, " can be read"));
  }
  CheckpointManifest manifest;
  manifest.step = fields.Integer("step", 0, kMax);
  manifest.world = fields.Integer("world", 1, kMax);
  const json& parts = fields.Array("parts");
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the manifest"));
  for (size_t i = 0; i < parts.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(CheckpointPart one,
                             ToPart(parts[i], absl::StrCat("parts[", i, "]")));
    manifest.parts.push_back(std::move(one));
  }
  TESSERA_RETURN_IF_ERROR(CheckParts(manifest));
  return manifest;
}

// Checks the checksum of the text after its line.
absl::Status CheckChecksum(std::string_view text) {
  const size_t begin = kBeforeCrc.size() + kCrcDigits + kAfterCrc.size();
  if (text.size() < begin || !absl::StartsWith(text, kBeforeCrc) ||
      text.substr(kBeforeCrc.size() + kCrcDigits, kAfterCrc.size()) !=
          kAfterCrc) {
    return absl::DataLossError("it does not start with its checksum");
  }
  const absl::StatusOr<uint32_t> crc =
      ParseHex32(text.substr(kBeforeCrc.size(), kCrcDigits));
  if (crc.ok() && *crc == CrcOf(text.substr(begin))) return absl::OkStatus();
  return absl::DataLossError(
      "its checksum is wrong: it was changed or truncated");
}

}  // namespace

std::string FormatHex32(uint32_t value) {
  return absl::StrFormat("%08x", value);
}

uint32_t ReadHex32(JsonReader& fields, std::string_view key) {
  const absl::StatusOr<uint32_t> value = ParseHex32(fields.Text(key));
  if (!value.ok()) fields.Refuse(key, value.status().message());
  return value.value_or(0);
}

absl::StatusOr<std::string> FormatManifest(const CheckpointManifest& manifest) {
  ordered_json document = {{"format", kFormat},
                           {"version", kManifestVersion},
                           {"step", manifest.step},
                           {"world", manifest.world},
                           {"parts", ordered_json::array()}};
  for (const CheckpointPart& part : manifest.parts) {
    document["parts"].push_back(ToJson(part));
  }
  // The text after the line of the checksum, without the opening brace and its
  // newline.
  const std::string rest = DumpJson(document, 1).substr(2) + "\n";
  std::string text =
      absl::StrCat(kBeforeCrc, FormatHex32(CrcOf(rest)), kAfterCrc, rest);
  TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest again, ParseManifest(text));
  if (again == manifest) return text;
  return absl::InvalidArgumentError(
      "the manifest does not survive a round trip: names of parameters and "
      "metadata must be UTF-8");
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxManifestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest has ", text.size(),
                     " bytes; allowed: ", kMaxManifestBytes));
  }
  TESSERA_RETURN_IF_ERROR(CheckChecksum(text));
  TESSERA_ASSIGN_OR_RETURN(const json document, ParseJson(text, kLimits));
  return ToManifest(document);
}

absl::StatusOr<std::string> FormatPart(const CheckpointPart& part) {
  std::string text = DumpJson(ToJson(part), 1);
  TESSERA_ASSIGN_OR_RETURN(const CheckpointPart again, ParsePart(text));
  if (again == part) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("part ", Quoted(part.name),
                   " does not survive a round trip: names of parameters and "
                   "metadata must be UTF-8"));
}

absl::StatusOr<CheckpointPart> ParsePart(std::string_view text) {
  TESSERA_ASSIGN_OR_RETURN(const json document, ParseJson(text, kLimits));
  return ToPart(document, "");
}

}  // namespace tessera::zero3
