#include "zero3/config/offload_config.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "nlohmann/json.hpp"
#include "offload/codec/codec.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"

namespace tessera::zero3 {
namespace {

using offload::kUnlimited;
using offload::PressurePolicy;
using offload::Purpose;

// Calls `visit(name, field)` for each field.
template <typename Config, typename Visitor>
void VisitFields(Config& config, Visitor&& visit) {
  visit("parameters", config.parameters);
  visit("gradients", config.gradients);
  visit("optimizer", config.optimizer);
  visit("host_budget", config.host_budget);
  visit("device_budget", config.device_budget);
  visit("host_memory", config.host_memory);
  visit("device_memory", config.device_memory);
  visit("directory", config.directory);
  visit("prefetch", config.prefetch);
  visit("async_prefetch", config.async_prefetch);
  visit("overlap", config.overlap);
  visit("pin_memory", config.pin_memory);
  visit("codec", config.codec);
  visit("strategy", config.strategy);
}

struct Writer {
  void operator()(const char* key, const auto& value) { json[key] = value; }
  void operator()(const char* key, int64_t value) {
    json[key] = value;
    if (value == kUnlimited) json[key] = nullptr;
  }
  void operator()(const char* key, offload::PressureStrategy strategy) {
    json[key] = PressurePolicy::Of(strategy).name;
  }

  nlohmann::ordered_json json;
};

struct Reader {
  void operator()(const char* key, bool& value) {
    if (fields.Has(key)) value = fields.Boolean(key);
  }
  void operator()(const char* key, int64_t& value) {
    const nlohmann::json* const found = fields.Find(key);
    if (found == nullptr) return;
    value = found->is_null() ? kUnlimited : fields.Integer(key, 0, kUnlimited);
  }
  void operator()(const char* key, std::string& value) {
    value = fields.TextOr(key, value);
  }
  void operator()(const char* key, offload::PressureStrategy& value) {
    if (!fields.Has(key)) return;
    const auto policy = PressurePolicy::Parse(fields.Text(key));
    if (policy.ok()) {
      value = policy->strategy;
    } else {
      fields.Refuse(key, policy.status().message());
    }
  }

  JsonReader fields;
};

std::shared_ptr<offload::Accounting> CountedAs(std::string name,
                                               int64_t budget = kUnlimited) {
  return std::make_shared<offload::Accounting>(std::move(name), budget);
}

bool Rounds(std::string_view codec, DType dtype) {
  const auto made = offload::CreateCodec(codec);
  return made.ok() && !(*made)->IsLossless(dtype);
}

}  // namespace

OffloadConfig OffloadConfig::Everything() {
  return {.parameters = true,
          .gradients = true,
          .optimizer = true,
          .host_budget = int64_t{32} << 30,
          .device_budget = int64_t{2} << 30,
          .host_memory = int64_t{64} << 30,
          .device_memory = int64_t{8} << 30,
          .pin_memory = true,
          .strategy = offload::PressureStrategy::kAggressive};
}

absl::Status OffloadConfig::Validate() const {
  JsonProblems problems;
  const auto positive = [&](std::string_view name, int64_t value) {
    if (value >= 1) return;
    problems.Add(absl::StrCat(name, " is ", value, "; use 1 or more"));
  };
  positive("host_budget", host_budget);
  positive("device_budget", device_budget);
  positive("host_memory", host_memory);
  positive("device_memory", device_memory);
  positive("prefetch", prefetch);
  const auto within = [&](std::string_view budget, int64_t bytes,
                          std::string_view memory, int64_t most) {
    if (bytes == kUnlimited || bytes <= most) return;
    problems.Add(absl::StrCat(budget, " is ", ByteSize(bytes).ToString(),
                              ", more than ", memory, ", which is ",
                              ByteSize(most).ToString(), "; use at most that"));
  };
  within("host_budget", host_budget, "host_memory", host_memory);
  within("device_budget", device_budget, "device_memory", device_memory);
  if (pin_memory && host_budget == kUnlimited) {
    problems.Add(
        "pin_memory locks the whole host_budget, which is unlimited; set "
        "host_budget, or pin_memory to false");
  }
  if (const auto made = offload::CreateCodec(codec); !made.ok()) {
    problems.Add(std::string(made.status().message()));
  }
  return problems.ToStatus("the offload configuration");
}

std::string OffloadConfig::CodecOf(Purpose purpose, DType parameters) const {
  const bool may_round =
      purpose == Purpose::kGradients ||
      (purpose == Purpose::kParameters && SizeInBytes(parameters) == 2);
  return may_round || !Rounds(codec, DType::kF32) ? codec : "lossless";
}

absl::StatusOr<int64_t> OffloadConfig::EffectiveHostBudget(
    DType dtype, const offload::Compression& measured) const {
  if (host_budget == kUnlimited) return kUnlimited;
  absl::int128 original = measured.original_bytes, held = measured.held_bytes;
  if (held == 0) {
    // A multiple of the blocks of every codec.
    constexpr int64_t kElements = int64_t{1} << 20;
    TESSERA_ASSIGN_OR_RETURN(const auto made, offload::CreateCodec(codec));
    TESSERA_ASSIGN_OR_RETURN(const int64_t header,
                             made->MaxEncodedBytes(dtype, 0));
    TESSERA_ASSIGN_OR_RETURN(const int64_t whole,
                             made->MaxEncodedBytes(dtype, kElements));
    original = kElements * SizeInBytes(dtype);
    held = whole - header;
  }
  const absl::int128 bytes = host_budget * original / held;
  return static_cast<int64_t>(std::min(bytes, absl::int128(kUnlimited)));
}

std::string OffloadConfig::ToJson() const {
  Writer writer;
  VisitFields(*this, writer);
  return DumpJson(writer.json, 2);
}

absl::StatusOr<OffloadConfig> OffloadConfig::Parse(std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(
      const nlohmann::json document,
      ParseJson(json, {.max_bytes = size_t{1} << 16, .max_depth = 2}));
  OffloadConfig config;
  JsonProblems problems;
  Reader reader{JsonReader(document, "", problems)};
  VisitFields(config, reader);
  reader.fields.RefuseOtherKeys();
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("the offload configuration"));
  TESSERA_RETURN_IF_ERROR(config.Validate());
  return config;
}

