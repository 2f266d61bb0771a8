#include "tools/model_files/pickle.h"

#include <string>
#include <string_view>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using Kind = PickleValue::Kind;
using ::testing::HasSubstr;

TEST(PickleTest, ReadsProtocol2) {
  // pickle.dumps of CPython 3.11 of
  // {"a": (1, -2, 300, 70000), "b": [True, None, 0.5], "c": 1 << 40}.
  constexpr char kBytes[] =
      "\x80\x02}q\x00(X\x01\x00\x00\x00"
      "aq\x01(K\x01J\xfe\xff\xff\xffM,\x01Jp\x11\x01\x00tq\x02X\x01\x00\x00\x00"
      "bq\x03]q\x04(\x88NG?\xe0\x00\x00\x00\x00\x00\x00"
      "eX\x01\x00\x00\x00"
      "cq\x05\x8a\x06\x00\x00\x00\x00\x00\x01u.";
  const std::string_view two(kBytes, sizeof(kBytes) - 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Pickle pickle, ParsePickle(two));
  const PickleValue* const a = pickle.root().Find("a");
  ASSERT_NE(a, nullptr);
  ASSERT_EQ(a->items.size(), 4u);
  EXPECT_EQ(a->items[1]->integer, -2);
  EXPECT_EQ(a->items[2]->integer, 300);
  EXPECT_EQ(a->items[3]->integer, 70000);
  const PickleValue* const b = pickle.root().Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->items[0]->integer, 1);
  EXPECT_TRUE(b->items[1]->is(Kind::kNone));
  EXPECT_EQ(b->items[2]->real, 0.5);
  EXPECT_EQ(pickle.root().Find("c")->integer, int64_t{1} << 40);
  EXPECT_EQ(pickle.root().Find("d"), nullptr);
}

std::string Written() {
  PickleWriter writer;
  writer.Object("module", "Class");
  writer.OpenDictionary();
  writer.Text("size");
  writer.Global("torch", "Size");
  writer.OpenTuple();
  writer.OpenTuple();
  writer.Integer(5);
  writer.Integer(int64_t{1} << 40);
  writer.CloseTuple();
  writer.CloseTuple();
  writer.Call();
  writer.Text("list");
  writer.OpenList();
  writer.None();
  writer.Boolean(true);
  writer.Real(-2.5);
  writer.CloseList();
  writer.CloseDictionary();
  writer.SetState();
  return writer.Finish();
}

TEST(PickleTest, ReadsWhatItWrites) {
  const std::string bytes = Written();
  TESSERA_ASSERT_OK_AND_ASSIGN(const Pickle pickle, ParsePickle(bytes));
  EXPECT_TRUE(pickle.root().IsNamed("module Class"));
  const PickleValue* const size = pickle.root().Find("size");
  ASSERT_NE(size, nullptr);
  EXPECT_TRUE(size->IsNamed("torch Size"));
  const PickleValue& sizes = *size->items[1]->items[0];
  EXPECT_EQ(sizes.items[0]->integer, 5);
  EXPECT_EQ(sizes.items[1]->integer, int64_t{1} << 40);
  const PickleValue* const list = pickle.root().Find("list");
  ASSERT_NE(list, nullptr);
  EXPECT_TRUE(list->items[0]->is(Kind::kNone));
  EXPECT_EQ(list->items[1]->integer, 1);
  EXPECT_EQ(list->items[2]->real, -2.5);
}

TEST(PickleTest, RejectsMalformedPickles) {
  EXPECT_THAT(ParsePickle(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParsePickle("\x80\x02K\x01"),  // No end.
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParsePickle("\x80\x02\xff."),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("opcode 0xff at byte 2")));
  EXPECT_THAT(ParsePickle("N0."),  // The stack is empty.
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParsePickle("(R."), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PickleTest, CorruptedPicklesAreReadOrRejected) {
  TextMutator mutator({Written()}, {"(", "t", "u", "b", "\x94", "h"}, 3);
  for (int i = 0; i < 20000; ++i) {
    const absl::StatusOr<Pickle> pickle = ParsePickle(mutator.Next());
    if (pickle.ok()) pickle->root().Find("size");
  }
}

}  // namespace
}  // namespace tessera::model_files
