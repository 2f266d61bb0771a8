#include "topology/config/parallel_config.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::topology {
namespace {

using Problem = std::optional<ConfigProblem>;
using Problems = std::vector<ConfigProblem>;

constexpr int64_t kMostSequences = int64_t{1} << 40;
constexpr int64_t kMostSeconds = 1'000'000;
constexpr std::string_view kMeshExample = "dp2,pp2,tp2";

// A field as flags and files have it. `set` returns the problem, without field
// and value, if the text cannot be parsed.
struct FieldRow {
  std::string_view name;
  ConfigValue (*get)(const ParallelConfig& config);
  Problem (*set)(const ConfigValue& value, ParallelConfig& config);
};

// Sets `field`, unless parsing failed.
template <typename T>
Problem Take(absl::StatusOr<T> parsed, std::string_view fix, T& field) {
  if (!parsed.ok()) {
    return ConfigProblem{.allowed = std::string(parsed.status().message()),
                         .fix = std::string(fix)};
  }
  field = *std::move(parsed);
  return std::nullopt;
}

template <typename T>
Problem TakeName(const std::string& text, std::vector<std::string_view> more,
                 T& field) {
  absl::StatusOr<T> parsed = ParseEnum<T>(text);
  if (parsed.ok()) return Take(std::move(parsed), "", field);
  std::vector<std::string_view> names;
  for (const auto& entry : EnumNames<T>::kTable) names.push_back(entry.name);
  names.insert(names.end(), more.begin(), more.end());
  return ConfigProblem{
      .allowed = absl::StrCat("must be one of ", absl::StrJoin(names, ", ")),
      .fix =
          std::string(text.empty() ? names.front() : NearestName(text, names))};
}

// The fields' types as values of flags and files, and back.
ConfigValue Show(int64_t number) { return number; }
ConfigValue Show(const std::string& text) { return text; }
ConfigValue Show(const MeshSizes& mesh) { return mesh.ToFlag(); }
ConfigValue Show(const LayerSplit& split) { return split.ToString(); }
ConfigValue Show(ByteSize limit) { return FormatByteLimit(limit); }
ConfigValue Show(absl::Duration timeout) {
  return absl::ToInt64Seconds(timeout);
}
ConfigValue Show(NamedEnum auto value) { return std::string(EnumName(value)); }

Problem Read(int64_t value, int64_t& number) {
  number = value;
  return std::nullopt;
}
Problem Read(int64_t value, absl::Duration& timeout) {
  timeout = absl::Seconds(value);
  return std::nullopt;
}
Problem Read(const std::string& value, std::string& text) {
  text = value;
  return std::nullopt;
}
Problem Read(const std::string& text, MeshSizes& mesh) {
  absl::StatusOr<MeshSizes> parsed = MeshSizes::Parse(text);
  if (parsed.ok()) parsed->order = mesh.order;
  Problem problem = Take(std::move(parsed), kMeshExample, mesh);
  if (problem) problem->allowed += "; use sizes";
  return problem;
}
Problem Read(const std::string& text, LayerSplit& split) {
  return Take(LayerSplit::Parse(text), "3,5", split);
}
Problem Read(const std::string& text, ByteSize& limit) {
  return Take(ParseByteLimit(text), "300MiB", limit);
}
Problem Read(const std::string& text, NamedEnum auto& value) {
  return TakeName(text, {}, value);
}

template <auto member>
constexpr FieldRow Row(std::string_view name) {
  return {name,
          [](const ParallelConfig& config) { return Show(config.*member); },
          [](const ConfigValue& value, ParallelConfig& config) {
            using Field = std::decay_t<decltype(config.*member)>;
            constexpr bool kIsNumber = std::is_same_v<Field, int64_t> ||
                                       std::is_same_v<Field, absl::Duration>;
            return Read(std::get < kIsNumber ? 0 : 1 > (value), config.*member);
          }};
}

ConfigValue ShowOrder(const ParallelConfig& config) {
  return FormatAxisOrder(config.mesh.order);
}

Problem ReadOrder(const ConfigValue& value, ParallelConfig& config) {
  // A mesh of any sizes above 1, so that every axis must be named.
  constexpr MeshSizes kAll = {.dp = 2, .pp = 2, .cp = 2, .tp = 2};
  return Take(kAll.ParseOrder(std::get<std::string>(value)),
              FormatAxisOrder(kDefaultAxisOrder), config.mesh.order);
}

ConfigValue ShowDType(const ParallelConfig& config) {
  if (config.fp8) return "fp8";
  const std::string_view name = EnumName(config.dtype);
  return std::string(name.empty() ? DTypeName(config.dtype) : name);
}

Problem ReadDType(const ConfigValue& value, ParallelConfig& config) {
  const std::string& text = std::get<std::string>(value);
  const bool fp8 = text == "fp8";
  Problem problem = TakeName(fp8 ? "bf16" : text, {"fp8"}, config.dtype);
  if (!problem) config.fp8 = fp8;
  return problem;
}

constexpr FieldRow kFields[] = {
    Row<&ParallelConfig::mesh>("mesh"),
    {"order", &ShowOrder, &ReadOrder},
    Row<&ParallelConfig::layers>("layers"),
    Row<&ParallelConfig::split>("layers_per_stage"),
    Row<&ParallelConfig::schedule>("schedule"),
    Row<&ParallelConfig::chunks>("chunks"),
    Row<&ParallelConfig::micro_batch>("micro_batch"),
    Row<&ParallelConfig::memory_strategy>("memory_strategy"),
    Row<&ParallelConfig::strategy>("strategy"),
    {"dtype", &ShowDType, &ReadDType},
    Row<&ParallelConfig::memory_limit>("memory_limit"),
    Row<&ParallelConfig::device_budget>("device_budget"),
    Row<&ParallelConfig::timeout>("timeout_seconds"),
};

constexpr auto kFieldNames = [] {
  std::array<std::string_view, std::size(kFields)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kFields[i].name;
  return names;
}();

const FieldRow* FindField(std::string_view name) {
  const auto* const row = absl::c_find_if(
      kFields, [&](const FieldRow& field) { return field.name == name; });
  return row == std::end(kFields) ? nullptr : row;
}

std::string TextOf(const ConfigValue& value) {
  return std::visit([](const auto& one) { return absl::StrCat(one); }, value);
}

// Collects problems with the fields of one configuration.
class Checker {
 public:
  explicit Checker(const ParallelConfig& config) : config_(config) {}

