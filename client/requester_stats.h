// The counters of a requester, for people and metrics.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/act/act_reason.h"
#include "client/holders/corpus_meter.h"
#include "proto/base/clock.h"
#include "proto/base/latency_histogram.h"
#include "transport/fabric.h"

namespace ckv {

struct ActorStats;    // client/act/actor.h
struct CallCounters;  // client/holders/counters.h

// The near store, and what pulling gained by the cost model. Times are microseconds.
struct RequesterNearStats {
  uint64_t bytes = 0;  // in use, of bytes_max
  uint64_t bytes_max = 0;
  uint32_t chunk_count = 0;
  uint64_t pull_count = 0;  // a run of chunks each
  uint64_t pull_failed_count = 0;
  uint64_t eviction_count = 0;
  uint64_t pulled_bytes = 0;
  uint64_t mapped_bytes = 0;            // rows of holders on this host, used where they lie
  double routed_us = 0;                 // lost by routing what could have been near
  double saved_us = 0;                  // saved by what was near
  double pulled_us = 0;                 // the time of all pulls
  uint64_t recomputed_token_count = 0;  // made anew by contexts' own functions
  LatencyCounts recompute;              // each time that a run's rows were made anew
  // How often a use of a run was decided so, [primitive][reason].
  DecisionCounts decisions{};
};

// How long calls that succeeded took, from their first attempt on.
struct RequesterLatency {
  LatencyCounts route;  // attends that asked a holder
  LatencyCounts near;   // attends of rows that were here
  LatencyCounts fetch;  // fetches of rows, of selected rows and into caches
  LatencyCounts pull;   // slices of rows that the requester brought near by itself
  // From posting a frame to its reply, less what the holder says that it waited and computed there;
  // by FabricKind.
  std::array<LatencyCounts, kFabricKindEnd> lanes;
};

// Counters since the requester was made, over all calls.
struct RequesterStats {
  uint64_t discarded_reply_count = 0;  // replies that nobody waited for (I1)
  uint64_t rdma_fallback_count = 0;    // lanes on tcp that should use verbs
  uint64_t retry_count = 0;            // retries that overloaded holders asked for
  // Retries asked for but not made, because the budget was spent (client/holders/retry.h).
  uint64_t retry_refused_count = 0;
  uint64_t failover_count = 0;  // attempts made again with another replica
  uint64_t reopen_count = 0;    // attempts made again over a new session
  uint64_t return_count = 0;    // attempts made after waiting for a holder
  // The time that successful attends lost to failed attempts and the waits between them.
  Duration lost{0};
  uint64_t fetch_count = 0;    // calls of Fetch, FetchSelection and FetchInto
  uint64_t explain_count = 0;  // calls of Explain
  // Tokens of all contexts that were opened: each would have been prefilled again without ckv.
  uint64_t reused_token_count = 0;
  RequesterNearStats near;
  RequesterLatency latency;
  std::vector<CorpusCalls> hottest;  // see CorpusMeter::Hottest

  // Calls `visit` with each name that people see, and its counts: those of lanes only for fabrics
  // that were used.
  template <typename Visit>
  void ForEachLatency(Visit visit) const {
    visit("route", latency.route);
    visit("near", latency.near);
    visit("fetch", latency.fetch);
    visit("pull", latency.pull);
    visit("local", near.recompute);
    for (size_t i = 0; i < latency.lanes.size(); ++i) {
      if (latency.lanes[i].total() > 0)
        visit("lane " + std::string(FabricName(FabricKind(i))), latency.lanes[i]);
    }
  }
};

// Puts together what the parts of a requester count. The hottest corpora are at most
// `corpus_count_max`.
RequesterStats StatsOf(const CallCounters& counters, const ActorStats& actor,
                       size_t corpus_count_max);

}  // namespace ckv
