#include "tools/train/settings/check_settings.h"

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings.h"
#include "tools/train/settings/settings_table.h"

namespace tessera::train {
namespace {

using ::testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Change = std::function<void(Settings&)>;

Settings With(const Change& change) {
  Settings settings;
  change(settings);
  return settings;
}

// Checks the settings with --flag=text and defaults elsewhere.
absl::Status CheckGiven(std::string_view flag, const std::string& text) {
  Settings settings;
  const absl::Status set = std::visit(
      [&](const auto& member) {
        using T = std::decay_t<decltype(GetField(member, settings))>;
        if constexpr (std::is_same_v<T, std::string>) {
          return SetField(text, member, settings);
        }
        return absl::InternalError("not a text");
      },
      FindSettingsField(flag)->member);
  return set.ok() ? CheckSettings(settings) : set;
}

auto Refused(const std::string& beginning) {
  return StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(beginning));
}

void ExpectAccepted(const std::vector<Change>& changes) {
  for (const Change& change : changes) {
    TESSERA_EXPECT_OK(CheckSettings(With(change)));
  }
}

TEST(CheckSettingsTest, TheDefaultsPass) {
  TESSERA_EXPECT_OK(CheckSettings(Settings()));
}

TEST(CheckSettingsTest, MeshesAndSchedulesPass) {
  ExpectAccepted({
      [](Settings& s) { s.parallel.mesh = {.tp = 1}; },
      [](Settings& s) { s.zero = 1, s.quantized_gradients = true; },
      [](Settings& s) {
        s.quantized_weights = s.quantized_gradients = true;
        s.parallel.mesh = {.dp = 4, .cp = 2}, s.hpz_partition_size = 2;
      },
      [](Settings& s) { s.hpz_partition_size = 1; },
      [](Settings& s) { s.batch = 2, s.parallel.micro_batch = 1; },
      [](Settings& s) { s.parallel.schedule = "zb_v", s.parallel.chunks = 2; },
      [](Settings& s) {
        s.parallel.schedule = "interleaved_1f1b", s.parallel.chunks = 3;
      },
      [](Settings& s) { s.parallel.schedule = "dualpipe"; },
      [](Settings& s) {
        s.parallel.schedule = "dualpipev", s.parallel.chunks = 2;
      },
      [](Settings& s) { s.parallel.mesh = {.cp = 64}, s.length = 128; },
      [](Settings& s) {
        s.parallel.mesh = {.cp = 128}, s.length = 128, s.context = "contiguous";
      },
  });
}

TEST(CheckSettingsTest, OffloadAndCompressionPass) {
  ExpectAccepted({
      [](Settings& s) { s.zero = 0; },
      [](Settings& s) { s.zero = 0, s.offload = "none"; },
      [](Settings& s) { s.offload = "all", s.compression = "lossless"; },
      [](Settings& s) { s.offload = "params", s.offload_dir = "/tmp/x"; },
      [](Settings& s) { s.offload = "grads", s.zero = 2; },
      [](Settings& s) { s.host_budget = ByteSize(1), s.pin_memory = true; },
      [](Settings& s) { s.layout = "round_robin", s.zero = 1; },
      [](Settings& s) { s.moments = "int8", s.compression = "lossless"; },
      [](Settings& s) { s.offload = "all", s.compression = "int8"; },
      [](Settings& s) { s.offload = "activations", s.zero = 0; },
      [](Settings& s) { s.offload = "optimizer,params,activations"; },
      [](Settings& s) {
        s.offload = "activations,all", s.compression = "int8";
      },
      [](Settings& s) {
        s.offload = "all", s.compression = "fp16",
        s.parallel.dtype = DType::kBF16;
      },
      [](Settings& s) {
        s.offload = "params", s.compression = "int8",
        s.parallel.dtype = DType::kBF16;
      },
      [](Settings& s) {
        s.offload = "params", s.compression = "quantization",
        s.parallel.dtype = DType::kBF16;
      },
      [](Settings& s) { s.moments = "bf16", s.offload = "none"; },
  });
}

TEST(CheckSettingsTest, RecipesAndOutputsPass) {
  ExpectAccepted({
      [](Settings& s) {
        s.spike_factor = 1.5, s.checkpoint_every = 10;
        s.spike_window = 1, s.max_rollbacks = 0;
      },
      [](Settings& s) { s.warmup_steps = s.steps + 1; },
      [](Settings& s) { s.min_learning_rate = 0, s.clip_norm = 0; },
      [](Settings& s) { s.optimizer = "muon", s.qk_clip = 100; },
      [](Settings& s) { s.learning_rate = 1e-6, s.format = "json"; },
      [](Settings& s) { s.weight_decay = 0, s.beta1 = 0, s.beta2 = 0; },
      [](Settings& s) { s.optimizer = "sgd", s.momentum = 0; },
      [](Settings& s) {
        s.lora_rank = 8, s.lora_alpha = 32, s.lora_targets = "attention";
        s.base_weights = "nf4_double";
      },
      [](Settings& s) {
        s.optimizer = "muon", s.momentum = 0.9;
        s.moments = "bf16", s.offload = "all";
      },
      [](Settings& s) {
        s.optimizer = "adafactor", s.beta2_decay = -1;
        s.update_threshold = 2, s.offload = "all";
      },
      [](Settings& s) {
        s.optimizer = "shampoo", s.shampoo_block = 1, s.shampoo_every = 1;
        s.shampoo_epsilon = 0.5, s.moments = "bf16", s.offload = "all";
      },
      [](Settings& s) { s.resume = "latest", s.run_dir = "run"; },
      [](Settings& s) { s.min_dp = 1, s.max_dp = 4, s.max_restarts = 1; },
      [](Settings& s) { s.sample_temperature = 0, s.sample_tokens = 0; },
      [](Settings& s) { s.metrics = "m", s.trace = "t"; },
      [](Settings& s) {
        s.parallel.dtype = DType::kBF16, s.recompute = "full";
      },
  });
}

TEST(CheckSettingsTest, AllEnginesAndNamedValuesPass) {
  for (const char* engine :
       {"in_process", "shared_memory", "mpi", "gloo", "nccl"}) {
    TESSERA_EXPECT_OK(
        CheckSettings(With([&](Settings& s) { s.engine = engine; })));
  }
  for (const auto& [flag, texts] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"strategy",
            {"ring", "tree", "hierarchical", "adaptive", "all_reduce"}},
           {"dtype", {"fp32", "bf16", "fp16"}},
           {"memory_limit", {"", "1", "300MiB", "1.5 GB"}},
           {"host_budget", {"", "1", "32GB", "8GiB"}},
           {"mesh",
            {"tp2, dp4", "dp=2,cp=2", "dp_replicate2,dp_shard4",
             "tp2,dp4,dp_shard2", "dp4,dp_shard2,dp_replicate2"}}}) {
    for (const std::string& text : texts) {
      TESSERA_EXPECT_OK(CheckGiven(flag, text)) << flag << " " << text;
    }
  }
}

struct RefusedCase {
  std::string message;  // The start of the message.
  Change change;
};

