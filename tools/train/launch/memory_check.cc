#include "tools/train/launch/memory_check.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "base/tensor/tensor.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/cli/cli.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/launch/supervise.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/run_options_from.h"
#include "topology/config/strategies.h"

namespace tessera::train {

namespace {

// Sides longer than kLongSide need no more packing in any kernel; sides shorter
// than kShortSide may use other kernels.
constexpr int64_t kLongSide = 20480;
constexpr int64_t kDepth = 1024;
constexpr int64_t kShortSide = 32;
constexpr int64_t kQueries = 512;

using Product = std::array<int64_t, 3>;  // m, n, k.

// The products of a layer y = x w^T: y, and the gradients of x and w.
void AddLayer(int64_t tokens, int64_t in, int64_t out,
              std::set<Product>& products) {
  for (const auto& [m, n, k] :
       {Product{tokens, out, in}, {tokens, in, out}, {out, in, tokens}}) {
    const int64_t depth = std::min(k, kDepth);
    products.insert({std::min(m, kLongSide), std::min(n, kShortSide), depth});
    products.insert({std::min(m, kShortSide), std::min(n, kLongSide), depth});
  }
}

std::set<Product> ProductsOf(const StageShapes& s) {
  std::set<Product> products;
  AddLayer(s.tokens, s.hidden, s.qkv, products);
  AddLayer(s.tokens, s.query, s.hidden, products);
  AddLayer(s.tokens, s.hidden, s.gate_up, products);
  AddLayer(s.tokens, s.intermediate, s.hidden, products);
  if (s.is_last) AddLayer(s.tokens, s.hidden, s.vocabulary, products);
  return products;
}

// Runs operations on operands that are zero pages, which are never written and
// therefore take no memory.
class Arithmetic {
 public:
  explicit Arithmetic(int threads)
      : threads_(threads), ops_({.threads = threads}) {}

  absl::Status Run(const StageShapes& shapes) {
    for (const auto& [m, n, k] : ProductsOf(shapes)) {
      if (m == 0 || n == 0 || k == 0) continue;
      TESSERA_RETURN_IF_ERROR(Multiply(shapes.dtype, m, n, k));
    }
    return shapes.heads > 0 && shapes.kv_heads > 0 ? Attend(shapes)
                                                   : absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> Zeros(DType dtype,
                               const std::vector<int64_t>& shape) const {
    return Tensor::Create(dtype, shape, zeros_);
  }
  // Allocates a result, whose pages return to the system immediately.
  static absl::StatusOr<Tensor> Result(DType dtype,
                                       const std::vector<int64_t>& shape) {
    return Tensor::Create(dtype, shape, std::make_shared<CountingMemory>());
  }

  absl::Status Multiply(DType dtype, int64_t m, int64_t n, int64_t k) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor a, Zeros(dtype, {m, k}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor b, Zeros(dtype, {n, k}));
    TESSERA_ASSIGN_OR_RETURN(Tensor c, Result(dtype, {m, n}));
    return ops_.Run(tensor_parallel::op::Gemm{
        {.transpose_b = true}, a.view(), b.view(), c.view()});
  }

