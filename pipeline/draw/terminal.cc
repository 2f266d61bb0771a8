#include "pipeline/draw/terminal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {
namespace {

constexpr size_t kKinds = 4;  // F, B, I, W.
constexpr size_t kIdle = kKinds;
constexpr int64_t kAfter = 10;  // "|  12.3 %".
constexpr std::string_view kPlain = "\x1b[0m";

// Background and foreground colours of a kind.
std::string_view ColourOf(size_t style) {
  constexpr std::array<std::string_view, kKinds + 1> kColours = {
      "\x1b[97;44m", "\x1b[97;41m", "\x1b[30;43m", "\x1b[30;42m", kPlain};
  return kColours[style];
}

struct Scale {
  double characters = 1;  // Per unit of time.
  int64_t columns = 0;

  int64_t ColumnOf(double time) const {
    return std::clamp<int64_t>(std::lround(time * characters), 0, columns);
  }
};

double ShortestComputation(std::span<const Exhibit> exhibits) {
  double shortest = 0;
  for (const Exhibit& exhibit : exhibits) {
    for (const RankTimeline& line : exhibit.timeline.ranks) {
      for (const TimedAction& timed : line.computations) {
        const double time = timed.end - timed.begin;
        if (time > 0 && (shortest == 0 || time < shortest)) shortest = time;
      }
    }
  }
  return shortest;
}

int64_t MostDigits(std::span<const Exhibit> exhibits) {
  int32_t last = 0;
  for (const Exhibit& exhibit : exhibits) {
    for (const RankTimeline& line : exhibit.timeline.ranks) {
      for (const TimedAction& timed : line.computations) {
        last = std::max(last, timed.action.microbatch);
      }
    }
  }
  return static_cast<int64_t>(absl::StrCat(last).size());
}

// Chooses a whole number of characters for the shortest computation, if space
// allows, but no more than its letter and number need.
Scale ScaleFor(std::span<const Exhibit> exhibits, int64_t room) {
  const double extent = ExtentOf(exhibits);
  const double shortest = ShortestComputation(exhibits);
  Scale scale;
  if (extent <= 0) return scale;
  scale.characters = static_cast<double>(room) / extent;
  const double characters = std::floor(scale.characters * shortest + 1e-9);
  if (characters >= 1) {
    const auto needed = static_cast<double>(1 + MostDigits(exhibits));
    scale.characters = std::min(characters, needed) / shortest;
  }
  scale.columns = std::min<int64_t>(
      room, static_cast<int64_t>(std::ceil(extent * scale.characters - 1e-9)));
  return scale;
}

// The characters of a rank's line, and their colours.
class Line {
 public:
  Line(const RankTimeline& rank, const Scale& scale)
      : rank_(rank),
        scale_(scale),
        chunks_(rank),
        text_(static_cast<size_t>(scale.columns), '.'),
        styles_(text_.size(), kIdle),
        shares_(text_.size()) {
    for (size_t i = 0; i < rank.computations.size(); ++i) Enter(i);
    for (size_t column = 0; column < text_.size(); ++column) Settle(column);
    EnterOptimizer();
  }

  std::string Text(bool colour) const {
    if (!colour) return text_;
    std::string text;
    size_t style = kIdle;
    for (size_t i = 0; i < text_.size(); ++i) {
      if (styles_[i] != style) absl::StrAppend(&text, ColourOf(styles_[i]));
      style = styles_[i];
      text += style != kIdle && text_[i] == '-' ? ' ' : text_[i];
    }
    if (style != kIdle) absl::StrAppend(&text, kPlain);
    return text;
  }

 private:
  char LetterOf(const Action& action) const {
    const char letter = ActionKindName(action.kind)[0];
    return chunks_.Of(action.stage) > 0 ? absl::ascii_tolower(letter) : letter;
  }

  // Overlapping computations share their time; the first one gets the first
  // half.
  TimedAction Shown(size_t i) const {
    TimedAction shown = rank_.computations[i];
    const auto overlap = [&](size_t first) {
      return first + 1 < rank_.computations.size() &&
             rank_.computations[first].action.with_next &&
             rank_.computations[first + 1].begin <
                 rank_.computations[first].end;
    };
    const auto middle = [&](size_t first) {
      const TimedAction& a = rank_.computations[first];
      const TimedAction& b = rank_.computations[first + 1];
      return (a.begin + std::max(a.end, b.end)) / 2;
    };
    if (overlap(i)) {
      shown.end = middle(i);
    } else if (i > 0 && overlap(i - 1)) {
      shown.begin = middle(i - 1);
      shown.end = std::max(shown.end, rank_.computations[i - 1].end);
    }
    return shown;
  }

  void Enter(size_t i) {
    const TimedAction timed = Shown(i);
    const int64_t begin = scale_.ColumnOf(timed.begin);
    const int64_t end = scale_.ColumnOf(timed.end);
    if ((timed.end - timed.begin) * scale_.characters >= 1 - 1e-9 &&
        end > begin) {
      Write(timed.action, static_cast<size_t>(begin), static_cast<size_t>(end));
    } else {
      Share(timed);
    }
  }

