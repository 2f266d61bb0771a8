#include "zero3/checkpoint/manifest_json.h"

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "offload/file/crc32c.h"
#include "zero3/checkpoint/json_fields.h"

namespace tessera::zero3 {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int kMaxDepth = 8;
constexpr std::string_view kFormat = "tessera checkpoint";
// {"crc32c": "12345678", then the rest; with what is around the digits.
constexpr std::string_view kBeforeCrc = "{\n  \"crc32c\": \"";
constexpr std::string_view kAfterCrc = "\",\n";
constexpr size_t kCrcDigits = 8;

uint32_t CrcOf(std::string_view text) {
  return offload::Crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

// --- To JSON ---------------------------------------------------------------

Json ToJson(const Parameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  return {{"name", spec.name},
          {"shape", spec.shape},
          {"dtype", DTypeName(spec.dtype)},
          {"trainable", spec.trainable},
          {"group", spec.group}};
}

Json ToJson(const LayoutOptions& options) {
  return {{"kind", topology::EnumName(options.kind)},
          {"ranks", options.ranks},
          {"alignment", options.alignment},
          {"small_below", options.small_below},
          {"optimizer_bytes", options.optimizer_bytes}};
}

Json ToJson(const CheckpointPart& part) {
  Json parameters = Json::array(), files = Json::array();
  for (const Parameter& parameter : part.model().all()) {
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
          {"metadata", Json(part.metadata)},
          {"parameters", std::move(parameters)},
          {"files", std::move(files)}};
}

std::string Dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

// --- From JSON -------------------------------------------------------------

absl::StatusOr<ParameterSpec> ToSpec(const Json& json, size_t index) {
  JsonFields fields(json, absl::StrCat("parameter ", index));
  ParameterSpec spec;
  spec.name = fields.Text("name");
  for (const Json& size : fields.Array("shape")) {
    const Json object = {{"size", size}};
    JsonFields dimension(object, "the shape");
    spec.shape.push_back(dimension.Integer("size", 0, kMax));
    if (!dimension.status().ok()) {
      fields.Refuse("shape", dimension.status().message());
    }
  }
  const absl::StatusOr<DType> dtype = ParseDType(fields.Text("dtype"));
  if (!dtype.ok()) fields.Refuse("dtype", dtype.status().message());
  spec.dtype = dtype.value_or(DType::kF32);
  spec.trainable = fields.Boolean("trainable");
  spec.group = fields.Integer("group", 0, kMax);
  TESSERA_RETURN_IF_ERROR(fields.status());
  return spec;
}

absl::StatusOr<ModelParameters> ToModel(const Json& array) {
  ModelParameters::Builder builder;
  for (size_t i = 0; i < array.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ParameterSpec spec, ToSpec(array[i], i));
    builder.Add(std::move(spec));
  }
  return builder.Build();
}

absl::StatusOr<LayoutOptions> ToLayoutOptions(const Json& json) {
  JsonFields fields(json, "the layout");
  const auto kind = topology::ParseEnum<LayoutKind>(fields.Text("kind"));
  if (!kind.ok()) fields.Refuse("kind", kind.status().message());
  LayoutOptions options;
  options.kind = kind.value_or(LayoutKind::kChunks);
  options.ranks = fields.Integer("ranks", 1, kMaxShardRanks);
  options.alignment = fields.Integer("alignment", 1, kMaxAlignment);
  options.small_below = fields.Integer("small_below", 0, kMax);
  options.optimizer_bytes =
      fields.Integer("optimizer_bytes", 0, kMaxOptimizerBytes);
  TESSERA_RETURN_IF_ERROR(fields.status());
  return options;
}

offload::MomentFormat ToMoments(JsonFields& fields) {
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
  fields.Refuse("moments", absl::StrCat(Quoted(name), " with blocks of ", block,
                                        " are no format of moments"));
  return {};
}

CheckpointMetadata ToMetadata(JsonFields& fields) {
  CheckpointMetadata metadata;
  for (const auto& [key, value] : fields.Object("metadata").items()) {
    if (!value.is_string()) {
      fields.Refuse("metadata",
                    absl::StrCat("the value of ", Quoted(key), " is no text"));
      break;
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

absl::StatusOr<std::vector<CheckpointFile>> ToFiles(const Json& array,
                                                    std::string_view part) {
  std::vector<CheckpointFile> files;
  for (size_t i = 0; i < array.size(); ++i) {
    JsonFields fields(array[i], absl::StrCat("file ", i));
    CheckpointFile file;
    // Names follow from part and rank: none leads out of the directory.
    const std::string name = ShardFileName(part, static_cast<int64_t>(i));
    if (fields.Text("name") != name) {
      fields.Refuse("name", absl::StrCat("it must be \"", name, "\""));
    }
    file.bytes = fields.Integer("bytes", 0, kMax);
    file.crc32c = fields.Hex32("crc32c");
    file.index_crc32c = fields.Hex32("index_crc32c");
    TESSERA_RETURN_IF_ERROR(fields.status());
    files.push_back(file);
  }
  return files;
}

absl::StatusOr<CheckpointPart> ToPart(const Json& json) {
  JsonFields fields(json, "part");
  const std::string name = fields.Text("name");
  if (absl::Status status = CheckPartName(name); !status.ok()) {
    fields.Refuse("name", status.message());
  }
  const Json& parameters = fields.Array("parameters");
  const Json& options_json = fields.Object("layout");
  const Json& files_json = fields.Array("files");
  TESSERA_RETURN_IF_ERROR(fields.status());
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model, ToModel(parameters));
  TESSERA_ASSIGN_OR_RETURN(const LayoutOptions options,
                           ToLayoutOptions(options_json));
  TESSERA_ASSIGN_OR_RETURN(StateLayout layout,
                           StateLayout::Create(model, options));
  CheckpointPart part = {.name = name, .layout = std::move(layout)};
  TESSERA_ASSIGN_OR_RETURN(part.files, ToFiles(files_json, name));
  part.stage = fields.Integer("stage", 0, 3);
  part.replicas = fields.Integer("replicas", 1, kMax);
  part.moments = ToMoments(fields);
  // What is older has the moments of AdamW.
  if (json.contains("moment_count")) {
    part.moment_count = fields.Integer("moment_count", 0, 2);
  }
  part.loss_scale = fields.Number("loss_scale");
  if (!(std::isfinite(part.loss_scale) && part.loss_scale > 0)) {
    fields.Refuse("loss_scale", "it must be positive and finite");
  }
  part.steps_since_scale_change =
      fields.Integer("steps_since_scale_change", 0, kMax);
  part.metadata = ToMetadata(fields);
  TESSERA_RETURN_IF_ERROR(fields.status());
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
  return absl::InvalidArgumentError("there are no parts");
}

absl::StatusOr<CheckpointManifest> ToManifest(const Json& json) {
  JsonFields fields(json, "manifest");
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
  const Json& parts = fields.Array("parts");
  TESSERA_RETURN_IF_ERROR(fields.status());
  for (const Json& part : parts) {
    TESSERA_ASSIGN_OR_RETURN(CheckpointPart one, ToPart(part));
    manifest.parts.push_back(std::move(one));
  }
  TESSERA_RETURN_IF_ERROR(CheckParts(manifest));
  return manifest;
}

// What is behind the line of the checksum, which is right.
absl::Status CheckChecksum(std::string_view json) {
  const size_t begin = kBeforeCrc.size() + kCrcDigits + kAfterCrc.size();
  if (json.size() < begin || !absl::StartsWith(json, kBeforeCrc) ||
      json.substr(kBeforeCrc.size() + kCrcDigits, kAfterCrc.size()) !=
          kAfterCrc) {
    return absl::DataLossError("it does not begin with its checksum");
  }
  const absl::StatusOr<uint32_t> crc =
      ParseHex32(json.substr(kBeforeCrc.size(), kCrcDigits));
  if (crc.ok() && *crc == CrcOf(json.substr(begin))) return absl::OkStatus();
  return absl::DataLossError("its checksum is wrong: it was changed or cut");
}

}  // namespace

absl::StatusOr<std::string> FormatManifest(const CheckpointManifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", kManifestVersion},
               {"step", manifest.step},
               {"world", manifest.world},
               {"parts", Json::array()}};
  for (const CheckpointPart& part : manifest.parts) {
    json["parts"].push_back(ToJson(part));
  }
  // Behind the line of the checksum; without the brace and line end in front.
  const std::string rest = Dump(json).substr(2) + "\n";
  std::string text =
      absl::StrCat(kBeforeCrc, FormatHex32(CrcOf(rest)), kAfterCrc, rest);
  TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest again, ParseManifest(text));
  if (again == manifest) return text;
  return absl::InvalidArgumentError(
      "the manifest does not read back as it was: names of parameters and "
      "metadata must be UTF-8");
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view json) {
  if (static_cast<int64_t>(json.size()) > kMaxManifestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest has ", json.size(),
                     " bytes; allowed: ", kMaxManifestBytes));
  }
  TESSERA_RETURN_IF_ERROR(CheckChecksum(json));
  TESSERA_ASSIGN_OR_RETURN(const Json document, ParseJson(json, kMaxDepth));
  return ToManifest(document);
}

absl::StatusOr<std::string> FormatPart(const CheckpointPart& part) {
  std::string text = Dump(ToJson(part));
  TESSERA_ASSIGN_OR_RETURN(const CheckpointPart again, ParsePart(text));
  if (again == part) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("part ", Quoted(part.name),
                   " does not read back as it was: names of parameters and "
                   "metadata must be UTF-8"));
}

absl::StatusOr<CheckpointPart> ParsePart(std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(const Json document, ParseJson(json, kMaxDepth));
  return ToPart(document);
}

}  // namespace tessera::zero3
