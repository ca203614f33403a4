// Goal: the reference engine computes its model, and gives the same result however its work is cut.
// Method: a float64 model without absorption (reference_model.h) for rightness; bit comparisons of
// one prefill against token by token, and of contexts attended here, there and in other threads.

#include "client/tools/reference_engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include "attention/bf16.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "client/tools/reference_engine/decode.h"
#include "client/tools/reference_engine/reference_engine.h"
#include "client/tools/reference_engine/reference_sequence.h"
#include "client/tools/reference_engine/reference_weights.h"
#include "gtest/gtest.h"
#include "proto/base/sha256.h"
#include "proto/base/status.h"
#include "tests/support/reference_model.h"

namespace ckv {
namespace {

ReferenceConfig TinyConfig() {
  ReferenceConfig config;
  config.layers = 2;
  config.heads = 3;
  config.hidden = 48;
  config.d_nope = 8;
  config.d_rope = 8;
  config.d_latent = 32;
  config.d_value = 8;
  config.mlp = 80;
  config.vocabulary = 40;
  return config;
}

std::vector<int32_t> RandomTokens(uint32_t seed, size_t count, uint32_t vocabulary) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % vocabulary);
  return tokens;
}

std::unique_ptr<ReferenceEngine> MakeEngine(const ReferenceConfig& config) {
  auto engine = ReferenceEngine::Create(config);
  CKV_CHECK(engine.ok());
  return *std::move(engine);
}

std::unique_ptr<Sequence> MustStart(const Engine& engine, SequenceOptions options) {
  auto sequence = engine.Start(std::move(options));
  CKV_CHECK(sequence.ok());
  return *std::move(sequence);
}

std::unique_ptr<Sequence> MustPrefill(const Engine& engine, std::span<const int32_t> tokens,
                                      WorkerPool& pool) {
  auto sequence = engine.Prefill(tokens, 0, pool, [](uint32_t) { return absl::OkStatus(); });
  CKV_CHECK(sequence.ok());
  return *std::move(sequence);
}

std::vector<float> LogitsAfter(Sequence& sequence, std::span<const int32_t> tokens,
                               uint32_t vocabulary) {
  std::vector<float> logits(vocabulary, NAN);
  const absl::Status status = sequence.Append(tokens, logits);
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

double RelativeDifference(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(ReferenceEngine, EqualsTheFloat64ModelWithoutAbsorption) {
  // The engine rounds absorbed queries to bf16, once a layer: 2^-9 of each of 40 products of both
  // signs, so logits of attention err by about 0.2 % and the rest in proportion.
  constexpr double kTolerance = 0.02;
  WorkerPool pool(1);
  for (uint32_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ReferenceConfig config = TinyConfig();
    config.seed = seed;
    const auto engine = MakeEngine(config);
    const std::vector<int32_t> tokens = RandomTokens(seed, 9 + 7 * seed, config.vocabulary);
    const uint64_t position = seed * 1000;
    SequenceOptions options;
    options.position = position;
    options.pool = &pool;
    const auto sequence = MustStart(*engine, std::move(options));
    const auto logits = LogitsAfter(*sequence, tokens, config.vocabulary);

    const auto expected = testing_reference::Model(config).Logits(tokens, position);
    EXPECT_LT(RelativeDifference(logits, expected), kTolerance);
    const auto control = testing_reference::Model(config, false).Logits(tokens, position);
    EXPECT_GT(RelativeDifference(logits, control), 5 * kTolerance) << "cannot tell RoPE apart";
  }
}

TEST(ReferenceEngine, PrefillAtOnceOrTokenByTokenGivesTheSameBits) {
  // 150 tokens: two whole blocks of 64 and a part of one.
  const ReferenceConfig config = TinyConfig();
  const auto engine = MakeEngine(config);
  const std::vector<int32_t> tokens = RandomTokens(7, 150, config.vocabulary);
  WorkerPool one(1), two(2);
  SequenceOptions options;
  options.pool = &two;
  const auto whole = MustStart(*engine, options);
  const auto expected = LogitsAfter(*whole, tokens, config.vocabulary);
  for (const size_t step : {1u, 13u, 64u, 100u}) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    options.pool = &one;
    const auto sequence = MustStart(*engine, options);
    std::vector<float> logits;
    for (size_t begin = 0; begin < tokens.size(); begin += step) {
      const size_t count = std::min(step, tokens.size() - begin);
      logits = LogitsAfter(*sequence, {tokens.data() + begin, count}, config.vocabulary);
    }
    EXPECT_TRUE(SameBits(logits, expected));
    for (uint32_t layer = 0; layer < config.layers; ++layer) {
      const RowView a = whole->rows(layer), b = sequence->rows(layer);
      ASSERT_EQ(a.count, b.count);
      EXPECT_EQ(std::memcmp(a.data, b.data, size_t{a.count} * a.stride_bytes), 0);
    }
  }
}

TEST(ReferenceEngine, OneTokenMoreDoesNotChangeTheRowsBefore) {
  const ReferenceConfig config = TinyConfig();
  const auto engine = MakeEngine(config);
  const std::vector<int32_t> tokens = RandomTokens(8, 70, config.vocabulary);
  WorkerPool pool(1);
  const auto longer = MustPrefill(*engine, tokens, pool);
  const auto shorter = MustPrefill(*engine, std::span(tokens).first(33), pool);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    const RowView rows = shorter->rows(layer);
    EXPECT_EQ(
        std::memcmp(rows.data, longer->rows(layer).data, size_t{rows.count} * rows.stride_bytes),
        0);
  }
}

