#include "tools/model_files/parse_json.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::model_files {
namespace {

using Json = nlohmann::json;

// Builds the document from the parser's events. Returning false makes the
// parser stop.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(size_t max_depth) : max_depth_(max_depth) {}

  const absl::Status& status() const { return status_; }
  Json Take() { return std::move(root_); }

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override {
    return Put(value) != nullptr;
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Put(value) != nullptr;
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(value) != nullptr;
  }
  bool string(string_t& value) override {
    return Put(std::move(value)) != nullptr;
  }
  bool binary(binary_t&) override { return Fail("found binary data"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    const auto [place, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) {
      return Fail(absl::StrCat("key ", Quoted(name),
                               " comes twice in an object; give it once"));
    }
    place_ = &place.value();
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The parser's own words follow its "[json.exception...] " prefix.
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) {
      reason.remove_prefix(end + 2);
    }
    return Fail(absl::StrCat("no JSON at byte ", position, ": ",
                             absl::CHexEscape(reason.substr(0, 200))));
  }

 private:
  // Where the value now is, which is never null.
  Json* Put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *place_ = std::move(value);
    return place_;
  }
  bool Open(Json value) {
    if (open_.size() == max_depth_) {
      return Fail(absl::StrCat("objects and arrays are nested more than ",
                               max_depth_, " deep"));
    }
    open_.push_back(Put(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Fail(std::string_view message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }

  const size_t max_depth_;
  Json root_;
  std::vector<Json*> open_;
  Json* place_ = nullptr;  // Of the value of the last key.
  absl::Status status_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.size(), " bytes of JSON; at most ", limits.max_bytes,
                     " are allowed"));
  }
  Builder builder(limits.max_depth);
  const bool parsed = Json::sax_parse(text, &builder);
  TESSERA_RETURN_IF_ERROR(builder.status());
  if (!parsed) return absl::InvalidArgumentError("no JSON");
  return builder.Take();
}

std::string DescribeJson(const nlohmann::json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return absl::StrCat("the string ",
                          Quoted(value.get_ref<const std::string&>()));
    default:
      return value.dump();
  }
}

}  // namespace tessera::model_files
