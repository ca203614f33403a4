// Goal: no compiler moves, drops or delays a store or a load across the assembler of the tile unit.
// Method: operands that only the unit reads, overwritten as soon as it has loaded them, and sums
// that only it writes, over memory whose values the compiler knows. Products of small integers,
// which are exact, are compared with plain arithmetic. The same over the unit's model, on every
// machine. From -O1 on, gcc 12 makes wrong sums of it if a load or a store lacks its clobber.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/bf16.h"
#include "attention/matrix/matrix_kernel.h"
#include "hwy/base.h"

#define CKV_MATRIX_LAMBDA

#include "attention/matrix/lanes_portable.h"
// Must follow the lanes.
#include "attention/matrix/tile_amx.inl.h"
#include "attention/matrix/tile_model.inl.h"

namespace ckv::matrix {
namespace {

constexpr int kRounds = 100;

// Rows of 32 values of a tile, from 0 to 6. 32 products of two sum up to 1152, exactly in f32.
struct alignas(64) Operand {
  uint16_t values[16 * 32];
};
int ValueAt(int seed, int i) { return (seed * 5 + i * 3 + i / 7) % 7; }
HWY_NOINLINE Operand MakeOperand(int seed) {
  Operand operand;
  for (int i = 0; i < 16 * 32; ++i)
    operand.values[i] = Bf16FromFloat(static_cast<float>(ValueAt(seed, i)));
  return operand;
}

// Row m, column n of the product: the unit takes pairs of B's rows side by side.
int ProductAt(int a, int b, int m, int n) {
  int sum = 0;
  for (int k = 0; k < 16; ++k) {
    for (int half = 0; half < 2; ++half)
      sum += ValueAt(a, 32 * m + 2 * k + half) * ValueAt(b, 32 * k + 2 * n + half);
  }
  return sum;
}

struct alignas(64) Sums {
  float values[16 * 16];
};
int WrongIn(const Sums& sums, int a, int b) {
  int wrong = 0;
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n)
      wrong += sums.values[16 * m + n] != static_cast<float>(ProductAt(a, b, m, n));
  }
  return wrong;
}

// Fills stack memory with bytes that no other code stored.
HWY_NOINLINE void SoilStack() {
  volatile unsigned char soil[4096];
  for (size_t i = 0; i < sizeof(soil); ++i) soil[i] = 0xff;
}

template <class Tiles>
HWY_NOINLINE int WrongOperands() {
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Operand made[4] = {MakeOperand(round), MakeOperand(round + 1), MakeOperand(round + 2),
                             MakeOperand(round + 3)};
    // Locals, stored whole: without the clobbers the first operands would be dead stores, and the
    // first sums the copy of the previous contents.
    Operand a, b;
    Sums sums = {}, first;
    Tiles tiles;
    SoilStack();
    Tiles::Configure();
    a = made[0];
    tiles.template Load<4>(a.values, 64);
    a = made[2];
    b = made[1];
    tiles.template LoadOnce<6>(b.values, 64);
    b = made[3];
    tiles.template Zero<0>();
    tiles.template Dot<0, 4, 6>();
    sums = {};
    tiles.template Store<0>(sums.values);
    first = sums;
    sums = {};
    tiles.template Load<5>(a.values, 64);
    tiles.template LoadOnce<7>(b.values, 64);
    tiles.template Zero<1>();
    tiles.template Dot<1, 5, 7>();
    tiles.template Store<1>(sums.values);
    Tiles::Release();
    wrong += WrongIn(first, round, round + 1) + WrongIn(sums, round + 2, round + 3);
  }
  return wrong;
}

// Every tile is whole: 16 rows of 64 bytes, each at its stride.
template <class Tiles, int kTile>
HWY_NOINLINE int WrongBytes() {
  constexpr size_t kStride = 192;
  alignas(64) std::array<unsigned char, 16 * kStride> from;
  alignas(64) std::array<unsigned char, 16 * 64> to;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + kTile);
  to.fill(0);
  Tiles tiles;
  SoilStack();
  Tiles::Configure();
  tiles.template Load<kTile>(from.data(), kStride);
  tiles.template Store<kTile>(to.data());
  int wrong = 0;
  for (size_t i = 0; i < to.size(); ++i) wrong += to[i] != from[i / 64 * kStride + i % 64];
  tiles.template Zero<kTile>();
  tiles.template Store<kTile>(to.data());
  for (const unsigned char byte : to) wrong += byte != 0;
  Tiles::Release();
  return wrong;
}

template <class Tiles>
void ExpectNothingWrong() {
  EXPECT_EQ(WrongOperands<Tiles>(), 0);
  EXPECT_EQ((WrongBytes<Tiles, 0>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 1>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 2>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 3>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 4>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 5>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 6>()), 0);
  EXPECT_EQ((WrongBytes<Tiles, 7>()), 0);
}

TEST(TileUnit, StoresAndLoadsKeepTheirPlaces) {
#if defined(__x86_64__)
  if (!AmxUnit().usable)
    GTEST_SKIP() << "no AMX here: " << AmxUnit().why_not << "; to run it: a processor with AMX";
  ExpectNothingWrong<TileAmx<PortableLanes>>();
#else
  GTEST_SKIP() << "no AMX here: not an x86-64 processor; to run it: a processor with AMX";
#endif
}

TEST(TileUnit, ModelStoresAndLoadsKeepTheirPlaces) {
  ExpectNothingWrong<TileModel<PortableLanes>>();
}

}  // namespace
}  // namespace ckv::matrix