TEST(ReferenceEngine, ContextInChunksGivesTheAnswersOfOnePrefill) {
  const ReferenceConfig config = TinyConfig();
  const auto engine = MakeEngine(config);
  const std::vector<int32_t> tokens = RandomTokens(9, 200, config.vocabulary);
  const std::span<const int32_t> shared = std::span(tokens).first(170);
  const std::span<const int32_t> suffix = std::span(tokens).subspan(170);
  WorkerPool pool(1);

  SequenceOptions alone;
  alone.pool = &pool;
  const auto whole = MustStart(*engine, alone);
  const auto expected = LogitsAfter(*whole, tokens, config.vocabulary);

  const auto prefilled = MustPrefill(*engine, shared, pool);
  for (const uint32_t chunk_tokens : {1u, 50u, 170u}) {
    SCOPED_TRACE(testing::Message() << "chunks of " << chunk_tokens);
    LocalContext context(engine->geometry(), &pool);
    context.AddCuts(*prefilled, chunk_tokens);
    ASSERT_EQ(context.token_count(), shared.size());
    SequenceOptions options;
    options.position = shared.size();
    options.pool = &pool;
    options.context = [&](uint32_t layer, const QueryView& q, const PartialView& out) {
      return context.Attend(layer, q, out);
    };
    const auto sequence = MustStart(*engine, std::move(options));
    const auto logits = LogitsAfter(*sequence, suffix, config.vocabulary);
    // The sums are grouped otherwise, so f32 roundings differ; a rounded bf16 query or row of a
    // later layer can then move by one step, 2^-8 of one value of 40.
    EXPECT_LT(RelativeDifference(logits, {expected.begin(), expected.end()}), 0.01);
    EXPECT_EQ(ChooseGreedy(logits).token, ChooseGreedy(expected).token);
  }
}

