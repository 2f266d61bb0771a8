#include "tensor_parallel/ops/rotary.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status Expect(bool holds, std::string_view name, double value,
                    std::string_view range) {
  if (holds && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it should be ", range, "."));
}

constexpr std::string_view kPositive = "positive and finite";

absl::Status ExpectDivisors(std::string_view name,
                            const std::vector<double>& divisors, int64_t d) {
  absl::Status status =
      Expect(static_cast<int64_t>(divisors.size()) == d / 2,
             absl::StrCat("the number of ", name),
             static_cast<double>(divisors.size()), absl::StrCat(d / 2));
  for (const double divisor : divisors) {
    status.Update(Expect(divisor > 0, name, divisor, kPositive));
  }
  return status;
}

// The share of a frequency that is kept (1), not divided (0).
double KeptByTurns(const RotaryFrequencies& f, double frequency) {
  const double turns = static_cast<double>(f.original_positions) * frequency /
                       (2 * std::numbers::pi);
  const double kept = (turns - f.low_turns) / (f.high_turns - f.low_turns);
  return std::clamp(kept, 0.0, 1.0);
}

// The pair that turns so often over the original positions.
double PairOf(const RotaryFrequencies& f, double turns, double d) {
  const auto positions = static_cast<double>(f.original_positions);
  return d * std::log(positions / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(f.base));
}

double KeptByPair(const RotaryFrequencies& f, int64_t pair, double d) {
  double first = PairOf(f, f.high_turns, d), last = PairOf(f, f.low_turns, d);
  if (f.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, d - 1);
  if (first == last) last += 0.001;  // As in transformers.
  const double divided = (static_cast<double>(pair) - first) / (last - first);
  return 1 - std::clamp(divided, 0.0, 1.0);
}

}  // namespace

Rotation RotaryFrequencies::Of(int64_t head_size, int64_t length) const {
  const int64_t turned = TurnedOf(head_size);
  const auto d = static_cast<double>(turned);
  const auto original = static_cast<double>(original_positions);
  const bool is_long = length > original_positions;
  double own_base = base;
  if (scaling == RotaryScaling::kDynamic && is_long) {
    own_base *=
        std::pow(factor * static_cast<double>(length) / original - (factor - 1),
                 d / (d - 2));
  }
  Rotation rotation = {.factor = attention_factor};
  for (int64_t pair = 0; pair < turned / 2; ++pair) {
    const double whole =
        std::pow(own_base, -2.0 * static_cast<double>(pair) / d);
    double kept = 1;
    if (scaling == RotaryScaling::kLinear) kept = 0;
    if (scaling == RotaryScaling::kLlama3) kept = KeptByTurns(*this, whole);
    if (scaling == RotaryScaling::kYarn) kept = KeptByPair(*this, pair, d);
    double frequency =
        kept == 1 ? whole : (1 - kept) * whole / factor + kept * whole;
    if (scaling == RotaryScaling::kLongRope) {
      frequency /= (is_long ? long_factors : short_factors)[pair];
    }
    rotation.frequencies.push_back(frequency);
  }
  return rotation;
}

absl::Status RotaryFrequencies::Validate(int64_t head_size) const {
  absl::Status status = Expect(base > 0, "base", base, kPositive);
  status.Update(Expect(partial > 0 && partial <= 1, "partial", partial,
                       "above 0 and at most 1"));
  TESSERA_RETURN_IF_ERROR(status);
  const int64_t d = TurnedOf(head_size);
  status.Update(Expect(d % 2 == 0, "the number of elements that are turned",
                       static_cast<double>(d), "even"));
  if (scaling == RotaryScaling::kNone) return status;
  status.Update(Expect(factor > 0, "factor", factor, kPositive));
  if (scaling == RotaryScaling::kLinear) return status;
  status.Update(Expect(original_positions > 0, "original_positions",
                       static_cast<double>(original_positions), kPositive));
  if (scaling == RotaryScaling::kDynamic) {
    status.Update(Expect(d > 2, "the number of elements that are turned",
                         static_cast<double>(d), "above 2"));
    return status;
  }
  status.Update(Expect(attention_factor > 0, "attention_factor",
                       attention_factor, kPositive));
  if (scaling == RotaryScaling::kLongRope) {
    status.Update(ExpectDivisors("short_factors", short_factors, d));
    status.Update(ExpectDivisors("long_factors", long_factors, d));
    return status;
  }
  status.Update(Expect(low_turns > 0, "low_turns", low_turns, kPositive));
  status.Update(Expect(high_turns > low_turns, "high_turns", high_turns,
                       absl::StrCat("above low_turns, ", low_turns)));
  return status;
}

namespace {

template <typename S>
void SetTable(const Rotation& rotation, std::span<const int64_t> positions,
              S* next) {
  const size_t pairs = rotation.frequencies.size();
  for (const int64_t position : positions) {
    for (size_t i = 0; i < pairs; ++i, ++next) {
      const double angle =
          static_cast<double>(position) * rotation.frequencies[i];
      next[0] = static_cast<S>(rotation.factor * std::cos(angle));
      next[pairs] = static_cast<S>(rotation.factor * std::sin(angle));
    }
    next += pairs;
  }
}

}  // namespace

void SetRotaryTable(const Rotation& rotation,
                    std::span<const int64_t> positions,
                    const TensorView& table) {
  assert(static_cast<size_t>(table.element_count()) ==
         positions.size() * 2 * rotation.frequencies.size());
  if (table.dtype() == DType::kF64) {
    SetTable(rotation, positions, reinterpret_cast<double*>(table.data()));
  } else {
    assert(table.dtype() == DType::kF32);
    SetTable(rotation, positions, reinterpret_cast<float*>(table.data()));
  }
}

namespace op {

absl::Status Rotate::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 3));
  check.Writes("x", x, x.shape())
      .ReadsStatistics("table", table, table.shape())
      .Requires(table.rank() == 2 && table.shape()[1] % 2 == 0,
                absl::StrCat("\"table\" is ", DimsToString(table.shape()),
                             "; it should be [positions, 2 pairs]."));
  TESSERA_RETURN_IF_ERROR(check.status());
  const int64_t tokens = x.shape()[0], d = x.shape()[2];
  const int64_t positions = table.shape()[0], turned = table.shape()[1];
  check
      .Requires(
          turned <= d,
          absl::StrCat("\"table\" turns ", turned,
                       " elements of a head; heads of \"x\" have ", d, "."))
      .Requires(tokens == 0 || (positions > 0 && tokens % positions == 0),
                absl::StrCat("\"table\" has ", positions, " positions; the ",
                             tokens, " tokens of \"x\" should be a multiple."));
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
