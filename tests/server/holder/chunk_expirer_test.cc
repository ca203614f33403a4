// Goal: expired chunks are removed off the thread that ticks, whatever their device does.

#include "server/holder/chunk_expirer.h"

#include <chrono>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "tests/store/store_fixture.h"

namespace ckv {
namespace {

struct ChunkExpirerTest : StoreFixture {
  ChunkExpirerTest() : StoreFixture(2, 4) {}
};

TEST_F(ChunkExpirerTest, ADeviceThatHangsHoldsUpNoTick) {
  for (const SmallChunk& chunk : chunks) {
    ChunkPut put = *store->Begin(chunk.info, geometry);
    put.set_ttl(std::chrono::nanoseconds(1));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
      ASSERT_TRUE(put.Write(l, 0, chunk.layers[l]).ok());
    ASSERT_TRUE(std::move(put).Finish().ok());
  }
  absl::Notification reached, goes_on;
  files.set_hook([&](FaultFileSystem::Call call, const std::string&) {
    if (call == FaultFileSystem::Call::kRemove && !reached.HasBeenNotified()) {
      reached.Notify();
      goes_on.WaitForNotification();
    }
    return absl::OkStatus();
  });
  ChunkExpirer expirer(store.get());
  expirer.Tick();
  reached.WaitForNotification();
  expirer.Tick();                                   // and returns
  EXPECT_EQ(store->stats().table.chunk_count, 1u);  // the other waits for the device
  goes_on.Notify();
  const Instant give_up = Clock::Real()->Now() + std::chrono::seconds(20);
  while (store->stats().table.chunk_count > 0 && Clock::Real()->Now() < give_up) {
    expirer.Tick();
    std::this_thread::yield();
  }
  EXPECT_EQ(store->stats().table.chunk_count, 0u);
}

}  // namespace
}  // namespace ckv