  void Add(std::string_view field, std::string_view allowed,
           std::string_view fix = "") {
    problems_.push_back({std::string(field), TextOf(config_.Field(field)),
                         std::string(allowed), std::string(fix)});
  }
  void CheckRange(std::string_view field, int64_t least, int64_t most) {
    const int64_t value = std::get<int64_t>(config_.Field(field));
    if (least <= value && value <= most) return;
    const int64_t end = value < least ? least : most;
    Add(field,
        absl::StrCat("must be at ", end == least ? "least " : "most ", end),
        absl::StrCat(end));
  }
  // Values that no text expresses.
  void CheckText(std::string_view field) {
    ParallelConfig defaults;
    const Problem problem = defaults.SetField(field, config_.Field(field));
    const std::string usual = TextOf(defaults.Field(field));
    if (problem)
      Add(field, problem->allowed, usual.empty() ? problem->fix : usual);
  }
  Problems problems() && { return std::move(problems_); }

 private:
  const ParallelConfig& config_;
  Problems problems_;
};

void CheckMesh(const ParallelConfig& config, std::optional<int64_t> world_size,
               Checker& checker) {
  const MeshSizes& mesh = config.mesh;
  AxisOrder sorted = mesh.order;
  absl::c_sort(sorted);
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    checker.Add("order", "must name each axis once",
                FormatAxisOrder(kDefaultAxisOrder));
  }
  MeshSizes sizes = mesh;
  sizes.order = kDefaultAxisOrder;
  if (const absl::Status status = sizes.Validate(); !status.ok()) {
    return checker.Add("mesh", absl::StrCat(status.message(), "; use sizes"),
                       kMeshExample);
  }
  if (!world_size || *world_size == mesh.world_size()) return;
  MeshSizes other = mesh;
  const int64_t others = mesh.dp_replicate * mesh.pp * mesh.cp * mesh.tp;
  other.dp = *world_size / others * mesh.dp_replicate;
  checker.Add("mesh",
              absl::StrCat("has ", mesh.world_size(), " ranks, and the job ",
                           *world_size, "; use as many as the job has"),
              other.world_size() == *world_size && other.Validate().ok()
                  ? other.ToFlag()
                  : "");
}

