// How a requester reaches its holders: options for it and a view of each holder.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cost/profile.h"
#include "client/cost/ratio_histogram.h"
#include "transport/control.h"
#include "transport/fabric.h"

namespace ckv {

// The action if both sides have verbs, no verbs lane comes up, and tcp is the next choice.
enum class RdmaFallback : uint8_t {
  kRefuse,  // fail: the call is Unavailable
  // Use a lane on tcp, which is logged, counted and shown.
  kTcp,
};

// A fabric to a holder, as measured when this requester last chose one.
struct FabricTrial {
  FabricKind fabric = FabricKind::kTcp;
  // The constants are 0 if they were not measured. The bandwidth is also 0 if it is beyond what the
  // probe can detect. If full slots did not arrive in time, it is the bandwidth that they would
  // have needed.
  FabricConstants constants;
  // Predicted time for kNominalExchangeBytes (client/holders/fabric_choice.h). `exchange_us` uses
  // the second best round trip, as the constants do, and `exchange_p50_us` the median one. 0 means
  // that it was not measured.
  double exchange_us = 0;
  double exchange_p50_us = 0;
  // Why no lane of the fabric could be opened. Empty if one was opened and probed.
  std::string why_not;
};

// One holder as this requester sees it.
struct HolderView {
  // As of the last connection, except its id. Empty before the first.
  Member member;
  // True if the holder is a member of the directory and some call context has a lane to it. False
  // once a context has found a lane broken, until the next one is opened. A holder that has just
  // failed may seem connected until its lease expires or a lane is next used.
  bool connected = false;
  // When the holder was not reached: the last attempt to open a session, and the first of the
  // failed attempts since one succeeded. Unset if the last attempt succeeded, or if the directory
  // has reported a later incarnation since.
  std::optional<Instant> unreached_at, unreached_since;
  FabricKind fabric = FabricKind::kTcp;  // the fabric of the last lane opened
  // As last measured, which may be long ago. 0 if they were never measured.
  FabricConstants constants;
  uint32_t in_flight = 0;   // requests posted and not answered, over all call contexts
  uint32_t lane_count = 0;  // open lanes, over all call contexts
  // The fabrics that were compared, in order of preference. Empty if there was no choice.
  std::vector<FabricTrial> trials;
  // Why the fabric is tcp although it should be verbs. Empty if that is not the case.
  std::string fallback;
  // The recent error of the cost model: the median of |measured / predicted - 1| from post to
  // answer. Covers the last 64 dense calls that were one frame and were the only ones in progress.
  // Unset before 16 of them. Also unset while the fabric was never probed or the kernel's time is
  // unknown.
  std::optional<double> model_error;
  // Measured / predicted since the start: of the same calls, and of prefetched slices.
  RatioCounts route_ratios;
  RatioCounts prefetch_ratios;
};

}  // namespace ckv
