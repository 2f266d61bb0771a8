#include "base/byte_size.h"

#include <array>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// Wide enough for a mantissa of 18 digits times the largest unit.
__extension__ typedef unsigned __int128 uint128;

struct Unit {
  std::string_view name;
  int64_t bytes;
};

// Largest first, so that the first unit that fits is printed.
constexpr std::array<Unit, 13> kUnits = {{
    {"EiB", int64_t{1} << 60},
    {"EB", 1'000'000'000'000'000'000},
    {"PiB", int64_t{1} << 50},
    {"PB", 1'000'000'000'000'000},
    {"TiB", int64_t{1} << 40},
    {"TB", 1'000'000'000'000},
    {"GiB", int64_t{1} << 30},
    {"GB", 1'000'000'000},
    {"MiB", int64_t{1} << 20},
    {"MB", 1'000'000},
    {"KiB", int64_t{1} << 10},
    {"kB", 1'000},
    {"B", 1},
}};

// The unit's size in bytes, or 0 if there is no such unit.
int64_t UnitBytes(std::string_view name) {
  if (name.empty()) return 1;
  for (const Unit& unit : kUnits) {
    if (absl::EqualsIgnoreCase(name, unit.name)) return unit.bytes;
    const bool is_binary = unit.name.size() == 3;  // Has short forms.
    if (is_binary && absl::EqualsIgnoreCase(name.size() < 3 ? name : "",
                                            unit.name.substr(0, name.size()))) {
      return unit.bytes;
    }
  }
  return 0;
}

// A decimal number as digits * 10^-decimals, exactly. With an exponent,
// `decimals` may be negative.
struct Decimal {
  uint64_t digits = 0;
  int decimals = 0;
};

constexpr int kMaxDigits = 19;

// Removes an exponent such as "e9" or "E-3", if there is one; false if it has
// more than 3 digits. An E without a number is a unit.
bool ConsumeExponent(std::string_view* text, int* decimals) {
  std::string_view rest = *text;
  if (!absl::ConsumePrefix(&rest, "e") && !absl::ConsumePrefix(&rest, "E")) {
    return true;
  }
  const bool is_negative = absl::ConsumePrefix(&rest, "-");
  if (!is_negative) absl::ConsumePrefix(&rest, "+");
  size_t digits = 0;
  while (digits < rest.size() && absl::ascii_isdigit(rest[digits])) ++digits;
  if (digits == 0) return true;
  int exponent = 0;
  if (digits > 3 || !absl::SimpleAtoi(rest.substr(0, digits), &exponent)) {
    return false;
  }
  *decimals += is_negative ? exponent : -exponent;
  text->remove_prefix(text->size() - rest.size() + digits);
  return true;
}

// Removes the number from the front of `text`; false if there is none or it has
// more than 19 digits.
bool ConsumeDecimal(std::string_view* text, Decimal* number) {
  int digits = 0;
  bool after_point = false;
  size_t used = 0;
  for (; used < text->size(); ++used) {
    const char c = (*text)[used];
    if (c == '.' && !after_point) {
      after_point = true;
      continue;
    }
    if (!absl::ascii_isdigit(c)) break;
    if (++digits > kMaxDigits) return false;
    number->digits = number->digits * 10 + static_cast<uint64_t>(c - '0');
    number->decimals += after_point ? 1 : 0;
  }
  text->remove_prefix(used);
  return digits > 0 && ConsumeExponent(text, &number->decimals);
}

absl::Status Invalid(std::string_view text, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      "byte size \"", text.substr(0, 40), "\" ", reason,
      "; expected a number with an optional unit such as 4096, 64K, 2GiB, 8Gi "
      "or 1.5GB"));
}

// "1.5" for 1536 in units of 1024, or "" if two decimals are not exact.
std::string ExactQuotient(int64_t bytes, int64_t unit) {
  const uint128 hundredths = static_cast<uint128>(bytes % unit) * 100;
  if (hundredths % static_cast<uint128>(unit) != 0) return "";
  std::string text = absl::StrCat(bytes / unit);
  const int fraction =
      static_cast<int>(hundredths / static_cast<uint128>(unit));
  if (fraction == 0) return text;
  absl::StrAppendFormat(&text, ".%02d", fraction);
  if (text.back() == '0') text.pop_back();
  return text;
}

}  // namespace

std::string ByteSize::ToString() const {
  if (bytes_ < 0) return absl::StrCat(bytes_, "B");
  for (const Unit& unit : kUnits) {
    if (unit.bytes > bytes_) continue;
    if (std::string text = ExactQuotient(bytes_, unit.bytes); !text.empty()) {
      return absl::StrCat(text, unit.name);
    }
  }
  return "0B";
}

absl::StatusOr<ByteSize> ParseByteSize(std::string_view text) {
  std::string_view rest = absl::StripAsciiWhitespace(text);
  if (absl::StartsWith(rest, "-")) return Invalid(text, "is negative");
  Decimal number;
  if (!ConsumeDecimal(&rest, &number)) {
    return Invalid(text, "is not a number of at most 19 digits");
  }
  const int64_t unit = UnitBytes(absl::StripAsciiWhitespace(rest));
  if (unit == 0) return Invalid(text, "has an unknown unit");

  constexpr auto kMost =
      static_cast<uint128>(std::numeric_limits<int64_t>::max());
  uint128 bytes =
      static_cast<uint128>(number.digits) * static_cast<uint128>(unit);
  for (; number.decimals > 0 && bytes != 0; --number.decimals, bytes /= 10) {
    if (bytes % 10 != 0) return Invalid(text, "is no whole number of bytes");
  }
  for (; number.decimals < 0 && bytes <= kMost; ++number.decimals) bytes *= 10;
  if (bytes > kMost) {
    return Invalid(text, "exceeds 2^63-1 bytes");
  }
  return ByteSize(static_cast<int64_t>(bytes));
}

std::string FormatByteLimit(ByteSize limit) {
  return limit == ByteSize() ? "" : limit.ToString();
}

absl::StatusOr<ByteSize> ParseByteLimit(std::string_view text) {
  if (text.empty()) return ByteSize();
  const absl::StatusOr<ByteSize> limit = ParseByteSize(text);
  if (limit.ok() && *limit > ByteSize()) return limit;
  return absl::InvalidArgumentError("must be a number of bytes above 0");
}

bool AbslParseFlag(std::string_view text, ByteSize* size, std::string* error) {
  absl::StatusOr<ByteSize> parsed = ParseByteSize(text);
  if (!parsed.ok()) {
    *error = std::string(parsed.status().message());
    return false;
  }
  *size = *parsed;
  return true;
}

std::string AbslUnparseFlag(ByteSize size) { return size.ToString(); }

}  // namespace tessera
