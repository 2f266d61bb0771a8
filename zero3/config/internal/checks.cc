#include "zero3/config/internal/checks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/quoted.h"

namespace tessera::zero3::internal {

void Checker::Range(std::string_view field, int64_t value, int64_t least,
                    int64_t most) {
  if (value >= least && value <= most) return;
  Add(field, absl::StrCat(value), absl::StrCat(least, " to ", most),
      absl::StrCat(std::clamp(value, least, most)));
}

void Checker::Bytes(std::string_view field, ByteSize value, int64_t least) {
  if (value.bytes() >= least) return;
  Add(field, value.ToString(),
      absl::StrCat("at least ", ByteSize(least).ToString()),
      ByteSize(std::max<int64_t>(least, 1 << 20)).ToString());
}

void Checker::Number(std::string_view field, double value, double least) {
  if (std::isfinite(value) && value >= least) return;
  Add(field, absl::StrCat(value),
      absl::StrCat("a finite number, at least ", least), absl::StrCat(least));
}

void Checker::LeastScale(std::string_view field, double value,
                         int64_t initial_power) {
  // A power outside its range is told by its own check.
  if (initial_power < 0 || initial_power > 126) initial_power = 126;
  if (value > 0 && value <= std::ldexp(1.0, static_cast<int>(initial_power))) {
    return;
  }
  Add(field, absl::StrCat(value),
      absl::StrCat("above 0, at most 2^initial_scale_power = 2^",
                   initial_power),
      "1");
}

void Checker::Path(std::string_view field, const std::string& value) {
  constexpr size_t kLongest = 4096;
  const bool has_zero = value.find('\0') != std::string::npos;
  if (value.size() <= kLongest && !has_zero) return;
  Add(field, Quoted(value),
      absl::StrCat("at most ", kLongest, " bytes, none of them 0"), "/var/tmp");
}

void Checker::Add(std::string_view field, std::string given,
                  std::string allowed, std::string replacement) {
  std::string fix = absl::StrCat("set ", field, " to ", replacement);
  problems_.push_back({.field = std::string(field),
                       .given = std::move(given),
                       .allowed = std::move(allowed),
                       .fix = std::move(fix),
                       .replacement = std::move(replacement)});
}

}  // namespace tessera::zero3::internal
