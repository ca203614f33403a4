// Goal: events come in the order of their times, and equal times in the order of their pushes.

#include "client/simulate/event_queue.h"

#include <vector>

#include "client/simulate/random.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

enum class Kind { kOne, kTwo };

TEST(EventQueue, OrdersByTimeThenByPush) {
  EventQueue<Kind> events;
  events.Push(2, Kind::kOne, 0);
  events.Push(1, Kind::kTwo, 1);
  events.Push(2, Kind::kTwo, 2);
  events.Push(1, Kind::kOne, 3);
  std::vector<uint32_t> order;
  while (!events.empty()) order.push_back(events.Pop().index);
  EXPECT_EQ(order, (std::vector<uint32_t>{1, 3, 0, 2}));
}

TEST(SimRandom, HasTheMomentsOfItsDistributions) {
  SimRandom random(1);
  double sum = 0, exponential = 0;
  constexpr int kCount = 100000;
  std::vector<int> counts(10);
  for (int i = 0; i < kCount; ++i) {
    sum += random.Share();
    exponential += random.Exponential(3);
    ++counts[random.Below(10)];
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(exponential / kCount, 3, 0.05);
  for (const int count : counts) EXPECT_NEAR(count, kCount * 0.1, 500);
  EXPECT_EQ(SimRandom(5).Next(), SimRandom(5).Next());
  EXPECT_NE(SimRandom(5).Next(), SimRandom(6).Next());
}

}  // namespace
}  // namespace ckv