void CheckLayers(const ParallelConfig& config, Checker& checker) {
  if (!config.mesh.Validate().ok() || config.chunks < 1 ||
      config.chunks > kMaxStages || config.layers < 0) {
    return;
  }
  const int64_t stages = config.stages();
  if (config.layers > 0 && stages > config.layers) {
    MeshSizes fewer = config.mesh;
    fewer.pp = std::max<int64_t>(config.layers / config.chunks, 1);
    return checker.Add(
        "mesh",
        absl::StrCat("pp ", config.mesh.pp, " x chunks ", config.chunks,
                     " are ", stages, " stages, and the model has ",
                     config.layers, " layers; give at most as many stages"),
        config.layers < config.chunks ? "" : fewer.ToFlag());
  }
  const std::vector<int64_t>& counts = config.split.counts;
  if (counts.empty()) return;
  const int64_t layers = config.layers > 0
                             ? config.layers
                             : absl::c_accumulate(counts, int64_t{0});
  const auto split = config.split.LayersPerStage(layers, stages);
  if (split.ok()) return;
  checker.Add("layers_per_stage", split.status().message(), "even");
}

absl::Status AllOf(const Problems& problems) {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      problems.size(), problems.size() == 1 ? " problem" : " problems",
      " with the parallel configuration:\n",
      absl::StrJoin(problems, "\n", [](std::string* text, const auto& one) {
        absl::StrAppend(text, one.ToString());
      })));
}

}  // namespace

std::string ConfigProblem::ToString() const {
  return absl::StrCat(
      field, "=", given, ": ", allowed,
      fix.empty() ? "" : absl::StrCat(", such as ", field, "=", fix));
}

Problems ParallelConfig::Problems(std::optional<int64_t> world_size) const {
  Checker checker(*this);
  CheckMesh(*this, world_size, checker);
  checker.CheckRange("layers", 0, kMostSequences);
  checker.CheckRange("chunks", 1, kMaxStages);
  checker.CheckRange("micro_batch", 1, kMostSequences);
  checker.CheckRange("timeout_seconds", 1, kMostSeconds);
  for (const std::string_view field : {"memory_strategy", "strategy", "dtype",
                                       "memory_limit", "device_budget"}) {
    checker.CheckText(field);
  }
  if (fp8 && dtype != DType::kBF16) {
    checker.Add("dtype",
                absl::StrCat("fp8 products require weights and activations of "
                             "bf16, and these are ",
                             DTypeName(dtype), "; use bf16 with them"),
                "fp8");
  }
  CheckLayers(*this, checker);
  return std::move(checker).problems();
}

absl::Status ParallelConfig::Validate(std::optional<int64_t> world_size) const {
  return AllOf(Problems(world_size));
}

std::span<const std::string_view> ParallelConfig::FieldNames() {
  return kFieldNames;
}

ConfigValue ParallelConfig::Field(std::string_view name) const {
  return FindField(name)->get(*this);
}

std::optional<ConfigProblem> ParallelConfig::SetField(
    std::string_view name, const ConfigValue& value) {
  const FieldRow* const row = FindField(name);
  Problem problem;
  if (row == nullptr) {
    problem =
        ConfigProblem{.allowed = absl::StrCat("is not a field; the nearest is ",
                                              NearestName(name, kFieldNames))};
  } else if (row->get(*this).index() != value.index()) {
    problem =
        ConfigProblem{.allowed = value.index() == 0 ? "must be a text in quotes"
                                                    : "must be a whole number"};
  } else {
    problem = row->set(value, *this);
  }
  if (!problem) return std::nullopt;
  problem->field = std::string(name);
  problem->given = TextOf(value);
  return problem;
}

std::string ParallelConfig::ToString() const {
  return absl::StrJoin(
      kFields, " ", [this](std::string* text, const auto& row) {
        absl::StrAppend(text, row.name, "=", TextOf(row.get(*this)));
      });
}

std::string ParallelConfig::ToJson() const {
  nlohmann::ordered_json json;
  for (const FieldRow& row : kFields) {
    std::visit([&](const auto& value) { json[std::string(row.name)] = value; },
               row.get(*this));
  }
  return DumpJson(json, 2) + "\n";
}

absl::StatusOr<ParallelConfig> ParallelConfig::FromJson(std::string_view text) {
  constexpr JsonLimits kLimits = {.max_bytes = size_t{1} << 16, .max_depth = 2};
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, kLimits));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected an object such as {\"mesh\": \"dp2\"}, found ",
                     DescribeJson(json)));
  }
  ParallelConfig config;
  std::vector<ConfigProblem> problems;
  for (const auto& [key, value] : json.items()) {
    Problem problem;
    if (const auto number = JsonInteger(value)) {
      problem = config.SetField(key, *number);
    } else if (value.is_string()) {
      problem = config.SetField(key, value.get<std::string>());
    } else {
      problem = ConfigProblem{key, DescribeJson(value),
                              "must be a whole number or a text in quotes"};
    }
    if (problem) problems.push_back(*std::move(problem));
  }
  TESSERA_RETURN_IF_ERROR(AllOf(problems));
  return config;
}

}  // namespace tessera::topology
