#include "tools/offload_bench/measure_memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/codec/codec.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/triad.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/pinned_arena.h"
#include "tools/offload_bench/blocks.h"

namespace tessera::offload_bench {

namespace {

using offload::Codec;

constexpr uint64_t kCodecSeed = 1;

// Root of the mean square of `back` - `values`, over that of `values`.
absl::StatusOr<double> RelativeError(DType dtype,
                                     std::span<const std::byte> values,
                                     std::span<const std::byte> back) {
  constexpr size_t kChunk = 4096;
  const auto size = static_cast<size_t>(SizeInBytes(dtype));
  std::vector<double> before(kChunk), after(kChunk);
  double changed = 0, total = 0;
  for (size_t at = 0; at < values.size(); at += kChunk * size) {
    const size_t bytes = std::min(kChunk * size, values.size() - at);
    const size_t n = bytes / size;
    for (auto [from, to] : {std::pair(&values, &before), {&back, &after}}) {
      TESSERA_RETURN_IF_ERROR(
          Convert(dtype, from->subspan(at, bytes), DType::kF64,
                  std::as_writable_bytes(std::span(*to).first(n))));
    }
    for (size_t i = 0; i < n; ++i) {
      changed += (after[i] - before[i]) * (after[i] - before[i]);
      total += before[i] * before[i];
    }
  }
  return std::sqrt(changed / total);
}

// One codec on one array.
class CodecCase {
 public:
  CodecCase(const Codec& codec, DType dtype, Buffer values)
      : codec_(codec), dtype_(dtype), values_(std::move(values)) {}

  // Encodes once, decodes once, compares.
  absl::Status Prepare();
  absl::Status Measure(bool encode, const OffloadBenchOptions& options,
                       const Sink& sink);

 private:
  absl::Status Encode() {
    return codec_.Encode(dtype_, values_.bytes(), room_.bytes()).status();
  }
  absl::Status Decode() {
    return codec_.Decode(dtype_, room_.bytes().first(held_), back_.bytes());
  }

  const Codec& codec_;
  const DType dtype_;
  Buffer values_, room_, back_;
  size_t held_ = 0;
  double error_ = 0;
};

absl::Status CodecCase::Prepare() {
  const int64_t count =
      static_cast<int64_t>(values_.size()) / SizeInBytes(dtype_);
  TESSERA_ASSIGN_OR_RETURN(const int64_t most,
                           codec_.MaxEncodedBytes(dtype_, count));
  TESSERA_ASSIGN_OR_RETURN(
      room_, Buffer::Allocate(HostMemory(), static_cast<size_t>(most)));
  TESSERA_ASSIGN_OR_RETURN(back_,
                           Buffer::Allocate(HostMemory(), values_.size()));
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t held,
      codec_.Encode(dtype_, values_.bytes(), room_.bytes()));
  held_ = static_cast<size_t>(held);
  TESSERA_RETURN_IF_ERROR(Decode());
  const bool same =
      std::memcmp(back_.data(), values_.data(), values_.size()) == 0;
  if (codec_.IsLossless(dtype_) && !same) {
    return absl::InternalError(
        absl::StrCat("codec ", codec_.name(), " changed ", DTypeName(dtype_),
                     " values, although it is lossless: do not use it, and "
                     "report this"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      error_, RelativeError(dtype_, values_.bytes(), back_.bytes()));
  return absl::OkStatus();
}

absl::Status CodecCase::Measure(bool encode, const OffloadBenchOptions& options,
                                const Sink& sink) {
  Measurement m;
  m.what = "codecs";
  m.name = std::string(codec_.name());
  m.operation = encode ? "encode" : "decode";
  m.data = std::string(DTypeName(dtype_));
  m.bytes = m.block_bytes = static_cast<int64_t>(values_.size());
  m.limit = "memcpy";
  m.time = options.clock;
  m.ratio = static_cast<double>(values_.size()) / static_cast<double>(held_);
  m.error = error_;
  TESSERA_ASSIGN_OR_RETURN(
      const Pass limit,
      MemcpyPass(static_cast<int64_t>(values_.size() + held_), options.clock));
  const auto work = [this, encode] { return encode ? Encode() : Decode(); };
  return Report(std::move(m), Timed(work, options.clock), limit,
                options.seconds, sink);
}

using offload::Accounting;
using offload::CompressedTier;
using offload::HostTier;
using offload::kUnlimited;
using offload::MemoryTier;
using offload::PinnedArena;

constexpr uint64_t kTierSeed = 3;

struct TierCase {
  std::shared_ptr<MemoryTier> tier;
  DType dtype = DType::kBF16;
  bool lossless = true;
  const CompressedTier* compressed = nullptr;
  std::string note = {};
};

absl::Status MeasureDirection(const TierCase& c, bool put, Blocks& blocks,
                              const OffloadBenchOptions& options,
                              const Sink& sink) {
  Measurement m;
  m.what = "tiers";
  m.name = std::string(c.tier->name());
  m.operation = put ? "put" : "get";
  m.data = std::string(DTypeName(c.dtype));
  m.block_bytes = blocks.block_bytes();
  m.bytes = blocks.bytes();
  m.limit = "memcpy";
  m.note = c.note;
  m.time = options.clock;
  Pass limit = Timed([&blocks] { return blocks.CopyAll(); }, options.clock);
  if (c.compressed != nullptr) {
    m.ratio = c.compressed->compression().ratio();
    TESSERA_ASSIGN_OR_RETURN(
        limit, MemcpyPass(m.bytes + c.compressed->compression().held_bytes,
                          options.clock));
  }
  const auto work = [&] {
    return put ? blocks.PutAll(*c.tier) : blocks.GetAll(*c.tier);
  };
  return Report(std::move(m), Timed(work, options.clock), limit,
                options.seconds, sink);
}

absl::Status MeasureTier(const TierCase& c, Blocks& blocks,
                         const OffloadBenchOptions& options, const Sink& sink) {
  TESSERA_RETURN_IF_ERROR(blocks.PutAll(*c.tier));
  TESSERA_RETURN_IF_ERROR(blocks.GetAll(*c.tier));
  if (c.lossless) TESSERA_RETURN_IF_ERROR(blocks.CheckRoom(*c.tier));
  TESSERA_RETURN_IF_ERROR(MeasureDirection(c, true, blocks, options, sink));
  return MeasureDirection(c, false, blocks, options, sink);
}

TierCase Host() {
  return {.tier = std::make_shared<HostTier>(
              std::make_shared<Accounting>("host", kUnlimited))};
}

absl::StatusOr<TierCase> Pinned(int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedArena> arena,
                           PinnedArena::Create({.cap = bytes}));
  return TierCase{
      .tier = std::make_shared<HostTier>(
          std::make_shared<Accounting>("pinned", kUnlimited), arena),
      .note = arena->pinned() ? ""
                              : absl::StrCat("not pinned: ",
                                             arena->pin_status().message())};
}

absl::StatusOr<TierCase> Compressed(std::string_view codec_name, DType dtype) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const offload::Codec> codec,
                           offload::CreateCodec(codec_name));
  TierCase c;
  c.dtype = dtype;
  c.lossless = codec->IsLossless(dtype);
  auto tier = std::make_shared<CompressedTier>(std::move(codec), Host().tier);
  c.compressed = tier.get();
  c.tier = std::move(tier);
  return c;
}

