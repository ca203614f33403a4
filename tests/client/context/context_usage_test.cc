// Goal: a context notifies its watcher when it has made the awaited number of calls, or earlier if
// facts have changed.
// Method: calls counted by hand, and a watcher that counts its notifications.

#include "client/context/context_usage.h"

#include <cstdint>
#include <memory>

#include "gtest/gtest.h"

namespace ckv {
namespace {

// LookNow notifies a watcher that waits for many calls, at once and only once until the next
// SetDueAt.
TEST(ContextUsage, NotifiesItsWatcherOnceNotToWait) {
  struct Counter final : ContextWatcher {
    void Due(uint64_t context_id) override { count += context_id == 5 ? 1 : 100; }
    int count = 0;
  };
  ContextUsage usage;
  usage.LookNow();  // no watcher yet
  const auto watcher = std::make_shared<Counter>();
  usage.Watch(watcher, 5);
  usage.SetDueAt(1000);
  usage.CountCall({});
  EXPECT_EQ(watcher->count, 0);
  for (int i = 0; i < 3; ++i) {
    usage.LookNow();
    usage.CountCall({});
    EXPECT_EQ(watcher->count, 1);
  }
  usage.SetDueAt(1000);
  usage.LookNow();
  EXPECT_EQ(watcher->count, 2);
}

}  // namespace
}  // namespace ckv
