#include "tools/train/settings/settings_flags.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/marshalling.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/train/settings/flag_checks.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// A flag value that records whether it was given. A given value overrides a
// file, even if it equals the default.
template <typename T>
struct GivenFlag {
  GivenFlag() = default;
  explicit GivenFlag(T first) : value(std::move(first)) {}

  T value = {};
  bool given = false;
};

// Describes the values that a T accepts, for an error message.
template <typename T>
constexpr std::string_view ExpectedFlagValue() {
  if (std::is_same_v<T, bool>) return "expected true or false";
  if (std::is_same_v<T, int64_t>) {
    return "expected a whole number, -2^63 to 2^63-1";
  }
  if (std::is_same_v<T, double>) return "expected a number such as 3e-4";
  return "expected names separated by commas, none of them empty";
}

template <typename T>
bool AbslParseFlag(std::string_view text, GivenFlag<T>* flag,
                   std::string* error) {
  bool parsed = absl::ParseFlag(text, &flag->value, error);
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    parsed = parsed && !absl::c_linear_search(flag->value, "");
  }
  flag->given = true;
  if (!parsed) *error = std::string(ExpectedFlagValue<T>());
  return parsed;
}

template <typename T>
std::string AbslUnparseFlag(const GivenFlag<T>& flag) {
  return absl::UnparseFlag(flag.value);
}

}  // namespace tessera::train

ABSL_FLAG(std::string, config, "",
          "a JSON file of settings, which the other flags override");

