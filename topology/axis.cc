#include "topology/axis.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::topology {

namespace {

constexpr std::array<std::string_view, 5> kUsualNames = {"dp", "tp", "pp", "cp",
                                                         "ep"};

constexpr size_t kMaxNameLength = 32;
constexpr size_t kMaxTextLength = 1024;

bool IsValidName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameLength &&
         absl::ascii_islower(name[0]) && absl::c_all_of(name, [](char c) {
           return absl::ascii_islower(c) || c == '_';
         });
}

std::string NamesOf(std::span<const Axis> axes) {
  return absl::StrJoin(axes, ", ", [](std::string* out, const Axis& axis) {
    absl::StrAppend(out, axis.name);
  });
}

const Axis* Find(std::span<const Axis> axes, std::string_view name) {
  const auto it = absl::c_find_if(
      axes, [&](const Axis& axis) { return axis.name == name; });
  return it == axes.end() ? nullptr : &*it;
}

void CheckAxis(std::span<const Axis> axes, size_t i,
               std::vector<std::string>* problems) {
  const Axis& axis = axes[i];
  if (!IsValidName(axis.name)) {
    problems->push_back(absl::StrCat("axis ", Quoted(axis.name),
                                     " is not a valid name; expected up to 32 "
                                     "lower-case letters and underscores, "
                                     "such as dp or dp_shard"));
  }
  if (axis.size < AxisSize(1)) {
    problems->push_back(absl::StrCat("axis ", Quoted(axis.name), " has size ",
                                     axis.size.value(),
                                     "; give it a size of 1 or more"));
  }
  if (Find(axes.subspan(0, i), axis.name) != nullptr) {
    problems->push_back(absl::StrCat("axis ", Quoted(axis.name),
                                     " is named twice; name each once"));
  }
}

bool ProductOverflows(std::span<const Axis> axes) {
  int64_t product = 1;
  return absl::c_any_of(axes, [&](const Axis& axis) {
    return __builtin_mul_overflow(product, axis.size.value(), &product);
  });
}

absl::StatusOr<Axis> ParseAxis(std::string_view item) {
  const size_t name_length = static_cast<size_t>(
      absl::c_find_if(item,
                      [](char c) {
                        return c == '=' || c == '-' || absl::ascii_isdigit(c);
                      }) -
      item.begin());
  std::string_view digits = item.substr(name_length);
  if (!digits.empty() && digits[0] == '=') digits.remove_prefix(1);
  int64_t size = 0;
  if (!absl::SimpleAtoi(digits, &size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "axis ", Quoted(item),
        " is not a name with a size below 2^63; expected a list such as "
        "dp2,pp2,tp2"));
  }
  return Axis{std::string(item.substr(0, name_length)), AxisSize(size)};
}

}  // namespace

absl::Status ValidateAxes(std::span<const Axis> axes) {
  std::vector<std::string> problems;
  for (size_t i = 0; i < axes.size(); ++i) CheckAxis(axes, i, &problems);
  if (axes.size() > kMaxAxes) {
    problems.push_back(absl::StrCat(axes.size(), " axes are given; at most ",
                                    kMaxAxes, " are allowed"));
  }
  if (problems.empty() && ProductOverflows(axes)) {
    problems.push_back(
        absl::StrCat("the sizes of ", FormatAxes(axes),
                     " multiply to more than 2^63-1 ranks; give smaller ones"));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

absl::StatusOr<std::vector<Axis>> ParseAxes(std::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty() || text.size() > kMaxTextLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mesh of ", text.size(),
                     " characters; expected 1 to 1024, such as dp2,pp2,tp2"));
  }
  std::vector<Axis> axes;
  for (std::string_view item : absl::StrSplit(text, ',')) {
    TESSERA_ASSIGN_OR_RETURN(Axis axis,
                             ParseAxis(absl::StripAsciiWhitespace(item)));
    axes.push_back(std::move(axis));
  }
  TESSERA_RETURN_IF_ERROR(ValidateAxes(axes));
  return axes;
}

std::string FormatAxes(std::span<const Axis> axes) {
  return absl::StrJoin(axes, ",", [](std::string* out, const Axis& axis) {
    absl::StrAppend(out, axis.name, axis.size.value());
  });
}

absl::StatusOr<std::vector<Axis>> OrderAxes(std::span<const Axis> axes,
                                            std::string_view order) {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(axes));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ParseAxisNames(order),
                           Annotate(_, absl::StrCat("order ", Quoted(order))));
  std::vector<Axis> ordered;
  for (const std::string& name : names) {
    if (const Axis* axis = Find(axes, name); axis != nullptr) {
      ordered.push_back(*axis);
    } else if (absl::c_find(kUsualNames, name) == kUsualNames.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("order ", Quoted(order), " names the unknown axis ",
                       Quoted(name), "; the mesh has ", NamesOf(axes)));
    }
  }
  for (const Axis& axis : axes) {
    if (Find(ordered, axis.name) != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("order ", Quoted(order), " lacks axis \"", axis.name,
                     "\"; name every axis of the mesh, for example ",
                     absl::StrCat(order, "-", axis.name)));
  }
  return ordered;
}

absl::StatusOr<std::vector<std::string>> ParseAxisNames(std::string_view text) {
  if (text.size() > kMaxTextLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of axes of ", text.size(),
                     " characters; expected at most 1024"));
  }
  std::vector<std::string> names;
  for (std::string_view item : absl::StrSplit(text, absl::ByAnyChar(",-"))) {
    const std::string name(absl::StripAsciiWhitespace(item));
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a list of axes ", Quoted(text),
                       " has an empty name; expected names such as tp,pp"));
    }
    if (absl::c_find(names, name) != names.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a list of axes ", Quoted(text), " names ", Quoted(name),
                       " twice; name each once"));
    }
    names.push_back(name);
  }
  return names;
}

bool CanonicalAxisLess(std::string_view a, std::string_view b) {
  const auto key = [](std::string_view name) {
    const auto usual = absl::c_find(kUsualNames, name) - kUsualNames.begin();
    return std::make_pair(usual, name);
  };
  return key(a) < key(b);
}

}  // namespace tessera::topology
