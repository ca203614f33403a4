// Goal: the match of a prompt is the one of most tokens, for any prompt. Method: random chunks and
// prompts made of them, of parts of them and of other tokens. A brute-force match, which compares
// tokens at every offset, must have the same spans and gaps.

#include "client/prompt_match.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Tokens = std::vector<int32_t>;

TenantKey KeyOf(uint8_t byte) {
  TenantKey key;
  key.bytes.fill(byte);
  return key;
}

// A chunk with its tokens.
struct Known {
  PromptChunk chunk;
  Tokens tokens;
  int parent = -1;  // its index
};

// Chunks as a directory stores them.
class Library {
 public:
  int Add(const Tokens& tokens, int parent = -1, const TenantKey& key = {},
          const ExtraKeys& extra_keys = {}) {
    Known known;
    known.tokens = tokens;
    known.parent = parent;
    if (parent >= 0) {
      const PromptChunk& before = known_[parent].chunk;
      known.chunk.parent = before.id;
      known.chunk.position = before.position + before.token_count;
    }
    known.chunk.token_count = static_cast<uint32_t>(tokens.size());
    const ChunkId plain = ComputeChunkId(ModelFingerprint(geometry_), known.chunk.parent,
                                         known.chunk.position, tokens, extra_keys);
    known.chunk.id = TaggedChunkId(plain, VerificationTagOf(plain, key));
    known.chunk.token_hash = TokenHashOf(tokens, key, extra_keys);
    for (size_t i = 0; i < known_.size(); ++i) {
      if (known_[i].chunk.id == known.chunk.id) return static_cast<int>(i);
    }
    known_.push_back(std::move(known));
    return static_cast<int>(known_.size() - 1);
  }

  absl::StatusOr<PromptMatch> Match(const Tokens& tokens, const std::vector<TenantKey>& keys = {{}},
                                    const ExtraKeys& extra_keys = {}) {
    const auto find = [&](std::span<const uint64_t> heads) {
      const std::set<uint64_t> wanted(heads.begin(), heads.end());
      PromptChunks found;
      found.models = {geometry_};
      for (const Known& known : known_) {
        if (wanted.contains(known.chunk.token_hash.head)) found.chunks.push_back(known.chunk);
      }
      reported_ = found.chunks.size();
      return absl::StatusOr<PromptChunks>(std::move(found));
    };
    return MatchPrompt(tokens, keys, find, extra_keys);
  }
  // The number of chunks that the last look-up returned.
  size_t reported() const { return reported_; }

  std::vector<Known>& known() { return known_; }
  const Geometry& geometry() const { return geometry_; }

 private:
  const Geometry geometry_ = *NamedGeometry("deepseek-v2-lite");
  std::vector<Known> known_;
  size_t reported_ = 0;
};

// The match by brute force.
class BruteForce {
 public:
  BruteForce(const std::vector<Known>& known, const Tokens& tokens)
      : known_(known), tokens_(tokens) {}

  PromptMatch Run() {
    PromptMatch match;
    uint32_t end = 0;
    const auto gap = [&](uint32_t until) {
      if (until > end) match.gaps.push_back({end, until - end});
    };
    size_t begin = 0;
    int before = -1;
    while (begin < tokens_.size()) {
      const int chunk = From(begin, before).second;
      if (chunk < 0) {
        ++begin;
        before = -1;
        continue;
      }
      const PromptChunk& found = known_[chunk].chunk;
      const bool is_first = std::find(taken_.begin(), taken_.end(), chunk) == taken_.end();
      if (is_first) {
        taken_.push_back(chunk);
        gap(static_cast<uint32_t>(begin));
        match.spans.push_back({static_cast<uint32_t>(begin), found.token_count, found.id,
                               static_cast<int64_t>(begin) - static_cast<int64_t>(found.position)});
      }
      begin += found.token_count;
      if (is_first) end = static_cast<uint32_t>(begin);
      before = chunk;
    }
    gap(static_cast<uint32_t>(tokens_.size()));
    return match;
  }