// Define a flag for the field of that name. PARALLEL is for the values of
// `parallel`, which have type T there.
#define TESSERA_SETTINGS_FLAG(name)                                        \
  ABSL_FLAG(                                                               \
      tessera::train::GivenFlag<decltype(tessera::train::Settings::name)>, \
      name,                                                                \
      tessera::train::GivenFlag<decltype(tessera::train::Settings::name)>( \
          tessera::train::Settings().name),                                \
      std::string(tessera::train::FindSettingsField(#name)->help))

#define TESSERA_PARALLEL_FLAG(T, name)                                \
  ABSL_FLAG(tessera::train::GivenFlag<T>, name,                       \
            tessera::train::GivenFlag<T>(                             \
                std::get<tessera::train::ParallelField<T>>(           \
                    tessera::train::FindSettingsField(#name)->member) \
                    .get(tessera::train::Settings().parallel)),       \
            std::string(tessera::train::FindSettingsField(#name)->help))

TESSERA_SETTINGS_FLAG(model);
TESSERA_SETTINGS_FLAG(data);
TESSERA_SETTINGS_FLAG(tokenizer);
TESSERA_SETTINGS_FLAG(token_cache);
TESSERA_SETTINGS_FLAG(mask_prompts);
TESSERA_PARALLEL_FLAG(std::string, dtype);
TESSERA_SETTINGS_FLAG(length);
TESSERA_SETTINGS_FLAG(batch);
TESSERA_SETTINGS_FLAG(batch_warmup);
TESSERA_PARALLEL_FLAG(int64_t, micro_batch);
TESSERA_SETTINGS_FLAG(steps);
TESSERA_SETTINGS_FLAG(train_tokens);
TESSERA_SETTINGS_FLAG(seed);
TESSERA_SETTINGS_FLAG(validation_fraction);
TESSERA_SETTINGS_FLAG(test_fraction);
TESSERA_SETTINGS_FLAG(eval_every);
TESSERA_SETTINGS_FLAG(eval_batches);
TESSERA_PARALLEL_FLAG(std::string, mesh);
TESSERA_SETTINGS_FLAG(order);
TESSERA_SETTINGS_FLAG(engine);
TESSERA_PARALLEL_FLAG(std::string, strategy);
TESSERA_PARALLEL_FLAG(std::string, schedule);
TESSERA_PARALLEL_FLAG(int64_t, chunks);
TESSERA_SETTINGS_FLAG(sequence_parallel);
TESSERA_SETTINGS_FLAG(overlap_chunks);
TESSERA_SETTINGS_FLAG(context);
TESSERA_SETTINGS_FLAG(context_attention);
TESSERA_SETTINGS_FLAG(recompute);
TESSERA_SETTINGS_FLAG(zero);
TESSERA_SETTINGS_FLAG(offload);
TESSERA_SETTINGS_FLAG(offload_dir);
TESSERA_SETTINGS_FLAG(compression);
TESSERA_SETTINGS_FLAG(moments);
TESSERA_SETTINGS_FLAG(speculative_bytes);
TESSERA_SETTINGS_FLAG(bucket_bytes);
TESSERA_SETTINGS_FLAG(gather_ahead);
TESSERA_SETTINGS_FLAG(max_gathered_bytes);
TESSERA_SETTINGS_FLAG(persistence_threshold);
TESSERA_SETTINGS_FLAG(reduce);
TESSERA_SETTINGS_FLAG(quantized_weights);
TESSERA_SETTINGS_FLAG(quantized_gradients);
TESSERA_SETTINGS_FLAG(hpz_partition_size);
TESSERA_SETTINGS_FLAG(optimizer);
TESSERA_SETTINGS_FLAG(momentum);
TESSERA_SETTINGS_FLAG(loss_scale);
TESSERA_SETTINGS_FLAG(loss_scale_window);
TESSERA_SETTINGS_FLAG(lora_rank);
TESSERA_SETTINGS_FLAG(lora_alpha);
TESSERA_SETTINGS_FLAG(lora_targets);
TESSERA_SETTINGS_FLAG(learning_rate);
TESSERA_SETTINGS_FLAG(min_learning_rate);
TESSERA_SETTINGS_FLAG(lr_schedule);
TESSERA_SETTINGS_FLAG(warmup_steps);
TESSERA_SETTINGS_FLAG(warmup_tokens);
TESSERA_SETTINGS_FLAG(decay_steps);
TESSERA_SETTINGS_FLAG(weight_decay);
TESSERA_SETTINGS_FLAG(decay);
TESSERA_SETTINGS_FLAG(beta1);
TESSERA_SETTINGS_FLAG(beta2);
TESSERA_SETTINGS_FLAG(epsilon);
TESSERA_SETTINGS_FLAG(clip_norm);
TESSERA_SETTINGS_FLAG(max_skipped_steps);
TESSERA_SETTINGS_FLAG(spike_factor);
TESSERA_SETTINGS_FLAG(spike_window);
TESSERA_SETTINGS_FLAG(max_rollbacks);
TESSERA_SETTINGS_FLAG(document_attention);
TESSERA_SETTINGS_FLAG(dropout);
TESSERA_SETTINGS_FLAG(label_smoothing);
TESSERA_SETTINGS_FLAG(z_loss);
TESSERA_SETTINGS_FLAG(expert_balance);
TESSERA_SETTINGS_FLAG(router_z_loss);
TESSERA_SETTINGS_FLAG(expert_capacity);
TESSERA_SETTINGS_FLAG(router_bias_rate);
TESSERA_SETTINGS_FLAG(run_dir);
TESSERA_SETTINGS_FLAG(checkpoint_every);
TESSERA_SETTINGS_FLAG(keep_checkpoints);
TESSERA_SETTINGS_FLAG(keep_best);
TESSERA_SETTINGS_FLAG(resume);
TESSERA_SETTINGS_FLAG(metrics);
TESSERA_SETTINGS_FLAG(tensorboard);
TESSERA_SETTINGS_FLAG(html);
TESSERA_SETTINGS_FLAG(prometheus_file);
TESSERA_SETTINGS_FLAG(trace);
TESSERA_SETTINGS_FLAG(sample_prompt);
TESSERA_SETTINGS_FLAG(sample_tokens);
TESSERA_SETTINGS_FLAG(sample_temperature);
TESSERA_SETTINGS_FLAG(max_restarts);
TESSERA_SETTINGS_FLAG(elastic);
TESSERA_PARALLEL_FLAG(int64_t, timeout_seconds);
TESSERA_SETTINGS_FLAG(device);
TESSERA_SETTINGS_FLAG(device_seed);
TESSERA_SETTINGS_FLAG(deterministic);
TESSERA_SETTINGS_FLAG(cuda_graphs);
TESSERA_SETTINGS_FLAG(threads);
TESSERA_PARALLEL_FLAG(std::string, memory_limit);
TESSERA_SETTINGS_FLAG(report);
TESSERA_SETTINGS_FLAG(verify);
TESSERA_SETTINGS_FLAG(dry_run);
TESSERA_SETTINGS_FLAG(force);
TESSERA_SETTINGS_FLAG(format);
TESSERA_SETTINGS_FLAG(quiet);

#undef TESSERA_PARALLEL_FLAG
#undef TESSERA_SETTINGS_FLAG

namespace tessera::train {
namespace {

absl::StatusOr<Settings> SettingsOfConfig() {
  const std::string path = absl::GetFlag(FLAGS_config);
  if (path.empty()) return Settings();
  absl::StatusOr<Settings> settings = ReadSettings(UserPath(path));
  TESSERA_RETURN_IF_ERROR(tools::FlagError("config", path, settings.status()));
  return settings;
}

// A given number of steps overrides the number of tokens of a file.
absl::Status ResolveTokens(Settings& settings) {
  if (absl::GetFlag(FLAGS_steps).given) {
    if (absl::GetFlag(FLAGS_train_tokens).given && settings.train_tokens != 0) {
      return RefuseFlag(
          "train_tokens", settings.train_tokens,
          absl::StrCat("determines the steps, and --steps=", settings.steps,
                       " is given too; give one of them"));
    }
    settings.train_tokens = 0;
  }
  const int64_t steps = StepsOfTokens(settings.train_tokens, settings);
  if (steps > 0) settings.steps = steps;
  return absl::OkStatus();
}

// The field whose flag the argument is, without a value; null if there is none.
const SettingsField* BareFlag(std::string_view argument) {
  if (!absl::StartsWith(argument, "--")) return nullptr;
  return FindSettingsField(argument.substr(2));
}

}  // namespace

std::vector<std::string_view> TrainFlags() {
  std::vector<std::string_view> names = {"config"};
  for (const SettingsField& field : SettingsFields()) {
    names.push_back(field.name);
  }
  return names;
}

std::vector<std::string> TrainArguments(
    const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  bool is_value = false;
  for (const std::string& argument : arguments) {
    const SettingsField* field = is_value ? nullptr : BareFlag(argument);
    const bool is_yes = field != nullptr &&
                        std::holds_alternative<bool Settings::*>(field->member);
    is_value =
        !is_value && !is_yes && (field != nullptr || argument == "--config");
    result.push_back(is_yes ? absl::StrCat(argument, "=true") : argument);
  }
  return result;
}

absl::StatusOr<Settings> SettingsFromFlags() {
  TESSERA_ASSIGN_OR_RETURN(Settings settings, SettingsOfConfig());
  for (const SettingsField& field : SettingsFields()) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(field.name);
    TESSERA_RETURN_IF_ERROR(std::visit(
        [&](const auto& member) {
          using T = std::decay_t<decltype(GetField(member, settings))>;
          const auto value = flag->TryGet<GivenFlag<T>>();
          return value.has_value() && value->given
                     ? SetField(value->value, member, settings)
                     : absl::OkStatus();
        },
        field.member));
  }
  TESSERA_RETURN_IF_ERROR(ResolveTokens(settings));
  return settings;
}

}  // namespace tessera::train
