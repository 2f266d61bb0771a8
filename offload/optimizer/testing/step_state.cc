#include "offload/optimizer/testing/step_state.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype/convert_value.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"

namespace tessera::offload {
namespace {

std::vector<std::byte> Zeros(int64_t bytes) {
  return std::vector<std::byte>(static_cast<size_t>(bytes));
}

double Get(const std::vector<std::byte>& bytes, DType dtype, int64_t index) {
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    T value;
    std::memcpy(static_cast<void*>(&value),
                bytes.data() + index * SizeInBytes(dtype), sizeof(T));
    return ConvertValue<double>(value);
  });
}

void Set(std::vector<std::byte>& bytes, DType dtype, int64_t index,
         double value) {
  DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    const T converted = ConvertValue<T>(value);
    std::memcpy(bytes.data() + index * SizeInBytes(dtype), &converted,
                sizeof(T));
  });
}

}  // namespace

StepState::StepState(const StepTypes& types, int64_t size, uint64_t seed)
    : types_(types),
      size_(size),
      parameter_(Zeros(size * SizeInBytes(types.parameter))),
      gradient_(Zeros(size * SizeInBytes(types.gradient))),
      first_(Zeros(*MomentBytes(types.moments, size))),
      second_(Zeros(*MomentBytes(types.moments, size))),
      copy_(Zeros(types.copy == DType::kI8 ? 0
                                           : size * SizeInBytes(types.copy))) {
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < size; ++i) {
    const double value = static_cast<double>(random() >> 40) * 0x1p-22 - 2;
    Set(parameter_, types.parameter, i, value);
  }
}

void StepState::SetGradient(std::mt19937_64& random) {
  for (int64_t i = 0; i < size_; ++i) {
    const uint64_t bits = random();
    const double value = static_cast<double>(bits >> 40) * 0x1p-23 - 1;
    SetGradient(i, value / static_cast<double>(int64_t{1} << (bits % 11)));
  }
}
void StepState::SetGradient(int64_t index, double value) {
  Set(gradient_, types_.gradient, index, value);
}

double StepState::parameter(int64_t index) const {
  return Get(parameter_, types_.parameter, index);
}
double StepState::gradient(int64_t index) const {
  return Get(gradient_, types_.gradient, index);
}
double StepState::copy(int64_t index) const {
  return Get(copy_, types_.copy, index);
}
MomentSpan StepState::first() {
  return *MomentSpan::Over(types_.moments, size_, first_);
}
MomentSpan StepState::second() {
  return *MomentSpan::Over(types_.moments, size_, second_);
}

ParameterRange StepState::Whole() {
  const int64_t bounds[] = {0, size_};
  return Ranges(bounds)[0];
}

std::vector<ParameterRange> StepState::Ranges(std::span<const int64_t> bounds) {
  const TypedSpan parameter(parameter_.data(), types_.parameter, size_);
  const ConstTypedSpan gradient(gradient_.data(), types_.gradient, size_);
  const TypedSpan copy(copy_.data(), types_.copy, size_);
  std::vector<ParameterRange> ranges;
  for (size_t i = 1; i < bounds.size(); ++i) {
    const int64_t begin = bounds[i - 1], count = bounds[i] - begin;
    ranges.push_back(
        {.begin = begin,
         .whole = size_,
         .parameter = {parameter.At(begin), types_.parameter, count},
         .gradient = {gradient.At(begin), types_.gradient, count},
         .first = *first().Piece(begin, count),
         .second = *second().Piece(begin, count),
         .copy = copy_.empty()
                     ? TypedSpan()
                     : TypedSpan(copy.At(begin), types_.copy, count)});
  }
  return ranges;
}

std::vector<std::byte> StepState::Bytes() const {
  std::vector<std::byte> all = parameter_;
  for (const auto* bytes : {&first_, &second_, &copy_}) {
    all.insert(all.end(), bytes->begin(), bytes->end());
  }
  return all;
}

}  // namespace tessera::offload
