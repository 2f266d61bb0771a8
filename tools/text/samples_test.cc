#include "tools/text/samples.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/text/corpus.h"
#include "tools/text/data_files.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {

namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

// Token i is i % 251, so that a sample reveals its position.
std::shared_ptr<const Corpus> MakeCorpus(int64_t tokens) {
  std::string text;
  for (int64_t i = 0; i + 1 < tokens; ++i) text += static_cast<char>(i % 251);
  return *Corpus::FromTexts({{text}}, ByteTokenizer());
}

TEST(SamplesTest, EpochsVisitEachSampleOnceInOwnOrder) {
  for (int64_t tokens = 6; tokens <= 90; tokens += 7) {
    const auto corpus = MakeCorpus(tokens);
    for (const double fraction : {0.0, 0.1, 0.5, 0.99}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const Samples samples,
          Samples::Create(
              corpus,
              {.sequence = 5, .validation_fraction = fraction, .seed = 4}));
      const int64_t epoch = samples.samples_per_epoch();
      ASSERT_EQ(epoch + samples.validation_count(), (tokens - 1) / 5);
      ASSERT_GE(epoch, 1);
      ASSERT_EQ(samples.validation_count() > 0,
                fraction > 0 && (tokens - 1) / 5 > 1);
      for (int64_t e = 0; e < 4; ++e) {
        std::set<int64_t> seen;
        for (int64_t i = e * epoch; i < (e + 1) * epoch; ++i) {
          const int64_t sample = samples.PlaceOf(i).index;
          ASSERT_TRUE(sample >= 0 && sample < epoch);
          ASSERT_TRUE(seen.insert(sample).second);
        }
      }
    }
  }
}

TEST(SamplesTest, TokensMatchCorpus) {
  const auto corpus = MakeCorpus(1000);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(corpus, {.sequence = 7, .validation_fraction = 0.25}));
  EXPECT_EQ(samples.samples_per_epoch(), 107);
  EXPECT_EQ(samples.validation_count(), 35);
  std::vector<TokenId> tokens(8), expected(8);
  for (int64_t i = 0; i < 300; ++i) {
    TESSERA_ASSERT_OK(samples.ReadTraining(i, tokens));
    TESSERA_ASSERT_OK(corpus->Read(samples.PlaceOf(i).index * 7, expected));
    ASSERT_EQ(tokens, expected);
  }
  for (int64_t i = 0; i < 35; ++i) {
    TESSERA_ASSERT_OK(samples.Read(SampleUse::kValidation, i, tokens));
    ASSERT_EQ(tokens[0], (107 + i) * 7 % 251);
  }
}

// Documents of letters, each with a letter of its own.
struct PackedCase {
  std::vector<size_t> prompts, lengths;  // In tokens, with the prompt.
  std::shared_ptr<const Corpus> corpus;
  TokenId end = *ByteTokenizer().end_of_text();
};

PackedCase MakePackedCase(uint64_t seed, size_t count, size_t longest) {
  std::mt19937_64 random(seed);
  PackedCase made;
  std::vector<std::string> letters;
  for (size_t i = 0; i < count; ++i) {
    made.prompts.push_back(random() % 4);
    made.lengths.push_back(made.prompts[i] + 1 + random() % longest);
    letters.emplace_back(made.lengths[i], static_cast<char>('a' + i));
  }
  std::vector<Document> documents;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view all = letters[i];
    documents.push_back(
        {all.substr(0, made.prompts[i]), all.substr(made.prompts[i])});
  }
  made.corpus = *Corpus::FromDocuments(documents, ByteTokenizer());
  return made;
}

// The fewest samples that hold documents of these lengths, by trying all.
size_t FewestSamples(const std::vector<int64_t>& lengths, int64_t capacity,
                     std::vector<int64_t> rooms = {}, size_t next = 0) {
  if (next == lengths.size()) return rooms.size();
  size_t fewest = lengths.size();
  for (size_t i = 0; i <= rooms.size(); ++i) {
    std::vector<int64_t> left = rooms;
    if (i == rooms.size()) left.push_back(capacity);
    if (left[i] < lengths[next]) continue;
    left[i] -= lengths[next];
    fewest = std::min(fewest, FewestSamples(lengths, capacity, left, next + 1));
  }
  return fewest;
}

