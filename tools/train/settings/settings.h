// UserPath: a path as the person who gave the command means it.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

// A relative path is one of BUILD_WORKING_DIRECTORY, where that is set: the
// directory in which `bazel run` was called, which starts programs in another.
// All else is as it was, "" too.
std::string UserPath(std::string_view path);

// Settings: a training run as its command line says it, one field for a flag of
// the same name; what `parallel` holds has flags of its own.
//
//   TESSERA_ASSIGN_OR_RETURN(const Settings settings,
//                            ReadSettings("run/config.json"));
//
// A plain value. check_settings.h refuses what makes no sense, settings_json.h
// reads and writes it, settings_flags.h takes it from the command line.

struct Settings {
  // What is trained, on what.
  std::string model = "llama-1m";  // A preset, or a directory of Hugging Face.
  // Text files, globs, directories, .u16 and .u32 files of tokens. Empty: the
  // repository's own sources and documents.
  std::vector<std::string> data = {};
  // A directory of Hugging Face. Empty: that of the model, where it is one with
  // a tokenizer.json; else bytes.
  std::string tokenizer = "";
  int64_t length = 128;  // Tokens of a sequence.
  int64_t batch = 16;    // Sequences of a step, over all ranks.
  int64_t steps = 240;
  int64_t seed = 1;

  // Who trains it.
  // --mesh, --schedule, --chunks, --micro_batch, --strategy, --dtype,
  // --memory_limit and, in whole seconds, --timeout_seconds.
  topology::ParallelConfig parallel = {.mesh = {.dp = 2, .pp = 2, .tp = 2}};
  std::string engine = "shared_memory";
  bool sequence_parallel = false;
  std::string context = "zigzag";  // zigzag, contiguous
  std::string recompute = "none";  // none, selective, full

  // Where its state lives.
  int64_t zero = 3;
  // none, or a list of optimizer, params, all and activations.
  std::string offload = "optimizer";
  std::string offload_dir = "";  // Files there; empty: host memory.
  // none, lossless; fp16, bf16, int8, quantization: tier_codecs.h says what
  // these may round.
  std::string compression = "none";
  std::string moments = "f32";        // f32, bf16, int8 (in blocks of 2048)
  int64_t bucket_bytes = 25'000'000;  // Gradients reduced at once.
  int64_t gather_ahead = 1;           // Layers, at stage 3.
  int64_t max_gathered_bytes = 0;     // 0: what gather_ahead needs.
  // Elements, at stage 3. Norms stay whole: a message of 1 KB takes as long to
  // start as one of a layer.
  int64_t persistence_threshold = 4096;
  std::string reduce = "auto";  // auto, each, last micro-batch.
  // ZeRO++: int8 gathers of weights (qwZ), int8 reductions of gradients (qgZ),
  // and ranks that hold a second copy of the weights together (hpZ; 0: none).
  bool quantized_weights = false;
  bool quantized_gradients = false;
  int64_t hpz_partition_size = 0;

  // How it learns.
  double learning_rate = 3e-3;
  double min_learning_rate = -1;  // -1: a tenth of learning_rate.
  int64_t warmup_steps = 20;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip_norm = 1;

  // What it leaves behind. Relative paths are of the directory where the
  // command was given.
  std::string run_dir = "";      // Empty: a new directory for temporary files.
  int64_t checkpoint_every = 0;  // Steps; 0: at the end alone.
  int64_t keep_checkpoints = 2;  // The newest; 0: all.
  // A checkpoint, a directory of them, or "latest": of run_dir. Empty: anew.
  std::string resume = "";
  std::string metrics = "";  // A file of one JSON object a step.
  std::string trace = "";    // A file for Perfetto.
  std::string sample_prompt = "The ";
  int64_t sample_tokens = 200;  // 0: no sample.
  double sample_temperature = 0.8;

  // How it is run.
  int64_t max_restarts = 0;
  bool elastic = false;  // Restart with fewer data-parallel ranks.
  int64_t threads = 1;   // Of the arithmetic, a rank.
  bool report = false;
  bool verify = false;
  bool dry_run = false;
  bool force = false;           // Start although memory will not suffice.
  std::string format = "text";  // Of standard output: text, json.
  bool quiet = false;

  friend bool operator==(const Settings&, const Settings&) = default;
};

// SettingsFields: the fields of Settings by name, for flags and files.
//
//   for (const SettingsField& field : SettingsFields()) {
//     std::visit([&](auto member) { Show(field.name, GetField(member,
//     settings)); },
//                field.member);
//   }

// A field of Settings::parallel, as flags and files have it: a number or a
// text.
template <typename T>
struct ParallelField {
  T (*get)(const topology::ParallelConfig& parallel);
  // InvalidArgument as CheckSettings: "--flag=value: what is allowed, ...".
  absl::Status (*set)(const T& value, topology::ParallelConfig& parallel);
};

struct SettingsField {
  std::string_view name;  // Of the field, its flag, and its key in files.
  std::variant<bool Settings::*, int64_t Settings::*, double Settings::*,
               std::string Settings::*, std::vector<std::string> Settings::*,
               ParallelField<int64_t>, ParallelField<std::string>>
      member;
  std::string_view help;
};

template <typename T>
const T& GetField(T Settings::*member, const Settings& settings) {
  return settings.*member;
}
template <typename T>
T GetField(const ParallelField<T>& field, const Settings& settings) {
  return field.get(settings.parallel);
}

template <typename T>
absl::Status SetField(const T& value, T Settings::*member, Settings& settings) {
  settings.*member = value;
  return absl::OkStatus();
}
template <typename T>
absl::Status SetField(const T& value, const ParallelField<T>& field,
                      Settings& settings) {
  return field.set(value, settings.parallel);
}

// All of them, in the order in which --help and files have them. Lives as long
// as the program.
std::span<const SettingsField> SettingsFields();

// Null where there is none.
const SettingsField* FindSettingsField(std::string_view name);

// Settings as JSON: one object, a key for each flag, none inside another.
//
//   {"mesh": "dp2,tp2", "data": ["docs", "more.u16"], "steps": 1000}
//
//   TESSERA_RETURN_IF_ERROR(WriteSettings(settings, "run/config.json"));
//   TESSERA_ASSIGN_OR_RETURN(Settings same, ReadSettings("run/config.json"));
//
// Keys that are not there keep their defaults. Source: RFC 8259, with the added
// rule that no key comes twice.

inline constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

// InvalidArgument where it is no JSON object, too long or nested, a key is
// unknown (the nearest one is named) or comes twice, or a value has another
// type than its field or says nothing ("mesh": "dp0"). What values mean is
// CheckSettings's.
absl::StatusOr<Settings> ParseSettings(std::string_view json);

// Every field, one on a line; ParseSettings reads back the same settings, to
// the last bit (timeouts in whole seconds). InvalidArgument, with the key,
// where JSON cannot say that: a number that is not finite, a text that is no
// UTF-8, and where it would be longer than kMaxSettingsBytes.
absl::StatusOr<std::string> FormatSettings(const Settings& settings);

// The same from and to a file. Errors name it. Writing replaces it as a whole,
// so that there is always the old one or the new one.
absl::StatusOr<Settings> ReadSettings(const std::string& path);
absl::Status WriteSettings(const Settings& settings, const std::string& path);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_
