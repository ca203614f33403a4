// Goal: no cut of a text gets behind another cut of it, and texts that differ do.
// Method: corpora and sources of every pair of cuts, with and without a tail, without holders.

#include "client/publish/text_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "client/publish/chunk_source.h"
#include "client/publish/extension.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"

namespace ckv {
namespace {

using testing::HasSubstr;

Geometry SmallGeometry() {
  Geometry geometry;
  geometry.model = "test/overlap";
  geometry.revision = "r1";
  geometry.layers = 1;
  geometry.d_qk = 40;
  geometry.d_v = 32;
  geometry.d_rope = 8;
  geometry.softmax_scale = 0.2f;
  return geometry;
}

std::vector<int32_t> Text(size_t count, int32_t seed = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), seed * 10'000);
  return tokens;
}

class TextOverlapTest : public testing::Test {
 protected:
  TextOverlapTest() {
    corpus_.name = "docs";
    corpus_.geometry = SmallGeometry();
  }
  // Adds a text to `source`, every `cut` tokens a chunk.
  void Add(MemorySource& source, const std::vector<int32_t>& text, size_t cut,
           uint64_t position = 0, ChunkId parent = {}, const ExtraKeys& keys = {}) const {
    for (size_t at = 0; at < text.size(); at += cut) {
      SourceChunk chunk;
      ChunkInfo& info = chunk.info;
      const size_t end = std::min(at + cut, text.size());
      info.token_ids.assign(text.begin() + static_cast<std::ptrdiff_t>(at),
                            text.begin() + static_cast<std::ptrdiff_t>(end));
      info.parent = parent;
      info.position = position + at;
      info.extra_keys = ExtraKeysOf(keys, at, end);
      const ChunkId plain = ComputeChunkId(ModelFingerprint(corpus_.geometry), parent,
                                           info.position, info.token_ids, info.extra_keys);
      info.verification_tag = VerificationTagOf(plain, key_);
      info.id = parent = TaggedChunkId(plain, info.verification_tag);
      source.Add(chunk, TokenHashOf(info.token_ids, key_, info.extra_keys));
    }
  }
  // Appends a text to the corpus, unchecked.
  void Have(const std::vector<int32_t>& text, size_t cut, uint64_t position = 0,
            const ExtraKeys& keys = {}) {
    MemorySource source(corpus_.geometry);
    Add(source, text, cut, position, {}, keys);
    std::vector<uint32_t> all(source.chunks().size());
    std::iota(all.begin(), all.end(), 0u);
    AppendChunks(source, all, SourcePlacement(all.size()), corpus_);
    for (const uint32_t i : all) {
      const auto tokens = source.TokensOf(i);
      texts_[source.chunks()[i].id] = {{tokens.begin(), tokens.end()},
                                       source.chunks()[i].extra_keys};
    }
  }
  absl::Status Put(const MemorySource& source) {
    const auto fresh = NewChunks(corpus_, source);
    if (!fresh.ok()) return fresh.status();
    return CheckNoTextTwice(corpus_, source, *fresh, key_,
                            [this](const ChunkPlacement& chunk) -> absl::StatusOr<ChunkText> {
                              ++requested_;
                              if (!answers_) return absl::UnavailableError("is away");
                              return texts_.at(chunk.id);
                            });
  }
  absl::Status Put(const std::vector<int32_t>& text, size_t cut, uint64_t position = 0,
                   const ExtraKeys& keys = {}) {
    MemorySource source(corpus_.geometry);
    Add(source, text, cut, position, {}, keys);
    return Put(source);
  }