TEST(ReferenceEngine, ChunksAttendedElsewhereAndMergedInOrderGiveTheSameBits) {
  // As routing does: each chunk on its own, in another thread's kernel call, on a copy of the
  // queries and of the rows; merged by ordinal.
  const ReferenceConfig config = TinyConfig();
  const auto engine = MakeEngine(config);
  const AttentionShape shape = AttentionShape::Of(engine->geometry());
  const std::vector<int32_t> shared = RandomTokens(10, 130, config.vocabulary);
  const std::vector<int32_t> prompt = RandomTokens(11, 6, config.vocabulary);
  WorkerPool pool(1), remote(2);
  const auto prefilled = MustPrefill(*engine, shared, pool);
  constexpr uint32_t kChunk = 40;

  const auto decode = [&](ContextAttention context) {
    SequenceOptions options;
    options.position = shared.size();
    options.pool = &pool;
    options.context = std::move(context);
    const auto sequence = MustStart(*engine, std::move(options));
    auto choices = DecodeGreedy(*sequence, config.vocabulary, prompt, 12,
                                [](const GreedyChoice&) { return absl::OkStatus(); });
    CKV_CHECK(choices.ok());
    return *std::move(choices);
  };

  LocalContext local(engine->geometry(), &pool);
  local.AddCuts(*prefilled, kChunk);
  const auto expected = decode([&](uint32_t layer, const QueryView& q, const PartialView& out) {
    return local.Attend(layer, q, out);
  });

  const auto routed = decode([&](uint32_t layer, const QueryView& q, const PartialView& out) {
    std::vector<std::vector<float>> memory;
    std::vector<ConstPartialView> parts;
    std::vector<uint8_t> levels;
    const std::vector<uint16_t> sent(q.data, q.data + size_t{q.count} * q.stride);
    for (uint32_t begin = 0; begin < shared.size(); begin += kChunk) {
      RowView rows = prefilled->rows(layer);
      rows.data += size_t{begin} * rows.stride_bytes;
      rows.count = std::min<uint32_t>(kChunk, static_cast<uint32_t>(shared.size()) - begin);
      memory.emplace_back(size_t{q.count} * (shape.d_v + 2));
      AttentionPiece piece;
      piece.q = {sent.data(), q.count, q.stride};
      piece.rows = rows;
      float* o = memory.back().data();
      float* m = o + size_t{q.count} * shape.d_v;
      piece.out = {o, m, m + q.count, PartialDtype::kF32};
      AttendPartials(shape, {&piece, 1}, remote);
      const auto ordinal = static_cast<uint32_t>(parts.size());
      levels.push_back(ordinal == 0 ? 0 : TreeLevel(ordinal - 1, ordinal));
      parts.push_back(piece.out);
    }
    MergeTree(parts, levels, q.count, shape.d_v, out);
    return absl::OkStatus();
  });
  ASSERT_EQ(routed.size(), expected.size());
  for (size_t i = 0; i < routed.size(); ++i) {
    EXPECT_EQ(routed[i].token, expected[i].token) << i;
    EXPECT_EQ(routed[i].margin, expected[i].margin) << i;
  }
}

// Mean over heads of the number of keys that carry a query's softmax: exp(entropy).
double EffectiveKeys(const QueryView& q, const RowView& rows, float scale) {
  double sum = 0;
  for (uint32_t i = 0; i < q.count; ++i) {
    std::vector<double> logits;
    for (uint32_t j = 0; j < rows.count; ++j) {
      const auto* row =
          reinterpret_cast<const uint16_t*>(rows.data + size_t{j} * rows.stride_bytes);
      double dot = 0;
      for (uint32_t k = 0; k < q.stride; ++k) {
        dot += double{FloatFromBf16(q.data[size_t{i} * q.stride + k])} * FloatFromBf16(row[k]);
      }
      logits.push_back(dot * scale);
    }
    const double m = *std::max_element(logits.begin(), logits.end());
    double l = 0, weighted = 0;
    for (const double logit : logits) {
      l += std::exp(logit - m);
      weighted += std::exp(logit - m) * (logit - m);
    }
    sum += std::exp(std::log(l) - weighted / l);
  }
  return sum / q.count;
}