namespace {

// Compresses each purpose with its codec.
absl::StatusOr<std::shared_ptr<offload::MemoryTier>> Compressed(
    const OffloadConfig& config, DType parameters,
    std::shared_ptr<offload::MemoryTier> base) {
  if (config.codec == "none") return base;
  TESSERA_ASSIGN_OR_RETURN(auto codec, offload::CreateCodec(config.codec));
  offload::CompressedTier::Options options;
  for (const Purpose purpose : offload::kAllPurposes) {
    TESSERA_ASSIGN_OR_RETURN(
        options.codec_of[static_cast<size_t>(purpose)],
        offload::CreateCodec(config.CodecOf(purpose, parameters)));
  }
  return std::make_shared<offload::CompressedTier>(
      std::move(codec), std::move(base), std::move(options));
}

}  // namespace

absl::StatusOr<OffloadTier> MakeOffloadTier(const OffloadConfig& config,
                                            DType parameters,
                                            OffloadTierOptions options) {
  TESSERA_RETURN_IF_ERROR(config.Validate());
  OffloadTier made;
  std::shared_ptr<offload::MemoryTier> file;
  if (!config.directory.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        file, offload::FileTier::Create(
                  CountedAs("file"),
                  {.path = config.directory,
                   .bounce_accounting = std::move(options.file_buffers)}));
    made.tier = file;
  }
  if (file == nullptr || config.host_budget != kUnlimited) {
    std::shared_ptr<MemoryResource> memory = HostMemory();
    if (config.pin_memory) {
      TESSERA_ASSIGN_OR_RETURN(made.arena,
                               offload::PinnedArena::Create(
                                   {.cap = config.host_budget,
                                    .pinning = std::move(options.pinning)}));
      memory = made.arena;
    }
    made.tier = std::make_shared<offload::HostTier>(
        CountedAs("host", config.host_budget), std::move(memory));
  }
  if (file != nullptr && config.host_budget != kUnlimited) {
    made.tier = made.spill =
        std::make_shared<offload::SpillTier>(std::move(made.tier), file);
  }
  TESSERA_ASSIGN_OR_RETURN(
      made.tier, Compressed(config, parameters, std::move(made.tier)));
  return made;
}

void AddTo(ShardedStateOptions& options, const OffloadConfig& config,
           offload::MemoryTier* tier) {
  if (config.parameters && options.stage == 3) options.parameter_tier = tier;
  if (config.gradients && options.stage >= 2) options.gradient_tier = tier;
  if (config.optimizer) options.optimizer_tier = tier;
  if (config.device_budget != kUnlimited) {
    options.device = CountedAs("device", config.device_budget);
  }
  options.prefetch = config.async_prefetch ? config.prefetch : 0;
  options.overlap = config.overlap;
}

}  // namespace tessera::zero3
