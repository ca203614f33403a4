// Goal: each token attends the rows it sees and the chunks of its references, each of them once
// (I1).
// Method: small caches whose plan is known.

#include "client/bindings/ggml/op_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/bindings/ggml/engine_cache.h"

namespace ckv::ggml {
namespace {

using test::EngineCache;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

CellReference Reference(const std::string& corpus, uint64_t position) {
  CellReference reference;
  reference.corpus = corpus;
  reference.chunk_end = 1;
  reference.position = position;
  reference.token_count = 9;
  return reference;
}

class OpPlanTest : public testing::Test {
 protected:
  absl::Status Make(EngineCache& cache, uint32_t layer = 0) {
    return plan_.Make(cache.Op(layer), otherwise_, reader_);
  }
  const TokenPlan& Token(uint32_t stream, uint32_t token) const {
    for (const TokenPlan& plan : plan_.tokens()) {
      if (plan.stream == stream && plan.token == token) return plan;
    }
    ADD_FAILURE() << "no token " << token;
    return plan_.tokens()[0];
  }
  std::vector<CellRange> Ranges(uint32_t stream, uint32_t token) const {
    const auto ranges = plan_.ranges(Token(stream, token));
    return {ranges.begin(), ranges.end()};
  }
  // "corpus@position" of all that a token attends elsewhere.
  std::vector<std::string> Elsewhere(uint32_t stream, uint32_t token) const {
    std::vector<std::string> names;
    const uint32_t list = Token(stream, token).list;
    if (list == TokenPlan::kNoList) return names;
    for (const auto& attached : plan_.list(list)) {
      names.push_back(attached->corpus + "@" +
                      (attached->position ? std::to_string(*attached->position) : "end"));
    }
    return names;
  }