TEST(SamplesTest, WholeDocumentsAreNeverSplit) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const PackedCase made = MakePackedCase(seed, 1 + seed % 7, 9);
    constexpr int64_t kSequence = 13;
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Samples samples,
        Samples::Create(made.corpus,
                        {.sequence = kSequence, .document_end = made.end}));
    EXPECT_EQ(samples.cut_documents(), 0);
    EXPECT_TRUE(samples.has_masks());
    std::map<TokenId, size_t> seen;  // The tokens of a letter.
    std::vector<TokenId> tokens(kSequence + 1);
    for (int64_t i = 0; i < samples.samples_per_epoch(); ++i) {
      TESSERA_ASSERT_OK(samples.ReadTraining(i, tokens));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const std::vector<TokenRange> masked,
          samples.MaskedTokens(SampleUse::kTraining, i));
      std::vector<bool> expected(tokens.size(), true);
      std::set<TokenId> here;
      for (size_t t = 0; t < tokens.size(); ++t) {
        if (tokens[t] == made.end) {
          expected[t] = t == 0 || tokens[t - 1] == made.end;
          continue;
        }
        const auto letter = static_cast<size_t>(tokens[t] - 'a');
        const size_t begin = t == 0 || tokens[t - 1] != tokens[t] ? t : 0;
        if (here.insert(tokens[t]).second) {
          ASSERT_EQ(begin, t);
          const size_t length = made.lengths[letter];
          ASSERT_LT(t + length, tokens.size());
          for (size_t k = t; k < t + length; ++k) {
            ASSERT_EQ(tokens[k], tokens[t]);
            expected[k] = k == t || k - t < made.prompts[letter];
          }
          ASSERT_EQ(tokens[t + length], made.end);
          seen[tokens[t]] += length;
        }
      }
      std::vector<bool> mask(tokens.size());
      for (const TokenRange& range : masked) {
        std::fill(mask.begin() + range.begin, mask.begin() + range.end, true);
      }
      EXPECT_EQ(mask, expected);
      EXPECT_THAT(samples.CountTargets(SampleUse::kTraining, i),
                  IsOkAndHolds(std::count(mask.begin(), mask.end(), false)));
    }
    std::vector<int64_t> lengths;
    for (size_t i = 0; i < made.lengths.size(); ++i) {
      EXPECT_EQ(seen[static_cast<TokenId>('a' + i)], made.lengths[i]);
      lengths.push_back(static_cast<int64_t>(made.lengths[i]) + 1);
    }
    // The bound of first-fit and best-fit decreasing.
    EXPECT_LE(
        static_cast<double>(samples.samples_per_epoch()),
        11.0 / 9 * static_cast<double>(FewestSamples(lengths, kSequence + 1)) +
            6.0 / 9);
  }
}

