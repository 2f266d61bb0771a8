#include "zero3/state/testing/state_ops_conformance.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device/staging.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/lion.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Spans = std::vector<std::span<std::byte>>;

// Bytes before an array, which ends where its memory ends.
struct Input {
  Bytes bytes;
  size_t offset = 0;
};

// The memory of all inputs, read back after `work` on them.
std::vector<Bytes> After(Queue& queue, const std::vector<Input>& inputs,
                         const std::function<void(const Spans&)>& work) {
  StagingPool staging(queue);
  std::vector<Buffer> buffers;
  Spans spans;
  for (const Input& input : inputs) {
    Bytes whole(input.offset, std::byte{0x5a});
    whole.insert(whole.end(), input.bytes.begin(), input.bytes.end());
    buffers.push_back(*Buffer::Allocate(queue.device().memory(), whole.size()));
    TESSERA_EXPECT_OK(staging.Upload(whole, buffers.back().bytes()));
    spans.push_back(buffers.back().bytes().subspan(input.offset));
  }
  work(spans);
  std::vector<Bytes> results;
  for (Buffer& buffer : buffers) {
    const auto download = staging.StartDownload(buffer.bytes());
    EXPECT_THAT(download.status(), IsOk());
    const auto bytes = download->Wait();
    EXPECT_THAT(bytes.status(), IsOk());
    if (bytes.ok()) results.emplace_back(bytes->begin(), bytes->end());
  }
  TESSERA_EXPECT_OK(queue.Synchronize());
  return results;
}

class Conformance {
 public:
  Conformance(Queue& queue, StateOps& ops) : queue_(queue), ops_(ops) {}

