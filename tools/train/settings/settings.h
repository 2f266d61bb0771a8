// Settings: a training run as its command line says it, one field for a flag of
// the same name; what `parallel` holds has flags of its own.
//
//   TESSERA_ASSIGN_OR_RETURN(const Settings settings,
//                            ReadSettings("run/config.json"));
//
// A plain value. check_settings.h refuses what makes no sense, settings_json.h
// reads and writes it, settings_flags.h takes it from the command line.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "topology/config/parallel_config.h"

namespace tessera::train {

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

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_H_