 private:
  bool Stands(int chunk, size_t begin) const {
    const Tokens& tokens = known_[chunk].tokens;
    return tokens.size() >= kHeadTokens && tokens.size() <= tokens_.size() - begin &&
           std::equal(tokens.begin(), tokens.end(),
                      tokens_.begin() + static_cast<ptrdiff_t>(begin));
  }

  // Returns the most tokens from `begin` on, after the chunk `before`, and the chunk to take there.
  std::pair<uint64_t, int> From(size_t begin, int before) {
    if (begin == tokens_.size()) return {0, -1};
    const auto known = best_.find({begin, before});
    if (known != best_.end()) return known->second;
    std::pair<uint64_t, int> best = {From(begin + 1, -1).first, -1};
    bool continues = false;
    for (int c = 0; c < static_cast<int>(known_.size()); ++c) {
      const int parent = known_[c].parent;
      if ((parent >= 0 && parent != before) || !Stands(c, begin)) continue;
      const uint64_t tokens =
          known_[c].tokens.size() + From(begin + known_[c].tokens.size(), c).first;
      const bool chain = parent >= 0;
      bool takes = tokens > best.first;
      if (tokens == best.first) {
        // Prefer the next chunk of a chain, then the longer, then the smaller id.
        const auto rank = [&](int i, bool in_chain) {
          return std::make_tuple(in_chain, known_[i].tokens.size());
        };
        takes = best.second < 0 || rank(c, chain) > rank(best.second, continues) ||
                (rank(c, chain) == rank(best.second, continues) &&
                 known_[c].chunk.id < known_[best.second].chunk.id);
      }
      if (takes) best = {tokens, c}, continues = chain;
    }
    return best_[{begin, before}] = best;
  }

  const std::vector<Known>& known_;
  const Tokens& tokens_;
  std::vector<int> taken_;  // chunks that have a span
  std::map<std::pair<size_t, int>, std::pair<uint64_t, int>> best_;
};

class Texts {
 public:
  explicit Texts(uint32_t seed) : random_(seed) {}

  uint32_t Below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  // Few different tokens, so that texts repeat and overlap by themselves.
  Tokens Random(size_t count, uint32_t vocabulary) {
    Tokens tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(Below(vocabulary));
    return tokens;
  }
  // A chunk's tokens, or some of another's with new ones: overlaps, common beginnings and endings.
  Tokens ChunkTokens(const std::vector<Known>& known) {
    const size_t count = kHeadTokens + Below(24);
    if (known.empty() || Below(3) == 0) return Random(count, Below(4) == 0 ? 2 : 1000);
    const Tokens& other = known[Below(static_cast<uint32_t>(known.size()))].tokens;
    const size_t from = Below(static_cast<uint32_t>(other.size()));
    Tokens tokens(other.begin() + static_cast<ptrdiff_t>(from), other.end());
    if (Below(2) == 0) tokens = other;
    while (tokens.size() < count) tokens.push_back(static_cast<int32_t>(Below(1000)));
    return tokens;
  }
  Tokens Prompt(const std::vector<Known>& known) {
    Tokens prompt;
    const auto append = [&](const Tokens& more) {
      prompt.insert(prompt.end(), more.begin(), more.end());
    };
    for (uint32_t part = 0, parts = 2 + Below(8); part < parts; ++part) {
      const int at = static_cast<int>(Below(static_cast<uint32_t>(known.size())));
      Tokens tokens = known[at].tokens;
      switch (Below(6)) {
        case 0:  // other tokens
          tokens = Random(Below(30), 1000);
          break;
        case 1:  // begins inside a chunk
          tokens.erase(tokens.begin(),
                       tokens.begin() + 1 + Below(static_cast<uint32_t>(tokens.size()) - 1));
          break;
        case 2:  // an edit
          tokens[Below(static_cast<uint32_t>(tokens.size()))] += 1;
          break;
        case 3:  // its whole chain
          tokens.clear();
          for (int c = at; c >= 0; c = known[c].parent)
            tokens.insert(tokens.begin(), known[c].tokens.begin(), known[c].tokens.end());
          break;
        case 4:  // twice
          tokens.insert(tokens.end(), known[at].tokens.begin(), known[at].tokens.end());
          break;
        default:
          break;
      }
      append(tokens);
    }
    return prompt;
  }