TEST(SamplesTest, LongDocumentsLoseTheirEnds) {
  const PackedCase made = MakePackedCase(3, 5, 9);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(
          made.corpus,
          {.sequence = 2, .shuffle = false, .document_end = made.end}));
  EXPECT_EQ(samples.packed_documents(), 5);
  EXPECT_GT(samples.cut_documents(), 2);
  std::vector<TokenId> tokens(3);
  TESSERA_ASSERT_OK(samples.ReadTraining(0, tokens));
  EXPECT_EQ(tokens[0], 'a');
  TESSERA_ASSERT_OK_AND_ASSIGN(const Samples split,
                               Samples::Create(made.corpus, {.sequence = 2}));
  EXPECT_NE(samples.fingerprint(), split.fingerprint());
  EXPECT_EQ(split.packed_documents(), 0);

  TESSERA_ASSERT_OK_AND_ASSIGN(const auto empty,
                               Corpus::FromTexts({{"", ""}}, ByteTokenizer()));
  EXPECT_THAT(Samples::Create(empty, {.sequence = 2, .document_end = made.end}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no document of two or more tokens")));
}

// Compares masks with the corpus, token by token.
TEST(SamplesTest, PromptsAreMaskedInSamplesOfEveryUse) {
  std::vector<std::string> prompts, texts;
  for (size_t i = 0; i < 60; ++i) {
    prompts.emplace_back(i % 7 * (i % 5), 'p');
    texts.emplace_back(i % 11, 'c');
  }
  std::vector<Document> documents;
  std::vector<bool> is_masked;
  for (size_t i = 0; i < prompts.size(); ++i) {
    documents.push_back({prompts[i], texts[i]});
    is_masked.insert(is_masked.end(), prompts[i].size(), true);
    is_masked.insert(is_masked.end(), texts[i].size() + 1, false);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto corpus, Corpus::FromDocuments(documents, ByteTokenizer()));
  ASSERT_EQ(corpus->token_count(), static_cast<int64_t>(is_masked.size()));
  for (const int64_t length : {1, 2, 7, 40}) {
    SamplesOptions options = {.sequence = length,
                              .validation_fraction = 0.2,
                              .test_fraction = 0.1,
                              .seed = 2};
    TESSERA_ASSERT_OK_AND_ASSIGN(const Samples samples,
                                 Samples::Create(corpus, options));
    EXPECT_TRUE(samples.has_masks());
    options.mask_prompts = false;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Samples plain,
                                 Samples::Create(corpus, options));
    EXPECT_FALSE(plain.has_masks());
    const auto expect = [&](SampleUse use, int64_t index, int64_t place) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto masked,
                                   samples.MaskedTokens(use, index));
      std::vector<bool> mask(static_cast<size_t>(length) + 1);
      for (const TokenRange& range : masked) {
        std::fill(mask.begin() + range.begin, mask.begin() + range.end, true);
      }
      const auto begin = is_masked.begin() + place * length;
      EXPECT_EQ(mask, std::vector<bool>(begin, begin + length + 1));
      EXPECT_THAT(
          samples.CountTargets(use, index),
          IsOkAndHolds(std::count(mask.begin() + 1, mask.end(), false)));
      EXPECT_THAT(plain.MaskedTokens(use, index), IsOkAndHolds(IsEmpty()));
      EXPECT_THAT(plain.CountTargets(use, index), IsOkAndHolds(length));
    };
    const int64_t training = samples.samples_per_epoch();
    const int64_t validation = samples.validation_count();
    for (int64_t i = 0; i < 2 * training; ++i) {
      expect(SampleUse::kTraining, i, samples.PlaceOf(i).index);
    }
    for (int64_t i = 0; i < validation; ++i) {
      expect(SampleUse::kValidation, i, training + i);
    }
    for (int64_t i = 0; i < samples.test_count(); ++i) {
      expect(SampleUse::kTest, i, training + validation + i);
    }
    EXPECT_THAT(samples.CountTargets(SampleUse::kTest, samples.test_count()),
                StatusIs(absl::StatusCode::kOutOfRange));
    EXPECT_THAT(samples.MaskedTokens(SampleUse::kTraining, -1),
                StatusIs(absl::StatusCode::kOutOfRange));
  }
}

TEST(SamplesTest, ReservesEndForTest) {
  const auto corpus = MakeCorpus(1000);  // 142 samples.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(
          corpus,
          {.sequence = 7, .validation_fraction = 0.25, .test_fraction = 0.1}));
  EXPECT_EQ(samples.test_count(), 14);
  EXPECT_EQ(samples.validation_count(), 35);
  EXPECT_EQ(samples.samples_per_epoch(), 93);
  std::vector<TokenId> tokens(8), expected(8);
  for (int64_t i = 0; i < 200; ++i) EXPECT_LT(samples.PlaceOf(i).index, 93);
  for (int64_t i = 0; i < 35; ++i) {
    TESSERA_ASSERT_OK(samples.Read(SampleUse::kValidation, i, tokens));
    TESSERA_ASSERT_OK(corpus->Read((93 + i) * 7, expected));
    ASSERT_EQ(tokens, expected);
  }
  for (int64_t i = 0; i < 14; ++i) {
    TESSERA_ASSERT_OK(samples.Read(SampleUse::kTest, i, tokens));
    TESSERA_ASSERT_OK(corpus->Read((128 + i) * 7, expected));
    ASSERT_EQ(tokens, expected);
  }
  EXPECT_THAT(samples.Read(SampleUse::kTest, 14, tokens),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("test sample 14; there are 14")));
  EXPECT_THAT(samples.Read(SampleUse::kTest, -1, tokens),
              StatusIs(absl::StatusCode::kOutOfRange));
  for (const double test : {-0.1, 1.0, 0.75}) {
    EXPECT_THAT(Samples::Create(corpus, {.sequence = 7,
                                         .validation_fraction = 0.25,
                                         .test_fraction = test}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("it must be from 0 to less than 1")));
  }
  // At least one sample is for training, regardless of the fractions.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples few,
      Samples::Create(
          MakeCorpus(15),
          {.sequence = 7, .validation_fraction = 0.4, .test_fraction = 0.5}));
  EXPECT_EQ(few.samples_per_epoch(), 1);
  EXPECT_EQ(few.test_count(), 1);
}