void ExpectRefused(const std::string& message, const absl::Status& status) {
  EXPECT_THAT(status, Refused(message));
  // The message contains a valid example or an instruction.
  EXPECT_TRUE(absl::StrContains(status.message(), "such as ") ||
              absl::StrContains(status.message(), "for example ") ||
              absl::StrContains(status.message(), "use ") ||
              absl::StrContains(status.message(), "add ") ||
              absl::StrContains(status.message(), "micro-batches work"))
      << status;
  EXPECT_FALSE(absl::StrContains(status.message(), "\n"));
  EXPECT_LT(status.message().size(), 500u);
}

void ExpectRefused(const std::vector<RefusedCase>& cases) {
  for (const auto& [message, change] : cases) {
    ExpectRefused(message, CheckSettings(With(change)));
  }
}

TEST(CheckSettingsTest, RejectsMalformedTexts) {
  struct Case {
    std::string message;
    std::string_view flag;
    std::string text;
  };
  const std::vector<Case> cases = {
      {"--dtype=fp64: must be one of fp32, bf16, fp16, fp8, such as --dtype=",
       "dtype", "fp64"},
      {"--dtype=\\n\\x1b[0m: must be one of", "dtype", "\n\x1b[0m"},
      {"--mesh=: a mesh of 0 characters", "mesh", ""},
      {"--mesh=dp0: axis \"dp\" has size 0", "mesh", "dp0"},
      {"--mesh=dp2,dp2: axis \"dp\" is named twice", "mesh", "dp2,dp2"},
      {"--mesh=zz2: unknown axis \"zz\"; the axes are dp (or dp_replicate "
       "and dp_shard), pp, cp, tp and ep",
       "mesh", "zz2"},
      {"--mesh=dp4,dp_shard3: dp_shard3 does not divide dp4; use", "mesh",
       "dp4,dp_shard3"},
      {"--mesh=dp_replicate3,dp4: dp_replicate3 does not divide dp4; use",
       "mesh", "dp_replicate3,dp4"},
      {"--mesh=dp4,dp_shard4,dp_replicate2: dp4 is not dp_replicate2 x "
       "dp_shard4: leave dp out; use",
       "mesh", "dp4,dp_shard4,dp_replicate2"},
      {"--mesh=dp2\\n: \"dp2\\n\" has characters that do not print", "mesh",
       "dp2\n"},
      {"--mesh=dp: ", "mesh", "dp"},
      {"--mesh=dp2,tp1048576: 2097152 ranks; at most 1048576", "mesh",
       "dp2,tp1048576"},
      {"--strategy=rings: must be one of all_reduce, hierarchical, ring, tree, "
       "adaptive, such as --strategy=ring",
       "strategy", "rings"},
      {"--memory_limit=0: must be a number of bytes above 0, such as "
       "--memory_limit=300MiB",
       "memory_limit", "0"},
      {"--memory_limit=much: must be", "memory_limit", "much"},
      {"--memory_limit=-5MiB: must", "memory_limit", "-5MiB"},
      {"--device_budget=0: must be a number of bytes above 0, such as",
       "device_budget", "0"},
      {"--host_budget=0: must be a number of bytes above 0, such as "
       "--host_budget=32GiB",
       "host_budget", "0"},
      {"--host_budget=32XB: must be", "host_budget", "32XB"},
      {"--memory_strategy=extrem: must be one of basic, standard, aggressive, "
       "extreme, such as --memory_strategy=extreme",
       "memory_strategy", "extrem"},
      {"--layers_per_stage=3;5: \"3;5\" is not even, cost, or a list of "
       "numbers "
       "of layers, such as --layers_per_stage=3,5",
       "layers_per_stage", "3;5"},
  };
  for (const auto& [message, flag, text] : cases) {
    ExpectRefused(message, CheckGiven(flag, text));
  }
}