 private:
  std::mt19937 random_;
};

TEST(MatchPrompt, IsThatOfBruteForceForAThousandPrompts) {
  uint64_t span_count = 0, gap_count = 0, chained_count = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Texts texts(seed);
    Library library;
    for (uint32_t i = 0; i < 20; ++i) {
      const auto count = static_cast<uint32_t>(library.known().size());
      const int parent =
          count > 0 && texts.Below(2) == 0 ? static_cast<int>(texts.Below(count)) : -1;
      // A chain's chunks have one key.
      const auto root = [&](int c) {
        while (library.known()[c].parent >= 0) c = library.known()[c].parent;
        return c;
      };
      const bool keyed = parent >= 0 ? root(parent) % 2 == 1 : count % 2 == 1;
      library.Add(texts.ChunkTokens(library.known()), parent, keyed ? KeyOf(7) : TenantKey());
    }
    const Tokens prompt = texts.Prompt(library.known());
    const auto match = library.Match(prompt, {KeyOf(7), TenantKey()});
    ASSERT_TRUE(match.ok()) << match.status();
    const PromptMatch want = BruteForce(library.known(), prompt).Run();
    ASSERT_EQ(match->spans, want.spans);
    ASSERT_EQ(match->gaps, want.gaps);
    EXPECT_FALSE(match->truncated);
    span_count += want.spans.size();
    gap_count += want.gaps.size();
    for (const PromptSpan& span : want.spans) chained_count += span.offset != span.token_begin;
  }
  // The prompts are worth their time.
  EXPECT_GT(span_count, 2500u);
  EXPECT_GT(gap_count, 1500u);
  EXPECT_GT(chained_count, 300u);
}

TEST(MatchPrompt, FindsAChunkAtAnyOffsetAndAChainBehindItsParent) {
  Texts texts(1);
  Library library;
  const Tokens a = texts.Random(20, 1000), b = texts.Random(30, 1000);
  const int first = library.Add(a);
  const int second = library.Add(b, first);
  Tokens prompt = {5, 6, 7};
  prompt.insert(prompt.end(), a.begin(), a.end());
  prompt.insert(prompt.end(), b.begin(), b.end());
  prompt.push_back(8);
  prompt.insert(prompt.end(), b.begin(), b.end());  // without its parent
  const auto match = library.Match(prompt);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_THAT(match->spans, ElementsAre(PromptSpan{3, 20, library.known()[first].chunk.id, 3},
                                        PromptSpan{23, 30, library.known()[second].chunk.id, 3}));
  EXPECT_THAT(match->gaps, ElementsAre(PromptGap{0, 3}, PromptGap{53, 31}));
  EXPECT_EQ(match->token_count(), 50u);
  EXPECT_EQ(match->geometry, library.geometry());
}

// A chunk is matched once: its text at another place is a gap.
TEST(MatchPrompt, ARepeatedChunkIsAGap) {
  Texts texts(1);
  Library library;
  const Tokens a = texts.Random(20, 1000), b = texts.Random(30, 1000), c = texts.Random(40, 1000);
  const int first = library.Add(a);
  const int second = library.Add(b, first), other = library.Add(c, first);
  Tokens prompt;
  for (const Tokens* part : {&a, &b, &a, &c, &a})
    prompt.insert(prompt.end(), part->begin(), part->end());
  const auto match = library.Match(prompt);
  ASSERT_TRUE(match.ok()) << match.status();
  // The text of its parent is before `c`, whether or not a span contains that text.
  EXPECT_THAT(match->spans, ElementsAre(PromptSpan{0, 20, library.known()[first].chunk.id, 0},
                                        PromptSpan{20, 30, library.known()[second].chunk.id, 0},
                                        PromptSpan{70, 40, library.known()[other].chunk.id, 50}));
  EXPECT_THAT(match->gaps, ElementsAre(PromptGap{50, 20}, PromptGap{110, 20}));
}

