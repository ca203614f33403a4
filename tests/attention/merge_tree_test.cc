// Goal: MergeTree is the fixed tree of its header, bit for bit. Merging a subtree beforehand, at
// any holder, changes nothing, and an empty part is the identity in each row.
// Method: random leaves, compared with the definition written as a recursion over pairs; random
// placements, in which each holder merges the aligned subtrees of which it has all leaves.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "attention/bf16.h"
#include "attention/merge.h"

namespace ckv {
namespace {

constexpr uint32_t kRows = 3, kValues = 21;

// A partial of kRows rows that owns its memory.
struct Leaf {
  std::vector<float> o = std::vector<float>(kRows * kValues);
  std::vector<float> m = std::vector<float>(kRows, kEmptyM);
  std::vector<float> l = std::vector<float>(kRows);

  PartialView view() { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  ConstPartialView view() const { return {o.data(), m.data(), l.data(), PartialDtype::kF32}; }
  friend bool operator==(const Leaf& a, const Leaf& b) {
    const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
      return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    };
    return same(a.o, b.o) && same(a.m, b.m) && same(a.l, b.l);
  }
};

Leaf RandomLeaf(std::mt19937& rng) {
  std::uniform_real_distribution<float> values(-2, 2);
  Leaf leaf;
  for (uint32_t row = 0; row < kRows; ++row) {
    // An empty row may hold anything.
    const bool empty = rng() % 4 == 0;
    for (uint32_t i = 0; i < kValues; ++i) {
      leaf.o[row * kValues + i] = empty ? std::numeric_limits<float>::quiet_NaN() : values(rng);
    }
    if (empty) continue;
    leaf.m[row] = values(rng);
    leaf.l[row] = 1 + float(rng() % 100);
  }
  return leaf;
}

using Leaves = std::map<uint32_t, Leaf>;  // by ordinal; those that are absent are empty

// The definition: the node over [begin, begin + 2^level) joins its two halves.
Leaf Node(const Leaves& leaves, uint32_t begin, uint32_t level) {
  if (level == 0) {
    const auto it = leaves.find(begin);
    return it == leaves.end() ? Leaf() : it->second;
  }
  const uint32_t half = 1u << (level - 1);
  const Leaf left = Node(leaves, begin, level - 1), right = Node(leaves, begin + half, level - 1);
  const ConstPartialView parts[] = {left.view(), right.view()};
  Leaf merged;
  MergePartials(parts, kRows, kValues, merged.view());
  return merged;
}

Leaf Tree(const Leaves& leaves) {
  std::vector<ConstPartialView> parts;
  std::vector<uint8_t> levels;
  uint32_t last = 0;
  for (const auto& [ordinal, leaf] : leaves) {
    levels.push_back(parts.empty() ? 0 : TreeLevel(last, ordinal));
    parts.push_back(leaf.view());
    last = ordinal;
  }
  Leaf merged;
  MergeTree(parts, levels, kRows, kValues, merged.view());
  return merged;
}

constexpr uint32_t kLevels = 6;

Leaves RandomLeaves(std::mt19937& rng) {
  Leaves leaves;
  for (uint32_t ordinal = 0; ordinal < (1u << kLevels); ++ordinal) {
    if (rng() % 3 != 0) leaves[ordinal] = RandomLeaf(rng);
  }
  return leaves;
}

TEST(MergeTree, IsItsDefinition) {
  std::mt19937 rng(1);
  for (int i = 0; i < 100; ++i) {
    const Leaves leaves = RandomLeaves(rng);
    ASSERT_TRUE(Tree(leaves) == Node(leaves, 0, kLevels)) << "leaves " << i;
  }
}

// Replaces every aligned subtree whose leaves have one holder by its sum.
void MergeWholeSubtrees(const std::map<uint32_t, int>& holder_of, uint32_t begin, uint32_t level,
                        const Leaves& leaves, Leaves& merged) {
  const auto first = holder_of.lower_bound(begin);
  const auto last = holder_of.lower_bound(begin + (1u << level));
  if (first == last) return;
  const bool whole =
      std::all_of(first, last, [&](const auto& one) { return one.second == first->second; });
  if (whole) {
    merged[first->first] =
        Tree(Leaves(leaves.lower_bound(begin), leaves.lower_bound(begin + (1u << level))));
    return;
  }
  MergeWholeSubtrees(holder_of, begin, level - 1, leaves, merged);
  MergeWholeSubtrees(holder_of, begin + (1u << (level - 1)), level - 1, leaves, merged);
}

TEST(MergeTree, DoesNotDependOnThePlacement) {
  std::mt19937 rng(2);
  for (int i = 0; i < 300; ++i) {
    const Leaves leaves = RandomLeaves(rng);
    std::map<uint32_t, int> holder_of;
    const int holders = 1 + int(rng() % 5);
    const uint32_t run = 1 + rng() % 9;
    for (const auto& [ordinal, leaf] : leaves)
      holder_of[ordinal] = run == 9 ? int(rng() % holders) : int(ordinal / run) % holders;
    Leaves merged;
    MergeWholeSubtrees(holder_of, 0, kLevels, leaves, merged);
    ASSERT_TRUE(Tree(merged) == Tree(leaves)) << "placement " << i;
  }
}

TEST(MergeTree, ARunOfLeavesIsFewSubtrees) {
  for (uint32_t begin = 0; begin < 64; ++begin) {
    for (uint32_t end = begin + 1; end <= 64; ++end) {
      Leaves leaves, merged;
      std::map<uint32_t, int> holder_of;
      for (uint32_t i = 0; i < 64; ++i) {
        leaves[i];
        holder_of[i] = i >= begin && i < end ? 1 : 2 + int(i);
      }
      MergeWholeSubtrees(holder_of, 0, kLevels, leaves, merged);
      const uint32_t others = 64 - (end - begin);
      EXPECT_LE(merged.size() - others, 2 * std::bit_width(end - begin)) << begin << " to " << end;
    }
  }
}

TEST(MergeTree, PartsOfHigherLevelsAreFoldedFromTheLeft) {
  std::mt19937 rng(3);
  std::vector<Leaf> leaves;
  std::vector<ConstPartialView> parts;
  for (int i = 0; i < 4; ++i) leaves.push_back(RandomLeaf(rng));
  for (const Leaf& leaf : leaves) parts.push_back(leaf.view());
  Leaf folded = leaves[0];
  for (int i = 1; i < 4; ++i) {
    const ConstPartialView pair[] = {folded.view(), leaves[i].view()};
    Leaf next;
    MergePartials(pair, kRows, kValues, next.view());
    folded = next;
  }
  for (const std::vector<uint8_t>& levels :
       {std::vector<uint8_t>{0, 32, 33, kTreeLevelMax}, std::vector<uint8_t>{9, 5, 5, 5}}) {
    Leaf merged;
    MergeTree(parts, levels, kRows, kValues, merged.view());
    EXPECT_TRUE(merged == folded);
  }
}

TEST(MergeTree, RoundsToBf16OnceAndTakesIt) {
  std::mt19937 rng(4);
  const Leaves leaves = RandomLeaves(rng);
  const Leaf whole = Tree(leaves);
  std::vector<ConstPartialView> parts;
  std::vector<uint8_t> levels;
  uint32_t last = 0;
  for (const auto& [ordinal, leaf] : leaves) {
    levels.push_back(TreeLevel(last, ordinal + 64));
    if (!parts.empty()) levels.back() = TreeLevel(last, ordinal);
    parts.push_back(leaf.view());
    last = ordinal;
  }
  std::vector<uint16_t> o(kRows * kValues);
  Leaf out;
  const PartialView rounded = {o.data(), out.m.data(), out.l.data(), PartialDtype::kBf16};
  MergeTree(parts, levels, kRows, kValues, rounded);
  EXPECT_EQ(out.m, whole.m);
  EXPECT_EQ(out.l, whole.l);
  for (size_t i = 0; i < o.size(); ++i) EXPECT_EQ(o[i], Bf16FromFloat(whole.o[i])) << i;
  // A part in bf16 counts with its rounded values.
  const ConstPartialView one[] = {rounded};
  const uint8_t level[] = {0};
  Leaf widened;
  MergeTree(one, level, kRows, kValues, widened.view());
  for (size_t i = 0; i < o.size(); ++i) EXPECT_EQ(widened.o[i], FloatFromBf16(o[i])) << i;
}

TEST(MergeTree, MergesNothingToTheEmptyPartial) {
  Leaf out = Leaf();
  out.o.assign(out.o.size(), 7);
  MergeTree({}, {}, kRows, kValues, out.view());
  EXPECT_TRUE(out == Leaf());
}

// The deepest tree: each part waits for all behind it.
TEST(MergeTree, TakesEveryLevelAtOnce) {
  std::mt19937 rng(5);
  std::vector<Leaf> leaves;
  std::vector<ConstPartialView> parts;
  std::vector<uint8_t> levels = {0};
  for (uint32_t i = 0; i <= kTreeLevelMax + 1u; ++i) leaves.push_back(RandomLeaf(rng));
  for (const Leaf& leaf : leaves) parts.push_back(leaf.view());
  for (int level = kTreeLevelMax; level >= 0; --level) levels.push_back(uint8_t(level));
  Leaf folded = leaves.back();
  for (size_t i = leaves.size() - 1; i-- > 0;) {
    const ConstPartialView pair[] = {leaves[i].view(), folded.view()};
    Leaf next;
    MergePartials(pair, kRows, kValues, next.view());
    folded = next;
  }
  Leaf merged;
  MergeTree(parts, levels, kRows, kValues, merged.view());
  EXPECT_TRUE(merged == folded);
}

}  // namespace
}  // namespace ckv
