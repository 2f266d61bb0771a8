#include "zero3/parameters/model_parameters.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"

namespace tessera::zero3 {

struct ModelParameters::State {
  std::vector<ModelParameter> parameters;
  // Views into `parameters`, which is not changed once they are taken.
  absl::flat_hash_map<std::string_view, ParameterId> by_name;
  std::vector<ParameterId> in_use_order;
  // The start of each group in `in_use_order`, and the end.
  std::vector<size_t> group_starts = {0};
  int64_t elements = 0;
  int64_t bytes = 0;
};

namespace {

constexpr size_t kMistakesShown = 16;
constexpr size_t kDimensionsShown = 8;

std::string ShapeText(const std::vector<int64_t>& shape) {
  const size_t shown = std::min(shape.size(), kDimensionsShown);
  return absl::StrCat("[",
                      absl::StrJoin(shape.begin(), shape.begin() + shown, ", "),
                      shown < shape.size() ? ", ..." : "", "]");
}

// Returns the first error in a single spec, or "".
std::string MistakeIn(const ParameterSpec& spec) {
  if (spec.name.empty()) return "the name is empty; give it a name";
  if (spec.name.size() > kMaxParameterName) {
    return absl::StrCat("the name has ", spec.name.size(),
                        " bytes; allowed: at most ", kMaxParameterName);
  }
  if (!IsValid(spec.dtype)) {
    return absl::StrCat("element type number ", static_cast<int>(spec.dtype),
                        " is unknown; use one of base/dtype/dtype.h");
  }
  if (spec.trainable && !IsFloating(spec.dtype)) {
    return absl::StrCat("element type ", DTypeName(spec.dtype),
                        " cannot be trained; use a floating type or set "
                        "trainable to false");
  }
  if (spec.group < 0) {
    return absl::StrCat("group is ", spec.group, "; allowed: 0 or more");
  }
  for (const int64_t size : spec.shape) {
    if (size >= 0) continue;
    return absl::StrCat("shape ", ShapeText(spec.shape),
                        " has a negative dimension; allowed: 0 or more");
  }
  return "";
}

// Computes the product of the dimensions; false if it exceeds 2^63-1.
bool CountElements(const std::vector<int64_t>& shape, int64_t* elements) {
  *elements = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    *elements = 0;
    return true;
  }
  return std::all_of(shape.begin(), shape.end(), [&](int64_t size) {
    return !__builtin_mul_overflow(*elements, size, elements);
  });
}

// Sets the parameter's sizes and adds them to the totals; returns the error, or
// "".
std::string Measure(ModelParameter& parameter, int64_t& elements,
                    int64_t& bytes) {
  const std::string shape = ShapeText(parameter.spec.shape);
  if (!CountElements(parameter.spec.shape, &parameter.elements)) {
    return absl::StrCat("shape ", shape, " has more than 2^63-1 elements");
  }
  if (__builtin_mul_overflow(parameter.elements, SizeInBytes(parameter.dtype()),
                             &parameter.bytes)) {
    return absl::StrCat("shape ", shape, " of ", DTypeName(parameter.dtype()),
                        " takes more than 2^63-1 bytes");
  }
  if (__builtin_add_overflow(elements, parameter.elements, &elements) ||
      __builtin_add_overflow(bytes, parameter.bytes, &bytes)) {
    return absl::StrCat("with shape ", shape,
                        " the model exceeds 2^63-1 elements or bytes");
  }
  return "";
}

absl::Status ToStatus(const std::vector<std::string>& mistakes) {
  if (mistakes.empty()) return absl::OkStatus();
  std::string message = absl::StrCat(
      mistakes.size(), mistakes.size() == 1 ? " mistake" : " mistakes",
      " in the model's parameters:");
  for (size_t i = 0; i < std::min(mistakes.size(), kMistakesShown); ++i) {
    absl::StrAppend(&message, "\n", mistakes[i]);
  }
  if (mistakes.size() > kMistakesShown) {
    absl::StrAppend(&message, "\nand ", mistakes.size() - kMistakesShown,
                    " more");
  }
  return absl::InvalidArgumentError(message);
}

// All ids by group, and the start of each group.
void SortByGroup(const std::vector<ModelParameter>& parameters,
                 std::vector<ParameterId>& order, std::vector<size_t>& starts) {
  const auto group = [&](ParameterId id) {
    return parameters[static_cast<size_t>(id.value())].spec.group;
  };
  for (const ModelParameter& parameter : parameters)
    order.push_back(parameter.id);
  std::stable_sort(
      order.begin(), order.end(),
      [&](ParameterId a, ParameterId b) { return group(a) < group(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (group(order[i]) != group(order[i - 1])) starts.push_back(i);
  }
  if (!order.empty()) starts.push_back(order.size());
}

}  // namespace

ModelParameters::Builder& ModelParameters::Builder::Add(ParameterSpec spec) {
  specs_.push_back(std::move(spec));
  return *this;
}

absl::StatusOr<ModelParameters> ModelParameters::Builder::Build() const {
  auto state = std::make_shared<State>();
  std::vector<std::string> mistakes;
  for (const ParameterSpec& spec : specs_) {
    const ParameterId id(static_cast<int64_t>(state->parameters.size()));
    state->parameters.push_back({.id = id, .spec = spec});
    std::string mistake = MistakeIn(spec);
    if (mistake.empty()) {
      mistake =
          Measure(state->parameters.back(), state->elements, state->bytes);
    }
    if (mistake.empty()) continue;
    mistakes.push_back(absl::StrCat("parameter ", id.value(), " ",
                                    Quoted(spec.name), ": ", mistake));
  }
  for (const ModelParameter& parameter : state->parameters) {
    const auto [first, is_new] =
        state->by_name.emplace(parameter.name(), parameter.id);
    if (is_new || parameter.name().empty()) continue;
    mistakes.push_back(absl::StrCat(
        "parameter ", parameter.id.value(), " ", Quoted(parameter.name()),
        ": the name is taken by parameter ", first->second.value(),
        "; names must be unique"));
  }
  if (const absl::Status status = ToStatus(mistakes); !status.ok()) {
    return status;
  }
  SortByGroup(state->parameters, state->in_use_order, state->group_starts);
  return ModelParameters(std::move(state));
}

ModelParameters::ModelParameters() : state_(std::make_shared<State>()) {}

ModelParameters::ModelParameters(std::shared_ptr<const State> state)
    : state_(std::move(state)) {}

int64_t ModelParameters::count() const {
  return static_cast<int64_t>(state_->parameters.size());
}

std::span<const ModelParameter> ModelParameters::all() const {
  return state_->parameters;
}

absl::StatusOr<ParameterId> ModelParameters::Find(std::string_view name) const {
  const auto found = state_->by_name.find(name);
  if (found != state_->by_name.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "unknown parameter ", Quoted(name), " among the ", count(),
      " of the model",
      count() > 0
          ? absl::StrCat("; the first is ", Quoted(all().front().name()))
          : ""));
}

absl::Status ModelParameters::CheckId(ParameterId id) const {
  if (Contains(id)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has no parameter with the id ", id.value(),
                   "; allowed: 0 to below ", count()));
}

int64_t ModelParameters::elements() const { return state_->elements; }
int64_t ModelParameters::bytes() const { return state_->bytes; }

std::span<const ParameterId> ModelParameters::in_use_order() const {
  return state_->in_use_order;
}

int64_t ModelParameters::group_count() const {
  return static_cast<int64_t>(state_->group_starts.size()) - 1;
}

std::span<const ParameterId> ModelParameters::group(int64_t index) const {
  const auto at = static_cast<size_t>(index);
  const size_t begin = state_->group_starts[at];
  return in_use_order().subspan(begin, state_->group_starts[at + 1] - begin);
}

bool operator==(const ModelParameters& a, const ModelParameters& b) {
  return a.state_ == b.state_ ||
         std::equal(a.all().begin(), a.all().end(), b.all().begin(),
                    b.all().end(),
                    [](const ModelParameter& x, const ModelParameter& y) {
                      return x.spec == y.spec;
                    });
}

}  // namespace tessera::zero3
