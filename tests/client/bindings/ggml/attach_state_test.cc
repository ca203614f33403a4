// Goal: the state that attaches a corpus is a valid llama.cpp state, and each layer's cell names
// the chunks it represents.
// Method: read back by the reader of states; an engine restores it in tests/engines.

#include "client/bindings/ggml/attach_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/formats/llama_state.h"
#include "store/formats/reference_cell.h"
#include "tests/client/bindings/ggml/engine_cache.h"

namespace ckv::ggml {
namespace {

using testing::HasSubstr;

Corpus TheCorpus() {
  Corpus corpus =
      test::MakeTestCorpus(test::EngineGeometry(), {40, 9, 130}, 4).Publish("docs", "", {{{"h"}}});
  for (ChunkPlacement& chunk : corpus.chunks) chunk.position += 50;
  return corpus;
}

TEST(AttachState, WritesOneCellPerLayer) {
  const Corpus corpus = TheCorpus();
  for (const uint32_t streams : {1u, 5u}) {
    for (const std::optional<uint64_t> position :
         {std::optional<uint64_t>(), std::optional<uint64_t>(7)}) {
      uint64_t next = 0;
      const auto bytes = AttachStateOf(corpus, {position, streams}, next);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      const uint64_t first = position.value_or(50);
      EXPECT_EQ(next, first + 179);
      const auto state = LlamaState::Parse(*bytes);
      ASSERT_TRUE(state.ok()) << state.status();
      EXPECT_EQ(state->token_count(), 1u);
      EXPECT_EQ(state->base_position(), next - 1);
      EXPECT_EQ(state->stream_count(), streams);
      ASSERT_EQ(state->layer_count(), corpus.geometry.layers);
      for (uint32_t layer = 0; layer < corpus.geometry.layers; ++layer) {
        const auto reference = DecodeReference(state->Rows(layer, 0, 1));
        ASSERT_TRUE(reference.ok()) << reference.status();
        CellReference due = ReferenceTo(corpus, 0, 3, first);
        due.layer = layer;
        EXPECT_EQ(*reference, due);
      }
    }
  }
}

TEST(AttachState, RefusesStatesThatNoEngineLoads) {
  uint64_t next = 0;
  Corpus corpus = TheCorpus();
  EXPECT_THAT(AttachStateOf(corpus, {{}, 0}, next).status().message(), HasSubstr("0 streams"));
  EXPECT_THAT(AttachStateOf(corpus, {{}, 257}, next).status().message(), HasSubstr("257 streams"));
  EXPECT_THAT(AttachStateOf(corpus, {uint64_t{INT32_MAX} - 178, 1}, next).status().message(),
              HasSubstr("positions end at"));
  EXPECT_TRUE(AttachStateOf(corpus, {uint64_t{INT32_MAX} - 179, 1}, next).ok());
  corpus.geometry.dtype = RowDtype::kFp8DsMla;
  EXPECT_TRUE(absl::IsInvalidArgument(AttachStateOf(corpus, {}, next).status()));
  corpus = TheCorpus();
  corpus.chunks.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(AttachStateOf(corpus, {}, next).status()));
  corpus = TheCorpus();
  corpus.name = std::string(128, 'n');  // has no room in a row of 192 values
  EXPECT_TRUE(absl::IsInvalidArgument(AttachStateOf(corpus, {}, next).status()));
}

}  // namespace
}  // namespace ckv::ggml