  void Run() {
    Moves();
    for (const int64_t count : {0, 1, 4, 7, 31, 128, 129, 1000, 1027}) {
      for (const int64_t shift : {0, 1, 2, 4}) {
        SCOPED_TRACE(absl::StrCat(count, " elements, shifted by ", shift));
        for (const DType dtype :
             {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
          Adds(dtype, count, shift);
        }
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
          Int8(dtype, count, shift);
        }
        for (const DType copy :
             {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
          Scales(copy, count, shift);
        }
      }
    }
    for (const char* const codec : {"nf4", "nf4_double"}) {
      for (const DType dtype :
           {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
        for (const int64_t count :
             {0, 1, 31, 33, 63, 64, 65, 640, 16384, 16385, 40000}) {
          Nf4(codec, dtype, count);
        }
      }
    }
    Measures();
    Steps();
    for (const DType dtype :
         {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      for (const FactoredCase& c :
           {FactoredCase{0, 3, 1}, FactoredCase{1, 1, 0},
            FactoredCase{17, 1, 0, false}, FactoredCase{50, 7, 3},
            FactoredCase{3, 100, 40}, FactoredCase{777, 11, 10},
            FactoredCase{20000, 300, 299}, FactoredCase{90000, 2, 1},
            FactoredCase{500, 400, 0, false}}) {
        Factored(dtype, c);
      }
    }
  }

 private:
  // Numbers with magnitudes between 10^low and 10^high. With `special`, some
  // are infinite, NaN, -0, or the smallest or largest number.
  Input Numbers(DType dtype, int64_t count, int64_t shift, double low,
                double high, bool special = false) {
    std::uniform_real_distribution<double> exponent(low, high), sign(-1, 1);
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) {
      value = std::copysign(std::pow(10.0, exponent(random_)), sign(random_));
      if (special && random_() % 16 == 0) value = Special();
    }
    Input input;
    input.bytes.resize(values.size() * Width(dtype));
    input.offset = static_cast<size_t>(shift) * Width(dtype);
    TESSERA_EXPECT_OK(Convert(DType::kF64, std::as_bytes(std::span(values)),
                              dtype, input.bytes));
    return input;
  }
  double Special() {
    using Limits = std::numeric_limits<float>;
    const double all[] = {
        Limits::infinity(),   -Limits::infinity(), Limits::quiet_NaN(), -0.0,
        Limits::denorm_min(), Limits::min(),       Limits::max()};
    return all[random_() % std::size(all)];
  }
  static Input Zeros(int64_t bytes, size_t offset = 0) {
    return {Bytes(static_cast<size_t>(bytes)), offset};
  }
  static size_t Width(DType dtype) {
    return static_cast<size_t>(SizeInBytes(dtype));
  }

  void Expect(const std::vector<Input>& inputs,
              const std::function<void(StateOps&, const Spans&)>& work) {
    const auto expected = After(HostQueue(), inputs, [&](const Spans& spans) {
      work(*HostStateOps(), spans);
    });
    const auto actual =
        After(queue_, inputs, [&](const Spans& spans) { work(ops_, spans); });
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(actual[i] == expected[i])
          << "array " << i << " differs at byte "
          << std::mismatch(actual[i].begin(), actual[i].end(),
                           expected[i].begin())
                     .first -
                 actual[i].begin();
    }
  }

  void Moves() {
    Expect({Numbers(DType::kF32, 33, 1, -1, 1), Zeros(150, 3)},
           [](StateOps& ops, const Spans& arrays) {
             TESSERA_EXPECT_OK(ops.Copy(arrays[0], arrays[1]));
             TESSERA_EXPECT_OK(ops.Zero(arrays[0].subspan(5, 50)));
             TESSERA_EXPECT_OK(ops.Zero({}));
             TESSERA_EXPECT_OK(ops.Copy({}, {}));
           });
  }

  void Adds(DType dtype, int64_t count, int64_t shift) {
    Expect({Numbers(dtype, count, shift, -3, 3, true),
            Numbers(dtype, count, 0, -3, 3, true)},
           [&](StateOps& ops, const Spans& arrays) {
             TESSERA_EXPECT_OK(ops.Run(
                 op::Add{dtype, arrays[0].data(), arrays[1].data(), count}));
           });
  }

  void Int8(DType dtype, int64_t count, int64_t shift) {
    const auto offset = static_cast<size_t>(4 * shift);
    const int64_t bytes = Int8Bytes(count);
    const double low = dtype == DType::kF16 ? -4 : -40;
    const double high = dtype == DType::kF16 ? 4 : 38;
    for (const bool special : {false, true}) {
      Expect({Numbers(dtype, count, shift, low, high, special),
              Numbers(dtype, count, 0, -2, 2), Zeros(bytes, offset),
              Zeros(bytes), Zeros(bytes), Numbers(dtype, count, shift, 0, 1),
              Numbers(dtype, count, 0, 0, 1)},
             [&](StateOps& ops, const Spans& a) {
               TESSERA_EXPECT_OK(ops.Run(op::EncodeInt8{dtype, a[0], a[2]}));
               TESSERA_EXPECT_OK(ops.Run(op::EncodeInt8{dtype, a[1], a[3]}));
               TESSERA_EXPECT_OK(ops.DecodeInt8(a[2], dtype, a[5]));
               const std::vector<std::span<const std::byte>> sources = {
                   a[2], a[3], a[2]};
               TESSERA_EXPECT_OK(ops.Run(op::SumInt8{sources, 3, dtype, a[6]}));
               TESSERA_EXPECT_OK(
                   ops.Run(op::SumInt8Encoded{sources, count, a[4]}));
             });
    }
  }

  // Magnitudes include the largest ones of the type.
  void Nf4(const char* name, DType dtype, int64_t count) {
    SCOPED_TRACE(absl::StrCat(name, " ", count, " ", DTypeName(dtype)));
    const auto codec = *offload::CreateCodec(name);
    const Input values = Numbers(dtype, count, 0, -6, 4.8);
    Input encoded = Zeros(*codec->MaxEncodedBytes(dtype, count));
    TESSERA_EXPECT_OK(codec->Encode(dtype, values.bytes, encoded.bytes));
    Expect({encoded, Zeros(count * SizeInBytes(dtype), Width(dtype))},
           [&](StateOps& ops, const Spans& arrays) {
             TESSERA_EXPECT_OK(ops.Run(
                 op::DecodeNf4{codec.get(), dtype, arrays[0], arrays[1]}));
           });
  }

  // With a copy of a 16-bit type; otherwise of values of that type.
  void Scales(DType copy, int64_t count, int64_t shift) {
    const bool has_copy = SizeInBytes(copy) == 2;
    const DType dtype = has_copy ? DType::kF32 : copy;
    Expect({Numbers(dtype, count, shift, -3, 3, true),
            Zeros(has_copy ? 2 * count : 0, static_cast<size_t>(2 * shift))},
           [&](StateOps& ops, const Spans& arrays) {
             op::Scale call = {0.37, {arrays[0].data(), dtype, count}};
             if (has_copy) call.copy = {arrays[1].data(), copy, count};
             TESSERA_EXPECT_OK(ops.Run(call));
           });
  }

  void Measures() {
    for (const DType dtype :
         {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t count : {0, 1, 33, 4095, 4096, 4097, 140000}) {
        for (const bool special : {false, true}) {
          SCOPED_TRACE(absl::StrCat("statistics of ", count, " ",
                                    DTypeName(dtype), special));
          Expect({Numbers(dtype, count, count % 4, -3, 3, special),
                  Zeros(sizeof(offload::GradientStatistics))},
                 [&](StateOps& ops, const Spans& arrays) {
                   TESSERA_EXPECT_OK(ops.Run(op::Measure{
                       {arrays[0].data(), dtype, count}, arrays[1]}));
                 });
        }
      }
    }
  }

  struct FactoredCase {
    int64_t count, width, offset;
    bool has_columns = true;
  };

  void Factored(DType dtype, const FactoredCase& c) {
    SCOPED_TRACE(absl::StrCat("moments of ", c.count, " ", DTypeName(dtype),
                              " in rows of ", c.width));
    const DType of_moments = dtype == DType::kF64 ? dtype : DType::kF32;
    const int64_t rows = (c.offset + c.count + c.width - 1) / c.width;
    const int64_t columns = c.has_columns ? c.width : 0;
    Expect({Numbers(dtype, c.count, c.count % 2, -3, 1),
            Numbers(of_moments, rows, 1, -3, 0),
            Numbers(of_moments, columns, 1, -3, 0),
            Zeros(c.count * SizeInBytes(of_moments), Width(of_moments))},
           [&](StateOps& ops, const Spans& arrays) {
             const offload::TypedSpan values(arrays[0].data(), dtype, c.count);
             const offload::TypedSpan of_rows(arrays[1].data(), of_moments,
                                              rows);
             offload::TypedSpan of_columns;
             if (columns > 0) {
               of_columns = {arrays[2].data(), of_moments, columns};
             }
             TESSERA_EXPECT_OK(ops.Run(op::Scale{0.7, of_rows}));
             TESSERA_EXPECT_OK(
                 ops.Run(op::SumSquares{values, 0.3, c.offset, c.width, 0.9,
                                        0.8, of_rows, of_columns, &pool_}));
             if (columns > 0 && rows > 0) {
               TESSERA_EXPECT_OK(
                   ops.Run(op::DivideByMean{1e-7, of_rows, of_columns}));
             }
             TESSERA_EXPECT_OK(ops.Run(
                 op::FactoredUpdate{values,
                                    0.3,
                                    1.7,
                                    0.05,
                                    c.offset,
                                    c.width,
                                    of_rows,
                                    of_columns,
                                    {arrays[3].data(), of_moments, c.count},
                                    &pool_}));
           });
  }

  struct StepCase {
    offload::MomentFormat first, second;
    DType parameter = DType::kF32;
    DType gradient = DType::kF32;
    DType copy = DType::kI8;  // kI8: none.
    int64_t begin = 0;
    int64_t shift = 0;
    double low = -3, high = 0;  // Of gradients.
    bool special = false;
  };

  // Three steps of all optimizers.
  void Step(const StepCase& c, int64_t count) {
    SCOPED_TRACE(absl::StrCat(c.first.ToString(), " ", c.second.ToString(),
                              " gradient ", DTypeName(c.gradient), " copy ",
                              DTypeName(c.copy), " count ", count, " shift ",
                              c.shift, c.special ? " special" : ""));
    const int64_t copies = c.copy == DType::kI8 ? 0 : count;
    const size_t moment_offset =
        static_cast<size_t>(c.shift) *
        (c.parameter == DType::kF64 ? sizeof(double) : sizeof(float));
    const std::vector<Input> inputs = {
        Numbers(c.parameter, count, c.shift, -3, 0),
        Numbers(c.gradient, count, c.shift, c.low, c.high, c.special),
        Numbers(c.gradient, count, 0, c.low, c.high),
        Zeros(*offload::MomentBytes(c.first, count), moment_offset),
        Zeros(*offload::MomentBytes(c.second, count), moment_offset),
        Zeros(copies * SizeInBytes(c.copy),
              static_cast<size_t>(c.shift) * Width(c.copy))};
    const auto run = [&](auto& optimizer) {
      Expect(inputs, [&](StateOps& ops, const Spans& arrays) {
        for (int64_t step = 1; step <= 3; ++step) {
          TESSERA_EXPECT_OK(ops.Step(optimizer, step,
                                     {.unscale = 0.25, .clip_factor = 0.7},
                                     RangeOf(c, count, arrays, step)));
        }
      });
    };
    using offload::MomentRounding;
    const auto rounding = c.shift % 2 == 0 ? MomentRounding::kStochastic
                                           : MomentRounding::kNearest;
    const auto decay = c.shift % 2 == 0 ? offload::WeightDecay::kDecoupled
                                        : offload::WeightDecay::kCoupled;
    run(**offload::AdamW::Create({.learning_rate = 0.01,
                                  .weight_decay = 0.1,
                                  .decay = decay,
                                  .rounding = rounding,
                                  .seed = 5}));
    run(**offload::Lion::Create({.learning_rate = 0.01,
                                 .weight_decay = 0.1,
                                 .rounding = rounding,
                                 .seed = 5}));
    if (c.special || count > 600) return;
    run(**offload::Sgd::Create({.learning_rate = 0.1, .decay = decay}));
    run(**offload::Sgd::Create({.learning_rate = 0.1,
                                .momentum = 0.9,
                                .dampening = 0.25,
                                .weight_decay = 0.1,
                                .decay = decay,
                                .rounding = rounding}));
    run(**offload::Sgd::Create({.learning_rate = 0.1,
                                .momentum = 0.9,
                                .nesterov = true,
                                .weight_decay = 0.1}));
  }

  static offload::ParameterRange RangeOf(const StepCase& c, int64_t count,
                                         const Spans& arrays, int64_t step) {
    offload::ParameterRange range = {
        .name = "weight",
        .begin = c.begin,
        .whole = c.begin + count,
        .parameter = {arrays[0].data(), c.parameter, count},
        // The second step uses the gradient that is always finite.
        .gradient = {arrays[step == 2 ? 2 : 1].data(), c.gradient, count}};
    range.first = *offload::MomentSpan::Over(c.first, count, arrays[3]);
    range.second = *offload::MomentSpan::Over(c.second, count, arrays[4]);
    if (c.copy != DType::kI8) range.copy = {arrays[5].data(), c.copy, count};
    range.decays = c.shift < 2;
    return range;
  }

  void Steps() {
    using offload::MomentFormat;
    const DType gradients[] = {DType::kF32, DType::kBF16, DType::kF16};
    const DType copies[] = {DType::kBF16, DType::kF16, DType::kI8};
    const MomentFormat formats[] = {
        MomentFormat::F32(),           MomentFormat::BF16(),
        MomentFormat::Blockwise8(64),  MomentFormat::Blockwise8(128),
        MomentFormat::Blockwise8(512), MomentFormat::Blockwise8(2048)};
    size_t turn = 0;
    for (const MomentFormat& format : formats) {
      for (const int64_t count : {0, 1, 6, 65, 513, 5003}) {
        for (const int64_t shift : {0, 1, 2, 3}) {
          Step({.first = format,
                .second = format,
                .gradient = gradients[turn % 3],
                .copy = copies[turn / 3 % 3],
                .begin = 2048 * static_cast<int64_t>(turn % 5),
                .shift = shift},
               count);
          ++turn;
        }
      }
      for (const DType gradient : gradients) {
        Step({.first = format,
              .second = format,
              .gradient = gradient,
              .copy = DType::kBF16,
              .special = true},
             777);
      }
      // Moments so small that their blocks' scales have no finite inverse.
      Step({.first = format, .second = format, .low = -45, .high = -36}, 300);
      Step({.first = format, .second = format, .low = -22, .high = -19}, 300);
    }
    Step({.first = MomentFormat::Blockwise8(64),
          .second = MomentFormat::F32(),
          .copy = DType::kBF16},
         1001);
    Step({.first = MomentFormat::BF16(),
          .second = MomentFormat::Blockwise8(256)},
         1001);
    Step({.first = MomentFormat::Blockwise8(2048),
          .second = MomentFormat::Blockwise8(64)},
         3001);
    for (const int64_t count : {1, 5, 1003}) {
      Step({.first = MomentFormat::F64(),
            .second = MomentFormat::F64(),
            .parameter = DType::kF64,
            .gradient = DType::kF64,
            .shift = count % 2,
            .special = count > 100},
           count);
    }
  }

  Queue& queue_;
  StateOps& ops_;
  std::mt19937_64 random_{7};
  ThreadPool pool_{2};
};

}  // namespace

void ExpectTheBitsOfTheHost(Queue& queue, StateOps& ops) {
  Conformance(queue, ops).Run();
}

}  // namespace tessera::zero3::testing