// A chunk of a key that the caller does not have is not found, even if the answer contains it.
TEST(MatchPrompt, WithoutItsKeyAChunkIsNotFound) {
  Texts texts(2);
  Library library;
  const Tokens tokens = texts.Random(40, 1000);
  library.Add(tokens, -1, KeyOf(1));
  EXPECT_THAT(library.Match(tokens, {KeyOf(2), TenantKey()})->spans, IsEmpty());
  library.known()[0].chunk.token_hash =
      TokenHashOf(tokens, {});  // its publisher gives a false hash
  EXPECT_THAT(library.Match(tokens, {KeyOf(2), TenantKey()})->spans, IsEmpty());
  EXPECT_EQ(library.Match(tokens, {KeyOf(1)})->spans.size(), 0u);
  library.known()[0].chunk.token_hash = TokenHashOf(tokens, KeyOf(1));
  EXPECT_EQ(library.Match(tokens, {KeyOf(1)})->spans.size(), 1u);
}

// A false token hash hides no other chunk.
TEST(MatchPrompt, SkipsAFalseTokenHash) {
  Texts texts(3);
  Library library;
  const Tokens tokens = texts.Random(40, 1000);
  Tokens other = tokens;
  other.back() += 1;
  library.Add(Tokens(tokens.begin(), tokens.begin() + 30));
  const int liar = library.Add(other);
  library.known()[liar].chunk.token_hash = TokenHashOf(tokens, {});
  const auto match = library.Match(tokens);
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_THAT(match->spans, ElementsAre(PromptSpan{0, 30, library.known()[0].chunk.id, 0}));
  EXPECT_THAT(match->gaps, ElementsAre(PromptGap{30, 10}));
}

TEST(MatchPrompt, ShortAndLongPrompts) {
  Library library;
  EXPECT_THAT(library.Match({})->gaps, IsEmpty());
  EXPECT_THAT(library.Match({1, 2})->gaps, ElementsAre(PromptGap{0, 2}));
  EXPECT_THAT(library.Match(Tokens(100, 1))->gaps, ElementsAre(PromptGap{0, 100}));
  EXPECT_EQ(library.Match(Tokens(kMatchedTokenCountMax + 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MatchPrompt, ChunksOfTwoModelsAreRefused) {
  PromptChunks found;
  found.models = {*NamedGeometry("deepseek-v2-lite"), *NamedGeometry("deepseek-v3")};
  const std::vector<TenantKey> keys(1);
  const auto match = MatchPrompt(Tokens(40), keys, [&](std::span<const uint64_t>) {
    return absl::StatusOr<PromptChunks>(found);
  });
  EXPECT_EQ(match.status().code(), absl::StatusCode::kInvalidArgument);
}

// Lengths and positions of a directory are not trusted: these are beyond all limits.
TEST(MatchPrompt, AnswersBeyondTheLimitsAreNoSpans) {
  const Tokens tokens(64, 3);
  PromptChunks found;
  found.models = {*NamedGeometry("deepseek-v2-lite")};
  for (const uint32_t count : {0u, 1u, 65u, UINT32_MAX}) {
    PromptChunk chunk{.id = {},
                      .parent = {},
                      .token_count = count,
                      .position = UINT64_MAX,
                      .token_hash = TokenHashOf(tokens, {})};
    chunk.id.bytes[0] = static_cast<uint8_t>(count + 1);
    found.chunks.push_back(chunk);
  }
  const std::vector<TenantKey> keys(1);
  const auto match = MatchPrompt(
      tokens, keys, [&](std::span<const uint64_t>) { return absl::StatusOr<PromptChunks>(found); });
  ASSERT_TRUE(match.ok()) << match.status();
  EXPECT_THAT(match->spans, IsEmpty());
}

std::vector<int> ChunksOf(Library& library, const absl::StatusOr<PromptMatch>& match) {
  EXPECT_TRUE(match.ok()) << match.status();
  std::vector<int> chunks;
  if (!match.ok()) return chunks;
  for (const PromptSpan& span : match->spans) {
    for (size_t i = 0; i < library.known().size(); ++i)
      if (library.known()[i].chunk.id == span.chunk) chunks.push_back(static_cast<int>(i));
  }
  return chunks;
}

// Goal: a prompt finds the rows of its own pictures and of no others, though all have the same
// token ids. Method: chunks of 40 placeholder ids with different keys, and a prompt of these ids
// with one of them, with none and with both at each other's place.
TEST(MatchPrompt, FindsItsOwnPictureOnly) {
  Library library;
  const Tokens pictures(40, 7);
  const ExtraKeys a = {{4, 30, "a"}}, b = {{4, 30, "b"}}, later = {{5, 30, "a"}},
                  shorter = {{4, 29, "a"}}, adapter = {{0, 0, "a"}};
  std::vector<ExtraKeys> all = {{}, a, b, later, shorter, adapter};
  for (const ExtraKeys& keys : all) library.Add(pictures, -1, {}, keys);
  const int child = library.Add(pictures, 1);  // text after a's
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_THAT(ChunksOf(library, library.Match(pictures, {{}}, all[i])),
                ElementsAre(static_cast<int>(i)));
    // Others are no candidates: the look-up of a thousand pictures is no longer than that of one.
    EXPECT_LE(library.reported(), 3u);
  }
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {{}}, {{4, 30, "c"}})), IsEmpty());
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {{}}, {{4, 30, "a"}, {0, 0, "a"}})),
              IsEmpty());
  // Two pictures, and both swapped; a chunk of a chain is found after its own parent only.
  Tokens two(80, 7);
  EXPECT_THAT(ChunksOf(library, library.Match(two, {{}}, {{4, 30, "a"}, {44, 30, "b"}})),
              ElementsAre(1, 2));
  EXPECT_THAT(ChunksOf(library, library.Match(two, {{}}, {{4, 30, "b"}, {44, 30, "a"}})),
              ElementsAre(2, 1));
  EXPECT_THAT(ChunksOf(library, library.Match(two, {{}}, a)), ElementsAre(1, child));
  EXPECT_THAT(ChunksOf(library, library.Match(two, {{}}, b)), ElementsAre(2, 0));
}

