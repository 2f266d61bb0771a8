// For tests: parses the elements of an SVG document by the rules of XML,
// independently of the writer.
//
//   TESSERA_ASSERT_OK_AND_ASSIGN(std::vector<XmlElement> all, ReadXml(svg));
#ifndef TESSERA_PIPELINE_DRAW_TESTING_SVG_CHECKER_H_
#define TESSERA_PIPELINE_DRAW_TESTING_SVG_CHECKER_H_

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tessera::pipeline {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // Its text and its descendants', unescaped.
  std::string
      group;  // The data-names of the elements around it, "panel/rank 0".

  double Number(const std::string& key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? -1 : std::atof(found->second.c_str());
  }
  std::string Get(const std::string& key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? "" : found->second;
  }
};

class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : rest_(text) {}

  absl::StatusOr<std::vector<XmlElement>> Read() {
    while (error_.empty() && (!rest_.empty() || !open_.empty())) Step();
    if (error_.empty() && elements_.empty()) error_ = "no element";
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    return elements_;
  }

 private:
  void Fail(std::string_view what) {
    if (error_.empty()) {
      error_ = absl::StrCat(what, " before \"", rest_.substr(0, 40), "\"");
    }
  }
  bool Take(std::string_view token) {
    if (rest_.substr(0, token.size()) != token) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  std::string_view Until(std::string_view stops) {
    const size_t end = std::min(rest_.find_first_of(stops), rest_.size());
    const std::string_view taken = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return taken;
  }
  void SkipSpace() {
    while (!rest_.empty() &&
           std::isspace(static_cast<unsigned char>(rest_[0]))) {
      rest_.remove_prefix(1);
    }
  }

  std::string Unescaped(std::string_view text) {
    static const std::map<std::string, char, std::less<>> kEntities = {
        {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"#39", '\''}};
    std::string plain;
    while (!text.empty()) {
      if (static_cast<unsigned char>(text[0]) < 0x20 && text[0] != '\n' &&
          text[0] != '\t') {
        Fail("a control character");
      }
      if (text[0] != '&') {
        plain += text[0];
        text.remove_prefix(1);
        continue;
      }
      const size_t end = text.find(';');
      const auto entity = end == std::string_view::npos
                              ? kEntities.end()
                              : kEntities.find(text.substr(1, end - 1));
      if (entity == kEntities.end()) {
        Fail("a lone &");
        return plain;
      }
      plain += entity->second;
      text.remove_prefix(end + 1);
    }
    return plain;
  }

  void Step() {
    if (!rest_.empty() && rest_[0] != '<') {
      const std::string text = Unescaped(Until("<"));
      if (open_.empty() && text.find_first_not_of(" \n") != std::string::npos) {
        Fail("text outside the root");
      }
      for (const size_t element : open_) elements_[element].text += text;
    } else if (Take("</")) {
      Close();
    } else if (Take("<")) {
      Open();
    } else {
      Fail("the document ends with an open element");
    }
  }

  void Close() {
    const std::string_view name = Until(">");
    if (open_.empty() || elements_[open_.back()].name != name || !Take(">")) {
      Fail(absl::StrCat("a wrong end of ", name));
      return;
    }
    open_.pop_back();
  }

  void Open() {
    if (open_.empty() && !elements_.empty()) Fail("a second root");
    XmlElement element;
    element.name = std::string(Until(" \n/>"));
    if (element.name.empty()) Fail("an element without a name");
    SkipSpace();
    while (!rest_.empty() && rest_[0] != '>' && rest_[0] != '/' &&
           error_.empty()) {
      ReadAttribute(element);
      SkipSpace();
    }
    for (const size_t outer : open_) {
      const std::string name = elements_[outer].Get("data-name");
      if (name.empty()) continue;
      absl::StrAppend(&element.group, element.group.empty() ? "" : "/", name);
    }
    elements_.push_back(element);
    if (Take("/>")) return;
    if (!Take(">")) Fail("an element that does not end");
    open_.push_back(elements_.size() - 1);
  }

  void ReadAttribute(XmlElement& element) {
    const std::string name(Until("= \n/>"));
    if (!Take("=\"")) {
      Fail("an attribute without a value");
      return;
    }
    const std::string_view value = Until("\"<");
    if (!Take("\"")) Fail("a value that does not end");
    if (!element.attributes.emplace(name, Unescaped(value)).second) {
      Fail(absl::StrCat("a second ", name));
    }
  }

  std::string_view rest_;
  std::vector<XmlElement> elements_;
  std::vector<size_t> open_;
  std::string error_;
};

inline absl::StatusOr<std::vector<XmlElement>> ReadXml(std::string_view text) {
  return XmlReader(text).Read();
}

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_TESTING_SVG_CHECKER_H_
