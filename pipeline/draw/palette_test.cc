#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::pipeline {
namespace {

using Matrix = std::array<std::array<double, 3>, 3>;

// Vision without one of the three cone types: Machado, Oliveira and Fernandes,
// "A physiologically-based model for simulation of color vision deficiency",
// 2009, severity 1.
constexpr Matrix kAll = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
constexpr Matrix kProtanopia = {{{0.152286, 1.052583, -0.204868},
                                 {0.114503, 0.786281, 0.099216},
                                 {-0.003882, -0.048116, 1.051998}}};
constexpr Matrix kDeuteranopia = {{{0.367322, 0.860646, -0.227968},
                                   {0.280085, 0.672501, 0.047413},
                                   {-0.011820, 0.042940, 0.968881}}};
constexpr Matrix kTritanopia = {{{1.255528, -0.076749, -0.178779},
                                 {-0.078411, 0.930809, 0.147602},
                                 {0.004733, 0.691367, 0.303900}}};

double Distance(const Matrix& eyes, const Colour& a, const Colour& b) {
  const std::array<double, 3> difference = {a.red - b.red, a.green - b.green,
                                            a.blue - b.blue};
  double sum = 0;
  for (const std::array<double, 3>& row : eyes) {
    double seen = 0;
    for (size_t i = 0; i < 3; ++i) seen += row[i] * difference[i];
    sum += seen * seen;
  }
  return std::sqrt(sum);
}

double Contrast(const Colour& a, const Colour& b) {
  const double light = std::max(a.Luminance(), b.Luminance()) + 0.05;
  return light / (std::min(a.Luminance(), b.Luminance()) + 0.05);
}

TEST(PaletteTest, KindsDifferForEveryEye) {
  constexpr ActionKind kComputations[] = {
      ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput,
      ActionKind::kBackwardWeight};
  for (const Matrix& eyes : {kAll, kProtanopia, kDeuteranopia, kTritanopia}) {
    for (const ActionKind a : kComputations) {
      EXPECT_GT(Distance(eyes, ColourOf(a), kIdle), 60) << ActionKindName(a);
      for (const ActionKind b : kComputations) {
        if (a == b) continue;
        EXPECT_GT(Distance(eyes, ColourOf(a), ColourOf(b)), 35)
            << ActionKindName(a) << " " << ActionKindName(b);
      }
    }
  }
}

TEST(PaletteTest, NumbersReadOnEveryShade) {
  for (const ActionKind kind : kActionKinds) {
    for (int chunks = 1; chunks <= 8; ++chunks) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const Colour ground = ColourOf(kind, chunk, chunks);
        if (Computes(kind)) {
          EXPECT_GE(Contrast(ground, TextOn(ground)), 4.5)
              << ActionKindName(kind) << " " << chunk << " " << chunks;
        }
      }
    }
  }
}

TEST(PaletteTest, ShadesGoFromDarkToLight) {
  for (const ActionKind kind : kActionKinds) {
    if (!Computes(kind)) continue;
    for (int chunk = 1; chunk < 6; ++chunk) {
      EXPECT_GT(ColourOf(kind, chunk, 6).Luminance(),
                ColourOf(kind, chunk - 1, 6).Luminance());
    }
  }
}

TEST(PaletteTest, RanksHaveColoursOfTheirOwn) {
  for (const int ranks : {1, 2, 3, 8, 64}) {
    std::set<std::string> colours;
    for (int rank = 0; rank < ranks; ++rank) {
      colours.insert(ColourOfRank(rank, ranks).ToHex());
    }
    EXPECT_EQ(colours.size(), static_cast<size_t>(ranks));
  }
}

TEST(PaletteTest, ColoursAreWrittenInHexadecimal) {
  EXPECT_EQ(kWhite.ToHex(), "#ffffff");
  EXPECT_EQ((Colour{0, 9.6, 300}).ToHex(), "#000aff");
  EXPECT_EQ(Mix(kWhite, {0, 0, 0}, 0.5).ToHex(), "#808080");
  EXPECT_EQ(kWhite.Luminance(), 1);
}

TEST(PaletteTest, EveryKindIsInTheLegend) {
  for (const ActionKind kind : kActionKinds) {
    EXPECT_FALSE(LegendOf(kind).empty());
  }
}

}  // namespace
}  // namespace tessera::pipeline
