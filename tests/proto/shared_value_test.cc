#include "proto/base/shared_value.h"

#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

namespace ckv {
namespace {

using Shared = SharedValue<std::vector<int>>;

TEST(SharedValue, IsAPointerAndBeginsAsADefaultValue) {
  static_assert(sizeof(Shared) == sizeof(void*));
  const Shared none;
  EXPECT_TRUE(none->empty());
  EXPECT_EQ(none, Shared());
}

TEST(SharedValue, CopiesShareTheValueUntilOneIsChanged) {
  Shared a;
  a.Change() = {1, 2};
  Shared b = a;
  EXPECT_EQ(&*a, &*b);
  b.Change().push_back(3);
  EXPECT_EQ(*a, (std::vector<int>{1, 2}));
  EXPECT_EQ(*b, (std::vector<int>{1, 2, 3}));
  const std::vector<int>* const own = &*b;
  b.Change().push_back(4);
  EXPECT_EQ(&*b, own) << "a value of its own is changed in place";
}

TEST(SharedValue, IsEqualByValue) {
  Shared a, b;
  a.Change() = {1};
  EXPECT_NE(a, b);
  b.Change() = {1};
  EXPECT_EQ(a, b);
  a.Change().clear();
  EXPECT_EQ(a, Shared());
}

TEST(SharedValue, IsAssignedFromItselfAndMovedFrom) {
  Shared a;
  a.Change() = {1};
  const Shared& same = a;
  a = same;
  EXPECT_EQ(*a, std::vector<int>{1});
  const Shared b = std::move(a);
  EXPECT_EQ(*b, std::vector<int>{1});
}

// A sanitizer finds a count that is not atomic.
TEST(SharedValue, ThreadsCopyAndChangeTheirCopies) {
  Shared a;
  a.Change() = {0};
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([own = a, t]() mutable {
      for (int i = 0; i < 1000; ++i) {
        Shared copy = own;
        copy.Change()[0] = t;
        ASSERT_EQ((*copy)[0], t);
        ASSERT_EQ((*own)[0], 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*a)[0], 0);
}

}  // namespace
}  // namespace ckv
