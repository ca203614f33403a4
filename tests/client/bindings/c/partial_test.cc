// Goal: partials of other engines merge with ckv's, in every form that those engines use.
// Method: attention over random logits in double, whole and in parts. The parts are converted to
// the log forms and back, and merged; the answer is that of the whole.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "client/bindings/c/ckv.h"

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kDv = 3, kRowCount = 4;

struct Partial {
  std::vector<float> o = std::vector<float>(kRowCount * kDv), m = std::vector<float>(kRowCount),
                     l = std::vector<float>(kRowCount);
  ckv_partial c() const { return {sizeof(ckv_partial), o.data(), m.data(), l.data(), 0, 0}; }
};

struct Key {
  double logit[kRowCount];
  double value[kDv];
};

// Attends [begin, end) of the keys; the last query row sees none of them if `hide_last`.
Partial Attend(const std::vector<Key>& keys, size_t begin, size_t end, bool hide_last) {
  Partial made;
  for (uint32_t row = 0; row < kRowCount; ++row) {
    double top = -std::numeric_limits<double>::infinity(), total = 0, o[kDv] = {};
    const bool hidden = hide_last && row + 1 == kRowCount;
    for (size_t k = begin; k < end && !hidden; ++k) top = std::max(top, keys[k].logit[row]);
    for (size_t k = begin; k < end && !hidden; ++k) {
      const double weight = std::exp(keys[k].logit[row] - top);
      total += weight;
      for (uint32_t c = 0; c < kDv; ++c) o[c] += weight * keys[k].value[c];
    }
    made.m[row] = static_cast<float>(top);
    made.l[row] = static_cast<float>(total);
    for (uint32_t c = 0; c < kDv; ++c)
      made.o[row * kDv + c] = total == 0 ? 0 : static_cast<float>(o[c] / total);
  }
  return made;
}

std::vector<Key> Keys(uint32_t seed, size_t count) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> value(-4, 4);
  std::vector<Key> keys(count);
  for (Key& key : keys) {
    for (double& logit : key.logit) logit = 3 * value(random);
    for (double& one : key.value) one = value(random);
  }
  return keys;
}

// |lse| < 16 in nats, 24 in base 2; a float errs by half an ulp, 1e-6, which moves a weight by as
// much. o is below 4.
constexpr double kTolerance = 4 * 4e-6;

TEST(Merge, PartsInEveryFormGiveTheWhole) {
  for (uint32_t seed = 0; seed < 16; ++seed) {
    for (const uint32_t form :
         {CKV_LSE_NATURAL, CKV_LSE_BASE2, CKV_LSE_FLASHMLA, CKV_LSE_FLASHINFER}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", form " << form);
      const std::vector<Key> keys = Keys(seed, 20);
      Partial first = Attend(keys, 0, 7, true);
      const Partial second = Attend(keys, 7, 20, true);
      const Partial whole = Attend(keys, 0, 20, true);
      // To the form that an engine returns, and back.
      std::vector<float> lse(kRowCount);
      ASSERT_EQ(ckv_lse_from_partial(form, kRowCount, first.m.data(), first.l.data(), lse.data()),
                CKV_OK);
      first.o[(kRowCount - 1) * kDv] = kNan;  // an empty row's o is not read
      ASSERT_EQ(ckv_partial_from_lse(form, kRowCount, lse.data(), first.m.data(), first.l.data()),
                CKV_OK);
      Partial merged;
      const ckv_partial parts[] = {first.c(), second.c()};
      ASSERT_EQ(
          ckv_merge(parts, 2, kRowCount, kDv, merged.o.data(), merged.m.data(), merged.l.data()),
          CKV_OK);
      for (uint32_t i = 0; i < kRowCount * kDv; ++i)
        EXPECT_NEAR(merged.o[i], whole.o[i], kTolerance);
      for (uint32_t i = 0; i + 1 < kRowCount; ++i) {
        EXPECT_NEAR(merged.m[i] + std::log(merged.l[i]), whole.m[i] + std::log(whole.l[i]),
                    kTolerance);
      }
      EXPECT_EQ(merged.m[kRowCount - 1], -kInf);
      EXPECT_EQ(merged.l[kRowCount - 1], 0);
    }
  }
}