TEST(SamplesTest, SeedsAndEpochsChangeTheOrderUnlessItIsOff) {
  const auto corpus = MakeCorpus(1000);
  const auto order = [&](uint64_t seed, int64_t epoch, bool shuffle) {
    const Samples samples = *Samples::Create(
        corpus, {.sequence = 5, .seed = seed, .shuffle = shuffle});
    std::vector<int64_t> sequence;
    const int64_t count = samples.samples_per_epoch();
    for (int64_t i = 0; i < count; ++i) {
      sequence.push_back(samples.PlaceOf(epoch * count + i).index);
    }
    return sequence;
  };
  EXPECT_EQ(order(1, 0, true), order(1, 0, true));
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (int64_t epoch = 0; epoch < 10; ++epoch) {
      orders.insert(order(seed, epoch, true));
    }
  }
  EXPECT_EQ(orders.size(), 100u);
  std::vector<int64_t> plain(199);
  std::iota(plain.begin(), plain.end(), 0);
  EXPECT_EQ(order(1, 3, false), plain);
}

TEST(SamplesTest, ErrorsNameRequirement) {
  const auto refused = [](std::string words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  const auto corpus = MakeCorpus(100);
  EXPECT_THAT(Samples::Create(corpus, {.sequence = 100}),
              refused("has 100 tokens; one sample of 100 needs at least 101"));
  TESSERA_EXPECT_OK(Samples::Create(corpus, {.sequence = 99}));
  EXPECT_THAT(Samples::Create(corpus, {.sequence = 0}),
              refused("sequences of 0 tokens"));
  EXPECT_THAT(Samples::Create(
                  corpus, {.sequence = std::numeric_limits<int64_t>::max()}),
              refused("from 1 to 2^31"));
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THAT(
        Samples::Create(corpus, {.sequence = 5, .validation_fraction = share}),
        refused("the share for validation"));
  }
  EXPECT_THAT(Samples::Create(nullptr, {.sequence = 5}), refused("no corpus"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Samples samples,
                               Samples::Create(corpus, {.sequence = 5}));
  std::vector<TokenId> tokens(6);
  EXPECT_THAT(samples.ReadTraining(0, std::span(tokens).first(5)),
              refused("room for 5 tokens; a sample has 6"));
  EXPECT_THAT(samples.ReadTraining(-1, tokens),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(
      samples.Read(SampleUse::kValidation, 0, tokens),
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("there are 0")));
}

TEST(BatchPartitionTest, EveryPartitionHasTheSamplesOfTheStepOnce) {
  for (int64_t batch = 1; batch <= 48; ++batch) {
    for (int64_t ranks = 1; ranks <= batch; ++ranks) {
      for (int64_t micro = 1; micro <= batch; ++micro) {
        const auto partition = BatchPartition::Create(batch, ranks, micro, 5);
        ASSERT_EQ(partition.ok(), batch % (ranks * micro) == 0);
        if (!partition.ok()) continue;
        for (const int64_t step : {0, 1, 7}) {
          std::vector<int64_t> indices;
          for (int64_t rank = 0; rank < ranks; ++rank) {
            for (int64_t m = 0; m < partition->micro_batches(); ++m) {
              for (int64_t i = 0; i < micro; ++i) {
                indices.push_back(partition->FirstIndex(step, rank, m) + i);
              }
            }
          }
          std::vector<int64_t> expected(static_cast<size_t>(batch));
          std::iota(expected.begin(), expected.end(), 5 + step * batch);
          ASSERT_EQ(indices, expected);
        }
      }
    }
  }
}

TEST(BatchPartitionTest, RejectsInvalidSizes) {
  const auto refused = [](std::string words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  EXPECT_THAT(BatchPartition::Create(16, 3, 2),
              refused("cannot be shared by 3"));
  EXPECT_THAT(BatchPartition::Create(0, 1, 1), refused("a batch of 0"));
  EXPECT_THAT(BatchPartition::Create(1, 0, 1), refused("0 data ranks"));
  EXPECT_THAT(BatchPartition::Create(1, 1, 0), refused("micro-batches of 0"));
  EXPECT_THAT(BatchPartition::Create(1, 1, 1, -1), refused("sample -1"));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(BatchPartition::Create(16, kMost, kMost), refused("cannot"));
}

TEST(SamplesTest, BlendsCorporaWithOwnEpochs) {
  const auto large = MakeCorpus(1001), small = MakeCorpus(51);
  const std::vector<Samples::Part> parts = {{large, 3}, {small, 1}};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Samples samples,
      Samples::Create(parts,
                      {.sequence = 5, .validation_fraction = 0.1, .seed = 3}));
  EXPECT_EQ(samples.samples_per_epoch(), 180 + 9);
  EXPECT_EQ(samples.validation_count(), 20 + 1);
  std::vector<TokenId> tokens(6), expected(6);
  std::map<std::pair<size_t, int64_t>, int> seen;
  for (int64_t i = 0; i < 240; ++i) {
    const Blend::Place place = samples.PlaceOf(i);
    ++seen[{place.source, place.index}];
    TESSERA_ASSERT_OK(samples.ReadTraining(i, tokens));
    TESSERA_ASSERT_OK(
        (place.source == 0 ? large : small)->Read(place.index * 5, expected));
    EXPECT_EQ(tokens, expected);
  }
  // An epoch of the large corpus, and 60 reads of the 9 samples of the small
  // one.
  EXPECT_EQ(seen.size(), 180u + 9u);
  for (const auto& [place, times] : seen) {
    EXPECT_THAT(times,
                place.first == 0 ? AllOf(Ge(1), Le(1)) : AllOf(Ge(6), Le(7)));
  }
  for (int64_t i = 0; i < 21; ++i) {
    TESSERA_ASSERT_OK(samples.Read(SampleUse::kValidation, i, tokens));
  }
  EXPECT_THAT(samples.Read(SampleUse::kValidation, 21, tokens),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(samples.memory_bytes(),
            large->memory_bytes() + small->memory_bytes());
  // The fingerprint depends on the corpora, their order and their weights.
  const auto fingerprint = [](const std::vector<Samples::Part>& of) {
    return Samples::Create(of, {.sequence = 5})->fingerprint();
  };
  const std::set<uint64_t> all = {
      fingerprint(parts), fingerprint({{small, 1}, {large, 3}}),
      fingerprint({{large, 2}, {small, 1}}), fingerprint({{large, 1}}),
      fingerprint({{small, 1}})};
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(fingerprint({{small, 1}}), small->fingerprint());
}

TEST(SamplesTest, RejectsBlendPartWithoutValidationSample) {
  const std::vector<Samples::Part> parts = {{MakeCorpus(100), 1},
                                            {MakeCorpus(7), 1}};
  EXPECT_THAT(
      Samples::Create(parts, {.sequence = 5, .validation_fraction = 0.1}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("part 1 of the data has one sample")));
  EXPECT_THAT(Samples::Create(parts, {.sequence = 5, .test_fraction = 0.1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("none for the test")));
  TESSERA_EXPECT_OK(Samples::Create(parts, {.sequence = 5}));
}

}  // namespace

}  // namespace tessera::text