TEST(ReferenceEngine, DefaultModelAttendsSomeKeysAndDecodesVariedTokensClearly) {
  const auto engine = MakeEngine({});
  EXPECT_EQ(engine->geometry().model, "ckv/reference-4x16");
  EXPECT_EQ(engine->geometry().d_qk, 576u);
  EXPECT_EQ(engine->geometry().d_v, 512u);
  WorkerPool pool(1);
  constexpr uint32_t kShared = 192;
  constexpr std::string_view kText = "Everyone is permitted to copy and distribute verbatim. ";
  std::vector<int32_t> shared;
  for (uint32_t i = 0; i < kShared; ++i) shared.push_back(kText[i * 7 % kText.size()]);
  const auto prefilled = MustPrefill(*engine, shared, pool);
  LocalContext context(engine->geometry(), &pool);
  context.AddCuts(*prefilled, 64);

  double effective = 0;
  uint32_t calls = 0;
  SequenceOptions options;
  options.position = kShared;
  options.pool = &pool;
  options.context = [&](uint32_t layer, const QueryView& q, const PartialView& out) {
    if (q.count == engine->heads() && calls < 16) {
      effective += EffectiveKeys(q, prefilled->rows(layer), engine->geometry().softmax_scale);
      ++calls;
    }
    return context.Attend(layer, q, out);
  };
  const auto sequence = MustStart(*engine, std::move(options));
  const std::vector<int32_t> prompt = {'w', 'h', 'y', '?', ' '};
  const auto choices = DecodeGreedy(*sequence, engine->vocabulary(), prompt, 32,
                                    [](const GreedyChoice&) { return absl::OkStatus(); });
  ASSERT_TRUE(choices.ok()) << choices.status();

  ASSERT_EQ(calls, 16u);
  EXPECT_GT(effective / calls, 2.0);
  EXPECT_LT(effective / calls, kShared / 2.0);
  std::set<int32_t> distinct;
  size_t clear = 0;
  for (const GreedyChoice& choice : *choices) {
    distinct.insert(choice.token);
    clear += choice.margin > 1e-3f;
  }
  EXPECT_GE(distinct.size(), 8u);
  EXPECT_GE(clear, choices->size() * 9 / 10);
}

TEST(ReferenceEngine, TwoConstructionsAreEqualAndTwoSeedsAreNot) {
  const ReferenceConfig config = TinyConfig();
  ReferenceConfig other = config;
  other.seed += 1;
  const std::vector<int32_t> tokens = RandomTokens(12, 20, config.vocabulary);
  WorkerPool pool(1);
  SequenceOptions options;
  options.pool = &pool;
  std::vector<std::vector<float>> logits;
  std::vector<Geometry> geometries;
  for (const ReferenceConfig& c : {config, config, other}) {
    const auto engine = MakeEngine(c);
    logits.push_back(LogitsAfter(*MustStart(*engine, options), tokens, c.vocabulary));
    geometries.push_back(engine->geometry());
  }
  EXPECT_TRUE(SameBits(logits[0], logits[1]));
  EXPECT_FALSE(SameBits(logits[0], logits[2]));
  EXPECT_EQ(geometries[0], geometries[1]);
  EXPECT_NE(geometries[0].revision, geometries[2].revision);
}

TEST(ReferenceWeights, AreTheSameBitsEverywhere) {
  // Belongs to "ckv.reference.2" in the revision: changed weights need another name there.
  const ReferenceConfig config = TinyConfig();
  Sha256 hash;
  for (uint8_t tensor = 0; tensor <= 9; ++tensor) {
    const std::vector<float> values =
        GenerateTensor(config, 1, static_cast<ReferenceTensor>(tensor));
    hash.Append(std::as_bytes(std::span(values)));
  }
  EXPECT_EQ(ChunkId{hash.Finish()}.ShortHex(), "5541e3e4ca7b");

  const std::vector<float> values = GenerateTensor({}, 0, ReferenceTensor::kEmbedding);
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += double{v} * v;
  }
  // 65,536 draws: the mean errs by 0.004, the variance by 0.005.
  EXPECT_NEAR(sum / static_cast<double>(values.size()), 0, 0.02);
  EXPECT_NEAR(squares / static_cast<double>(values.size()), 1, 0.02);
}