using offload::AdamW;
using offload::ConstTypedSpan;
using offload::MomentFormat;
using offload::MomentSpan;
using offload::ParameterRange;
using offload::Sgd;
using offload::Triad;
using offload::TypedSpan;

constexpr uint64_t kOptimizerSeed = 2;

struct StepCase {
  bool adamw = true;  // Else SGD with momentum.
  MomentFormat format;
  bool copy = false;  // In bf16.
  int threads = 1;
};

// The parameters of all cases; the moments of one at a time.
class State {
 public:
  static absl::StatusOr<State> Create(int64_t count) {
    State state;
    state.count_ = count;
    TESSERA_ASSIGN_OR_RETURN(state.parameter_,
                             NormalWeights(DType::kF32, count, kOptimizerSeed));
    TESSERA_ASSIGN_OR_RETURN(
        state.gradient_, NormalWeights(DType::kF32, count, kOptimizerSeed + 1));
    return state;
  }

  int64_t count() const { return count_; }

  absl::StatusOr<ParameterRange> RangeFor(const StepCase& c) {
    ParameterRange range;
    range.name = "weights";
    range.parameter = TypedSpan(parameter_.data(), DType::kF32, count_);
    range.gradient = ConstTypedSpan(gradient_.data(), DType::kF32, count_);
    TESSERA_ASSIGN_OR_RETURN(range.first, Moment(c.format, first_));
    if (c.adamw) {
      TESSERA_ASSIGN_OR_RETURN(range.second, Moment(c.format, second_));
    }
    if (c.copy) {
      TESSERA_RETURN_IF_ERROR(Zeros(2 * count_, copy_));
      range.copy = TypedSpan(copy_.data(), DType::kBF16, count_);
    }
    return range;
  }

  // The values that a step reads and writes.
  absl::StatusOr<int64_t> MovedBytes(const StepCase& c) const {
    TESSERA_ASSIGN_OR_RETURN(const int64_t moment,
                             offload::MomentBytes(c.format, count_));
    const int64_t moments = c.adamw ? 2 : 1;
    return count_ * (3 * 4 + (c.copy ? 2 : 0)) + 2 * moments * moment;
  }

 private:
  static absl::Status Zeros(int64_t bytes, Buffer& buffer) {
    buffer = Buffer();
    TESSERA_ASSIGN_OR_RETURN(
        buffer, Buffer::Allocate(HostMemory(), static_cast<size_t>(bytes)));
    std::memset(buffer.data(), 0, buffer.size());
    return absl::OkStatus();
  }