  // Attention with a pair of keys and values for each thread.
  absl::Status Attend(const StageShapes& s) {
    const int64_t queries =
        std::min(s.positions[static_cast<size_t>(s.context_rank)], kQueries);
    const int64_t pairs = std::min<int64_t>(s.kv_heads, threads_);
    const int64_t heads = s.heads / s.kv_heads * pairs;
    TESSERA_ASSIGN_OR_RETURN(const Tensor q,
                             Zeros(s.dtype, {1, queries, heads, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor k,
                             Zeros(s.dtype, {1, queries, pairs, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(
        Tensor output, Result(s.statistics, {1, queries, heads, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(
        Tensor pair, Result(s.statistics, {2, queries, pairs, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(Tensor numbers,
                             Result(s.statistics, {1, queries, heads}));
    const tensor_parallel::AttentionBlock block = {
        .query = q.view(), .key = k.view(), .value = k.view()};
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    TESSERA_RETURN_IF_ERROR(
        ops_.Run(tensor_parallel::op::Fill{0, output.view()}));
    TESSERA_RETURN_IF_ERROR(
        ops_.Run(tensor_parallel::op::Fill{kNothing, numbers.view()}));
    TESSERA_RETURN_IF_ERROR(ops_.Run(
        tensor_parallel::op::Attend{block, {output.view(), numbers.view()}}));
    TESSERA_ASSIGN_OR_RETURN(
        const Tensor attended,
        Zeros(s.statistics, {1, queries, heads, s.head_size}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor delta,
                             Zeros(s.statistics, {1, queries, heads}));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView key_gradient,
        pair.view().Reshape({{2, 1, queries, pairs, s.head_size}}));
    TESSERA_ASSIGN_OR_RETURN(const TensorView of_keys,
                             key_gradient.Select(0, 0));
    TESSERA_ASSIGN_OR_RETURN(const TensorView of_values,
                             key_gradient.Select(0, 1));
    return ops_.Run(
        tensor_parallel::op::AttendGradient{block,
                                            {.output_gradient = q.view(),
                                             .output = attended.view(),
                                             .log_sum_exp = numbers.view(),
                                             .delta = delta.view(),
                                             .query_gradient = output.view(),
                                             .key_gradient = of_keys,
                                             .value_gradient = of_values}});
  }

  const std::shared_ptr<CountingMemory> zeros_ =
      std::make_shared<CountingMemory>();
  const int threads_;
  tensor_parallel::CpuOps ops_;
};

absl::StatusOr<StageShapes> ShapesOf(const RunOptions& run) {
  // A stage with all kinds of layers.
  return StageShapes::Of(run, {},
                         {.layers = {0, 1}, .is_first = true, .is_last = true});
}

// A mesh of at most 8 ranks, with two along each axis on which the run has more
// than one, because each axis has its own groups and communication threads.
MeshSizes SmallMesh(const MeshSizes& mesh) {
  MeshSizes small;
  for (const auto axis :
       {&MeshSizes::tp, &MeshSizes::dp, &MeshSizes::pp, &MeshSizes::cp}) {
    if (mesh.*axis > 1 && small.world_size() < 8) small.*axis = 2;
  }
  return small;
}

// The settings of the measured run. Instead of mpi the processes use shared
// memory, which needs no launcher.
Settings SmallestRun(const Settings& settings, const std::string& text) {
  Settings small;
  small.data = {text};
  small.tokenizer = settings.tokenizer;
  small.engine = settings.engine == "mpi" ? "shared_memory" : settings.engine;
  small.threads = settings.threads;
  // Adaptive runs measure collectives first, which leaves freed memory.
  small.parallel.strategy = settings.parallel.strategy;
  small.parallel.mesh = settings.engine == "in_process"
                            ? MeshSizes()
                            : SmallMesh(settings.parallel.mesh);
  small.zero = settings.zero;
  small.batch = 4;
  small.length = 128;
  // With fewer steps the C library would keep less freed memory.
  small.steps = 24;
  small.warmup_steps = 0;
  small.quiet = true;
  return small;
}

absl::StatusOr<RunResult> Run(const Settings& settings,
                              const std::string& program,
                              const RunDirectory& directory) {
  const AttemptOutcome outcome = RunAttempt(
      settings, {.files = {directory.exchange()}, .program = program});
  TESSERA_RETURN_IF_ERROR(outcome.status);
  return ParseRunResult(outcome.result);
}

absl::StatusOr<int64_t> Measure(const Settings& run,
                                const model_files::ModelConfig& model,
                                const std::string& program,
                                const RunDirectory& directory) {
  const std::string text = directory.path() + "/text.txt";
  TESSERA_RETURN_IF_ERROR(WriteFile(text, std::string(4096, 'a')));
  const Settings settings = SmallestRun(run, text);
  TESSERA_ASSIGN_OR_RETURN(const RunResult result,
                           Run(settings, program, directory));
  TESSERA_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(settings));
  TESSERA_ASSIGN_OR_RETURN(
      const auto small_model,
      ModelOf(settings, data.tokenizer->vocabulary_size()));
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
  room.process = 0;
  TESSERA_ASSIGN_OR_RETURN(
      const RunPrediction prediction,
      MakePrediction(settings, small_model, {.room = room}));
  int64_t process = 0;
  for (size_t i = 0; i < result.ranks.size(); ++i) {
    process = std::max(process, result.ranks[i].memory.peak_resident -
                                    prediction.ranks[i].peak_bytes());
  }
  // GPUs compute the products of the run.
  if (absl::StartsWith(run.device, "cuda")) return process;
  TESSERA_ASSIGN_OR_RETURN(const RunOptions small,
                           RunOptionsFrom(settings, small_model));
  TESSERA_ASSIGN_OR_RETURN(const RunOptions large, RunOptionsFrom(run, model));
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t products,
      MeasureProducts(small, large, static_cast<int>(run.threads)));
  // Each thread of a process has its own buffers.
  const int64_t ranks =
      run.engine == "in_process" ? large.mesh.world_size() : 1;
  return process + ranks * products;
}

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1fMiB",
                         static_cast<double>(bytes) / (1024.0 * 1024.0));
}

// Describes the weights and gradients of the largest layer, which a rank must
// hold at the same time.
std::string LargestLayer(const Settings& settings,
                         const model_files::ModelConfig& model) {
  const int64_t table = model.vocabulary * model.hidden;
  // If any layer is a mixture, the last one is. A rank holds only some of its
  // experts.
  const int64_t experts =
      3 * model.mixture.experts * model.hidden * model.mixture.intermediate;
  const int64_t layer = model.LayerParameterCount(model.layers - 1) - experts +
                        experts / settings.parallel.mesh.ep;
  const bool is_table = table > layer;
  const int64_t weights = std::max(table, layer) / settings.parallel.mesh.tp;
  const int64_t width = SizeInBytes(settings.parallel.dtype);
  return absl::StrCat(is_table ? "the embedding" : "a transformer layer",
                      " alone has ", weights * width, " bytes of weights and ",
                      weights * SizeInBytes(DType::kF32),
                      " of gradients on a rank");
}

// The smallest limit that satisfies FitsMemoryLimit, in whole MiB.
int64_t LeastLimit(int64_t needed) {
  constexpr int64_t kMiB = 1 << 20;
  return (needed + needed / 20 + kMiB - 1) / kMiB;
}

std::string Gibibytes(int64_t bytes) {
  return absl::StrFormat(
      "%.1f GiB", static_cast<double>(bytes) / static_cast<double>(1 << 30));
}

// Describes the best change, or the combination of changes.
std::string AdviceOf(const RunPrediction& prediction) {
  if (prediction.advice.empty()) {
    return "no flag helps: use more ranks on more machines, or a smaller "
           "model";
  }
  const std::vector<MemoryAdvice>& advice = prediction.advice;
  std::string flags = advice.front().flag;
  const MemoryAdvice* last = &advice.front();
  for (size_t i = 1; i < advice.size() && advice[i].and_before; ++i) {
    absl::StrAppend(&flags, " and ", advice[i].flag);
    last = &advice[i];
  }
  return absl::StrCat(
      flags, " would need ",
      prediction.on_gpu ? absl::StrCat(Gibibytes(last->device_needed),
                                       " of device memory and ")
                        : "",
      Gibibytes(last->needed), prediction.on_gpu ? " of host memory" : "",
      last->fits ? ", which fits" : ", which does not fit");
}

// "its 2 ranks on this machine need 3.0 GiB (N bytes) of memory"
std::string NeedOf(int64_t ranks, std::string_view where, int64_t needed,
                   std::string_view memory) {
  return absl::StrCat(
      ranks == 1 ? absl::StrCat("its rank", where, " needs ")
                 : absl::StrCat("its ", ranks, " ranks", where, " need "),
      Gibibytes(needed), " (", needed, " bytes) of ", memory);
}

std::string ShortageOf(const RunPrediction& prediction) {
  std::vector<std::string> shortages;
  const auto& device = prediction.room.device;
  if (!prediction.fits_device().value_or(true)) {
    shortages.push_back(
        absl::StrCat(NeedOf(prediction.ranks_of_gpu, " on a GPU",
                            prediction.device_needed, "device memory"),
                     ", and ", Gibibytes(device->bytes), " (", device->bytes,
                     " bytes) are available on ", device->limit));
  }
  if (!prediction.fits_host()) {
    shortages.push_back(absl::StrCat(
        NeedOf(prediction.ranks_here, " on this machine", prediction.needed,
               prediction.on_gpu ? "host memory" : "memory"),
        ", and ", Gibibytes(prediction.room.bytes), " (", prediction.room.bytes,
        " bytes) are available of the ", prediction.room.limit));
  }
  return absl::StrJoin(shortages, "; ");
}

// --device_budget fails the ranks that exceed it.
absl::Status CheckDeviceLimit(const Settings& settings,
                              const RunPrediction& prediction) {
  const ByteSize limit = settings.parallel.device_budget;
  int64_t needed = 0;
  for (const RankPrediction& rank : prediction.ranks) {
    needed = std::max(needed, rank.device);
  }
  if (limit == ByteSize() || needed <= limit.bytes() || settings.force) {
    return absl::OkStatus();
  }
  return tools::FlagError(
      "device_budget", limit.ToString(),
      absl::InvalidArgumentError(absl::StrCat(
          "a rank needs ", needed,
          " bytes of its device's memory; use for "
          "example --memory_strategy=aggressive or more ranks; --force starts "
          "the run anyway")));
}

}  // namespace

absl::StatusOr<int64_t> MeasureProducts(const RunOptions& small,
                                        const RunOptions& run, int threads) {
  TESSERA_ASSIGN_OR_RETURN(const StageShapes small_shapes, ShapesOf(small));
  TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes, ShapesOf(run));
  Arithmetic arithmetic(threads);
  TESSERA_RETURN_IF_ERROR(arithmetic.Run(small_shapes));
  const int64_t before = ReadResidentMemory().resident;
  TESSERA_RETURN_IF_ERROR(arithmetic.Run(shapes));
  return std::max<int64_t>(ReadResidentMemory().resident - before, 0);
}

absl::StatusOr<int64_t> MeasureProcess(const Settings& settings,
                                       const model_files::ModelConfig& model,
                                       const std::string& program) {
  TESSERA_ASSIGN_OR_RETURN(const RunDirectory directory,
                           RunDirectory::Create(Settings()));
  absl::StatusOr<int64_t> measured =
      Measure(settings, model, program, directory);
  directory.CleanUp();
  if (measured.ok()) return measured;
  return Annotate(measured.status(),
                  "measuring the memory of a process with a small model");
}

std::string DescribeChoice(const MemoryRung& choice) {
  const bool is_changed = !choice.flags.empty();
  return absl::StrCat(
      "memory: strategy ", topology::EnumName(choice.strategy), ": ",
      is_changed ? choice.flags : "as given", " (predicted ",
      MiB(choice.needed),
      " of --memory_limit=", choice.settings.parallel.memory_limit.ToString(),
      is_changed ? absl::StrCat("; ", MiB(choice.as_given), " as given)")
                 : ")");
}

absl::StatusOr<MemoryRung> FitMemoryLimit(const Settings& settings,
                                          const model_files::ModelConfig& model,
                                          const std::string& scratch,
                                          PredictNeed predict) {
  const ByteSize limit = settings.parallel.memory_limit;
  const auto is_enough = [&](const MemoryRung& rung) {
    return FitsMemoryLimit(rung.needed, limit.bytes());
  };
  TESSERA_ASSIGN_OR_RETURN(MemoryRung rung,
                           ClimbMemoryLadder(settings, LadderUse::kBeforeStart,
                                             scratch, predict, is_enough));
  if (is_enough(rung)) return rung;
  return absl::InvalidArgumentError(absl::StrCat(
      "--memory_limit=", limit.ToString(),
      ": the run needs more even with strategy ",
      topology::EnumName(rung.strategy), rung.flags.empty() ? "" : " (",
      rung.flags, rung.flags.empty() ? "" : ")", ": ", rung.needed,
      " bytes on this machine; ", LargestLayer(settings, model),
      "; give for example --memory_limit=", LeastLimit(rung.needed),
      "MiB, or spread the model over more machines"));
}

absl::Status CheckRoom(const Settings& settings,
                       const RunPrediction& prediction, std::ostream& err) {
  TESSERA_RETURN_IF_ERROR(CheckDeviceLimit(settings, prediction));
  if (prediction.fits()) return absl::OkStatus();
  const std::string shortage = ShortageOf(prediction);
  if (settings.force) {
    err << "train: --model=" << settings.model << ": " << shortage
        << "; started because of --force" << std::endl;
    return absl::OkStatus();
  }
  return tools::FlagError(
      "model", settings.model,
      absl::InvalidArgumentError(absl::StrCat(
          shortage, "; ", AdviceOf(prediction), "; --force starts it anyway")));
}

}  // namespace tessera::train
