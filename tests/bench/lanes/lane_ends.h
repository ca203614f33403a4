// The two ends of a lane for benchmarks, and where their threads run.

#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "proto/base/status.h"
#include "transport/fabric.h"

namespace ckv::bench {

// The two ends on two CPUs: on one they would wait for each other's time slices.
inline void Pin(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu % std::max(std::thread::hardware_concurrency(), 1u), &set);
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// Of this thread and those that it starts.
inline void Unpin() {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &set);
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

struct LanePair {
  std::unique_ptr<RequestLane> request;
  std::unique_ptr<ServeLane> serve;
};

inline LanePair MakePair(Fabric& fabric, const LaneShape& shape) {
  auto listener = fabric.Listen({});
  CKV_CHECK(listener.ok());
  auto dialer = fabric.Dial(shape);
  CKV_CHECK(dialer.ok());
  auto answer = (*listener)->Invite((*dialer)->offer(), shape, "", 0, kInstantMax);
  CKV_CHECK(answer.ok());
  LanePair pair;
  std::thread connector([&] {
    auto lane = (*dialer)->Connect(*answer, kInstantMax);
    CKV_CHECK(lane.ok());
    pair.request = *std::move(lane);
  });
  while (!pair.serve) {
    if (std::optional<AcceptedLane> lane = (*listener)->Accept()) {
      pair.serve = std::move(lane->lane);
    }
  }
  connector.join();
  return pair;
}

}  // namespace ckv::bench