TEST(Merge, TakesBf16AndRefusesMistakes) {
  const Partial one = Attend(Keys(1, 5), 0, 5, false);
  std::vector<uint16_t> o(kRowCount * kDv, 0x3f80);  // ones
  ckv_partial part = one.c();
  part.o = o.data();
  part.dtype = CKV_DTYPE_BF16;
  Partial out;
  const auto merge = [&](uint32_t count, uint32_t d_v) {
    return ckv_merge(&part, count, kRowCount, d_v, out.o.data(), out.m.data(), out.l.data());
  };
  ASSERT_EQ(merge(1, kDv), CKV_OK);
  EXPECT_THAT(out.o, testing::Each(1.0f));
  EXPECT_EQ(out.m, one.m);

  EXPECT_EQ(merge(0, kDv), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(merge(1, 0), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(merge(1, 1 << 20), CKV_INVALID_ARGUMENT);
  part.m = out.m.data();
  EXPECT_EQ(merge(1, kDv), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(nullptr), testing::HasSubstr("overlaps"));
  part.m = nullptr;
  EXPECT_EQ(merge(1, kDv), CKV_INVALID_ARGUMENT);
  part = one.c();
  part.dtype = CKV_DTYPE_FP8_DS_MLA;
  EXPECT_EQ(merge(1, kDv), CKV_INVALID_ARGUMENT);
}

TEST(Lse, FormsHaveTheirBaseAndTheirMark) {
  const float m[] = {3, 0, -kInf, kInf}, l[] = {1, 0, 0, 1};
  const float log2e = std::log2(std::exp(1.0f));
  const struct {
    uint32_t form;
    float value, empty;
  } cases[] = {{CKV_LSE_NATURAL, 3, -kInf},
               {CKV_LSE_BASE2, 3 * log2e, -kInf},
               {CKV_LSE_FLASHMLA, 3, kInf},
               {CKV_LSE_FLASHINFER, 3 * log2e, -50000}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.form);
    float lse[4] = {};
    ASSERT_EQ(ckv_lse_from_partial(one.form, 4, m, l, lse), CKV_OK);
    EXPECT_FLOAT_EQ(lse[0], one.value);
    EXPECT_EQ(lse[1], one.empty);
    EXPECT_EQ(lse[2], one.empty);
    EXPECT_EQ(lse[3], one.empty);
    float back_m[4] = {}, back_l[4] = {};
    ASSERT_EQ(ckv_partial_from_lse(one.form, 4, lse, back_m, back_l), CKV_OK);
    EXPECT_FLOAT_EQ(back_m[0], 3);
    EXPECT_THAT(back_l, testing::ElementsAre(1, 0, 0, 0));
    EXPECT_EQ(back_m[1], -kInf);
  }
}

TEST(Lse, MarksOfOtherVersionsAreReadToo) {
  // FlashInfer: its mark, with the log of a million masked keys, and -inf of newer kernels.
  const float lse[] = {-50000, -50000 + 20, -kInf, kInf, -48999, 12};
  float m[6], l[6];
  ASSERT_EQ(ckv_partial_from_lse(CKV_LSE_FLASHINFER, 6, lse, m, l), CKV_OK);
  EXPECT_THAT(l, testing::ElementsAre(0, 0, 0, 0, 1, 1));
  ASSERT_EQ(ckv_partial_from_lse(CKV_LSE_FLASHMLA, 6, lse, m, l), CKV_OK);
  EXPECT_THAT(l, testing::ElementsAre(1, 1, 0, 0, 1, 1));
}

TEST(Lse, NoPlausibleWrongAnswer) {
  float m[] = {1, kNan}, l[] = {1, 1}, lse[] = {7, 7};
  EXPECT_EQ(ckv_lse_from_partial(CKV_LSE_NATURAL, 2, m, l, lse), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(nullptr), testing::HasSubstr("row 1"));
  EXPECT_THAT(lse, testing::Each(7));
  m[1] = 1;
  for (const float wrong : {-1.0f, kNan}) {
    l[1] = wrong;
    EXPECT_EQ(ckv_lse_from_partial(CKV_LSE_NATURAL, 2, m, l, lse), CKV_INVALID_ARGUMENT);
  }
  lse[1] = kNan;
  EXPECT_EQ(ckv_partial_from_lse(CKV_LSE_BASE2, 2, lse, m, l), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(m[0], 1);
  EXPECT_EQ(ckv_partial_from_lse(4, 1, lse, m, l), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_lse_from_partial(99, 1, m, l, lse), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_lse_from_partial(CKV_LSE_BASE2, 1, nullptr, l, lse), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_partial_from_lse(CKV_LSE_BASE2, 0, nullptr, nullptr, nullptr), CKV_OK);
}

}  // namespace