  absl::StatusOr<MomentSpan> Moment(const MomentFormat& format,
                                    Buffer& buffer) const {
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                             offload::MomentBytes(format, count_));
    TESSERA_RETURN_IF_ERROR(Zeros(bytes, buffer));
    return MomentSpan::Over(format, count_, buffer.bytes());
  }

  int64_t count_ = 0;
  Buffer parameter_, gradient_, first_, second_, copy_;
};

// Step after step of the case's optimizer.
absl::StatusOr<std::function<absl::Status()>> StepsOf(const StepCase& c,
                                                      ParameterRange range) {
  auto number = std::make_shared<int64_t>(0);
  const auto steps = [&](auto optimizer) {
    return [optimizer = std::shared_ptr(std::move(optimizer)), number, range] {
      return optimizer->Step(++*number, {}, {&range, 1});
    };
  };
  if (c.adamw) {
    TESSERA_ASSIGN_OR_RETURN(auto adamw, AdamW::Create({.threads = c.threads}));
    return steps(std::move(adamw));
  }
  TESSERA_ASSIGN_OR_RETURN(
      auto sgd, Sgd::Create({.momentum = 0.9, .threads = c.threads}));
  return steps(std::move(sgd));
}

absl::Status MeasureStep(const StepCase& c, State& state,
                         std::shared_ptr<Triad> triad,
                         const OffloadBenchOptions& options, const Sink& sink) {
  TESSERA_ASSIGN_OR_RETURN(const ParameterRange range, state.RangeFor(c));
  TESSERA_ASSIGN_OR_RETURN(const auto step, StepsOf(c, range));
  Measurement m;
  m.what = "optimizer";
  m.name = c.adamw ? "adamw" : "sgd";
  m.operation = "step";
  m.data = absl::StrCat(c.format.ToString(), " moments",
                        c.copy ? ", bf16 copy" : "");
  m.threads = c.threads;
  m.block_bytes = state.count() * SizeInBytes(DType::kF32);
  TESSERA_ASSIGN_OR_RETURN(m.bytes, state.MovedBytes(c));
  m.bytes_per_parameter =
      static_cast<double>(m.bytes) / static_cast<double>(state.count());
  m.limit = "triad";
  m.time = options.clock;
  const Pass limit =
      TriadPass(std::move(triad), static_cast<double>(m.bytes), options.clock);
  return Report(std::move(m), Timed(step, options.clock, c.threads), limit,
                options.seconds, sink);
}

}  // namespace

absl::Status MeasureCodecs(const OffloadBenchOptions& options,
                           const Sink& sink) {
  for (const std::string& name : options.codecs) {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec,
                             offload::CreateCodec(name));
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      TESSERA_ASSIGN_OR_RETURN(
          Buffer values,
          NormalWeights(dtype, options.size / SizeInBytes(dtype), kCodecSeed));
      CodecCase one(*codec, dtype, std::move(values));
      TESSERA_RETURN_IF_ERROR(one.Prepare());
      for (const bool encode : {true, false}) {
        TESSERA_RETURN_IF_ERROR(one.Measure(encode, options, sink));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureTiers(const OffloadBenchOptions& options,
                          const Sink& sink) {
  for (const int64_t block_bytes : options.blocks) {
    std::vector<TierCase> cases = {Host()};
    TESSERA_ASSIGN_OR_RETURN(cases.emplace_back(), Pinned(options.size));
    TESSERA_ASSIGN_OR_RETURN(cases.emplace_back(),
                             Compressed("lossless_fast", DType::kBF16));
    TESSERA_ASSIGN_OR_RETURN(cases.emplace_back(),
                             Compressed("int8", DType::kF32));
    for (const TierCase& c : cases) {
      TESSERA_ASSIGN_OR_RETURN(
          Buffer values,
          NormalWeights(c.dtype, options.size / SizeInBytes(c.dtype),
                        kTierSeed));
      TESSERA_ASSIGN_OR_RETURN(
          Blocks blocks, Blocks::Cut(std::move(values), c.dtype, block_bytes));
      TESSERA_RETURN_IF_ERROR(MeasureTier(c, blocks, options, sink));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasureOptimizers(const OffloadBenchOptions& options,
                               const Sink& sink) {
  const int64_t count = options.size / SizeInBytes(DType::kF32);
  TESSERA_ASSIGN_OR_RETURN(State state, State::Create(count));
  for (const int64_t threads : options.threads) {
    // The memory of AdamW with f32 moments, or the minimum of a triad.
    const int64_t bytes = std::max(4 * options.size, threads * 4096);
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Triad> triad,
                             Triad::Create(static_cast<int>(threads), bytes));
    for (const bool adamw : {true, false}) {
      for (const MomentFormat& format :
           {MomentFormat::F32(), MomentFormat::BF16(),
            MomentFormat::Blockwise8()}) {
        for (const bool copy : {false, true}) {
          const StepCase c = {adamw, format, copy, static_cast<int>(threads)};
          TESSERA_RETURN_IF_ERROR(MeasureStep(c, state, triad, options, sink));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::offload_bench
