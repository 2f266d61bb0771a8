#include "pipeline/draw/svg_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace tessera::pipeline {

namespace {

// By ActionKind.
constexpr std::array<Colour, kActionKinds.size()> kBaseColours = {{
    {0, 114, 178},
    {213, 94, 0},
    {235, 170, 10},
    {15, 172, 118},
    {90, 70, 140},
    {176, 160, 214},
    {90, 70, 140},
    {176, 160, 214},
    {86, 180, 233},
    {150, 150, 150},
    {204, 121, 167},
}};
constexpr std::array<std::string_view, kActionKinds.size()> kLegends = {
    "F forward",
    "B backward",
    "I backward, input",
    "W backward, weights",
    "send",
    "receive",
    "send",
    "receive",
    "unshard",
    "reshard",
    "reduce gradient"};

const Colour& BaseOf(ActionKind kind) {
  return kBaseColours[static_cast<size_t>(kind)];
}

double Linear(double part) {
  const double share = part / 255;
  return share <= 0.04045 ? share / 12.92
                          : std::pow((share + 0.055) / 1.055, 2.4);
}

}  // namespace

std::string Colour::ToHex() const {
  const auto byte = [](double part) {
    return static_cast<int>(std::lround(std::clamp(part, 0.0, 255.0)));
  };
  return absl::StrFormat("#%02x%02x%02x", byte(red), byte(green), byte(blue));
}

double Colour::Luminance() const {
  return 0.2126 * Linear(red) + 0.7152 * Linear(green) + 0.0722 * Linear(blue);
}

Colour Mix(const Colour& a, const Colour& b, double share) {
  return {a.red + (b.red - a.red) * share,
          a.green + (b.green - a.green) * share,
          a.blue + (b.blue - a.blue) * share};
}

Colour ColourOf(ActionKind kind, int64_t chunk, int64_t chunks) {
  if (!Computes(kind)) return BaseOf(kind);
  constexpr double kDarkest = 0.22;  // Share of white; keeps text legible.
  constexpr double kLightest = 0.66;
  const double place =
      chunks > 1 ? static_cast<double>(chunk) / static_cast<double>(chunks - 1)
                 : 0;
  return Mix(BaseOf(kind), kWhite, kDarkest + (kLightest - kDarkest) * place);
}

Colour TextOn(const Colour& ground) {
  const auto contrast = [&](const Colour& text) {
    const double a = ground.Luminance() + 0.05;
    const double b = text.Luminance() + 0.05;
    return std::max(a, b) / std::min(a, b);
  };
  return contrast(kInk) >= contrast(kWhite) ? kInk : kWhite;
}

Colour ColourOfRank(int64_t rank, int64_t ranks) {
  constexpr std::array<Colour, 5> kScale = {{{68, 1, 84},
                                             {59, 82, 139},
                                             {33, 145, 140},
                                             {94, 175, 70},
                                             {224, 160, 0}}};
  if (ranks <= 1) return kScale[1];
  const double place = static_cast<double>(rank) *
                       static_cast<double>(kScale.size() - 1) /
                       static_cast<double>(ranks - 1);
  const size_t at = std::min(static_cast<size_t>(place), kScale.size() - 2);
  return Mix(kScale[at], kScale[at + 1], place - static_cast<double>(at));
}

std::string_view LegendOf(ActionKind kind) {
  return kLegends[static_cast<size_t>(kind)];
}

namespace {

// The number of bytes of the UTF-8 character at the front of `text`; 0 if it is
// not a character that XML allows.
size_t CharacterLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return lead >= 0x20 || lead == '\t' || lead == '\n' ? 1 : 0;
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  uint32_t code = lead & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  const bool is_character = code >= kLeast[length] && code <= 0x10ffff &&
                            !is_surrogate && code != 0xfffe && code != 0xffff;
  return is_character ? length : 0;
}

}  // namespace

std::string XmlText(std::string_view text) {
  std::string allowed;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    allowed += length == 0 ? "?" : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return absl::StrReplaceAll(allowed, {{"&", "&amp;"},
                                       {"<", "&lt;"},
                                       {">", "&gt;"},
                                       {"\"", "&quot;"},
                                       {"'", "&#39;"}});
}

std::string PixelText(double pixels) {
  std::string text = absl::StrFormat("%.2f", pixels);
  std::string_view shown = text;
  while (absl::ConsumeSuffix(&shown, "0")) {
  }
  absl::ConsumeSuffix(&shown, ".");
  return shown == "-0" ? "0" : std::string(shown);
}

SvgWriter::SvgWriter(double width, double height,
                     std::string_view description) {
  const std::string size =
      absl::StrCat(PixelText(width), " ", PixelText(height));
  text_ = absl::StrCat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", PixelText(width),
      "\" height=\"", PixelText(height), "\" viewBox=\"0 0 ", size,
      "\" font-family=\"Helvetica, Arial, sans-serif\" fill=\"", kInk.ToHex(),
      "\">\n<title>", XmlText(description),
      "</title>\n<style>.title{font-size:15px;font-weight:bold}"
      ".note{font-size:12px}.small,.right,.middle{font-size:11px}"
      ".right{text-anchor:end}.middle{text-anchor:middle}</style>\n");
  Box({.width = width, .height = height, .fill = kWhite.ToHex()});
}

void SvgWriter::Box(const SvgBox& box, std::string_view tooltip) {
  absl::StrAppend(&text_, "<rect x=\"", PixelText(box.x), "\" y=\"",
                  PixelText(box.y), "\" width=\"", PixelText(box.width),
                  "\" height=\"", PixelText(box.height), "\" fill=\"", box.fill,
                  box.stroke.empty() ? "" : "\" stroke=\"", box.stroke, "\"");
  if (tooltip.empty()) {
    absl::StrAppend(&text_, "/>\n");
  } else {
    absl::StrAppend(&text_, "><title>", XmlText(tooltip), "</title></rect>\n");
  }
}

void SvgWriter::Text(const SvgLabel& label, std::string_view text) {
  absl::StrAppend(&text_, "<text x=\"", PixelText(label.x), "\" y=\"",
                  PixelText(label.y), "\" class=\"", label.classes, "\"");
  if (!label.fill.empty()) {
    absl::StrAppend(&text_, " fill=\"", label.fill, "\"");
  }
  if (label.size > 0) {
    absl::StrAppend(&text_, " style=\"font-size:", PixelText(label.size),
                    "px\"");
  }
  absl::StrAppend(&text_, ">", XmlText(text), "</text>\n");
}

void SvgWriter::Line(double x1, double y1, double x2, double y2,
                     std::string_view attributes) {
  absl::StrAppend(&text_, "<line x1=\"", PixelText(x1), "\" y1=\"",
                  PixelText(y1), "\" x2=\"", PixelText(x2), "\" y2=\"",
                  PixelText(y2), "\" ", attributes, "/>\n");
}

void SvgWriter::Path(std::string_view data, std::string_view attributes) {
  absl::StrAppend(&text_, "<path d=\"", data, "\" fill=\"none\" ", attributes,
                  "/>\n");
}

void SvgWriter::Begin(std::string_view name) {
  absl::StrAppend(&text_, "<g data-name=\"", XmlText(name), "\">\n");
}

void SvgWriter::End() { absl::StrAppend(&text_, "</g>\n"); }

std::string SvgWriter::Finish() && {
  absl::StrAppend(&text_, "</svg>\n");
  return std::move(text_);
}

}  // namespace tessera::pipeline
