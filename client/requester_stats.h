// The counters of a requester, for users and metrics.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/holders/corpus_meter.h"
#include "client/prefetch/prefetch_reason.h"
#include "proto/base/clock.h"
#include "proto/base/latency_histogram.h"
#include "transport/fabric.h"

namespace ckv {

struct PrefetcherStats;  // client/prefetch/prefetch_plan.h
struct CallCounters;     // client/holders/counters.h

// The local row cache, and the gain of prefetching by the cost model. Times are in microseconds.
struct LocalRowStats {
  uint64_t bytes = 0;  // in use, of bytes_max
  uint64_t bytes_max = 0;
  uint32_t chunk_count = 0;
  uint64_t prefetch_count = 0;  // chunk ranges
  uint64_t prefetch_failed_count = 0;
  uint64_t eviction_count = 0;
  uint64_t prefetched_bytes = 0;
  uint64_t mapped_bytes = 0;            // rows of holders on this host, used in place
  double routed_us = 0;                 // lost by routing what could have been cached locally
  double saved_us = 0;                  // saved by rows that were cached locally
  double prefetched_us = 0;             // the time of all prefetches
  uint64_t recomputed_token_count = 0;  // by contexts' own functions
  LatencyCounts recompute;              // the time of each recomputation of a chunk range
  // How often each decision was made for a use of a chunk range, [primitive][reason].
  DecisionCounts decisions{};
};

// How long successful calls took, from their first attempt.
struct RequesterLatency {
  LatencyCounts route;     // attends that queried a holder
  LatencyCounts cached;    // attends over local rows only
  LatencyCounts fetch;     // fetches of rows, of selected rows and into caches
  LatencyCounts prefetch;  // slices of rows that the requester prefetched
  // By FabricKind: the time from posting a frame to its reply, minus the time that the holder
  // reports for waiting and computing.
  std::array<LatencyCounts, kFabricKindEnd> lanes;
};

// Counters over all calls since the requester was made.
struct RequesterStats {
  uint64_t discarded_reply_count = 0;  // replies that no call waited for (I1)
  uint64_t rdma_fallback_count = 0;    // lanes on tcp that should use verbs
  uint64_t retry_count = 0;            // retries that overloaded holders requested
  // Retries requested but not made, because the budget was spent (client/holders/retry.h).
  uint64_t retry_refused_count = 0;
  uint64_t failover_count = 0;  // attempts repeated with another replica
  // Attends that were sent to replicas as well, because their holders were late, and those of them
  // that the replicas answered first.
  uint64_t hedge_count = 0, hedge_won_count = 0;
  uint64_t reopen_count = 0;  // attempts repeated over a new session
  uint64_t return_count = 0;  // attempts repeated after waiting for a holder
  // The time that successful attends lost to failed attempts and the waits between them.
  Duration lost{0};
  uint64_t fetch_count = 0;    // calls of Fetch, FetchSelection and FetchInto
  uint64_t select_count = 0;   // calls of SelectRows
  uint64_t explain_count = 0;  // calls of Explain
  // Tokens of all opened contexts: without ckv, each would have been prefilled again.
  uint64_t reused_token_count = 0;
  LocalRowStats local_cache;
  RequesterLatency latency;
  std::vector<CorpusCalls> hottest;  // see CorpusMeter::Hottest

  // Calls `visit` with each displayed name and its counts. Lanes are visited only for fabrics in
  // use.
  template <typename Visit>
  void ForEachLatency(Visit visit) const {
    visit("route", latency.route);
    visit("cached", latency.cached);
    visit("fetch", latency.fetch);
    visit("prefetch", latency.prefetch);
    visit("local", local_cache.recompute);
    for (size_t i = 0; i < latency.lanes.size(); ++i) {
      if (latency.lanes[i].total() > 0)
        visit("lane " + std::string(FabricName(FabricKind(i))), latency.lanes[i]);
    }
  }
};

// Combines the counters of a requester's parts. Returns at most `corpus_count_max` of the hottest
// corpora.
RequesterStats StatsOf(const CallCounters& counters, const PrefetcherStats& prefetcher,
                       size_t corpus_count_max);

}  // namespace ckv
