#include "client/bindings/ggml/corpus_pins.h"

#include <initializer_list>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv::ggml {
namespace {

using ::testing::HasSubstr;

Attached Named(const std::string& corpus) {
  Attached attached;
  attached.corpus = corpus;
  return attached;
}

Corpus WithChunks(std::initializer_list<uint8_t> firsts) {
  Corpus corpus;
  for (const uint8_t first : firsts) {
    ChunkPlacement chunk;
    chunk.id.bytes[0] = first;
    corpus.chunks.push_back(chunk);
  }
  return corpus;
}

TEST(CorpusPins, TheFirstUsePinsACorpus) {
  CorpusPins pins;
  EXPECT_TRUE(pins.Check(Named("a"), WithChunks({1, 2})).ok());
  EXPECT_TRUE(pins.Check(Named("a"), WithChunks({1, 2})).ok());
  for (const Corpus& other : {WithChunks({1, 3}), WithChunks({1, 2, 3}), WithChunks({})}) {
    const absl::Status status = pins.Check(Named("a"), other);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("start the engine again"));
  }
  EXPECT_TRUE(pins.Check(Named("a"), WithChunks({1, 2})).ok());
  EXPECT_TRUE(pins.Check(Named("b"), WithChunks({1, 3})).ok());
}

}  // namespace
}  // namespace ckv::ggml