// A tenant's key and extra keys: neither undoes the other.
TEST(MatchPrompt, FindsPicturesOfATenant) {
  Library library;
  const Tokens pictures(40, 7);
  library.Add(pictures, -1, KeyOf(1), {{4, 30, "a"}});
  library.Add(pictures, -1, KeyOf(2), {{4, 30, "a"}});
  const ExtraKeys a = {{4, 30, "a"}};
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {KeyOf(1), {}}, a)), ElementsAre(0));
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {KeyOf(2), {}}, a)), ElementsAre(1));
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {{}}, a)), IsEmpty());
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {KeyOf(1), {}})), IsEmpty());
}

// A false token hash of another picture's chunk only costs time: its id is compared.
TEST(MatchPrompt, SkipsAFalseTokenHashOfAPicture) {
  Library library;
  const Tokens pictures(40, 7);
  const ExtraKeys a = {{4, 30, "a"}};
  library.Add(pictures, -1, {}, a);
  library.known()[0].chunk.token_hash = TokenHashOf(pictures, {}, {{ExtraKey{4, 30, "b"}}});
  EXPECT_THAT(ChunksOf(library, library.Match(pictures, {{}}, {{4, 30, "b"}})), IsEmpty());
}

TEST(MatchPrompt, RefusesWhatIsNoTokenAndKeysThatDoNotFit) {
  Library library;
  Tokens tokens(40, 7);
  EXPECT_TRUE(absl::IsInvalidArgument(library.Match(tokens, {{}}, {{40, 1, "a"}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(library.Match({1}, {{}}, {{1, 1, "a"}}).status()));
  tokens[9] = -1;
  EXPECT_EQ(library.Match(tokens).status().message(),
            "tokens[9] is -1, no token id: those are whole numbers from 0 to 2^31 - 1");
}

}  // namespace
}  // namespace ckv