  Corpus corpus_;
  TenantKey key_;
  std::map<ChunkId, ChunkText> texts_;
  bool answers_ = true;
  int requested_ = 0;
};

TEST_F(TextOverlapTest, EveryPairOfCutsIsRefused) {
  const size_t cuts[] = {5, 16, 17, 64, 100, 256, 300};
  const size_t sizes[] = {40, 256, 300};
  for (const bool sealed : {false, true}) {
    key_.bytes.fill(sealed ? 7 : 0);
    for (const size_t had : cuts) {
      corpus_.chunks.clear();
      texts_.clear();
      Have(Text(300), had);
      for (const size_t cut : cuts) {
        for (const size_t size : sizes) {  // also less of it, and all
          const absl::Status status = Put(Text(size), cut);
          // Either cut gives the same chunks, or the text is the corpus' first chunk.
          const bool same =
              (cut == had && (size == 300 || size % cut == 0)) || (size <= cut && size == had);
          EXPECT_EQ(status.ok(), same) << had << " " << cut << " " << size << " " << status;
        }
        EXPECT_EQ(Put(Text(400), cut).ok(), cut == had && 300 % cut == 0)
            << "a text that grew: " << had << " " << cut;
      }
    }
  }
}

// Texts of the same ids with other pictures are other texts, in whatever cuts.
TEST_F(TextOverlapTest, OtherPicturesAreOtherTexts) {
  const ExtraKeys one = {{20, 30, "one"}}, other = {{20, 30, "other"}}, later = {{21, 30, "one"}};
  for (const size_t have : {16u, 32u, 64u, 96u}) {
    for (const size_t put : {16u, 32u, 64u, 96u}) {
      corpus_.chunks.clear();
      Have(Text(96), have, 0, one);
      if (have != put) {
        EXPECT_TRUE(absl::IsFailedPrecondition(Put(Text(96), put, 0, one))) << have << ' ' << put;
      }
      for (const ExtraKeys& keys : {other, later, ExtraKeys()}) {
        const absl::Status status = Put(Text(96), put, 0, keys);
        // A first chunk that ends before the picture has the same tokens and no key: it is there.
        if (have == 16 || put == 16) continue;
        EXPECT_TRUE(status.ok()) << have << ' ' << put << ": " << status;
      }
    }
  }
}

TEST_F(TextOverlapTest, OtherTextsAreTaken) {
  Have(Text(300), 64);
  Have(Text(300, 1), 300);
  EXPECT_TRUE(Put(Text(300, 2), 128).ok());
  EXPECT_EQ(requested_, 0) << "prints tell";
  // The same beginning: a head of a chat, which a longer document has too.
  std::vector<int32_t> alike = Text(200, 1);
  alike[150] = -1;
  EXPECT_TRUE(Put(alike, 200).ok());
  EXPECT_EQ(requested_, 1);
  // The same tokens elsewhere: rows depend on what is before them.
  EXPECT_TRUE(Put(Text(300), 300, /*position=*/1000).ok());
  EXPECT_TRUE(Put(Text(10), 300).ok()) << "a short text of its own";
}

TEST_F(TextOverlapTest, ATextThatBeginsWithinAnotherIsRefused) {
  Have(Text(300), 100);
  const std::vector<int32_t> text = Text(300);
  for (const int begin : {1, 50, 100, 120, 299}) {
    const std::vector<int32_t> part(text.begin() + begin, text.end());
    const absl::Status status = Put(part, 70, begin);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << begin << " " << status;
    EXPECT_TRUE(Put(Text(50, 3), 70, begin).ok()) << begin;
  }
  EXPECT_TRUE(Put(Text(50, 3), 70, 300).ok());
}

TEST_F(TextOverlapTest, ReportsStoredTokens) {
  Have(Text(300, 1), 300);
  Have(Text(300), 100);
  const absl::Status status = Put(Text(300), 64);
  for (const char* part :
       {"corpus 'docs'", "chunk 1 of 100 tokens", "position 0", "text of 300", "chunks of 64"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST_F(TextOverlapTest, RefusesAnAmbiguousOverlap) {
  Have(Text(300), 300);
  answers_ = false;
  EXPECT_TRUE(absl::IsUnavailable(Put(Text(100), 100)));
}

}  // namespace
}  // namespace ckv