  void EnterOptimizer() {
    const auto begin =
        static_cast<size_t>(scale_.ColumnOf(rank_.optimizer.begin));
    const auto end = static_cast<size_t>(scale_.ColumnOf(rank_.optimizer.end));
    for (size_t i = begin; i < end; ++i) text_[i] = i == begin ? 'O' : '-';
  }

  void Write(const Action& action, size_t begin, size_t end) {
    std::string box(end - begin, '-');
    const std::string name =
        absl::StrCat(std::string(1, LetterOf(action)), action.microbatch);
    const size_t shown = name.size() <= box.size() ? name.size() : 1;
    box.replace(0, shown, name, 0, shown);
    text_.replace(begin, box.size(), box);
    std::fill(styles_.begin() + static_cast<ptrdiff_t>(begin),
              styles_.begin() + static_cast<ptrdiff_t>(end),
              static_cast<size_t>(action.kind));
  }

  // Adds the time to each character that it covers.
  void Share(const TimedAction& timed) {
    const double begin = timed.begin * scale_.characters;
    const double end = timed.end * scale_.characters;
    for (auto column = static_cast<size_t>(begin);
         column < text_.size() && static_cast<double>(column) < end; ++column) {
      const auto at = static_cast<double>(column);
      shares_[column][static_cast<size_t>(timed.action.kind)] +=
          std::min(end, at + 1) - std::max(begin, at);
    }
  }

  // Chooses the character of a column that several short computations share.
  void Settle(size_t column) {
    const std::array<double, kKinds>& shares = shares_[column];
    const auto most = std::max_element(shares.begin(), shares.end());
    double idle = 1;
    for (const double share : shares) idle -= share;
    if (styles_[column] != kIdle || *most <= 0 || *most < idle) return;
    const auto kind = static_cast<size_t>(most - shares.begin());
    styles_[column] = kind;
    text_[column] = ActionKindName(static_cast<ActionKind>(kind))[0];
  }

  const RankTimeline& rank_;
  const Scale& scale_;
  const Chunks chunks_;
  std::string text_;
  std::vector<size_t> styles_;
  std::vector<std::array<double, kKinds>> shares_;
};

std::string RankName(size_t rank, size_t ranks) {
  return absl::StrFormat(
      "rank %*d |", static_cast<int>(absl::StrCat(ranks - 1).size()), rank);
}

// "|0        |10       |20" below the lines.
std::string AxisText(const Scale& scale, double extent, const TimeUnit& unit) {
  std::string text;
  const int most = static_cast<int>(std::max<int64_t>(2, scale.columns / 8));
  for (const double tick : TicksTo(extent, most)) {
    const auto column = static_cast<size_t>(scale.ColumnOf(tick));
    if (!text.empty() && column <= text.size()) continue;
    text.resize(column, ' ');
    absl::StrAppend(&text, "|", NumberText(tick));
  }
  return absl::StrCat(text, " ", unit.name);
}

void AppendExhibit(const Exhibit& exhibit, const TimeUnit& unit,
                   const TerminalOptions& options, const Scale& scale,
                   std::string* text) {
  const std::vector<RankTimeline>& ranks = exhibit.timeline.ranks;
  if (!exhibit.title.empty()) {
    absl::StrAppend(text, absl::CEscape(exhibit.title.substr(0, 120)), "\n");
  }
  absl::StrAppend(text, SummaryOf(exhibit, unit), "\n");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    absl::StrAppend(
        text, RankName(rank, ranks.size()),
        Line(ranks[rank], scale).Text(options.colour),
        absl::StrFormat("| %5.1f %%\n", 100 * exhibit.timeline.BubbleRate(
                                                  static_cast<int32_t>(rank))));
  }
  if (ranks.empty()) return;
  absl::StrAppend(text, std::string(RankName(0, ranks.size()).size() - 1, ' '),
                  AxisText(scale, ExtentOf(exhibit.timeline), unit), "\n");
}

}  // namespace

absl::StatusOr<std::string> DrawTerminal(std::span<const Exhibit> exhibits,
                                         const TimeUnit& unit,
                                         const TerminalOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckExhibits(exhibits));
  if (options.width < TerminalOptions::kLeastWidth ||
      options.width > TerminalOptions::kMostWidth) {
    return absl::InvalidArgumentError(
        absl::StrCat("a picture of ", options.width, " columns; from ",
                     TerminalOptions::kLeastWidth, " to ",
                     TerminalOptions::kMostWidth, " can be drawn"));
  }
  size_t ranks = 1;
  for (const Exhibit& exhibit : exhibits) {
    ranks = std::max(ranks, exhibit.timeline.ranks.size());
  }
  const Scale scale =
      ScaleFor(exhibits, options.width - kAfter -
                             static_cast<int64_t>(RankName(0, ranks).size()));
  std::string text;
  for (const Exhibit& exhibit : exhibits) {
    if (!text.empty()) text += "\n";
    AppendExhibit(exhibit, unit, options, scale, &text);
  }
  return text;
}

}  // namespace tessera::pipeline