  ReferenceReader reader_;
  OpPlan plan_;
  std::shared_ptr<const Attached> otherwise_;
};

TEST_F(OpPlanTest, PlansRowsAlone) {
  EngineCache cache(/*streams=*/2, /*cells=*/8, /*tokens=*/2, /*heads=*/2, 1);
  cache.Show(0, 0, 0, 3);
  cache.Show(0, 1, 0, 4);
  cache.Show(1, 0, 2, 4);
  cache.Show(1, 0, 6, 8);
  ASSERT_TRUE(Make(cache).ok());
  EXPECT_EQ(plan_.routed_count(), 0u);
  EXPECT_THAT(Ranges(0, 0), ElementsAre(CellRange{0, 3}));
  EXPECT_THAT(Ranges(0, 1), ElementsAre(CellRange{0, 4}));
  EXPECT_THAT(Ranges(1, 0), ElementsAre(CellRange{2, 4}, CellRange{6, 8}));
  EXPECT_THAT(Ranges(1, 1), IsEmpty());
}

TEST_F(OpPlanTest, DoesNotAttendReferencesAsRows) {
  EngineCache cache(2, 8, 2, 2, 1);
  cache.Put(0, 2, Reference("b", 50), 1);
  cache.Put(0, 5, Reference("a", 90), 1);
  cache.Show(0, 0, 0, 4);  // one of them
  cache.Show(0, 1, 1, 8);  // both
  cache.Show(1, 1, 0, 2);
  ASSERT_TRUE(Make(cache, 1).ok());
  EXPECT_EQ(plan_.routed_count(), 2u);
  EXPECT_THAT(Ranges(0, 0), ElementsAre(CellRange{0, 2}, CellRange{3, 4}));
  EXPECT_THAT(Elsewhere(0, 0), ElementsAre("b@50"));
  EXPECT_THAT(Ranges(0, 1), ElementsAre(CellRange{1, 2}, CellRange{3, 5}, CellRange{6, 8}));
  EXPECT_THAT(Elsewhere(0, 1), ElementsAre("b@50", "a@90"));
  EXPECT_THAT(Ranges(1, 1), ElementsAre(CellRange{0, 2}));
  EXPECT_THAT(Elsewhere(1, 1), IsEmpty());
}

// Wherever the cells are, positions determine the order, and so the bits of the merge.
TEST_F(OpPlanTest, TheOrderIsThatOfPositions) {
  EngineCache cache(2, 4, 1, 1, 1);
  cache.Put(0, 0, Reference("a", 7), 0);
  cache.Put(0, 3, Reference("a", 900), 0);
  cache.Put(1, 1, Reference("a", 900), 0);
  cache.Put(1, 2, Reference("a", 7), 0);
  cache.Put(1, 3, Reference("a", 7), 0);  // the same again is the same
  cache.Show(0, 0, 0, 4);
  cache.Show(1, 0, 0, 4);
  ASSERT_TRUE(Make(cache).ok());
  EXPECT_THAT(Elsewhere(0, 0), ElementsAre("a@7", "a@900"));
  EXPECT_EQ(Token(0, 0).list, Token(1, 0).list);
  EXPECT_THAT(Ranges(1, 0), ElementsAre(CellRange{0, 1}));
}

TEST_F(OpPlanTest, PutsRoutingSequencesFirstAndGroupsEqualOnes) {
  EngineCache cache(1, 8, 5, 1, 1);
  cache.Put(0, 0, Reference("a", 0), 0);
  cache.Put(0, 1, Reference("b", 0), 0);
  for (const uint32_t token : {1u, 4u}) cache.Show(0, token, 1, 2);
  cache.Show(0, 2, 0, 1);
  ASSERT_TRUE(Make(cache).ok());
  std::vector<uint32_t> order;
  for (const TokenPlan& token : plan_.tokens()) order.push_back(token.token);
  EXPECT_THAT(order, ElementsAre(1, 4, 2, 0, 3));
  EXPECT_EQ(plan_.routed_count(), 3u);
}

TEST_F(OpPlanTest, ASequenceWithoutAReferenceAttendsTheConfiguredCorpus) {
  Attached everywhere;
  everywhere.corpus = "all";
  otherwise_ = std::make_shared<const Attached>(everywhere);
  EngineCache cache(1, 8, 3, 1, 1);
  cache.Put(0, 0, Reference("a", 0), 0);
  cache.Show(0, 0, 0, 2);
  cache.Show(0, 1, 2, 4);
  ASSERT_TRUE(Make(cache).ok());
  EXPECT_THAT(Elsewhere(0, 0), ElementsAre("a@0"));
  EXPECT_THAT(Elsewhere(0, 1), ElementsAre("all@end"));
  EXPECT_THAT(Elsewhere(0, 2), ElementsAre("all@end"));
  EXPECT_EQ(plan_.routed_count(), 3u);
}

TEST_F(OpPlanTest, IgnoresTheContentOfACellThatNoQuerySees) {
  EngineCache cache(1, 8, 2, 1, 1);
  for (std::byte& byte : cache.Cell(0, 3)) byte = std::byte{0xff};
  cache.Put(0, 4, Reference("a", 0), /*layer=*/2);  // of another layer
  cache.Show(0, 0, 0, 3);
  cache.Show(0, 1, 5, 8);
  ASSERT_TRUE(Make(cache).ok());
  EXPECT_EQ(plan_.routed_count(), 0u);
  cache.Show(0, 1, 4, 5);
  absl::Status status = Make(cache);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("cell 4 of stream 0"));
  EXPECT_THAT(plan_.tokens(), IsEmpty());
  EXPECT_EQ(plan_.routed_count(), 0u);
  cache.Show(0, 0, 3, 4);
  status = Make(cache, 2);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("cell 3 of stream 0: a cell is NaN"));
}

TEST_F(OpPlanTest, RefusesAnInvalidMask) {
  EngineCache cache(1, 8, 2, 1, 1);
  cache.mask[9] = 0x3c00;
  EXPECT_TRUE(absl::IsInvalidArgument(Make(cache)));
  EXPECT_THAT(plan_.tokens(), IsEmpty());
}

}  // namespace
}  // namespace ckv::ggml