TEST(ReferenceWeights, RefuseWidthsOfNoModel) {
  EXPECT_TRUE(ValidateReferenceConfig({}).ok());
  ReferenceConfig config;
  config.heads = 0;
  EXPECT_EQ(ValidateReferenceConfig(config).code(), absl::StatusCode::kInvalidArgument);
  config = {};
  config.d_latent = 2000;
  EXPECT_EQ(ValidateReferenceConfig(config).code(), absl::StatusCode::kInvalidArgument);
  config = {};
  config.d_rope = 63;
  EXPECT_FALSE(ReferenceEngine::Create(config).ok());
}

TEST(ReferenceEngine, RefusesWhatItCannotCompute) {
  const ReferenceConfig config = TinyConfig();
  const auto engine = MakeEngine(config);
  WorkerPool pool(1);
  EXPECT_EQ(engine->Start({}).status().code(), absl::StatusCode::kInvalidArgument);
  SequenceOptions options;
  options.pool = &pool;
  options.position = uint64_t{1} << 40;
  EXPECT_EQ(engine->Start(options).status().code(), absl::StatusCode::kInvalidArgument);

  options.position = 0;
  options.token_count_max = 3;
  const auto sequence = MustStart(*engine, options);
  const std::vector<int32_t> bad = {1, 40}, fine = {1, 2}, negative = {-1};
  EXPECT_EQ(sequence->Append(bad, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sequence->Append(negative, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sequence->Append({}, {}).code(), absl::StatusCode::kInvalidArgument);
  std::vector<float> few(3);
  EXPECT_EQ(sequence->Append(fine, few).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sequence->Append(fine, {}).ok());
  EXPECT_EQ(sequence->Append(fine, {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence->token_count(), 2u);
}

TEST(ReferenceEngine, AContextThatFailsEndsTheSequence) {
  const auto engine = MakeEngine(TinyConfig());
  WorkerPool pool(1);
  SequenceOptions options;
  options.pool = &pool;
  options.position = 5;
  options.context = [](uint32_t layer, const QueryView&, const PartialView&) {
    return layer == 1 ? absl::UnavailableError("holder h1: gone") : absl::OkStatus();
  };
  const auto sequence = MustStart(*engine, std::move(options));
  const std::vector<int32_t> tokens = {1};
  EXPECT_EQ(sequence->Append(tokens, {}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sequence->Append(tokens, {}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sequence->token_count(), 0u);
}

TEST(Engine, PrefillReportsItsProgressAndStopsOnRequest) {
  const ReferenceConfig config = TinyConfig();
  const auto engine = MakeEngine(config);
  WorkerPool pool(1);
  const std::vector<int32_t> tokens = RandomTokens(13, 600, config.vocabulary);
  std::vector<uint32_t> seen;
  const auto sequence = engine->Prefill(tokens, 0, pool, [&](uint32_t done) {
    seen.push_back(done);
    return absl::OkStatus();
  });
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ((*sequence)->token_count(), 600u);
  EXPECT_EQ(seen, (std::vector<uint32_t>{256, 512, 600}));

  const auto stopped =
      engine->Prefill(tokens, 0, pool, [](uint32_t) { return absl::CancelledError("stop"); });
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
}

TEST(ChooseGreedy, TakesTheFirstOfTheBestAndItsLead) {
  const std::vector<float> logits = {1, 5, 3, 5, 2};
  EXPECT_EQ(ChooseGreedy(logits).token, 1);
  EXPECT_EQ(ChooseGreedy(logits).margin, 0);
  const std::vector<float> clear = {4, 1, 3.5f};
  EXPECT_EQ(ChooseGreedy(clear).token, 0);
  EXPECT_EQ(ChooseGreedy(clear).margin, 0.5f);
}

}  // namespace
}  // namespace ckv
