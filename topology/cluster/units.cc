#include "topology/cluster/units.h"

#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/byte_size.h"

namespace tessera::topology {
namespace {

constexpr double kMaxLatency = 1000;

// The nearest double to what the text says, "3.4us" as 3.4e-6: the exponent
// goes into the text, since multiplying would round twice.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4>
    kTimeUnits = {{{"ns", "e-9"}, {"us", "e-6"}, {"ms", "e-3"}, {"s", "e0"}}};

absl::Status Invalid(std::string_view what, std::string_view text,
                     std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " \"", text.substr(0, 40), "\" is not ", expected));
}

bool IsPlainDecimal(std::string_view text) {
  for (char c : text) {
    if (!absl::ascii_isdigit(c) && c != '.') return false;
  }
  return !text.empty();
}

}  // namespace

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  constexpr std::string_view kExpected =
      "a number above 0 with a unit, such as 450GB, 12.5GB/s or 400Gb/s (a "
      "small b is bits)";
  std::string_view rest = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumeSuffix(&rest, "/s")) absl::ConsumeSuffix(&rest, "ps");
  const bool is_bits = absl::ConsumeSuffix(&rest, "b");
  if (rest.empty()) return Invalid("bandwidth", text, kExpected);
  const absl::StatusOr<ByteSize> size =
      ParseByteSize(is_bits ? absl::StrCat(rest, "B") : std::string(rest));
  if (!size.ok() || size->bytes() == 0) {
    return Invalid("bandwidth", text, kExpected);
  }
  return static_cast<double>(size->bytes()) / (is_bits ? 8 : 1);
}

absl::StatusOr<double> ParseLatency(std::string_view text) {
  constexpr std::string_view kExpected =
      "a number of at most 1000 s with a unit, such as 3.4us, 500ns or 1ms";
  const std::string_view trimmed = absl::StripAsciiWhitespace(text);
  for (const auto& [unit, exponent] : kTimeUnits) {
    std::string_view number = trimmed;
    if (!absl::ConsumeSuffix(&number, unit)) continue;
    double seconds = 0;
    if (!IsPlainDecimal(number) || number.size() > 40 ||
        !absl::SimpleAtod(absl::StrCat(number, exponent), &seconds) ||
        seconds > kMaxLatency) {
      break;
    }
    return seconds;
  }
  return Invalid("latency", text, kExpected);
}

}  // namespace tessera::topology