// Values that a program can set but no text expresses.
TEST(CheckSettingsTest, RejectsValuesWithoutText) {
  ExpectRefused({
      {"--dtype=f64: must be one of fp32, bf16, fp16, fp8, such as "
       "--dtype=fp32",
       [](auto& s) { s.parallel.dtype = DType::kF64; }},
      {"--mesh=dp0,pp2,tp2: axis \"dp\" has size 0",
       [](auto& s) { s.parallel.mesh.dp = 0; }},
      {"--mesh=dp2,pp2,tp2: dp_replicate0 does not divide dp2; use",
       [](auto& s) { s.parallel.mesh.dp_replicate = 0; }},
      {"--dtype=fp8: fp8 products require weights and activations of bf16, and "
       "these are f16; use bf16 with them, such as --dtype=fp8",
       [](auto& s) { s.parallel.dtype = DType::kF16, s.parallel.fp8 = true; }},
      {"--layers_per_stage=1,2,1: there are 2 stages, and 3 numbers of layers",
       [](auto& s) {
         s.parallel.split.counts = {1, 2, 1};
       }},
      {"--layers_per_stage=cost: has no effect with a schedule from a file",
       [](auto& s) {
         s.parallel.split.by_cost = true, s.parallel.schedule = "my.csv";
       }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidModelsAndData) {
  ExpectRefused({
      {"--model=: must be a preset", [](auto& s) { s.model = ""; }},
      {"--data=: contains an empty name",
       [](auto& s) {
         s.data = {"a", ""};
       }},
      {"--length=0: must be at least 1, such as --length=1",
       [](auto& s) { s.length = 0; }},
      {"--length=9223372036854775807: must be at most 2147483648",
       [](auto& s) { s.length = std::numeric_limits<int64_t>::max(); }},
      {"--batch=-1: must be at least 1", [](auto& s) { s.batch = -1; }},
      {"--micro_batch=0: must be", [](auto& s) { s.parallel.micro_batch = 0; }},
      {"--steps=0: must be at least 1", [](auto& s) { s.steps = 0; }},
      {"--seed=-1: must be at least 0", [](auto& s) { s.seed = -1; }},
  });
}

TEST(CheckSettingsTest, RejectsIncompatibleMeshesAndBatches) {
  ExpectRefused({
      {"--batch=10: must be a multiple of 8 (dp 2 x --micro_batch=4), such as "
       "--batch=8",
       [](auto& s) { s.batch = 10, s.parallel.micro_batch = 4; }},
      {"--batch=1: must be a multiple of 2 (dp 2 x --micro_batch=1), such as "
       "--batch=2",
       [](auto& s) { s.batch = 1; }},
      {"--batch=16: must be a multiple of 2199023255552",
       [](auto& s) { s.parallel.micro_batch = int64_t{1} << 40; }},
      {"--length=7: must be at least 8, since cp 4 with --context=zigzag",
       [](auto& s) { s.parallel.mesh = {.cp = 4}, s.length = 7; }},
      {"--length=3: must be at least 4, since cp 4 with --context=contiguous",
       [](auto& s) {
         s.parallel.mesh = {.cp = 4}, s.length = 3, s.context = "contiguous";
       }},
      {"--format=csv: must be one of text, json",
       [](auto& s) { s.format = "csv"; }},
      {"--context=zig: must be one of zigzag, contiguous, such as "
       "--context=zigzag",
       [](auto& s) { s.context = "zig"; }},
      {"--context_attention=rings: must be one of ring, ulysses, such as "
       "--context_attention=ring",
       [](auto& s) { s.context_attention = "rings"; }},
      {"--context_attention=ulysses: has no effect with cp 1",
       [](auto& s) { s.context_attention = "ulysses"; }},
  });
}

TEST(CheckSettingsTest, RejectsOverlapChunksWithoutSequenceParallelism) {
  ExpectRefused({
      {"--overlap_chunks=-1: must be at least 0",
       [](auto& s) { s.overlap_chunks = -1; }},
      {"--overlap_chunks=1025: must be at most 1024",
       [](auto& s) { s.overlap_chunks = 1025; }},
      {"--overlap_chunks=4: has no effect with tp 1",
       [](auto& s) {
         s.parallel.mesh = {.dp = 2};
         s.overlap_chunks = 4, s.sequence_parallel = true;
       }},
      {"--overlap_chunks=4: requires sequence parallelism; add "
       "--sequence_parallel",
       [](auto& s) { s.overlap_chunks = 4; }},
  });
}

TEST(CheckSettingsTest, RejectsZeroPlusPlusWithoutShards) {
  ExpectRefused({
      {"--quantized_weights=true: requires sharded weights; use --zero=3",
       [](auto& s) { s.quantized_weights = true, s.zero = 2; }},
      {"--quantized_gradients=true: requires sharded optimizer state",
       [](auto& s) { s.quantized_gradients = true, s.zero = 0; }},
      {"--hpz_partition_size=-1: must be at least 0",
       [](auto& s) { s.hpz_partition_size = -1; }},
      {"--hpz_partition_size=2: requires sharded weights; use --zero=3",
       [](auto& s) { s.hpz_partition_size = 2, s.zero = 1; }},
      {"--hpz_partition_size=4: must divide the 6 ranks that share the weights "
       "(dp_shard 3 x cp 2), such as --hpz_partition_size=2",
       [](auto& s) {
         s.parallel.mesh = {.dp = 6, .cp = 2, .dp_replicate = 2}, s.batch = 6;
         s.hpz_partition_size = 4;
       }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidSchedules) {
  ExpectRefused({
      {"--schedule=1f1: must be one of sequential, gpipe, round_robin, 1f1b",
       [](auto& s) { s.parallel.schedule = "1f1"; }},
      {"--chunks=0: must be at least 1",
       [](auto& s) { s.parallel.chunks = 0; }},
      {"--chunks=2: --schedule=1f1b has 1 per rank; use --chunks=1",
       [](auto& s) { s.parallel.chunks = 2; }},
      {"--chunks=1: --schedule=zb_v has 2 per rank; use --chunks=2",
       [](auto& s) { s.parallel.schedule = "zb_v"; }},
      {"--mesh=pp3: --schedule=dualpipe requires an even pp, such as pp4",
       [](auto& s) {
         s.parallel.schedule = "dualpipe", s.parallel.mesh = {.pp = 3};
       }},
      {"--schedule=1f1b: 1f1b for 2 ranks, 1 chunks and 549755813888",
       [](auto& s) { s.batch = int64_t{1} << 40; }},
  });
}

TEST(CheckSettingsTest, RejectsUnknownValuesAndWrongNumbers) {
  ExpectRefused({
      {"--engine=tcp: must be one of", [](auto& s) { s.engine = "tcp"; }},
      {"--order=tp-dp: order \"tp-dp\" lacks axis \"pp\"",
       [](auto& s) { s.order = "tp-dp"; }},
      {"--recompute=half: must be one of none, selective, full",
       [](auto& s) { s.recompute = "half"; }},
      {"--zero=4: must be at most 3", [](auto& s) { s.zero = 4; }},
      {"--zero=-1: must be at least 0", [](auto& s) { s.zero = -1; }},
      {"--moments=fp32: must be one of f32, bf16, int8, such as --moments=f32",
       [](auto& s) { s.moments = "fp32"; }},
      {"--bucket_bytes=0: must be", [](auto& s) { s.bucket_bytes = 0; }},
      {"--timeout_seconds=0: must",
       [](auto& s) { s.parallel.timeout = absl::ZeroDuration(); }},
      {"--device=gpu: must be one of cpu, emulated, cuda",
       [](auto& s) { s.device = "gpu"; }},
      {"--device=cuda:x: must be one of", [](auto& s) { s.device = "cuda:x"; }},
      {"--device=cuda:: must be one of", [](auto& s) { s.device = "cuda:"; }},
      {"--device=cuda:0,2,0: must be one of cpu, emulated, cuda, or a list of "
       "distinct GPUs, such as --device=cuda:0,2,3",
       [](auto& s) { s.device = "cuda:0,2,0"; }},
      {"--device_seed=-1: must be at least 0",
       [](auto& s) { s.device_seed = -1; }},
      {"--threads=0: must be at least 1", [](auto& s) { s.threads = 0; }},
      {"--threads=1025: must be at most 1024",
       [](auto& s) { s.threads = 1025; }},
  });
}

TEST(CheckSettingsTest, RejectsEarlyStepsWithoutEffect) {
  Settings settings;
  settings.speculative_bytes = 1 << 20;
  TESSERA_EXPECT_OK(CheckSettings(settings));
  ExpectRefused({
      {"--speculative_bytes=-1: must be",
       [](auto& s) { s.speculative_bytes = -1; }},
      {"--speculative_bytes=5: has no effect unless the optimizer state is in "
       "host memory",
       [](auto& s) {
         s.speculative_bytes = 5;
         s.offload = "none";
       }},
      {"--speculative_bytes=5: has no effect with --device=cpu",
       [](auto& s) {
         s.speculative_bytes = 5;
         s.device = "cpu";
       }},
      {"--speculative_bytes=5: is not counted by --memory_limit",
       [](auto& s) {
         s.speculative_bytes = 5;
         s.parallel.memory_limit = ByteSize(int64_t{1} << 30);
       }},
  });
}

TEST(CheckSettingsTest, RejectsGraphsForDifferingSteps) {
  const auto one_rank = [](auto& s) {
    s.parallel.mesh = {};
    s.offload = "none";
    s.cuda_graphs = "on";
    s.device = "emulated";
  };
  Settings settings;
  one_rank(settings);
  TESSERA_EXPECT_OK(CheckSettings(settings));
  ExpectRefused({
      {"--cuda_graphs=yes: must be one of auto, on, off",
       [](auto& s) { s.cuda_graphs = "yes"; }},
      {"--cuda_graphs=on: requires a single rank, because collectives are not "
       "captured; use --mesh=dp1",
       [&](auto& s) {
         one_rank(s);
         s.parallel.mesh = {.dp = 2};
       }},
      {"--cuda_graphs=on: requires an asynchronous device",
       [&](auto& s) {
         one_rank(s);
         s.device = "cpu";
       }},
      {"--cuda_graphs=on: does not support dropout, whose masks",
       [&](auto& s) {
         one_rank(s);
         s.dropout = 0.1;
       }},
      {"--cuda_graphs=on: does not support offload, whose transfers",
       [&](auto& s) {
         one_rank(s);
         s.offload = "optimizer";
       }},
      {"--cuda_graphs=on: does not support --memory_limit",
       [&](auto& s) {
         one_rank(s);
         s.parallel.memory_limit = ByteSize(int64_t{1} << 30);
       }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidOffload) {
  ExpectRefused({
      {"--offload=disk: contains \"disk\", which is not one of none, "
       "optimizer, params, grads, all, activations; use for example --offload=",
       [](auto& s) { s.offload = "disk"; }},
      {"--offload=: contains \"\"", [](auto& s) { s.offload = ""; }},
      {"--offload=optimizer,disk: contains \"disk\", which is not one of",
       [](auto& s) { s.offload = "optimizer,disk"; }},
      {"--offload=optimizer,: contains \"\"",
       [](auto& s) { s.offload = "optimizer,"; }},
      {"--offload=none,activations: combines none with other names; use for",
       [](auto& s) { s.offload = "none,activations"; }},
      {"--offload=activations,activations: contains activations twice; use",
       [](auto& s) { s.offload = "activations,activations"; }},
      {"--offload=all,optimizer: contains optimizer, which all includes; use",
       [](auto& s) { s.offload = "all,optimizer"; }},
      {"--offload=params,activations: requires --zero=3, because with --zero=1 "
       "every rank holds all parameters at any time; use --zero=3 or "
       "--offload=optimizer,activations",
       [](auto& s) { s.offload = "params,activations", s.zero = 1; }},
      {"--offload=params: requires --zero=3, because with --zero=2",
       [](auto& s) { s.offload = "params", s.zero = 2; }},
      {"--offload=all: requires --zero=3",
       [](auto& s) { s.offload = "all", s.zero = 0; }},
      {"--offload=grads,activations: requires --zero=2 or 3, because with "
       "--zero=1 every rank holds all gradients; use --zero=2 or "
       "--offload=optimizer,activations",
       [](auto& s) { s.offload = "grads,activations", s.zero = 1; }},
      {"--offload=all,grads: contains grads, which all includes",
       [](auto& s) { s.offload = "all,grads"; }},
      {"--host_budget=9B: has no effect with --offload=none",
       [](auto& s) { s.host_budget = ByteSize(9), s.offload = "none"; }},
      {"--host_budget=-1B: must be a number of bytes above 0, such as "
       "--host_budget=32GiB",
       [](auto& s) { s.host_budget = ByteSize(-1); }},
      {"--pin_memory=true: page-locks --host_budget, which has no limit; use",
       [](auto& s) { s.pin_memory = true; }},
      {"--offload_strategy=extreme: has no effect without --memory_limit; use",
       [](auto& s) { s.offload_strategy = "extreme"; }},
      {"--offload_strategy=bold: must be one of conservative, balanced, ",
       [](auto& s) { s.offload_strategy = "bold"; }},
      {"--layout=balanced: has no effect without sharded state; use for "
       "example --zero=1",
       [](auto& s) { s.layout = "balanced", s.zero = 0; }},
      {"--layout=rows: must be one of chunks, round_robin, balanced",
       [](auto& s) { s.layout = "rows"; }},
      {"--offload_dir=/d: has no effect with --offload=none",
       [](auto& s) { s.offload_dir = "/d", s.offload = "none"; }},
  });
}

TEST(CheckSettingsTest, RejectsLossyOrUselessCompression) {
  ExpectRefused({
      {"--compression=int8: is lossy, and --offload=activations offloads only "
       "activations, which require exact codecs; use --compression=none or "
       "lossless",
       [](auto& s) { s.compression = "int8", s.offload = "activations"; }},
      {"--compression=int8: is lossy, and --offload=optimizer,activations "
       "offloads "
       "only master weights, moments and activations, which",
       [](auto& s) {
         s.compression = "int8", s.offload = "optimizer,activations";
       }},
      {"--compression=zip: must be one of none, fp16, bf16, int8, "
       "quantization, lossless",
       [](auto& s) { s.compression = "zip"; }},
      {"--compression=int8: has no effect with --offload=none",
       [](auto& s) { s.compression = "int8", s.offload = "none"; }},
      {"--compression=int8: is lossy, and --offload=optimizer offloads only "
       "master weights and moments, which require exact codecs; use "
       "--compression=none or lossless, or smaller moments such as "
       "--moments=int8",
       [](auto& s) { s.compression = "int8"; }},
      {"--compression=bf16: is lossy, and --offload=optimizer",
       [](auto& s) {
         s.compression = "bf16", s.parallel.dtype = DType::kBF16;
       }},
      {"--compression=int8: is lossy, and parameters of --dtype=fp32 are "
       "master weights",
       [](auto& s) { s.compression = "int8", s.offload = "params"; }},
      {"--compression=fp16: does not shrink parameters of --dtype=bf16",
       [](auto& s) {
         s.compression = "fp16", s.offload = "params",
         s.parallel.dtype = DType::kBF16;
       }},
  });
}

// Worked out by hand for every codec and kind of state.
TEST(TierCodecsTest, RoundsOnlyGradientsAndParametersWithMasters) {
  using offload::Purpose;
  for (const char* codec :
       {"none", "lossless", "fp16", "bf16", "int8", "quantization"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Settings settings;
      settings.compression = codec;
      settings.parallel.dtype = dtype;
      settings.offload = "all";
      const bool is_exact = std::string_view(codec) == "none" ||
                            std::string_view(codec) == "lossless";
      const std::string exact = is_exact ? codec : "lossless";
      const bool has_masters = dtype == DType::kBF16;
      const auto name = [&](Purpose purpose) {
        return TierCodecName(settings, purpose);
      };
      EXPECT_EQ(name(Purpose::kOptimizer), exact);
      EXPECT_EQ(name(Purpose::kActivations), exact);
      EXPECT_EQ(name(Purpose::kParameters), has_masters ? codec : exact);
      EXPECT_EQ(name(Purpose::kGradients), codec);
      EXPECT_FALSE(TierCodecRounds(settings, Purpose::kOptimizer));
      EXPECT_EQ(TierCodecRounds(settings, Purpose::kGradients), !is_exact);
      const bool is_8_or_4_bits = std::string_view(codec) == "int8" ||
                                  std::string_view(codec) == "quantization";
      EXPECT_EQ(TierCodecRounds(settings, Purpose::kParameters),
                has_masters && is_8_or_4_bits);
      settings.offload = "optimizer,activations";
      EXPECT_FALSE(TierCodecRounds(settings, Purpose::kGradients));
      EXPECT_FALSE(TierCodecRounds(settings, Purpose::kActivations));
    }
  }
}

TEST(OffloadChoiceTest, ParsesList) {
  using offload::Purpose;
  const auto has = [](std::string_view offload) {
    const OffloadChoice choice = OffloadChoice::Of(offload);
    std::string names;
    for (const Purpose purpose : offload::kAllPurposes) {
      if (choice.has(purpose)) {
        absl::StrAppend(&names, offload::PurposeName(purpose), " ");
      }
    }
    EXPECT_EQ(choice.any(), !names.empty());
    return names;
  };
  EXPECT_EQ(has("none"), "");
  EXPECT_EQ(has("optimizer"), "optimizer ");
  EXPECT_EQ(has("params,activations"), "parameters activations ");
  EXPECT_EQ(has("grads"), "gradients ");
  EXPECT_EQ(has("all"), "parameters gradients optimizer ");
  EXPECT_EQ(has("activations,all"),
            "parameters gradients optimizer activations ");
  EXPECT_EQ(has("disk"), "");
  EXPECT_EQ(WithActivationsOf("params,activations", "all"), "all,activations");
  EXPECT_EQ(WithActivationsOf("params", "all"), "all");
}

TEST(OffloadChoiceTest, DescribesHostBudget) {
  Settings settings;
  EXPECT_THAT(DescribeHostBudget(settings), IsOkAndHolds(""));
  settings.host_budget = ByteSize(1 << 20);
  settings.offload = "all";
  settings.compression = "fp16";
  settings.parallel.dtype = DType::kF32;
  TESSERA_ASSERT_OK_AND_ASSIGN(std::string text, DescribeHostBudget(settings));
  EXPECT_THAT(text, ::testing::HasSubstr("host budget of a rank: 1MiB, for "));
  EXPECT_THAT(text, ::testing::HasSubstr(" or 2MiB of gradients or "));
  settings.offload = "grads";
  settings.offload_dir = "there";
  EXPECT_THAT(DescribeHostBudget(settings),
              IsOkAndHolds("host budget of a rank: 1MiB, for 2MiB of "
                           "gradients; more goes to --offload_dir, and the "
                           "strategy conservative moves a fifth of the blocks "
                           "when memory is nearly used up"));
}

TEST(CheckSettingsTest, RejectsInvalidLearningRates) {
  ExpectRefused({
      {"--learning_rate=0: must be more than 0 and finite, such as "
       "--learning_rate=3e-3",
       [](auto& s) { s.learning_rate = 0; }},
      {"--learning_rate=nan: ", [](auto& s) { s.learning_rate = kNan; }},
      {"--learning_rate=inf: ", [](auto& s) { s.learning_rate = kInfinity; }},
      {"--min_learning_rate=-2: must be at least 0",
       [](auto& s) { s.min_learning_rate = -2; }},
      {"--min_learning_rate=1: must be at most --learning_rate=0.003",
       [](auto& s) { s.min_learning_rate = 1; }},
      {"--warmup_steps=-1: must be", [](auto& s) { s.warmup_steps = -1; }},
      {"--weight_decay=-0.1: must", [](auto& s) { s.weight_decay = -0.1; }},
      {"--lr_schedule=step: ", [](auto& s) { s.lr_schedule = "step"; }},
      {"--warmup_tokens=-1: must be", [](auto& s) { s.warmup_tokens = -1; }},
      {"--train_tokens=-1: must be", [](auto& s) { s.train_tokens = -1; }},
      {"--min_learning_rate=0.001: has no effect with --lr_schedule=constant",
       [](auto& s) {
         s.lr_schedule = "constant";
         s.min_learning_rate = 0.001;
       }},
      {"--decay_steps=-2: must be", [](auto& s) { s.decay_steps = -2; }},
      {"--decay_steps=241: must be", [](auto& s) { s.decay_steps = 241; }},
      {"--decay_steps=10: has no effect without --lr_schedule=wsd",
       [](auto& s) { s.decay_steps = 10; }},
      {"--decay=vectors: ", [](auto& s) { s.decay = "vectors"; }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidOptimizersAndAdapters) {
  ExpectRefused({
      {"--optimizer=adam: must be one of adafactor, adamw, lion, "
       "muon, sgd",
       [](auto& s) { s.optimizer = "adam"; }},
      {"--loss_scale=1024: requires --dtype=fp16",
       [](auto& s) { s.loss_scale = 1024; }},
      {"--loss_scale=0.5: must be",
       [](auto& s) { s.parallel.dtype = DType::kF16, s.loss_scale = 0.5; }},
      {"--loss_scale_window=10: requires a dynamic loss scale",
       [](auto& s) {
         s.parallel.dtype = DType::kF16;
         s.loss_scale = 1024, s.loss_scale_window = 10;
       }},
      {"--loss_scale_window=0: must be",
       [](auto& s) { s.loss_scale_window = 0; }},
      {"--lora_rank=-1: must be", [](auto& s) { s.lora_rank = -1; }},
      {"--lora_alpha=0: must be",
       [](auto& s) { s.lora_rank = 8, s.lora_alpha = 0; }},
      {"--lora_alpha=32: has no effect without adapters",
       [](auto& s) { s.lora_alpha = 32; }},
      {"--lora_targets=mlp: has no effect without adapters",
       [](auto& s) { s.lora_targets = "mlp"; }},
      {"--base_weights=nf4: quantizes frozen weights, and without adapters all "
       "weights are trained; use for example --lora_rank=8",
       [](auto& s) { s.base_weights = "nf4"; }},
      {"--base_weights=nf4: decodes the weights of a layer when they are "
       "gathered, as --zero=3 does; use --zero=3",
       [](auto& s) { s.base_weights = "nf4", s.lora_rank = 8, s.zero = 2; }},
      {"--base_weights=nf4: is undone by --hpz_partition_size",
       [](auto& s) {
         s.base_weights = "nf4", s.lora_rank = 8, s.hpz_partition_size = 1;
       }},
      {"--base_weights=fp4: must be one of full, nf4, nf4_double",
       [](auto& s) { s.base_weights = "fp4", s.lora_rank = 8; }},
      {"--lora_targets=heads: must be one of attention, mlp, all",
       [](auto& s) { s.lora_rank = 8, s.lora_targets = "heads"; }},
      {"--optimizer=muon: orthogonalizes whole matrices, which --lora_rank "
       "does "
       "not train",
       [](auto& s) { s.optimizer = "muon", s.lora_rank = 8; }},
      {"--qk_clip=100: scales the weights of attention, which --lora_rank does "
       "not train; use --qk_clip=0",
       [](auto& s) { s.qk_clip = 100, s.lora_rank = 8; }},
      {"--qk_clip=-1: must be", [](auto& s) { s.qk_clip = -1; }},
      {"--beta1=0.8: has no effect with --optimizer=adafactor",
       [](auto& s) { s.optimizer = "adafactor", s.beta1 = 0.8; }},
      {"--beta2=0.8: has no effect with --optimizer=adafactor, which uses "
       "--beta2_decay",
       [](auto& s) { s.optimizer = "adafactor", s.beta2 = 0.8; }},
      {"--epsilon=0.5: has no effect with --optimizer=adafactor",
       [](auto& s) { s.optimizer = "adafactor", s.epsilon = 0.5; }},
      {"--moments=bf16: has no effect with --optimizer=adafactor",
       [](auto& s) { s.optimizer = "adafactor", s.moments = "bf16"; }},
      {"--momentum=0.9: has no effect with",
       [](auto& s) { s.optimizer = "adafactor", s.momentum = 0.9; }},
      {"--beta2_decay=0: must be at least -1 and below 0",
       [](auto& s) { s.optimizer = "adafactor", s.beta2_decay = 0; }},
      {"--update_threshold=0.5: must be at least 1",
       [](auto& s) { s.optimizer = "adafactor", s.update_threshold = 0.5; }},
      {"--beta2_decay=-0.5: has no effect without --optimizer=adafactor",
       [](auto& s) { s.beta2_decay = -0.5; }},
      {"--update_threshold=2: has no effect without --optimizer=adafactor",
       [](auto& s) { s.update_threshold = 2; }},
      {"--speculative_bytes=100: applies to optimizer steps on the host",
       [](auto& s) {
         s.optimizer = "adafactor", s.speculative_bytes = 100;
         s.device = "emulated";
       }},
      {"--optimizer=shampoo: preconditions whole matrices, which --lora_rank "
       "does not train",
       [](auto& s) { s.optimizer = "shampoo", s.lora_rank = 8; }},
      {"--moments=int8: quantizes blocks, which the matrices of "
       "--optimizer=shampoo would split",
       [](auto& s) { s.optimizer = "shampoo", s.moments = "int8"; }},
      {"--momentum=0.9: has no effect with --optimizer=adamw, lion and shampoo",
       [](auto& s) { s.optimizer = "shampoo", s.momentum = 0.9; }},
      {"--shampoo_block=0: must be ",
       [](auto& s) { s.optimizer = "shampoo", s.shampoo_block = 0; }},
      {"--shampoo_every=0: must be ",
       [](auto& s) { s.optimizer = "shampoo", s.shampoo_every = 0; }},
      {"--shampoo_epsilon=0: must be at least 1e-08 and below 1",
       [](auto& s) { s.optimizer = "shampoo", s.shampoo_epsilon = 0; }},
      {"--shampoo_block=64: has no effect without --optimizer=shampoo",
       [](auto& s) { s.shampoo_block = 64; }},
      {"--shampoo_every=5: has no effect without --optimizer=shampoo",
       [](auto& s) { s.shampoo_every = 5; }},
      {"--shampoo_epsilon=0.1: has no effect without --optimizer=shampoo",
       [](auto& s) { s.optimizer = "muon", s.shampoo_epsilon = 0.1; }},
      {"--speculative_bytes=100: applies to optimizer steps on the host",
       [](auto& s) {
         s.optimizer = "shampoo", s.speculative_bytes = 100;
         s.device = "emulated";
       }},
      {"--momentum=1: must be at least 0 and below 1",
       [](auto& s) { s.optimizer = "muon", s.momentum = 1; }},
      {"--momentum=0.9: has no effect with --optimizer=adamw",
       [](auto& s) { s.momentum = 0.9; }},
      {"--objective=dpo: requires JSON lines with a prompt",
       [](auto& s) {
         s.objective = "dpo", s.parallel.micro_batch = 2, s.data = {"x"};
         s.data = {};
       }},
      {"--objective=dpo: requires an even --micro_batch",
       [](auto& s) {
         s.objective = "dpo", s.parallel.micro_batch = 2, s.data = {"x"};
         s.parallel.micro_batch = 1;
       }},
      {"--objective=dpo: does not support --document_attention",
       [](auto& s) {
         s.objective = "dpo", s.parallel.micro_batch = 2, s.data = {"x"};
         s.document_attention = true;
       }},
      {"--objective=dpo: does not support terms of the cross-entropy",
       [](auto& s) {
         s.objective = "dpo", s.parallel.micro_batch = 2, s.data = {"x"};
         s.z_loss = 0.1;
       }},
      {"--objective=dpo: compares completions",
       [](auto& s) {
         s.objective = "dpo", s.parallel.micro_batch = 2, s.data = {"x"};
         s.mask_prompts = false;
       }},
      {"--objective=dpo: computes its loss on the host",
       [](auto& s) {
         s.objective = "dpo", s.parallel.micro_batch = 2, s.data = {"x"};
         s.cuda_graphs = "on", s.device = "emulated";
         s.offload = "none", s.parallel.mesh = {};
       }},
      {"--dpo_beta=1: has no effect without --objective=dpo",
       [](auto& s) { s.dpo_beta = 1; }},
      {"--objective=ppo: must be one of lm, dpo",
       [](auto& s) { s.objective = "ppo"; }},
      {"--momentum=0.9: has no effect with --optimizer=adamw, lion and",
       [](auto& s) { s.optimizer = "lion", s.momentum = 0.9; }},
      {"--param_groups=norm: \"norm\" is not a pattern and its settings",
       [](auto& s) { s.param_groups = "norm"; }},
      {"--moments=int8: quantizes blocks, which the matrices of "
       "--optimizer=muon would split",
       [](auto& s) { s.optimizer = "muon", s.moments = "int8"; }},
      {"--speculative_bytes=100: applies to optimizer steps on the host, and "
       "--optimizer=muon",
       [](auto& s) {
         s.optimizer = "muon", s.speculative_bytes = 100;
         s.device = "emulated";
       }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidClippingAndRollbacks) {
  ExpectRefused({
      {"--beta1=1: must be at least 0 and below 1",
       [](auto& s) { s.beta1 = 1; }},
      {"--beta2=nan: must be", [](auto& s) { s.beta2 = kNan; }},
      {"--epsilon=0: must be more than 0", [](auto& s) { s.epsilon = 0; }},
      {"--clip_norm=-1: must be", [](auto& s) { s.clip_norm = -1; }},
      {"--max_skipped_steps=-1: must be",
       [](auto& s) { s.max_skipped_steps = -1; }},
      {"--spike_factor=-1: must be at least 0 and finite, such as "
       "--spike_factor=1.5",
       [](auto& s) { s.spike_factor = -1, s.checkpoint_every = 10; }},
      {"--spike_factor=nan: must be", [](auto& s) { s.spike_factor = kNan; }},
      {"--spike_factor=1: must be more than 1, or 0",
       [](auto& s) { s.spike_factor = 1, s.checkpoint_every = 10; }},
      {"--spike_factor=1.5: returns to checkpoints, and "
       "--checkpoint_every=0 writes none before the end; use for example "
       "--checkpoint_every=100",
       [](auto& s) { s.spike_factor = 1.5; }},
      {"--spike_factor=1.5: skips samples, which the run on one rank of "
       "--verify does not",
       [](auto& s) {
         s.spike_factor = 1.5, s.checkpoint_every = 10;
         s.verify = true;
       }},
      {"--spike_window=0: must be at least 1",
       [](auto& s) {
         s.spike_factor = 1.5, s.checkpoint_every = 10;
         s.spike_window = 0;
       }},
      {"--spike_window=1001: must be at most 1000",
       [](auto& s) {
         s.spike_factor = 1.5, s.checkpoint_every = 10;
         s.spike_window = 1001;
       }},
      {"--spike_window=8: has no effect without --spike_factor",
       [](auto& s) { s.spike_window = 8; }},
      {"--max_rollbacks=-1: must be at least 0",
       [](auto& s) { s.max_rollbacks = -1; }},
      {"--max_rollbacks=5: has no effect without --spike_factor",
       [](auto& s) { s.max_rollbacks = 5; }},
      {"--dropout=1: must be at least 0 and below 1, such as --dropout=0.1",
       [](auto& s) { s.dropout = 1; }},
      {"--dropout=-0.5: must be", [](auto& s) { s.dropout = -0.5; }},
      {"--label_smoothing=1: must be at least 0 and below 1, such as "
       "--label_smoothing=0.1",
       [](auto& s) { s.label_smoothing = 1; }},
      {"--z_loss=-1: must be", [](auto& s) { s.z_loss = -1; }},
      {"--z_loss=inf: must be", [](auto& s) { s.z_loss = kInfinity; }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidBatchWarmup) {
  // The mesh is dp2, the batch 16.
  ExpectRefused({
      {"--batch_warmup=4: must be a number of sequences and a number of steps, "
       "such as --batch_warmup=4:100",
       [](auto& s) { s.batch_warmup = "4"; }},
      {"--batch_warmup=0:10: must be",
       [](auto& s) { s.batch_warmup = "0:10"; }},
      {"--batch_warmup=6:10: the first batch must be a divisor of --batch=16, "
       "from 1/4096 to 1/2 of it, and a multiple of 2 (dp 2 x "
       "--micro_batch=1), such as --batch_warmup=8:10",
       [](auto& s) { s.batch_warmup = "6:10"; }},
      {"--batch_warmup=16:10: the first batch must be a divisor",
       [](auto& s) { s.batch_warmup = "16:10"; }},
      {"--batch_warmup=2:10: the first batch must be a divisor of "
       "--batch=16384",
       [](auto& s) { s.batch_warmup = "2:10", s.batch = 16384; }},
      {"--batch_warmup=1:10: the first batch must be a divisor",
       [](auto& s) { s.batch_warmup = "1:10"; }},
      {"--batch_warmup=4:10: the first batch must be a divisor of --batch=8, "
       "from 1/4096 to 1/2 of it, and a multiple of 8 (dp 2 x "
       "--micro_batch=4), such as with --batch=16",
       [](auto& s) {
         s.batch_warmup = "4:10", s.batch = 8, s.parallel.micro_batch = 4;
       }},
      {"--batch_warmup=4:10: requires a schedule for each number of "
       "micro-batches, and --schedule=auto has one",
       [](auto& s) { s.batch_warmup = "4:10", s.parallel.schedule = "auto"; }},
      {"--batch_warmup=4:10: requires a schedule",
       [](auto& s) {
         s.batch_warmup = "4:10", s.parallel.schedule = "my.csv";
       }},
      {"--batch_warmup=4:10: changes the gradient reductions",
       [](auto& s) {
         s.batch_warmup = "4:10", s.speculative_bytes = 100;
         s.device = "emulated";
       }},
      {"--cuda_graphs=on: requires equal steps, and --batch_warmup",
       [](auto& s) {
         s.batch_warmup = "4:10", s.cuda_graphs = "on";
         s.device = "emulated", s.parallel.mesh = {};
       }},
  });
  ExpectAccepted({
      [](Settings& s) { s.batch_warmup = "4:100"; },
      [](Settings& s) { s.batch_warmup = "8:1"; },
      [](Settings& s) { s.batch_warmup = "2:1000"; },
  });
}

TEST(CheckSettingsTest, RejectsValidationWithoutOwnData) {
  ExpectRefused({
      {"--validation_fraction=1: must be at least 0 and below 1",
       [](auto& s) { s.validation_fraction = 1; }},
      {"--test_fraction=-0.1: must be at least 0 and below 1",
       [](auto& s) { s.test_fraction = -0.1; }},
      {"--test_fraction=0.5: leaves no training data with "
       "--validation_fraction=0.5",
       [](auto& s) { s.validation_fraction = s.test_fraction = 0.5; }},
      {"--eval_every=-1: must be", [](auto& s) { s.eval_every = -1; }},
      {"--eval_batches=0: must be", [](auto& s) { s.eval_batches = 0; }},
      {"--eval_every=10: requires validation data; use for example "
       "--validation_fraction=0.05",
       [](auto& s) { s.eval_every = 10; }},
  });
}

TEST(CheckSettingsTest, RejectsInvalidOutputsAndRestarts) {
  ExpectRefused({
      {"--checkpoint_every=-1", [](auto& s) { s.checkpoint_every = -1; }},
      {"--keep_checkpoints=-1", [](auto& s) { s.keep_checkpoints = -1; }},
      {"--sample_tokens=-1: must be", [](auto& s) { s.sample_tokens = -1; }},
      {"--sample_temperature=-1: must be at least 0 and finite",
       [](auto& s) { s.sample_temperature = -1; }},
      {"--resume=latest: selects a checkpoint of --run_dir, which is empty",
       [](auto& s) { s.resume = "latest"; }},
      {"--resume=best: selects a checkpoint of --run_dir, which is empty",
       [](auto& s) { s.resume = "best"; }},
      {"--keep_best=true: requires validation losses; use for example "
       "--eval_every=100",
       [](auto& s) { s.keep_best = true; }},
      {"--trace=x: is also the file of --metrics",
       [](auto& s) { s.trace = s.metrics = "x"; }},
      {"--html=x: is also the file of --metrics; use another one, such as "
       "--html=run.html",
       [](auto& s) { s.html = s.metrics = "x"; }},
      {"--prometheus_file=metrics.txt: must end in .prom, as node_exporter "
       "reads no other files; use for example --prometheus_file=",
       [](auto& s) { s.prometheus_file = "metrics.txt"; }},
      {"--prometheus_file=prom: must end in .prom",
       [](auto& s) { s.prometheus_file = "prom"; }},
      {"--prometheus_file=x.prom: is also the file of --metrics; use another "
       "one, such as --prometheus_file=train.prom",
       [](auto& s) { s.prometheus_file = s.metrics = "x.prom"; }},
      {"--html=x: is also the file of --trace",
       [](auto& s) { s.html = s.trace = "x"; }},
      {"--time_limit=2: must be a time above 0 with its unit",
       [](auto& s) { s.time_limit = "2"; }},
      {"--time_limit=20s: must be above --grace_period=30s, such as "
       "--time_limit=5m",
       [](auto& s) { s.time_limit = "20s"; }},
      {"--grace_period=0: must be a time above 0",
       [](auto& s) { s.grace_period = "0"; }},
      {"--max_restarts=-1: must be", [](auto& s) { s.max_restarts = -1; }},
      {"--snapshot_every=1: is for the replacement of lost ranks, which "
       "--max_restarts=0 rules out",
       [](auto& s) { s.snapshot_every = 1; }},
      {"--encrypt_data=true: encrypts the connections of Gloo; use "
       "--engine=auto",
       [](auto& s) { s.encrypt_data = true; }},
      {"--encrypt_data=true: encrypts the connections of Gloo",
       [](auto& s) { s.encrypt_data = true, s.engine = "mpi"; }},
      {"--snapshot_every=2: requires ranks that are processes",
       [](auto& s) {
         s.snapshot_every = 2, s.max_restarts = 1, s.engine = "in_process";
       }},
      {"--snapshot_every=1: keeps copies in the memory of other ranks, of "
       "which a single rank has none",
       [](auto& s) {
         s.snapshot_every = s.max_restarts = 1, s.parallel.mesh = {};
       }},
      {"--snapshot_every=auto: keeps copies in the memory of other ranks, of "
       "which a single rank has none; use for example --mesh=dp2",
       [](auto& s) {
         s.snapshot_every = kAutomatic;
         s.max_restarts = 1, s.parallel.mesh = {};
       }},
      {"--snapshot_every=auto: is for the replacement of lost ranks",
       [](auto& s) { s.snapshot_every = kAutomatic; }},
      {"--snapshot_every=-1: must be at least 0",
       [](auto& s) { s.snapshot_every = -1; }},
      {"--mtbf=100h: is for the number of steps between copies in memory; use "
       "--snapshot_every=auto",
       [](auto& s) {
         s.mtbf = "100h", s.snapshot_every = s.max_restarts = 1;
         s.parallel.mesh.dp = 2;
       }},
      {"--mtbf=100: must be a time above 0 with its unit",
       [](auto& s) {
         s.mtbf = "100", s.snapshot_every = kAutomatic, s.max_restarts = 1;
         s.parallel.mesh.dp = 2;
       }},
      {"--hang_timeout=5: must be a time above 0 with its unit",
       [](auto& s) { s.hang_timeout = "5"; }},
      {"--min_dp=1: has no effect with --max_restarts=0",
       [](auto& s) { s.min_dp = 1; }},
      {"--max_dp=4: has no effect with --max_restarts=0",
       [](auto& s) { s.max_dp = 4; }},
      {"--min_dp=4: must be at most the dp 2 of --mesh=dp2,pp2,tp2",
       [](auto& s) { s.min_dp = 4, s.max_restarts = 1; }},
      {"--max_dp=1: must be at least the dp 2 of --mesh=dp2,pp2,tp2",
       [](auto& s) { s.max_dp = 1, s.max_restarts = 1; }},
      {"--max_dp=3: dp 3 x --micro_batch=1 does not divide --batch=16",
       [](auto& s) { s.max_dp = 3, s.max_restarts = 1; }},
      {"--min_dp=3: is not a multiple of dp_shard 2 of "
       "--mesh=dp_replicate3,dp_shard2",
       [](auto& s) {
         s.min_dp = 3, s.max_restarts = 1, s.batch = 12;
         s.parallel.mesh = {.dp = 6, .dp_replicate = 3};
       }},
  });
}

TEST(CheckSettingsTest, AcceptsSeveralOutputsToADevice) {
  TESSERA_EXPECT_OK(CheckSettings(
      With([](Settings& s) { s.html = s.trace = s.metrics = "/dev/null"; })));
}

TEST(CheckSettingsTest, AgreesWithTheGeneratorsForAllSmallPipelines) {
  for (const std::string_view name : pipeline::GeneratorNames()) {
    for (int64_t pp = 1; pp <= 4; ++pp) {
      for (int64_t chunks = 1; chunks <= 3; ++chunks) {
        for (int64_t batch = 1; batch <= 5; ++batch) {
          const auto schedule = pipeline::Generate(name, {pp, chunks, batch});
          EXPECT_EQ(CheckSettings(With([&](Settings& s) {
                      s.parallel.mesh = {.pp = pp};
                      s.parallel.schedule = std::string(name);
                      s.parallel.chunks = chunks;
                      s.batch = batch;
                    })).ok(),
                    schedule.ok())
              << name << " " << pp << " " << chunks << " " << batch;
        }
      }
    }
  }
}

// Values for flags.
const std::vector<int64_t> kNumbers = {std::numeric_limits<int64_t>::min(),
                                       -1,
                                       0,
                                       1,
                                       2,
                                       3,
                                       4,
                                       8,
                                       60,
                                       1000,
                                       int64_t{1} << 40,
                                       std::numeric_limits<int64_t>::max()};
const std::vector<double> kReals = {kNan,   -kInfinity, kInfinity, -1, -0.0,
                                    1e-300, 1e-3,       0.5,       1,  1e300};
const std::vector<std::string> kWords = {
    "",    "none", "all",     "params",  "1f1b", "zb_v",   "dualpipe", "int8",
    "dp2", "pp4",  "cp2,tp2", "dp3,pp2", "bf16", "latest", "\xff\n",   "full"};

template <typename T>
void SetAny(std::mt19937_64& random, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = random() % 2 == 0;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    value = kNumbers[random() % kNumbers.size()];
  } else if constexpr (std::is_same_v<T, double>) {
    value = kReals[random() % kReals.size()];
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = kWords[random() % kWords.size()];
  } else {
    value = {kWords[random() % kWords.size()]};
  }
}

// Changes up to five fields.
Settings AnySettings(std::mt19937_64& random) {
  Settings settings;
  for (size_t i = random() % 6; i > 0; --i) {
    const auto fields = SettingsFields();
    std::visit(
        [&](const auto& member) {
          auto value = GetField(member, settings);
          SetAny(random, value);
          // Invalid text leaves the field unchanged.
          SetField(value, member, settings).IgnoreError();
        },
        fields[random() % fields.size()].member);
  }
  return settings;
}

TEST(CheckSettingsFuzzTest, AnyValuesPassOrFailInOneLine) {
  std::mt19937_64 random(4);
  TextMutator meshes({"dp2,pp2,tp2", "cp4", "dp=3,tp8", "dp4,dp_shard2"},
                     {",", "=", "ep8", "dp", "-1"}, 5);
  TESSERA_ASSERT_OK_AND_ASSIGN(const model_files::ModelConfig model,
                               model_files::PresetConfig("llama-1m"));
  int passed = 0;
  for (int round = 0; round < 20'000; ++round) {
    Settings settings = AnySettings(random);
    if (random() % 4 == 0) {
      const auto mesh = topology::MeshSizes::Parse(meshes.Next());
      settings.parallel.mesh = mesh.value_or(settings.parallel.mesh);
    }
    const absl::Status status = CheckSettings(settings);
    if (status.ok()) {
      ++passed;
      const auto options = RunOptionsFrom(settings, model);
      if (!options.ok()) {  // The model's sizes decide.
        ASSERT_TRUE(settings.max_gathered_bytes > 0 ||
                    absl::EndsWith(settings.parallel.schedule, ".csv"));
        ASSERT_THAT(options.status(), Refused("--"));
        continue;
      }
      ASSERT_EQ(
          settings.batch % (options->mesh.dp * settings.parallel.micro_batch),
          0);
      continue;
    }
    ASSERT_THAT(status, Refused("--"));
    ASSERT_EQ(status.message().find('\n'), std::string::npos) << status;
    ASSERT_LT(status.message().size(), 1000u);
  }
  EXPECT_GT(passed, 1000);
}

}  // namespace
}  // namespace tessera::train
